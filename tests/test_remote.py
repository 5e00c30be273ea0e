"""Checkpoints whose own code runs: small ones are written here, with their code, weights and tokenizer."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors

import unmask
from unmask.core.state import begin
from unmask.errors import InputError, ModelError
from unmask.models.laws import check
from unmask.models.tokenizers import Numbers, read_tokenizer

LETTERS = "abcdefgh "
EOS, PAD, MASK = 9, 10, 11
WIDTH, ROWS = 16, 12
ESMC = unmask.Recipe(search="smc", particles=4, temperature=1.0, length=8, sampler="uniform", every=2)
TEMPLATE = "{% for m in messages %}{{ m.content }} {% endfor %}{% if add_generation_prompt %}a{% endif %}"
LOAD = pytest.mark.filterwarnings("ignore:the code of")

CONFIGURATION = """
from transformers import PretrainedConfig


class MeanConfig(PretrainedConfig):
    model_type = "mean"

    def __init__(self, vocab_size=12, width=16, **rest):
        super().__init__(**rest)
        self.vocab_size, self.width = vocab_size, width
"""

# Every position sees the mean of all and its left neighbour, so padding or a lost neighbour would show.
MODELING = """
from pathlib import Path

import torch
from transformers import PreTrainedModel
from transformers.modeling_outputs import MaskedLMOutput

from .configuration_mean import MeanConfig

Path(MARKER).touch()


class Mean(PreTrainedModel):
    config_class = MeanConfig

    def __init__(self, config):
        super().__init__(config)
        self.embed = torch.nn.Embedding(config.vocab_size, config.width)
        self.head = torch.nn.Linear(config.width, config.vocab_size, bias=False)
        self.post_init()

    def _init_weights(self, module):
        pass

    def get_input_embeddings(self):
        return self.embed

    def forward(self, input_ids):
        x = self.embed(input_ids)
        left = torch.nn.functional.pad(x, (0, 0, 1, 0))[:, :-1]
        return MaskedLMOutput(logits=self.head(torch.tanh(x + x.mean(1, keepdim=True) + 0.5 * left)))


class Bare(Mean):
    def forward(self, input_ids):
        return {"last_hidden_state": self.embed(input_ids)}


class Odd(Mean):
    def forward(self, input_ids):
        return MaskedLMOutput(logits=self.embed(input_ids)[0])


class Broken(Mean):
    def __init__(self, config):
        raise RuntimeError("\\n no luck today\\nand more")
"""


@pytest.fixture(scope="module", autouse=True)
def _offline(tmp_path_factory):
    """Copies of the code go to a temporary folder, and nothing opens a connection."""
    utils = pytest.importorskip("transformers.dynamic_module_utils")

    def refuse(*_):
        raise AssertionError("a test went to the network")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(utils, "HF_MODULES_CACHE", str(tmp_path_factory.mktemp("modules")))
        patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        patch.setattr(sys, "path", list(sys.path))
        patch.setattr(socket.socket, "connect", refuse)
        yield
    for module in [name for name in sys.modules if name.startswith("transformers_modules")]:
        del sys.modules[module]


def weights() -> dict[str, torch.Tensor]:
    dice = torch.Generator().manual_seed(0)
    return {f"{name}.weight": torch.randn(ROWS, WIDTH, generator=dice) for name in ("embed", "head")}


def checkpoint(where: Path, *, classes: dict[str, str] | None = None, words: bool = True, **config: object) -> Path:
    """A directory as it would be published; `classes` is what auto_map offers beside the config."""
    where.mkdir()
    offered = {kind: f"modeling_mean.{name}" for kind, name in (classes or {"AutoModelForMaskedLM": "Mean"}).items()}
    about = {
        "model_type": "mean",
        "vocab_size": ROWS,
        "width": WIDTH,
        "max_sequence_length": 64,
        "auto_map": {"AutoConfig": "configuration_mean.MeanConfig", **offered},
        **config,
    }
    (where / "config.json").write_text(json.dumps(about))
    (where / "configuration_mean.py").write_text(CONFIGURATION)
    (where / "modeling_mean.py").write_text(MODELING.replace("MARKER", repr(str(where / "ran"))))
    save_file(weights(), where / "model.safetensors", metadata={"format": "pt"})
    if words:
        tokenizer(where)
    return where


def tokenizer(where: Path) -> None:
    """Letters, three special tokens, and an EOS after every text, which a prompt must not get."""
    specials = {"[EOS]": EOS, "[PAD]": PAD, "[MASK]": MASK}
    table = {letter: number for number, letter in enumerate(LETTERS)}
    fast = Tokenizer(models.WordLevel({**table, **specials}, unk_token="[PAD]"))
    fast.add_special_tokens(list(specials))
    fast.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    fast.post_processor = processors.TemplateProcessing(single="$A [EOS]", special_tokens=[("[EOS]", EOS)])
    fast.save(str(where / "tokenizer.json"))
    names = {"eos_token": "[EOS]", "pad_token": "[PAD]", "mask_token": "[MASK]", "chat_template": TEMPLATE}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **names}
    (where / "tokenizer_config.json").write_text(json.dumps(settings))


def load(where: Path, **options: object) -> unmask.Denoiser:
    return unmask.load(where, trust_remote_code=True, **options)


@pytest.fixture(scope="module")
def model(tmp_path_factory, _offline):
    where = checkpoint(tmp_path_factory.mktemp("remote") / "mean")
    with pytest.warns(UserWarning, match="runs with your rights"):
        return load(where)


def logits(tokens: list[int]) -> torch.Tensor:
    """What the network gives, by hand."""
    x, head = weights()["embed.weight"][tokens], weights()["head.weight"]
    left = torch.cat([torch.zeros(1, WIDTH), x[:-1]])
    return torch.tanh(x + x.mean(0) + 0.5 * left) @ head.T


def seen(model: unmask.Denoiser, rows: list[list[int]]) -> list[torch.Tensor]:
    """The logits of these rows in one left-padded state, padding taken off again."""
    longest = max(map(len, rows))
    tokens = torch.tensor([[PAD] * (longest - len(row)) + row for row in rows])
    attend = torch.tensor([[False] * (longest - len(row)) + [True] * len(row) for row in rows])
    state = begin(tokens, attend & (tokens == MASK), attend, torch.zeros(len(rows)).long(), model.vocab, 1)
    hidden, cache = model.look(state, torch.arange(len(rows)))
    assert cache is None and not hidden[~attend].any()
    return [model.head.logits(each[longest - len(row) :]) for each, row in zip(hidden, rows, strict=True)]


# --- before anything runs --------------------------------------------------------------------------------------------


def test_without_the_flag_nothing_runs(tmp_path):
    where = checkpoint(tmp_path / "untrusted")
    with pytest.raises(ModelError, match=r"model_type is 'mean'.*trust_remote_code"):
        unmask.load(where)
    assert not (where / "ran").exists()


def test_with_it_the_code_runs_and_a_warning_says_so(tmp_path):
    where = checkpoint(tmp_path / "trusted")
    with pytest.warns(UserWarning, match="trusted runs with your rights") as caught:
        load(where)
    assert (where / "ran").exists()
    assert any(warning.filename == __file__ for warning in caught if "your rights" in str(warning.message))


@pytest.mark.filterwarnings("error:the code of")
def test_a_warning_made_an_error_stops_the_code(tmp_path):
    where = checkpoint(tmp_path / "strict")
    with pytest.raises(UserWarning, match="your rights"):
        load(where)
    assert not (where / "ran").exists()


def test_without_transformers(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ModelError, match=r"needs transformers: pip install 'unmask\[remote\]'"):
        load(checkpoint(tmp_path / "alone"))


def test_a_name_that_leads_nowhere(tmp_path):
    with pytest.raises(ModelError, match="there is no directory"):
        load(tmp_path / "nothing")
    with pytest.raises(InputError, match="revision has no effect on the directory"):
        load(checkpoint(tmp_path / "here"), revision="main")


# --- what it gives ---------------------------------------------------------------------------------------------------


def test_facts(model):
    assert (model.vocab.mask, model.vocab.eos, model.vocab.pad) == (MASK, (EOS,), PAD)
    assert (model.head.width, model.head.weight, model.limit) == (ROWS, None, 64)
    assert (model.cost, model.timed, model.device) == (1, False, torch.device("cpu"))
    assert model.name.endswith("mean")
    assert not any(parameter.requires_grad for parameter in model.model.parameters())


def test_logits_are_those_of_the_weights(model):
    row = [0, 3, MASK, 5, MASK]
    torch.testing.assert_close(seen(model, [row])[0], logits(row))


def test_padding_is_never_seen(model):
    rows = [[0, 3, MASK, 5, MASK], [MASK], [7, MASK, MASK], [1, 2, MASK, 4, 5]]
    for row, found in zip(rows, seen(model, rows), strict=True):
        torch.testing.assert_close(found, logits(row))
    for row, found in zip(rows[1:3], seen(model, rows)[1:3], strict=True):
        torch.testing.assert_close(found, seen(model, [row])[0])


def test_only_the_asked_rows_run(model):
    rows = [[0, MASK], [1, 2, MASK], [3, MASK]]
    tokens = torch.tensor([[PAD, 0, MASK], [1, 2, MASK], [PAD, 3, MASK]])
    attend = tokens != PAD
    state = begin(tokens, tokens == MASK, attend, torch.zeros(3).long(), model.vocab, 1)
    hidden, _ = model.look(state, torch.tensor([2, 0]))  # all of them padded
    torch.testing.assert_close(hidden[:, 1:], torch.stack([logits(rows[2]), logits(rows[0])]))


@LOAD
def test_shift(tmp_path):
    shifted = load(checkpoint(tmp_path / "shifted"), shift=True)
    rows = [[0, 3, MASK, 5], [6, MASK]]
    for row, found in zip(rows, seen(shifted, rows), strict=True):
        own = logits(row)
        torch.testing.assert_close(found, torch.cat([own[:1], own[:-1]]))


@LOAD
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_dtype(tmp_path, dtype):
    found = load(checkpoint(tmp_path / f"in_{str(dtype)[6:]}"), dtype=dtype)
    tokens = torch.tensor([[0, MASK]])
    state = begin(tokens, tokens == MASK, tokens >= 0, torch.zeros(1).long(), found.vocab, 1)
    assert found.look(state, torch.tensor([0]))[0].dtype == dtype


def test_laws(model):
    broken = [verdict for verdict in check(model) if verdict.held is False]
    assert not broken


def test_decodes(model):
    result = unmask.decode(model, "abc", recipe=ESMC)
    assert len(result.tokens) == 11 and MASK not in result.tokens
    assert set(result.text) <= set(LETTERS)
    assert result.path_entropy > 0 and result.evaluations == 4 * 8
    assert result.tokens == unmask.decode(model, "abc", recipe=ESMC).tokens


def test_a_batch_equals_each_alone(model):
    prompts = ["abc", "h", "", "a bad cafe", "gef"]
    together = unmask.decode_batch(model, prompts, recipe=ESMC)
    for place, prompt in enumerate(prompts):
        alone = unmask.decode(model, prompt, recipe=ESMC.replace(seed=ESMC.seed + place))
        assert together[place].tokens == alone.tokens
        assert together[place].path_entropy == pytest.approx(alone.path_entropy, rel=1e-5)


# --- its words -------------------------------------------------------------------------------------------------------


def test_words_as_read_from_the_files(model):
    pieces = read_tokenizer(Path(model.name))
    for text in ("", "a bad cafe", "ab[MASK]c"):
        ids = model.tokenizer.encode(text)
        assert ids == pieces.encode(text)
        assert model.tokenizer.decode([*ids, EOS, 99, -1]) == pieces.decode([*ids, EOS, 99, -1])
    talk = [{"role": "user", "content": "bad"}, {"role": "user", "content": "cab"}]
    assert model.tokenizer.chat(talk) == pieces.chat(talk) == "bad cab a"


@LOAD
def test_no_template_and_one_that_refuses(tmp_path):
    where = checkpoint(tmp_path / "mute")
    settings = json.loads((where / "tokenizer_config.json").read_text())
    for template, message in (
        (None, "no chat template"),
        ("{{ raise_exception('no') }}", "refuses these messages: no"),
    ):
        (where / "tokenizer_config.json").write_text(json.dumps({**settings, "chat_template": template}))
        with pytest.raises(InputError, match=message):
            load(where).tokenizer.chat([{"role": "user", "content": "a"}])


@LOAD
def test_without_a_tokenizer(tmp_path):
    where = checkpoint(tmp_path / "numbers", words=False, mask_token_id=MASK, eos_token_id=[EOS, 3], pad_token_id=PAD)
    found = load(where)
    assert found.tokenizer == Numbers()
    assert (found.vocab.mask, found.vocab.eos, found.vocab.pad) == (MASK, (EOS, 3), PAD)
    assert unmask.decode(found, "1 2", recipe=unmask.Recipe(length=3)).tokens[:2] == [1, 2]


@LOAD
def test_the_mask(tmp_path):
    where = checkpoint(tmp_path / "maskless", words=False)
    with pytest.raises(ModelError, match=r"names a mask token.*mask_id"):
        load(where)
    with pytest.raises(ModelError, match="mask_id is 12: token ids go from 0 to 11"):
        load(where, mask_id=ROWS)
    assert load(where, mask_id=4).vocab.mask == 4


# --- what can go wrong -----------------------------------------------------------------------------------------------


@LOAD
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Bare", r"the model gives no logits: its code"),
        ("Odd", r"logits of shape \(1, 16\)"),
        ("Broken", r"cannot load .*/as_Broken by its own code: no luck today$"),
        ("Missing", r"cannot load .*/as_Missing by its own code: .*Missing"),
    ],
)
def test_code_that_fails(tmp_path, name, message):
    with pytest.raises(ModelError, match=message) as caught:
        load(checkpoint(tmp_path / f"as_{name}", classes={"AutoModel": name}))
    assert "\n" not in str(caught.value)


@LOAD
def test_code_that_fails_at_import(tmp_path):
    where = checkpoint(tmp_path / "at_import")
    for line, message in (("raise ValueError('nothing works')", "nothing works"), ("raise SystemExit", "SystemExit")):
        (where / "modeling_mean.py").write_text(line)
        with pytest.raises(ModelError, match=f"cannot load .*at_import by its own code: {message}"):
            load(where)


@LOAD
def test_damaged_files(tmp_path):
    where = checkpoint(tmp_path / "damaged")
    (where / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"cannot load .*damaged by its own code: "):
        load(where)
    (where / "tokenizer.json").write_text("{")
    save_file(weights(), where / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"cannot load .*damaged by its own code: "):
        load(where)


@LOAD
def test_a_class_with_a_head_goes_before_a_bare_one(tmp_path):
    found = load(checkpoint(tmp_path / "both", classes={"AutoModel": "Bare", "AutoModelForCausalLM": "Mean"}))
    assert found.head.width == ROWS
