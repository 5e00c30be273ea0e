"""What somebody types who has read only the README: names of other libraries, lists, objects of transformers."""

from __future__ import annotations

import warnings

import pytest
import torch

from unmask import SAMPLERS, Recipe, decode, decode_batch, load
from unmask.cli import judge, main, show
from unmask.cli.parser import COMMANDS, build
from unmask.errors import AlikeWarning, UnmaskError

EVEN = {"sampler": "uniform", "temperature": 1.0, "length": 3}


@pytest.fixture(scope="module")
def table():
    return load("table")


# --- Python ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"prompt": ["s", "te"]}, "decode takes one prompt, this is a list of 2: decode_batch takes several"),
        ({"prompt": [[1, 2], [3]]}, "decode takes one prompt, this is a list of 2"),
        ({"prompt": torch.tensor([[1, 2], [2, 3]])}, "decode takes one prompt, this is a list of 2"),
        ({"canvas": ["s[MASK]", "[MASK]"]}, "decode takes one prompt, this is a list of 2"),
        ({"prompt": "s", "n": 3}, "decode gives one result, n is for several: use decode_batch"),
        ({"prompt": "s", "seeds": [1]}, "decode gives one result, seeds is for several: use decode_batch"),
        ({"prompt": "s", "batch_size": 4}, "decode gives one result, batch_size is for several: use decode_batch"),
        ({"prompt": "s", "max_tokens": 4}, "unknown setting 'max_tokens': use length"),
        ({"prompt": "s", "do_sample": True}, "unknown setting 'do_sample': use temperature"),
        ({"prompt": "s", "num_return_sequences": 4}, "use decode_batch(model, prompts, n=…)"),
        ({"prompt": "s", "stop_strings": ["."]}, "unknown setting 'stop_strings': use stop"),
        ({"prompt": "s", "sampler": SAMPLERS["uniform"]()}, "sampler is a Reveal: give a name, or a function"),
        ({"prompt": "s", "particles": 4}, "leave it out, or use auto or best-of-n"),
    ],
)
def test_what_is_typed_once_names_the_way(table, given, words):
    with pytest.raises(UnmaskError) as error:
        decode(table, **given)
    assert words in str(error.value)


def test_a_name_is_not_a_model():
    with pytest.raises(UnmaskError, match=r"the model is a name, 'text': give load\('text'\)"):
        decode("text", "Once upon a time")  # type: ignore[arg-type]


def test_particles_that_are_all_the_same_are_warned_of(table):
    with pytest.warns(AlikeWarning, match="all 4 particles took the same path: with a temperature above 0") as found:
        decode(table, "s", length=3, search="auto", particles=4)
    assert found[0].filename == __file__
    with pytest.warns(AlikeWarning) as found:
        decode_batch(table, ["s", "te"], length=3, search="auto", particles=4, until=1e-9)
    assert found[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        decode(table, "s", length=3)
        decode(table, "s", **EVEN, search="auto", particles=4)


@pytest.mark.parametrize("more", [{}, {"until": 1e-9}])
def test_a_result_knows_its_prompt(table, more):
    found = decode_batch(table, ["se", [4, 1]], **EVEN, search="auto", particles=2, **more)
    assert [one.prompt for one in found] == ["se", [4, 1]] and [one.given for one in found] == [2, 2]
    assert all(one.tokens == [4, 1, *one.new_tokens] and len(one.new_tokens) == 3 for one in found)
    filled = decode(table, "s[MASK*2]")
    assert filled.prompt == "s[MASK*2]" and filled.new_tokens == filled.tokens


@pytest.mark.parametrize("name", ["random", "table"])
def test_a_model_moves_as_modules_of_torch_do(name):
    model = load(name)
    moved = model.to("cpu", "float64")
    assert decode(moved, "s", **EVEN).tokens == decode(load(name, dtype="float64"), "s", **EVEN).tokens
    half, weight = model.to(torch.bfloat16), lambda one: one.joint if name == "table" else one.network.embed.weight
    assert weight(half).dtype == torch.bfloat16 != weight(model).dtype, "the model has changed"
    with pytest.raises(UnmaskError, match=f"cannot load {name} on gpu: give cpu"):
        model.to("gpu")


def test_a_tokenizer_of_transformers_is_taken(tmp_path):
    from tokenizers import Tokenizer as Fast

    from unmask.models.made.fabricate import fabricate

    transformers = pytest.importorskip("transformers")
    fabricate("llada", tmp_path / "tiny")
    own, file = load(tmp_path / "tiny"), str(tmp_path / "tiny" / "tokenizer.json")
    template = own.tokenizer.template
    given = transformers.PreTrainedTokenizerFast(tokenizer_file=file, chat_template=template, bos_token="<s>")
    question, message = "How many?", [{"role": "user", "content": "How many?"}]
    for tokenizer in (given, Fast.from_file(file)):
        model = load(tmp_path / "tiny", tokenizer=tokenizer)
        assert model.tokenizer.encode(question) == own.tokenizer.encode(question)
    assert load(tmp_path / "tiny", tokenizer=given).tokenizer.template == template is not None
    encoded = given(question, return_tensors="pt", add_special_tokens=False)
    assert decode(own, encoded, length=2, steps=2).tokens == decode(own, question, length=2, steps=2).tokens
    assert decode(own, message, length=2, steps=2).prompt == message
    with pytest.raises(UnmaskError, match="the tokenizer is a object: give a directory, a hub id, or a fast tokenizer"):
        load(tmp_path / "tiny", tokenizer=object())


def test_the_help_of_a_recipe_explains_every_field():
    fields = [name for name in Recipe.__signature__.parameters if name != "settings"]  # type: ignore[attr-defined]
    words = Recipe.__doc__ or ""
    assert not [name for name in fields if f"\n    {name}: " not in words]


# --- the command line ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("generate s --num-samples 3", "did you mean '--n'?"),
        ("generate s --num_return_sequences 3", "did you mean '--n'?"),
        ("generate s --do-sample", "did you mean '--temperature'?"),
        ("generate s --max-tokens 3", "did you mean '--length'?"),
        ("generate s --gpu", "did you mean '--device cuda'?"),
        ("generate s --particles 3", "leave it out, or use auto or best-of-n"),
        ("eval gsm8k", "put gsm8k_test.jsonl and gsm8k_train.jsonl into a folder and add --data-dir FOLDER; or give"),
    ],
)
def test_flags_of_other_programs_name_ours(line, words, capsys):
    assert main(line.split()) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("name", COMMANDS)
def test_a_usage_is_short(name):
    assert len(build(name).format_usage().splitlines()) <= 4


def test_the_table_of_particles_shows_where_they_differ():
    texts = ["Once upon a time, Tim ran.", "Once upon a time, Tom ran.", "Once upon a time, Tim sat."]
    assert show.apart(texts) == ["… Tim ran.", "… Tom ran.", "… Tim sat."]
    for texts in (["Tim ran.", "Tom ran."], ["Once upon a time."] * 2, ["", "Once upon a time."]):
        assert show.apart(texts) == texts


def test_the_command_of_calibrate_names_the_model(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lines.txt").write_text("se\nte\nst\nre\n")
    words = "calibrate lines.txt --model table --sampler uniform --temperature 1 --steps 2 -o found"
    assert main(words.split()) == 0
    assert "use it: unmask generate --model table --sampler uniform --search smc" in capsys.readouterr().out


def test_a_limit_of_correlations_is_shown_beside_correlations(capsys):
    figure = {"mean": 0.5, "low": 0.4, "high": 0.6}
    alone = {"n": 2, "groups": 2, "ln_ppl": figure, "ceiling": figure}
    judge._show(alone, None)
    assert "largest possible" not in capsys.readouterr().out
    judge._show({**alone, "pearson": figure}, None)
    assert "largest possible" in capsys.readouterr().out


def test_a_long_validation_is_named_on_the_bar():
    with show.training() as on_event:
        bar = on_event.__closure__[0].cell_contents  # type: ignore[attr-defined]
        on_event({"event": "validating", "step": 7})
    assert bar.tasks[0].description == "step 7, validating"


def test_a_long_decode_without_a_terminal_says_how_far_it_is(capsys, monkeypatch):
    now = iter(range(0, 10_000, 6))
    monkeypatch.setattr("unmask.cli.show.time.monotonic", lambda: float(next(now)))
    assert main("generate s --model table --length 5".split()) == 0
    out, err = capsys.readouterr()
    assert "step 3: 3 of 5 positions are decided\n" in err and out.count("\n") == 1
