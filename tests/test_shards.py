"""Shards of a run, and the one file that `unmask join` makes of them: that of the whole run, row by row."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from unmask.cli import main
from unmask.evaluate import rows

GRID = "5346789126721953481983425678597614234268537917139248569615372842874196353452861.."
EVAL = "eval sudoku --data grids.txt --sampler uniform --temperature 1 --steps 2 --batch 2 --rows".split()
GENERATE = "generate --model random --prompts p.txt --sampler uniform --temperature 1 --steps 3 --batch 2 -o".split()
EARLY = "--search best-of-n --particles 3 --until 0.6".split()


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("grids.txt").write_text("".join(f"{'.' * hole}{GRID[hole:]}\n" for hole in range(7)))
    Path("p.txt").write_text("a\nbc\ndef\ng\nhijklm\nn\no\np\nq\n")
    return tmp_path


@pytest.fixture
def refused(capsys):
    def refuse(*argv: str) -> str:
        capsys.readouterr()
        assert main(list(argv)) == 2
        out, err = capsys.readouterr()
        assert out == "" and err.count("\n") == 1
        return err

    return refuse


def lines(path: str) -> list[rows.Line]:
    return [rows.timeless(row) for row in rows.read(path).kept]


def sharded(given: list[str], count: int) -> list[str]:
    names = [f"{place}.jsonl" for place in range(1, count + 1)]
    for place, name in enumerate(names, 1):
        assert main([*given, name, "--shard", f"{place}/{count}"]) == 0
    return names


@pytest.mark.parametrize(
    ("given", "count"),
    [(EVAL, 3), (GENERATE, 2), ([*GENERATE[:-1], "--n", "2", "-o"], 4)],
    ids=["eval", "generate", "samples"],
)
def test_joined_shards_are_the_whole_run(given, count, here, capsys):
    """Without a length, the longest prompt of all shards says it."""
    assert main([*given, "whole.jsonl"]) == 0
    names = sharded(given, count)
    capsys.readouterr()
    assert main(["join", *names[::-1], "-o", "joined.jsonl"]) == 0
    assert capsys.readouterr().err.endswith(f"{count} shards\n")
    assert lines("joined.jsonl") == lines("whole.jsonl")
    one, two = (rows.read(path).header for path in ("joined.jsonl", "whole.jsonl"))
    drop = {"date", "workers"}
    assert {k: v for k, v in one.items() if k not in drop} == {k: v for k, v in two.items() if k not in drop}
    assert one["workers"] == {one["machine"]: count}
    before = Path("joined.jsonl").read_bytes()
    assert main([*given, "joined.jsonl"]) == 0  # it is the finished run
    assert Path("joined.jsonl").read_bytes() == before


def test_shards_of_a_search_that_stops_early(here):
    given = [*GENERATE[:-1], "--length", "6", *EARLY, "-o"]
    assert main([*given, "whole.jsonl"]) == 0
    assert main(["join", *sharded(given, 2), "-o", "joined.jsonl"]) == 0
    exact = ("number", "prompt", "text", "tokens", "chosen", "calls", "evaluations", "rows", "seed", "finish")
    whole = sorted(lines("whole.jsonl"), key=lambda row: row["number"])
    for one, two in zip(lines("joined.jsonl"), whole, strict=True):
        assert {name: one[name] for name in exact} == {name: two[name] for name in exact}
        assert one["path_entropy"] == pytest.approx(two["path_entropy"], rel=1e-5)


def test_shards_of_texts(here, capsys, monkeypatch):
    monkeypatch.setattr("unmask.train.prose.TOGETHER", 1)
    Path("t.txt").write_text("Once upon a time there was a cat.\n\n" * 3)
    given = ["eval", "text", "--data", "t.txt", "--json", "--rows"]
    assert main([*given, "whole.jsonl"]) == 0
    whole = json.loads(capsys.readouterr().out)
    assert main(["join", *sharded(given, 2), "-o", "joined.jsonl"]) == 0
    assert lines("joined.jsonl") == lines("whole.jsonl")
    capsys.readouterr()
    assert main([*given, "joined.jsonl"]) == 0
    assert json.loads(capsys.readouterr().out)["bits_per_byte"] == whole["bits_per_byte"]


def test_a_shard_is_resumed_as_it_was(here, refused):
    assert main([*EVAL, "1.jsonl", "--shard", "1/2"]) == 0
    content = Path("1.jsonl").read_text().splitlines(keepends=True)
    Path("1.jsonl").write_text("".join(content[:2]))
    line = refused(*EVAL, "1.jsonl", "--shard", "2/2")
    assert "the shard is 1/2 of batches of 2 there and 2/2 of batches of 2 here" in line
    assert "there and not given here" in refused(*EVAL, "1.jsonl")
    assert "of batches of 3 here" in refused(*EVAL, "1.jsonl", "--shard", "1/2", "--batch", "3")
    assert main([*EVAL, "1.jsonl", "--shard", "1/2"]) == 0
    assert [rows.timeless(json.loads(line)) for line in content[1:]] == lines("1.jsonl")


def test_what_is_not_joined(here, refused):
    one, two = sharded(EVAL, 2)
    assert main([*EVAL, "whole.jsonl"]) == 0
    for given, words in (
        ([one], "1 shard is missing: 2/2: give the files of all shards"),
        ([one, one], "a file is given twice"),
        ([one, "whole.jsonl"], "'whole.jsonl' is not of a shard"),
        ([one, "copy.jsonl"], "'1.jsonl' and 'copy.jsonl' are both shard 1/2: leave one of them out"),
        ([one, "other.jsonl"], "'other.jsonl' is of another run than '1.jsonl': the recipe differs"),
        ([one, "third.jsonl"], "the number of shards differs"),
        ([one, "torn.jsonl"], "'torn.jsonl' lacks 1 row of 3: run its command again"),
        ([one, "wrong.jsonl"], "both have row 0: one of them is not the shard that its header names"),
        ([one, "none.jsonl"], "cannot read 'none.jsonl'"),
    ):
        text = Path(two).read_text()
        Path("copy.jsonl").write_text(Path(one).read_text())
        Path("other.jsonl").write_text(text.replace('"steps": 2', '"steps": 3', 1))
        Path("third.jsonl").write_text(text.replace('"2/2 of', '"2/3 of', 1))
        Path("torn.jsonl").write_text("".join(text.splitlines(keepends=True)[:-1]))
        Path("wrong.jsonl").write_text(text.replace('"number": 2,', '"number": 0,', 1))
        assert words in refused("join", *given, "-o", "out.jsonl")
        assert not Path("out.jsonl").exists()
    assert "'1.jsonl' is one of the shards" in refused("join", one, two, "-o", one)
    assert main(["join", one, two, "-o", "out.jsonl"]) == 0
    assert "'out.jsonl' is not empty" in refused("join", one, two, "-o", "out.jsonl")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (f"{' '.join(EVAL[:-1])} --shard 1/2", "--shard divides the rows of a run over files: add --rows FILE"),
        (f"{' '.join(EVAL)} r --shard 5/2", "shard is '5/2': give I/N with I from 1 to N, as 3/16"),
        (f"{' '.join(EVAL)} r --shard 5/5", "shard 5/5 is empty: there are 4 parts of 2: use fewer shards"),
        ("generate hello --model random --shard 1/2", "--shard divides the rows of a run over files"),
        ("generate hello --model random --ray", "there is no GPU on this machine: add --gpus 0"),
        ("generate --prompts p.txt --ray", "--ray decodes one prompt, or a file of prompts into a file: add -o FILE"),
        (
            "generate hello --ray --gpus 0 --skip-lost",
            "--skip-lost has no effect: a prompt in slices is decoded by itself",
        ),
        ("generate hello --n 2 --batch 2 --slice 2", "--batch has no effect: a prompt in slices is decoded by itself"),
        ("generate --prompts p.txt -o r --slice 2", "--slice has no effect with -o: workers take whole batches"),
        ("generate hello --model random --slice 0", "--slice is 0: give a whole number, at least 1"),
        (f"generate hello --model random --slice {10**20}", f"--slice is {10**20}: it must be at most 2147483647"),
        ("generate hello --model random --slice 2", "--slice has no effect on one path: leave it out, or give search"),
        ("generate --prompts p.txt --model random --slice 2", "--slice has no effect on one path"),
        ("generate hello --model random --slice 2 --trace t", "--trace has what happens in each step, which slices"),
        (
            "generate hello --ray --gpus 0 --logprobs 1 --json",
            "--logprobs has what happens in each step, which slices do not send: leave it out, or",
        ),
        (f"{' '.join(EVAL)} r --workers 2", "--workers has no effect without --ray: add --ray"),
        (f"{' '.join(EVAL)} r --gpus 0", "--gpus has no effect without --ray: add --ray"),
        ("generate hello --model random --gpus 0", "--gpus has no effect without --ray: add --ray"),
        (f"{' '.join(EVAL)} r --ray --shard 1/2", "--shard and --ray exclude each other"),
        (f"{' '.join(EVAL)} r --ray --workers many", "workers is 'many': give a number, or a range like 4-32"),
        (f"{' '.join(EVAL)} r --ray --workers 4-2", "workers is (4, 2): give at least 1, or a range like 4-32"),
        (f"{' '.join(EVAL)} r --ray --cpus 0", "cpus is 0, gpus is 1: give at least 1 CPU"),
        (f"{' '.join(EVAL)} r --ray ray://there:10001", "is of Ray Client, which loses the run with its connection"),
        ("eval text --data p.txt --ray", "--ray has no effect on text, which one process measures: use --shard"),
    ],
)
def test_shards_that_make_no_sense(line, words, here, refused):
    assert words in refused(*line.split())


def test_a_fleet_needs_ray(here, refused, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert "a fleet needs Ray: pip install 'unmask[ray]'" in refused(*EVAL, "r", "--ray", "--gpus", "0")
