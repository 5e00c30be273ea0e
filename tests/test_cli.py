"""The command line: every command, every example of its help, every failure in one line."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import unmask
from unmask import MODELS, SAMPLERS, SEARCHES, Recipe, __version__, decode, decode_batch, load
from unmask.cli import COMMANDS, main, show
from unmask.decoding import background, trace
from unmask.decoding.settings import ALIASES, SETTINGS, groups, spelled, takes
from unmask.errors import InputError
from unmask.models.made.fabricate import fabricate

TABLE = ["generate", "--model", "table"]  # small and exact
EVEN = ["--sampler", "uniform", "--steps", "3", "--temperature", "1"]


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def both(capsys):
    """Run a command that must work; its standard output, and what it says beside that."""

    def runs(*argv: str) -> tuple[str, str]:
        status = main(list(argv))
        out, err = capsys.readouterr()
        assert status == 0 and "unmask: error" not in err and "unmask: warning" not in err, err
        return out, err

    return runs


@pytest.fixture
def run(both):
    """Run a command that must work; its standard output."""
    return lambda *argv: both(*argv)[0]


@pytest.fixture
def fails(capsys):
    """Run a command that must fail; its one line of standard error."""

    def fail(*argv: str) -> str:
        status = main(list(argv))
        out, err = capsys.readouterr()
        assert (status, out) == (2, "")
        assert re.fullmatch(r"unmask: error: [^\n]+\n", err)
        return err

    return fail


# --- generate --------------------------------------------------------------------------------------------------------


def test_prints_the_text_alone_and_its_cost_beside_it(both):
    text, cost = both(*TABLE, "se")
    result = decode(load("table"), "se", recipe=Recipe(length=4))
    assert text == f"{result.text}\n"
    assert cost == f"path entropy {result.path_entropy:.3f} bits · 4 steps · 4 calls · 4 evaluations\n"


def test_particles_are_shown_and_the_chosen_one_has_a_mark(both):
    text, out = both(*TABLE, *EVEN, "--search", "smc", "--particles", "4", "--every", "1", "--seed", "3")
    recipe = Recipe(sampler="uniform", steps=3, temperature=1.0, length=6, search="smc", particles=4, every=1, seed=3)
    result = decode(load("table"), recipe=recipe)
    assert text == f"{result.text}\n"
    assert f"12 evaluations ({result.rows} rows) · 4 particles of {result.lineages} lineage" in out
    assert result.rows < 12
    rows = [line.split() for line in out.splitlines() if f" {result.path_entropy:.3f} " in line]
    assert ["▶", str(result.chosen), result.text] in [row[:3] for row in rows]
    assert all(particle.text in out for particle in result.particles)


def test_json_is_one_object_and_nothing_else(both):
    out, err = both(*TABLE, "se", *EVEN, "--search", "best-of-n", "--seed", "5", "--json")
    assert (out.count("\n"), err) == (1, "")
    found = json.loads(out)
    recipe = Recipe(sampler="uniform", steps=3, temperature=1.0, length=4, search="best-of-n", seed=5)
    expected = {"model": "table", "prompt": "se", **decode(load("table"), "se", recipe=recipe).to_dict()}
    assert found.pop("seconds") > 0
    assert found.pop("memory")["host_peak"] > 1e6
    assert found == {name: value for name, value in expected.items() if name != "seconds"}


def test_canvas(run):
    text = run(*TABLE, "--canvas", "t[MASK*4]t").split("\n")[0]
    assert text == decode(load("table"), canvas="t[MASK*4]t").text
    assert re.fullmatch("t[aenrst]{4}t", text)
    assert run(*TABLE, "--canvas", "senat[MASK]").startswith("senate\n")


def test_standard_input(run, monkeypatch):
    plain = run(*TABLE, "se")
    monkeypatch.setattr(sys, "stdin", io.StringIO("se\n"))
    assert run(*TABLE, "-") == plain
    monkeypatch.setattr(sys, "stdin", io.StringIO("t[MASK*4]t\n"))
    assert run(*TABLE, "--canvas", "-").startswith("t")


def test_prompts_of_a_file(both, here):
    Path("prompts").write_text("s\n\nte\nnea\n")
    given = ["--prompts", "prompts", "--length", "3", *EVEN, "--seed", "7"]
    out, err = both(*TABLE, *given, "--json", "--batch", "2")
    assert err == "unmask: note: 'prompts': 1 blank line is not a prompt\n"
    recipe = Recipe(sampler="uniform", steps=3, temperature=1.0, length=3, seed=7)
    results = decode_batch(load("table"), ["s", "te", "nea"], recipe=recipe)
    lines = out.splitlines()
    assert [json.loads(line)["tokens"] for line in lines] == [result.tokens for result in results]
    assert [json.loads(line)["seed"] for line in lines] == [7, 8, 9]
    out, err = both(*TABLE, *given)
    assert out == "".join(f"{result.text}\n" for result in results)
    assert all(f"{n}: {p}\n" in err for n, p in zip((1, 2, 3), ("s", "te", "nea"), strict=True))
    Path("prompts").write_text("\n \n")
    assert main([*TABLE, *given]) == 2


def test_the_model_is_the_one_of_the_help_unless_given(run):
    usual = re.search(r"or a hub id \[(\w+)\]", " ".join(run("generate", "--help").split()))
    assert usual and json.loads(run("generate", "a", "--length", "1", "--json"))["model"] == usual[1]


def test_length_is_what_fits_unless_given(run):
    assert len(run(*TABLE).split("\n")[0]) == 6
    assert len(run(*TABLE, "sena").split("\n")[0]) == 2
    assert len(run(*TABLE, "sena", "--length", "1").split("\n")[0]) == 1
    assert len(json.loads(run("generate", "a", "--model", "random", "--json"))["tokens"]) == 65


def test_trace_replays_to_the_printed_text(run, here):
    given = [*EVEN, "--search", "smc", "--particles", "4", "--every", "1", "--trace", "path.jsonl"]
    out = json.loads(run(*TABLE, "s", *given, "--json"))
    events = trace.load("path.jsonl")
    *_, last = trace.replay(events)
    assert load("table").tokenizer.decode(last[out["chosen"]]) == "s" + out["text"]
    assert trace.lineages(events)[out["chosen"]] == out["state_entropy"]


def test_flags_go_over_a_recipe_file(run, here):
    recipe = Recipe(sampler="eb", bound=0.5, temperature=1.0, length=3, late=(1, 2), seed=4)
    Path("recipe.toml").write_text(recipe.to_toml())
    Path("recipe.json").write_text(recipe.to_json())
    for file in ("recipe.toml", "recipe.json"):
        assert json.loads(run(*TABLE, "--recipe", file, "--json"))["recipe"] == json.loads(recipe.to_json())
    given = ["--bound", "1.5", "--gen-length", "2", "--seed", "0", "--late", "3"]
    found = json.loads(run(*TABLE, "--recipe", "recipe.toml", *given, "--json"))["recipe"]
    assert Recipe.from_dict(found) == recipe.replace(bound=1.5, length=2, seed=0, late=(3,))


def test_booleans_can_be_taken_back(run, here):
    Path("recipe.toml").write_text("fill_tail = true\nlength = 8\n")
    given = ["generate", "--model", "random", "--recipe", "recipe.toml", "--json"]
    assert json.loads(run(*given))["recipe"]["fill_tail"] is True
    assert "fill_tail" not in json.loads(run(*given, "--no-fill-tail"))["recipe"]


@pytest.mark.parametrize("ban", [["--ban", "0,1", "--ban", "2"], ["--ban", "0", "--ban", "1", "--ban", "2"]])
def test_lists_have_commas_or_repeat(run, ban):
    out = json.loads(run(*TABLE, *ban, "--json"))
    assert out["recipe"]["ban"] == [0, 1, 2]
    assert not set(out["tokens"]) & {0, 1, 2}


def test_names_of_other_projects(run):
    mine = run(*TABLE, "--sampler", "confidence", "--length", "5", "--guidance", "0.5", "s")
    assert run(*TABLE, "--remasking", "low_confidence", "--max-new-tokens", "5", "--cfg-scale", "0.5", "s") == mine
    given = ["--sampler", "dream", "--temperature", "1", "--search", "best-of-n"]
    mine = run(*TABLE, *given, "--rule", "topk_margin", "--particles", "2")
    assert run(*TABLE, *given, "--alg", "topk_margin", "--num-particles", "2") == mine


def test_text_that_looks_like_markup_is_printed_as_it_is(capsys):
    text = "[bold]a[/bold] :smile:\n[/] " + "long " * 40
    particle = decode(load("table"), "sena", recipe=Recipe(length=2)).best
    result = decode(load("table"), "sena", recipe=Recipe(length=2, search="best-of-n", particles=2))
    strange = [type(particle)(particle.tokens, text, 1.0, [1.0], 1, 0, -1.0, 0.5)] * 2
    show.result(type(result)(strange, 0, result.recipe, 0, 1, 2, 2, 0.0, 0.1))
    out, err = capsys.readouterr()
    assert out == f"{text}\n"
    assert err.count("[bold]a[/bold] :smile:↵[/] long") == 2


class Screen(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_no_control_characters(monkeypatch, capsys):
    text = "a\x1b[2Jb\r\x07\x9bc\td\ne é×"
    found = decode(load("table"), "sena", recipe=Recipe(length=2, search="best-of-n", particles=2))
    strange = [dataclasses.replace(particle, text=text) for particle in found.particles]
    found = dataclasses.replace(found, particles=strange)
    show.result(found)
    assert capsys.readouterr().out.startswith(f"{text}\n")
    monkeypatch.setattr(sys, "stdout", Screen())
    monkeypatch.setattr(sys, "stderr", Screen())
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("COLUMNS", "120")
    show.result(found)
    out, err = sys.stdout.getvalue(), sys.stderr.getvalue()
    assert out == "a\\x1b[2Jb\\r\\x07\\x9bc\td\ne é×\n" and err.count("a\\x1b[2Jb\\r\\x07\\x9bc") == 2
    assert not set(out + err) & {"\x1b", "\r", "\x07", "\x9b"}


# --- flags -----------------------------------------------------------------------------------------------------------


def test_every_setting_has_a_flag_a_help_and_a_place(run):
    text = run("generate", "--help")
    grouped = [row.name for rows in groups().values() for row in rows]
    assert sorted(grouped) == sorted(SETTINGS) and all(row.help for row in SETTINGS.values())
    assert not [name for name in [*SETTINGS, *ALIASES] if spelled(name) not in text]


@pytest.mark.parametrize("name", ["bound", "block_length", "particles", "every"])
def test_help_says_who_takes_a_setting(run, name):
    listed = " ".join(run("generate", "--help").split()).replace("- ", "-")  # a name may be broken at its hyphen
    found = re.search(rf"{spelled(name)} [NX] [^\[]*\[([^\]]*)\]", listed)
    assert found
    expected = {who for who, build in [*SAMPLERS.items(), *SEARCHES.items()] if name in takes(build)}
    assert {part.split(" ")[0].strip(":") for part in found[1].split(", ")} == expected


# --- the other commands ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("command", "names"), [("samplers", SAMPLERS), ("searches", SEARCHES), ("models", MODELS)])
def test_registries_are_listed(run, command, names):
    table = run(command)
    listed = json.loads(run(command, "--json"))
    assert [entry["name"] for entry in listed] == list(names)
    for entry in listed:
        assert re.search(rf"^ {entry['name']} ", table, re.M)
        assert entry["summary"]
        detail = json.loads(run(command, entry["name"], "--json"))
        assert {**detail, **entry} == detail
        assert [setting["name"] for setting in entry["settings"]] == takes(names[entry["name"]])
        out = run(command, entry["name"])
        assert out.startswith(f"{entry['name']}: {entry['summary']}")
        assert not [setting for setting in entry["settings"] if setting["name"] not in out]
        assert command == "models" or all(setting["help"] for setting in entry["settings"])


def test_a_model_tells_its_ids(run):
    facts = json.loads(run("models", "random", "--json"))["facts"]
    known = {"vocabulary": 42, "mask": 41, "eos": [40], "absent": [41], "limit": 4096, "device": "cpu"}
    assert facts.items() >= known.items()
    assert facts["parameters"] == 134080 and facts["weights"] == "0.00 GiB as float32"


def test_frequencies_feed_pc(run, here, capsys):
    Path("words.txt").write_text("senate\nsetter\n")
    Path("more.txt").write_text("tart")
    assert run("frequencies", "words.txt", "more.txt", "--model", "table", "-o", "t.json") == (
        "t.json: 16 tokens, 6 different ones\n"
    )
    saved = json.loads(Path("t.json").read_text())
    assert saved["num_token"] == 16
    assert saved["p_baseline_dict"] == {"5": 5, "1": 4, "0": 2, "3": 2, "4": 2, "2": 1}
    out = json.loads(run(*TABLE, "--sampler", "pc", "--background", "t.json", "--json"))
    assert out["recipe"]["background"] == "t.json" and saved["model"] == "table"
    assert (
        main(["generate", "a", "--model", "random", "--length", "1", "--sampler", "pc", "--background", "t.json"]) == 0
    )
    assert capsys.readouterr().err.startswith("unmask: warning: 't.json' counts tokens of table, not of random\n")


def test_frequencies_of_json_lines(run, fails, here):
    Path("a.jsonl").write_text(
        '{"text": "tea", "title": "rat", "year": 1}\n\n{"text": "ten", "title": "", "year": 2}\n'
    )
    given = ["frequencies", "a.jsonl", "--model", "table", "-o", "t.json"]
    assert run(*given, "--fields", "text,title") == "t.json: 9 tokens, 5 different ones\n"
    assert run(*given, "--fields", "text") == "t.json: 6 tokens, 4 different ones\n"
    assert "did you mean 'title'?" in fails(*given, "--fields", "titel")
    assert "a.jsonl:1: the field 'year' is not text" in fails(*given, "--fields", "year")
    assert "--fields" in fails(*given)


def test_version_and_help(run):
    assert run("--version") == f"unmask {__version__}\n"
    assert run() == run("--help")
    assert not [name for name in COMMANDS if name not in run()]


@pytest.mark.parametrize("command", [name for name in COMMANDS if name not in ("demo", "lm-eval")])
def test_examples_of_the_help_work(command, here, capsys):
    Path("words.txt").write_text("senate\n")
    Path("lines.txt").write_text("senate\ntester\nstreet\nrennet\nserene\nsetter\n")
    Path("prompts.txt").write_text("se\nte\nst\nre\n")
    Path("puzzle.txt").write_text("53..7....6..195....98....6.8...6...34..8.3..17...2...6.6....28....419..5....8..79\n")
    Path("words.jsonl").write_text('{"text": "some text", "title": "a title"}\n')
    if command == "convert":
        from test_convert import averages, weights

        torch.save({"state_dict": weights(), "ema": {"shadow_params": averages(weights())}}, "best.ckpt")
    if command == "prompts":
        from test_prompts import SOURCE

        Path("PC-Sampler/src").mkdir(parents=True)
        Path("PC-Sampler/src/template.py").write_text(SOURCE)
    if command != "fabricate":
        fabricate("llada", Path("tiny-llada"))
    if command == "judge":
        from test_judge import tiny

        tiny(Path("tiny-gpt2"))
        Path("samples.jsonl").write_text('{"text": "one", "steps": 2}\n{"text": "another", "steps": 4}\n')
    assert main([command, "--help"]) == 0
    out = capsys.readouterr().out
    examples = re.findall(r"^  (unmask .*)$", out.split("examples:")[1], re.M)
    assert len(examples) > 1
    for example in examples:
        assert main(shlex.split(example)[1:]) == 0, capsys.readouterr().err


def test_one_is_not_several(run, both, here):
    """What is counted stands in the singular where it is 1."""
    Path("one.txt").write_text(f"{BOARD}\n")
    Path("good.txt").write_text("s\n")
    Path("texts.txt").write_text("senate\ntester\n")
    said = [
        "".join(both("generate", "senat", *TABLE[1:], "--length", "1", "--trace", "t.jsonl")),
        run("report", "t.jsonl"),
        run(*"eval sudoku --data one.txt --steps 1 --rows a.jsonl".split()),
        run(*"eval sudoku --data one.txt --steps 1 --seed 1 --rows b.jsonl".split()),
        run(*"compare a.jsonl b.jsonl".split()),
        run(*"score s --model table --draws 1 --steps 1".split()),
        run(*"frequencies good.txt --model table -o t.json".split()),
        run(*"theory texts.txt --model table --steps 1 -o theory".split()),
        run(*"bench speed --size tiny --steps 3 --particles 1 --repeat 1 --no-compile".split()),
    ]
    page = Path("t.html").read_text()
    assert "1 particle " in page or "1 particle<" in page
    for text in said:
        assert not re.search(r"(?<![\d.,])1 [a-z]+s\b(?! a)", text), text
    assert "1 step, " in said[1] and said[2].count("1 step · 1 call · 1 evaluation") == 1
    assert "1 question of sudoku" in said[4] and ", 1 step · 1 evaluation" in said[5] and "1 token, 1 " in said[6]


# --- failures --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("genrate", "unknown command 'genrate': did you mean 'generate'?"),
        ("--versoin", "unknown option '--versoin': did you mean '--version'?"),
        ("generate --sampler unifrm", "unknown sampler 'unifrm': did you mean 'uniform'?"),
        ("generate --search scm", "unknown search 'scm': did you mean 'smc'?"),
        ("generate --model tabel", "unknown model 'tabel': did you mean 'table'?"),
        ("generate --samplr uniform", "unknown option '--samplr': did you mean '--sampler'?"),
        ("generate --gen_length=3", "unknown option '--gen_length': did you mean '--gen-length'?"),
        ("generate --samp uniform", "unknown option '--samp'"),
        ("generate --zzz", "unknown option '--zzz': see `unmask generate --help`"),
        ("samplers margn", "unknown sampler 'margn': did you mean 'margin'?"),
        ("samplers nope", "unknown sampler 'nope': choose from uniform, ancestral"),
        ("searches nope", "unknown search 'nope': choose from vanilla"),
        ("generate --temperature 1e12", "temperature is 1e+12: it must be at most 1000000000\n"),
        (
            "demo --puzzles 1 --trace good.txt/x/y",
            "cannot write 'good.txt/x/y' (Not a directory): give --trace another",
        ),
        ("searches bem", "unknown search 'bem': did you mean 'beam'?"),
        ("models tabel", "unknown model 'tabel': did you mean 'table'?"),
        ("generate --scope blok", "unknown scope 'blok': did you mean 'block'?"),
        ("generate --sampler p2 --rule fresh", "unknown rule of p2 'fresh': did you mean 'fresh-draw'?"),
        ("generate --bound 0.1", "bound has no effect on sampler semi-ar with search vanilla"),
        ("generate --particles 3", "particles has no effect on sampler semi-ar with search vanilla"),
        ("generate --sampler eb --steps 3", "steps has no effect on sampler eb"),
        ("generate --sampler uniform --select-temperature 1", "select-temperature has no effect on sampler uniform"),
        ("generate once upon", "unexpected 'upon': put quotes around a text of several words; --prompts FILE"),
        ("puzzles sudoku --answers good.txt", "unexpected 'good.txt': see `unmask puzzles --help`"),
        ("generate hello --model table", "'h' is not a character of this model: it knows 'aenrst'"),
        ("generate --length 0", "length is 0: it must be at least 1"),
        ("generate --length x", "length is 'x': give a whole number"),
        ("generate --length 3 --gen-length 3", "length is given twice"),
        ("generate --length 3 --canvas [MASK]", "length has no effect on a canvas"),
        ("generate s --canvas [MASK]", "a prompt, --prompts and --canvas exclude each other"),
        ("generate --canvas senate", "the canvas has no hole: write [MASK]"),
        ("generate --canvas [MASK*7] --model table", "a canvas of 7 positions is longer than table allows (6)"),
        ("generate senate --model table", "a canvas of 7 positions is longer than table allows (6)"),
        (
            "generate \udcff\udcfe",
            "the tokenizer cannot read '\\udcff\\udcfe': it is not valid Unicode: write it in UTF-8",
        ),
        ("generate --temperature -1", "temperature is -1: it must be at least 0"),
        ("generate --temperature", "argument --temperature: expected one argument"),
        (
            "generate --block-length 1 --steps 2 --model table",
            "2 steps are fewer than the 6 blocks: raise steps to 6 or block-length to 3",
        ),
        (
            "generate tom --length 24 --steps 4",
            "4 steps are fewer than the 24 blocks: raise steps to 24 or block-length to 8",
        ),
        (
            "generate tom --length 60 --steps 3",
            "3 steps are fewer than the 60 blocks: raise steps to 60",
        ),
        ("generate --sampler pc", "pc needs a background table: the bundled models have one by their own name"),
        (
            "generate --sampler pc --background sudoku",
            "the background 'sudoku' has 10 tokens, text has ",
        ),
        ("generate --sampler pc --background text --model table", "the background 'text' has "),
        (
            "generate --sampler pc --background wide.json --model table",
            "'wide.json' counts token 6, table has 6 tokens: make one with `unmask frequencies TEXT --model table",
        ),
        ("generate --sampler pc --background none.json", "cannot read the background table 'none.json'"),
        ("generate --recipe none.toml", "cannot read the recipe 'none.toml'"),
        ("generate --prompts none.txt", "cannot read 'none.txt': No such file or directory"),
        ("generate --trace none/path.jsonl", "cannot write the trace 'none/path.jsonl'"),
        ("generate --device nowhere --model table", "cannot load table on nowhere"),
        ("generate --ban 77 --model table", "ban holds 77: give ids from 0 to 5, or eos"),
        ("generate --search best-of-n --particles 1000000000", "lower particles, length or the number of prompts"),
        ("frequencies none.txt --model table -o t.json", "cannot read 'none.txt': No such file or directory"),
        ("frequencies upper.txt --model table -o t.json", "upper.txt:2: 'S' is not a character of this model"),
        ("frequencies empty.txt --model table -o t.json", "the text holds no tokens"),
        ("frequencies bytes.txt --model table -o t.json", "cannot read 'bytes.txt': it is not UTF-8 text"),
        ("frequencies upper.txt --model table -o none/t.json", "there is no folder for 'none/t.json'"),
        ("puzzles sudoku -o none/p.txt", "there is no folder for 'none/p.txt': make it first"),
        ("frequencies good.txt --model table -o .", "'.': Is a directory"),
        ("frequencies good.txt --model table", "the following arguments are required: -o/--output"),
        ("solve 1,2", "there are 1 number and a target: give 3 to 5 numbers, the target last"),
        ("solve 1,1,1,99", "no answer makes 99 of these numbers"),
        ("solve good.txt", "a Sudoku has 81 cells, this one has 6"),
        (
            "solve 15,44,79,50 --model random",
            "random is not a model of countdown: train one with `unmask train countdown`",
        ),
        ("solve 15,44,79,50 --particles 3", "particles has no effect on sampler confidence with search vanilla"),
        ("eval countdwon --data good.txt", "unknown task 'countdwon': did you mean 'countdown'?"),
        ("eval countdown --data good.txt", "line 1 of 'good.txt': 'senate' is not a number"),
        ("eval sudoku --data good.txt", "there is no Sudoku in 'good.txt'"),
        ("eval text --data good.txt --sampler eb", "--sampler has no effect on text"),
        ("eval text --data empty.txt", "there is no text in 'empty.txt'"),
        ("train chess new --steps 1", "unknown task 'chess': choose from sudoku, countdown, text"),
        ("train prose new --steps 1", "prose needs text to train and to validate on"),
        ("train text new --steps 1", "text needs the source of its stories"),
        ("train countdown new", "training has no end: give steps or seconds"),
        ("demo --puzzles 0", "0 puzzles show nothing: give at least 1"),
    ],
)
def test_failures_are_one_line(fails, here, line, expected):
    Path("good.txt").write_text("senate\n")
    Path("upper.txt").write_text("senate\nSetter\n")
    Path("empty.txt").write_text("\n")
    Path("bytes.txt").write_bytes(b"\xff\xfe\n")
    Path("wide.json").write_text('{"num_token": 2, "p_baseline_dict": {"0": 1, "6": 1}}')
    assert expected in fails(*shlex.split(line))
    assert not Path("t.json").exists()


BOARD = "53..7....6..195....98....6.8...6...34..8.3..17...2...6.6....28....419..5....8..79"
SOLUTION = "534678912672195348198342567859761423426853791713924856961537284287419635345286179"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            f"{BOARD} {BOARD}",
            "solve takes one puzzle, and these are 2: put one on each line of a file, and `unmask eval su",
        ),
        (
            "15,44,79,50 --seed 3 3,7,25,50,96",
            "these are 2: put one on each line of a file, and `unmask eval countdown ",
        ),
        ("two.txt two.txt", "solve takes one puzzle, and these are 2"),
        ("15, 44, 79, 50", "'15, 44, 79, 50' has blanks: write 15,44,79,50"),
        (" ".join(BOARD[at : at + 9] for at in range(0, 81, 9)), "has blanks: put quotes around it"),
        ("hello world", "'hello' is neither a file nor a puzzle: give a Sudoku of 81 characters"),
        ("two.txt", "'two.txt' holds 2 puzzles: `unmask eval sudoku --data two.txt` decodes them all"),
        (
            "'my own.csv'",
            "'my own.csv' holds 2 puzzles with solutions: `unmask eval sudoku --data 'my own.csv'` decodes",
        ),
        ("some.txt", "'some.txt' holds 2 puzzles with solutions: `unmask eval sudoku --data some.txt` decodes"),
        ("one.txt", "'one.txt' holds a puzzle with its solution: `unmask eval sudoku --data one.txt` decodes it"),
        (f"'{chr(10).join([BOARD] * 4)}'", "holds 4 puzzles: `unmask eval sudoku --data FILE` decodes them all"),
        ("two.txt --answers one.txt", "unknown option '--answers': see `unmask solve --help`"),
    ],
)
def test_more_than_one_puzzle_to_solve(fails, here, line, expected):
    Path("two.txt").write_text(f"{BOARD}\n{BOARD}\n")
    Path("one.txt").write_text(f"{BOARD} {SOLUTION}\n")
    Path("some.txt").write_text(f"{BOARD} {SOLUTION}\n{BOARD}\n")
    Path("my own.csv").write_text(f"{BOARD},{SOLUTION}\n{BOARD},{SOLUTION}\n")
    assert expected in fails("solve", *shlex.split(line))


@pytest.mark.parametrize(
    ("settings", "line", "expected"),
    [
        (
            "particles = 4",
            "--search vanilla",
            "the recipe 'own.toml': particles has no effect on sampler uniform with",
        ),
        ("num_particles = 4", "--search vanilla", "the recipe 'own.toml': particles has no effect"),
        ("particles = 4", "--search vanilla --particles 3", "error: particles has no effect on sampler uniform with"),
        ("particles = 4", "--search vanilla --num-particles 3", "error: particles has no effect"),
        ("particles = 4", "--steps 0", "error: steps is 0: it must be at least 1"),
        ("particles = 0", "", "the recipe 'own.toml': particles is 0: it must be at least 1"),
        ("top_k = 4\ntemperature = 0", "", "top-k and top-p have no effect on sampler uniform at temperature 0"),
        ('scheme = "warp"', "", "the recipe 'own.toml': unknown scheme 'warp': choose from"),
        ("partcles = 4", "", "the recipe 'own.toml': unknown setting 'partcles': did you mean 'particles'?"),
        ("particles = 4", "--scheme warp", "error: unknown scheme 'warp': choose from"),
    ],
)
def test_a_setting_of_a_recipe_file_is_blamed_on_it(fails, here, settings, line, expected):
    Path("own.toml").write_text(f'sampler = "uniform"\nsearch = "smc"\n{settings}\n')
    assert expected in fails("generate", "--recipe", "own.toml", *shlex.split(line))


def test_names_in_quotes_and_paths_stay_as_they_are(fails, here):
    Path("block_length.toml").write_text("blok_length = 2\n")
    assert "did you mean 'block_length'?" in fails("generate", "--recipe", "block_length.toml")
    assert "'block_length.json'" in fails("generate", "--recipe", "block_length.json")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["从前有一个小女孩"], "the prompt"),
        (["--canvas", "Жила-была[MASK*4] девочка"], "the prompt"),
        (["--prompts", "p.txt"], "2 prompts"),
        (["--prompts", "p.txt", "-o", "made.jsonl"], "2 prompts"),
        (["Ein Mädchen saß da 🙂🙂🙂"], None),
        (["12 + 3 ="], None),
        (["从前有一个小女孩", "--model", "random"], "error"),
    ],
)
def test_a_prompt_in_letters_that_the_model_has_no_tokens_for(given, expected, here, capsys):
    """Once, and in one line."""
    Path("p.txt").write_text("从前有一个小女孩\nOnce upon a time\nОднажды\n")
    status = main(["generate", *given, *([] if "--canvas" in given else ["--length", "2"])])
    found = [line for line in capsys.readouterr().err.splitlines() if line.startswith(("unmask: warn", "unmask: err"))]
    what = f"unmask: warning: text has no tokens for most letters of {expected}, only for their bytes: give text in"
    if expected == "error":
        assert status == 2 and len(found) == 1 and "is not a character of this model" in found[0]
    else:
        assert status == 0 and len(found) == (expected is not None) and all(line.startswith(what) for line in found)


def test_an_interrupt_is_one_line(monkeypatch, capsys):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("unmask.cli.models.load", interrupted)
    assert main(["generate"]) == 130
    assert capsys.readouterr() == ("", "unmask: stopped\n")


def test_an_interrupt_while_importing_is_one_line(here):
    """Until torch is there; here a stand-in for it, which takes seconds too."""
    Path("torch.py").write_text("import sys, time\nprint('importing', flush=True)\ntime.sleep(60)\n")
    paths = os.pathsep.join([str(here), str(Path(unmask.__file__).parent.parent)])
    command = [sys.executable, "-m", "unmask", "samplers"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": paths}
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == b"importing\n"
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=30)[1] == b"unmask: stopped\n"
    assert process.returncode == 130


@pytest.mark.parametrize("given", [[], ["--json"]])
def test_a_closed_pipe_is_quiet(given):
    command = [sys.executable, "-c", "import sys; from unmask.cli import main; sys.exit(main())"]
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([*command, "samplers", *given], stdout=write, stderr=subprocess.PIPE)
    os.close(write)
    assert (done.returncode, done.stderr) == (1, b"")


# --- progress --------------------------------------------------------------------------------------------------------


def test_progress_counts_decided_positions(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Screen())
    recipe = Recipe(sampler="p2", steps=4, length=6, temperature=1.0, search="smc", particles=3, every=1)
    with show.progress() as bar:
        decode(load("table"), recipe=recipe, on_event=show._follow(bar))
        assert (bar.tasks[0].total, bar.tasks[0].completed, bar.tasks[0].description) == (18, 18, "step 4")
    with show.following() as watch:
        assert watch is not None


def test_no_progress_without_a_terminal(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with show.following() as watch:
        decode(load("table"), "s", recipe=Recipe(length=3), on_event=watch)
    assert sys.stderr.getvalue() == "", "a short decode is silent; a long one has a line every ten seconds"


def test_particles_that_nothing_parts_are_told(capsys):
    words = ["generate", "the", "--model", "random", "--length", "4", "--search", "best-of-n"]
    assert main(words) == 0
    assert "all paths are the same" in capsys.readouterr().err
    assert main([*words, "--temperature", "1"]) == 0
    assert "all paths" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"a":' * 99_999, "is not a background table"),
        ('{"num_token": 1e400, "p_baseline_dict": {"0": 1}}', "is not a background table"),
        ('{"num_token": 9, "p_baseline_dict": {"0": 1e400}}', "is not a background table"),
        (f'{{"num_token": 9, "p_baseline_dict": {{"0": {2**63}}}}}', "that is too large"),
        (f'{{"num_token": {2**63}, "p_baseline_dict": {{"0": 1}}}}', "that is too large"),
    ],
    ids=["deep", "infinite total", "infinite", "large", "large total"],
)
def test_a_strange_background_is_refused_in_one_line(text, words, tmp_path):
    (tmp_path / "t.json").write_text(text)
    with pytest.raises(InputError, match=words):
        background.load(tmp_path / "t.json")


@pytest.mark.parametrize("command", [["serve"], ["eval", "sudoku", "--data", "puzzles.txt"], ["generate", "a"]])
def test_a_missing_background_is_refused_before_a_model_is_loaded(command, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    Path("puzzles.txt").write_text("." * 81 + "\n")
    monkeypatch.setattr("unmask.cli.models.load", lambda *given, **more: pytest.fail("a model is loaded"))
    assert main([*command, "--sampler", "pc", "--background", "nope.json"]) == 2
    assert "cannot read the background table 'nope.json'" in capsys.readouterr().err


def test_generate_stops_at_strings_and_says_what_ended_the_text(run, both):
    words = ("generate", "se", "--model", "table", "--length", "4")
    plain = json.loads(run(*words, "--json"))
    assert (plain["finish"], len(plain["text"])) == ("length", 4)
    letter = plain["text"][2]
    cut = json.loads(run(*words, "--stop", "never", "--stop", letter, "--json"))
    assert (cut["finish"], cut["text"]) == ("stop", plain["text"][: plain["text"].index(letter)])
    assert "ended by a stop string" in both(*words, "--stop", letter)[1]
    words = ("generate", "ab", "--model", "random", "--length", "4")
    assert "no end within the length" in both(*words, "--ban", "eos")[1]
    others = ",".join(str(token) for token in range(40) if token not in load("random").vocab.eos)
    text, ends = both(*words, "--ban", others)
    assert text == "\n" and "ended by an end token" in ends


def test_generate_says_what_to_do_where_an_end_leaves_no_text(both):
    banned = ",".join(str(token) for token in range(40) if token not in load("random").vocab.eos)
    words = ("generate", "ab", "--model", "random", "--length", "4", "--ban", banned)
    assert both(*words)[1].endswith(
        "The text is empty: its end was decided before any word. --late eos decides ends last.\n"
    )
    assert "empty" not in both(*words, "--late", "eos")[1]
