"""Many prompts: rows that are written as they come and resumed after any end, and batches in Python."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from unmask import Recipe, decode, decode_batch, load
from unmask.cli import main
from unmask.errors import InputError, UnmaskError
from unmask.evaluate import rows

EVEN = "--sampler uniform --temperature 1 --steps 3 --length 3 --seed 7".split()
ROWS = ["generate", "--model", "table", "--prompts", "p.txt", *EVEN]


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("p.txt").write_text("s\nte\nnea\nra\nan\n")
    return tmp_path


@pytest.fixture
def refused(capsys):
    """Run a command that must be refused; its one line."""

    def refuse(*argv: str) -> str:
        assert main(list(argv)) == 2
        out, err = capsys.readouterr()
        assert out == "" and err.count("\n") == 1
        return err

    return refuse


def kept(path: str) -> list[rows.Line]:
    return [row | {"seconds": None} for row in rows.read(path).kept]


# --- rows ------------------------------------------------------------------------------------------------------------


def test_rows_are_those_of_python(here, capsys):
    assert main([*ROWS, "-o", "o.jsonl", "--batch", "2"]) == 0
    out, err = capsys.readouterr()
    assert out == "" and err.endswith("o.jsonl: 5 rows\n")
    found = rows.read("o.jsonl")
    recipe = Recipe(sampler="uniform", temperature=1.0, steps=3, length=3, seed=7)
    prompts = Path("p.txt").read_text().split()
    results = decode_batch(load("table"), prompts, recipe=recipe)
    assert [(row["number"], row["prompt"], row["text"], row["seed"]) for row in found.kept] == [
        (number, prompt, result.text, 7 + number)
        for number, (prompt, result) in enumerate(zip(prompts, results, strict=True))
    ]
    assert [row["tokens"] for row in found.kept] == [result.tokens for result in results]
    assert found.header["task"] == "generate" and found.header["recipe"] == recipe.to_dict() and not found.missing
    assert "recipe" not in found.kept[0] and "logprobs" not in found.kept[0]


def test_rows_do_not_depend_on_the_batch(here):
    assert main([*ROWS, "-o", "one.jsonl", "--batch", "1"]) == main([*ROWS, "-o", "all.jsonl"]) == 0
    numbers = [
        [(row["tokens"], row["seed"], pytest.approx(row["path_entropy"])) for row in kept(path)]
        for path in ("one.jsonl", "all.jsonl")
    ]
    assert numbers[0] == numbers[1]


def test_a_run_killed_three_times_has_the_same_rows(here):
    """SIGKILL at any moment: no row is lost, none is there twice, and all are as if nothing had happened."""
    Path("p.txt").write_text("".join(f"number {number}\n" for number in range(44)))
    given = "generate --model random --prompts p.txt --length 24 --sampler uniform --temperature 1 --batch 2 -o".split()
    assert main([*given, "alone.jsonl"]) == 0
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    before, dice = 0, random.Random()
    for _ in range(3):
        command = [sys.executable, "-m", "unmask", *given, "killed.jsonl"]
        with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as run:
            while run.poll() is None and _lines("killed.jsonl") <= before + 2:
                time.sleep(0.005)
            time.sleep(dice.random() * 0.1)
            assert run.poll() is None, "it ended before it was killed"
            run.send_signal(signal.SIGKILL)
        there = [row["number"] for row in rows.read("killed.jsonl").kept]
        assert there == list(range(len(there))) and len(there) >= max(0, before - 1)
        before = _lines("killed.jsonl")
    with open("killed.jsonl", "a") as file:
        file.write('{"number": 4')  # as torn as a line can be
    assert main([*given, "killed.jsonl"]) == 0
    assert kept("killed.jsonl") == kept("alone.jsonl") and len(kept("alone.jsonl")) == 44


def _lines(path: str) -> int:
    return Path(path).read_bytes().count(b"\n") if Path(path).exists() else 0


def test_a_finished_run_loads_no_model(here, capsys, monkeypatch):
    assert main([*ROWS, "-o", "o.jsonl"]) == 0
    content = Path("o.jsonl").read_bytes()
    monkeypatch.setattr("unmask.cli.models.load", lambda *given, **more: pytest.fail("there is nothing to decode"))
    assert main([*ROWS, "-o", "o.jsonl"]) == 0
    assert capsys.readouterr().err.endswith("o.jsonl: 5 rows, 5 of them from before\n")
    assert Path("o.jsonl").read_bytes() == content


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--length", "2"], "length is 3 there and 2 here"),
        (["--model", "random"], "the model is table there and random here"),
        (["--stop", "e"], "the stop strings is not given there and ['e'] here"),
        (["--n", "2"], "the number of answers to a prompt is not given there and 2 here"),
        (["--dtype", "bf16"], "dtype is not given there and bfloat16 here"),
        (["--prompts", "other.txt"], "the SHA-256 of the data is"),
    ],
)
def test_another_run_is_refused_for_the_same_file(here, refused, capsys, flags, words):
    assert main([*ROWS, "-o", "o.jsonl"]) == 0
    capsys.readouterr()
    content = Path("o.jsonl").read_bytes()
    Path("other.txt").write_text("s\n")
    line = refused(*ROWS, *flags, "-o", "o.jsonl")
    assert words in line and line.endswith("give another file for the rows\n")
    assert Path("o.jsonl").read_bytes() == content


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("generate s --model table -o o.jsonl", "-o takes the answers to a file of prompts: add --prompts FILE"),
        ("generate --prompts p.txt -o o.jsonl --json", "--json has no effect with -o: the file has JSON lines"),
        ("generate --prompts p.txt -o o.jsonl --trace t.jsonl", "--trace has no effect with -o"),
        ("generate --prompts p.txt -o p.txt", "'p.txt' holds the prompts: give another file"),
        ("generate --prompts p.txt -o none/o.jsonl", "cannot write 'none/o.jsonl'"),
        ("generate --prompts p.txt --batch 0", "batch is 0: it must be at least 1"),
        ("generate --prompts p.txt --n 0", "n is 0: it must be at least 1"),
        (f"generate a --n {10**20}", f"n is {10**20}: ask for at most 10,000,000 in one command"),
        ("generate --prompts p.txt --batch 2 --trace t.jsonl", "a trace holds one batch"),
        ("generate s --batch 2", "--batch has no effect on one text"),
        ("generate s --logprobs 2", "--logprobs has no effect on text: add --json"),
        ("generate --prompts blank.txt", "there is no prompt in 'blank.txt': give one on each line"),
        ("generate --prompts holes.txt", "prompt 2 of 'holes.txt' holds [MASK]: give a text with holes with --canvas"),
        ("generate --prompts bad.jsonl", "the prompt of row 1 of 'bad.jsonl' is not text"),
        ("generate --prompts none.jsonl", "row 1 of 'none.jsonl' has no 'prompt'"),
        ("generate --prompts long.txt --model table --length 3 -o o.jsonl", "prompt 3: a canvas of 9 positions"),
    ],
)
def test_what_cannot_be_done_is_refused_before_the_work(here, refused, line, words):
    Path("blank.txt").write_text("\n  \n")
    Path("holes.txt").write_text("one\ntwo [MASK]\n")
    Path("bad.jsonl").write_text('{"prompt": 3}\n')
    Path("none.jsonl").write_text('{"text": "a"}\n')
    Path("long.txt").write_text("s\nt\nsenate\n")
    assert words in refused(*line.split())
    assert _lines("o.jsonl") < 2  # a header at most


def test_prompts_of_json_lines_may_have_lines_and_be_empty(here, capsys):
    prompts = ["s\nt", "", "te"]
    Path("p.jsonl").write_text("".join(json.dumps({"prompt": prompt, "id": 1}) + "\n" for prompt in prompts))
    given = "generate --model random --prompts p.jsonl --length 2 --n 2 --logprobs 1 -o o.jsonl".split()
    assert main(given) == 0
    found = rows.read("o.jsonl").kept
    assert [(row["prompt"], row["seed"]) for row in found] == [
        (prompt, 2 * place + sample) for place, prompt in enumerate(prompts) for sample in range(2)
    ]
    assert [one["step"] for one in found[0]["logprobs"]] and len(found[0]["logprobs"][0]["alternatives"]) == 1


def test_rows_are_judged_without_their_header(here):
    from unmask.evaluate.judge.rows import read_samples

    assert main([*ROWS, "-o", "o.jsonl"]) == 0
    assert [one.text for one in read_samples(["o.jsonl"])] == [row["text"] for row in kept("o.jsonl")]


def test_progress_without_a_terminal_is_a_line_now_and_then(capsys, monkeypatch):
    from unmask.cli import show

    now = [0.0]
    monkeypatch.setattr("unmask.cli.show.time.monotonic", lambda: now[0])
    tell = show.paced(10)
    for now[0], line in ((1.0, "a"), (11.0, "b"), (12.0, "c"), (21.5, "d")):
        tell(line)
    assert capsys.readouterr().err == "b\nd\n"


# --- one text --------------------------------------------------------------------------------------------------------


def test_a_piped_prompt_is_read(here):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "unmask", "generate", "--model", "table"]
    done = subprocess.run(command, input="se\n", capture_output=True, text=True, env=environment)
    assert done.stdout == decode(load("table"), "se", recipe=Recipe(length=4)).text + "\n"
    assert done.stderr.startswith("unmask: note: the prompt is standard input\n")
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment)
    assert len(done.stdout) == 7 and "standard input" not in done.stderr


def test_a_text_with_holes_is_a_canvas_everywhere(here, capsys):
    model, text = load("table"), "t[MASK*3]t[MASK]"
    expected = decode(model, canvas=text)
    assert decode(model, text).tokens == expected.tokens
    assert main(["generate", "--model", "table", text]) == 0
    assert capsys.readouterr().out == f"{expected.text}\n"
    page = Path(__file__).parents[1] / "src/unmask/report/web/given.js"
    assert r"if (/\[MASK(\*\d{1,18})?\]/.test(text)) return { canvas: text, ...bound };" in page.read_text()
    with pytest.raises(InputError, match=r"prompt 2: the prompt holds \[MASK\]: give it as a canvas; as token ids"):
        decode_batch(model, ["s", text], length=2)
    with pytest.raises(InputError, match="length has no effect on a canvas"):
        decode(model, text, length=3)


def test_in_a_message_the_letters_of_a_mask_are_letters(here, capsys, tmp_path):
    from unmask.models.made.fabricate import fabricate

    fabricate("llada", tmp_path / "tiny")
    Path("p.txt").write_text("What is [MASK]?\n")
    words = ["--model", "tiny", "--chat", "--length", "2", "--steps", "2", "--json"]
    assert main(["generate", "What is [MASK]?", *words]) == main(["generate", "--prompts", "p.txt", *words]) == 0
    one, other = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    message = [{"role": "user", "content": "What is [MASK]?"}]
    assert one["prompt"] == "What is [MASK]?"
    assert one["tokens"] == other["tokens"] == decode(load("tiny"), message, length=2, steps=2).tokens


@pytest.mark.parametrize("puzzle", ["15,44,79,50", "Tom has 5 apples. Mia has 3 more apples than Tom. How many?"])
def test_solve_prints_the_answer_alone(puzzle, capsys):
    main(["solve", puzzle, "--json"])
    found = json.loads(capsys.readouterr().out)
    main(["solve", puzzle])
    out, err = capsys.readouterr()
    assert out == f"{found['text'].strip() if 'worked' in found else found['answer']}\n"
    assert "solved" in err or "answer" in err
    assert "path entropy" in err


# --- Python ----------------------------------------------------------------------------------------------------------


def test_batches_in_python_give_the_same_and_are_told():
    model, recipe = load("table"), Recipe(sampler="uniform", temperature=1.0, length=3, seed=7)
    prompts, told = ["s", "te", "nea", "ra", "an"], []
    whole = decode_batch(model, prompts, recipe=recipe)
    parts = decode_batch(
        model, prompts, recipe=recipe, batch_size=2, on_results=lambda *given: told.append((*given[:2], len(given[2])))
    )
    assert [(one.tokens, one.seed) for one in parts] == [(one.tokens, one.seed) for one in whole]
    assert told == [(2, 5, 2), (4, 5, 2), (5, 5, 1)]
    with pytest.raises(InputError, match="prompt 5: a canvas of 9 positions"):
        decode_batch(
            model, [*prompts[:4], "senate"], recipe=recipe, batch_size=2, on_results=lambda *given: told.append(given)
        )
    assert len(told) == 3, "a batch was decoded before all prompts were checked"


def test_several_answers_have_seeds_one_after_another():
    model, recipe = load("table"), Recipe(sampler="uniform", temperature=1.0, length=3, seed=7)
    found = decode_batch(model, ["s", "te"], recipe=recipe, n=3, batch_size=4)
    assert [one.seed for one in found] == [7, 8, 9, 10, 11, 12]
    alone = [decode(model, "s" if seed < 10 else "te", recipe=recipe.replace(seed=seed)) for seed in range(7, 13)]
    assert [one.tokens for one in found] == [one.tokens for one in alone]
    vote = recipe.replace(search="best-of-n", choose="vote", particles=2)
    chosen = decode_batch(model, ["s", "te"], recipe=vote, n=2, answer=[lambda text: text[0], lambda text: text[1]])
    assert len(chosen) == 4


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"n": 0}, "n is 0: give a whole number, at least 1"),
        ({"n": None}, "n is None"),
        ({"batch_size": 1.5}, "batch_size is 1.5"),
        ({"logprobs": -1}, "logprobs is -1: give a whole number, at least 0"),
        ({"seeds": [1], "n": 2}, "1 seed for 2 prompts"),
        ({"batch_size": 1, "n": 2, "trace": "t.jsonl"}, "a trace holds one batch: leave batch_size or trace out"),
    ],
)
def test_numbers_that_make_no_sense(here, given, words):
    with pytest.raises(InputError, match=words):
        decode_batch(load("table"), ["s"], length=2, **given)


@pytest.mark.parametrize("search", ["vanilla", "smc"])
def test_every_written_token_has_its_numbers(search):
    settings = {"particles": 4, "every": 1} if search == "smc" else {}
    recipe = Recipe(sampler="uniform", temperature=1.0, length=5, steps=3, search=search, seed=2, **settings)
    found = decode(load("table"), "s", recipe=recipe, logprobs=2)
    assert found.logprobs is not None
    for particle in found.particles:
        assert [(one.position, one.token) for one in particle.logprobs] == [*enumerate(particle.tokens)][1:]
        assert sum(one.log_prob for one in particle.logprobs) == pytest.approx(particle.log_prob)
        assert "".join(one.text for one in particle.logprobs) == particle.text
        assert {one.step for one in particle.logprobs} == {0, 1, 2}
    for one in found.logprobs:
        assert len(one.alternatives) == 2 and one.entropy >= 0
        assert one.alternatives[0][2] >= max(one.alternatives[1][2], one.log_prob)
    assert json.loads(json.dumps(found.to_dict()))["logprobs"][0]["text"] == found.text[0]


def test_a_token_that_was_masked_again_counts_as_it_was_written_last():
    recipe = Recipe(sampler="draft-refine", length=6, temperature=1.0, seed=3)
    events = []
    found = decode(load("table"), recipe=recipe, logprobs=0, on_event=events.append)
    last = {column: event["step"] for event in events[1:-1] for _, column, _, _ in event["changes"]}
    assert [one.token for one in found.logprobs] == found.tokens
    assert {one.position: one.step for one in found.logprobs} == last
    assert any(token == events[0]["mask"] for event in events[1:-1] for _, _, token, _ in event["changes"])


def test_short_reprs():
    recipe = Recipe(sampler="eb", bound=0.5, length=3, search="best-of-n", particles=2, temperature=1.0)
    assert repr(recipe) == recipe.__class__.__name__ + (
        "(sampler='eb', search='best-of-n', length=3, temperature=1.0, bound=0.5, particles=2)"
    )
    assert eval(repr(recipe)) == recipe
    result = decode(load("table"), "s", recipe=recipe)
    numbers = f"path_entropy={result.path_entropy:.3f}"
    assert repr(result) == f"Result({result.text!r}, {numbers}, seed=0, finish='length', 2 particles)"
    assert repr(result.best).startswith(f"Particle({result.text!r}, {numbers}, surprise=")
    for name in ("table", "sudoku"):
        assert "\n" not in repr(load(name)) and len(repr(load(name))) < 100


def test_a_recipe_by_its_name():
    named = Recipe.load("llada-gsm8k-uniform")
    assert (named.sampler, named.length) == ("uniform", 256)
    assert Recipe.load("llada-gsm8k-pc", background="text", max_new_tokens=8).length == 8
    with pytest.raises(UnmaskError, match="pc needs a background table"):
        Recipe.load("llada-gsm8k-pc")
    with pytest.raises(UnmaskError, match="unknown recipe 'llada-gsm8k-unifrm': did you mean 'llada-gsm8k-uniform'"):
        Recipe.load("llada-gsm8k-unifrm")


def test_names_of_devices_dtypes_and_models(capsys):
    import torch

    expected = "cuda" if torch.cuda.is_available() else "cpu"
    assert load("random", device="auto").device.type == expected
    for name, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16), ("auto", torch.float32)):
        assert load("random", dtype=name).network.embed.weight.dtype == dtype
        assert main(["generate", "a", "--model", "random", "--dtype", name, "--device", "auto", "--length", "1"]) == 0
    with pytest.raises(UnmaskError, match="cannot load random on gpu: give cpu, a GPU like cuda or cuda:1, or auto"):
        load("random", device="gpu")
    if not torch.cuda.is_available():
        why = "cannot load random on cuda:1: (this PyTorch is built without CUDA|PyTorch finds no GPU): give cpu, "
        with pytest.raises(UnmaskError, match=why):
            load("random", device="cuda:1")
    for name, full in (
        ("LLaDA-8B-Instruct", "GSAI-ML/LLaDA-8B-Instruct"),
        ("llada-8b", "GSAI-ML/LLaDA-8B-Instruct"),
        ("Dream-v0-Instuct-7B", "Dream-org/Dream-v0-Instruct-7B"),
        ("mdlm-owt", "kuleshov-group/mdlm-owt"),
    ):
        with pytest.raises(UnmaskError, match=f"unknown model '{name}': did you mean '{full}'?"):
            load(name)


def test_published_models_are_those_of_the_guide():
    from unmask.models.files.hub import PUBLISHED

    guide = (Path(__file__).parents[1] / "docs/guide/models.md").read_text(encoding="utf-8")
    named = [full for full in PUBLISHED if full in guide]
    assert len(named) >= 20


# --- the right words -------------------------------------------------------------------------------------------------


def test_the_help_of_solve_shows_what_holds_without_a_flag(capsys):
    assert main(["solve", "--help"]) == 0
    words = capsys.readouterr().out
    assert "The model's default recipe goes before them" in words
    flat = " ".join(words.split())
    assert "what no flag says is decided by the model's own recipe, which `unmask models NAME` shows" in flat
    assert "`unmask samplers` [the model's own, else confidence]" in flat and "[the model's own, else 0]" in flat
    assert main(["solve", "Tom has 5 apples. Mia has 3 more apples than Tom. How many?", "--json"]) in (0, 1)
    used = Recipe.from_dict(json.loads(capsys.readouterr().out)["recipe"])
    shown = next(line.split(maxsplit=1)[1] for line in words.splitlines() if line.startswith("  problems "))
    assert Recipe.from_text(shown) == used.replace(length=None)


def test_documents_are_not_called_windows(here, capsys, monkeypatch):
    from unmask.train import prose

    monkeypatch.setattr(prose, "DRAWS", 1)
    Path("d.txt").write_text("Once upon a time, there was a cat.\n\nThe end.\n")
    assert main(["eval", "text", "--data", "d.txt"]) == 0
    out, err = capsys.readouterr()
    assert "2 documents of up to 256 tokens" in out
    assert "2 documents are too few for an interval: it goes by how documents differ, so give 10 or more" in err
    Path("d.txt").write_text("Once upon a time, there was a cat.\n\n" * 9 + "Once " * 300)
    assert main(["eval", "text", "--data", "d.txt", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["unit"] == "document" and json.loads(out)["n"] == 10
    assert err == "unmask: note: 1 document fills all 256 tokens; what is longer is cut there\n"


def test_rows_of_another_form_are_not_resumed(here, capsys):
    Path("two").write_text("se\nte\n")
    command = ["generate", "--prompts", "two", "-o", "out", "--model", "table", "--length", "4", "--matches"]
    assert main([*command, "[a-z]{4}"]) == 0
    for other in ([*command, "[a-m]{4}"], command[:-1]):
        assert main(other) == 2
        assert "the form of the text" in capsys.readouterr().err
