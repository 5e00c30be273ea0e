"""Files of rows: whole after any end, refused where they do not fit, compared question by question; and text tasks."""

from __future__ import annotations

import errno
import gzip
import io
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from unmask import Recipe, load
from unmask.cli import main
from unmask.decoding.decode import decode_batch
from unmask.errors import InputError
from unmask.evaluate import rows
from unmask.evaluate.rows import Row
from unmask.evaluate.run import canvases, grader, run
from unmask.models.made.fabricate import fabricate
from unmask.tasks import TASKS, Example
from unmask.train import prose

EASY = "530070000600195000098000060800060003400803001700020006060000280000419005000080079"
HEADER = {"task": "sudoku", "model": "m", "weights": "w", "sha256": "s", "n": 9, "recipe": {"steps": 8}, "torch": "2"}


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def said(capsys) -> str:
    err = capsys.readouterr().err
    assert err.count("\n") == 1, err
    return err


# --- the file --------------------------------------------------------------------------------------------------------


def test_a_file_that_was_cut_anywhere_goes_on(tmp_path):
    path = tmp_path / "r.jsonl"
    with rows.opened(str(path), HEADER) as kept:
        kept.add({"number": n, "text": "é\n" * n} for n in range(3))
    whole = path.read_bytes()
    ends = [place + 1 for place, sign in enumerate(whole) if sign == ord("\n")]
    for cut in sorted({*range(0, len(whole), 11), *ends, *(end - 1 for end in ends)}):
        path.write_bytes(whole[:cut])
        left = max(sum(end <= cut for end in ends) - 1, 0)
        with rows.opened(str(path), HEADER) as kept:
            assert [row["number"] for row in kept.kept] == list(range(left))
            kept.add({"number": n, "text": "é\n" * n} for n in range(left, 3))
        assert path.read_bytes() == whole


def test_a_line_that_was_cut_off_is_replaced_and_nothing_before_it(tmp_path):
    path = tmp_path / "r.jsonl"
    path.write_bytes(b'{"a": 1}\nno object\n{"b": ')
    with rows.JsonLines(path) as file:
        assert (file.lines, file.torn) == ([{"a": 1}, None], b'{"b": ')
        with pytest.raises(InputError, match="another run is writing"):
            rows.JsonLines(path)
        assert path.read_bytes().endswith(b'{"b": ')  # until something is written
        file.add([{"c": 2}])
        file.add([{"d": 3}])
    assert path.read_bytes() == b'{"a": 1}\nno object\n{"c": 2}\n{"d": 3}\n'
    path.write_bytes(b'{"a": 1}\n{"b": ')
    for value in (2, 3):
        rows.append(path, [{"b": value}])
    assert path.read_bytes() == b'{"a": 1}\n{"b": 2}\n{"b": 3}\n'
    with pytest.raises(InputError, match="is not empty"), rows.started(str(path)):
        pass
    assert path.read_bytes() == b'{"a": 1}\n{"b": 2}\n{"b": 3}\n'


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"recipe": {"steps": 9, "seed": 1}}, "steps is 8 there and 9 here; seed is not given there and 1 here"),
        ({"task": "countdown"}, "the task is sudoku there and countdown here"),
        ({"model": "n", "weights": "v"}, "the model is m there and n here; the SHA-256 of the weights is w there"),
        ({"sha256": "t"}, "the SHA-256 of the data is s there and t here"),
        ({"limit": 5}, "limit is not given there and 5 here"),
    ],
)
def test_another_run_is_refused(change, words, tmp_path):
    path = str(tmp_path / "r.jsonl")
    with rows.opened(path, HEADER) as kept:
        kept.add([{"number": 0}])
    before = Path(path).read_bytes()
    with pytest.raises(InputError, match="holds rows of another run") as caught, rows.opened(path, HEADER | change):
        pass
    assert words in str(caught.value) and Path(path).read_bytes() == before
    with rows.opened(path, HEADER | {"model": "the same weights"}) as kept:
        assert len(kept.kept) == 1


def test_rows_that_name_a_setting_otherwise_are_resumed(tmp_path):
    path = str(tmp_path / "r.jsonl")
    with rows.opened(path, HEADER | {"recipe": {"sampler": "dream", "alg_temp": 0.3}}) as kept:
        kept.add([{"number": 0}])
    with rows.opened(path, HEADER | {"recipe": {"sampler": "dream", "select_temperature": 0.3}}) as kept:
        assert len(kept.kept) == 1


def test_a_file_without_rows_is_begun_anew(tmp_path):
    path = str(tmp_path / "r.jsonl")
    for header in (HEADER, HEADER | {"task": "other"}):
        with rows.opened(path, header) as kept:
            assert not kept.kept
    assert rows.read(path).header["task"] == "other"


def test_another_machine_is_written_down(tmp_path):
    path = str(tmp_path / "r.jsonl")
    for version, number in (("2", 0), ("3", 1), ("3", 2)):
        with rows.opened(path, HEADER | {"torch": version}) as kept:
            kept.add([{"number": number}])
    lines = [json.loads(line) for line in Path(path).read_text().splitlines()]
    assert [line["resumed"]["torch"] for line in lines if "resumed" in line] == ["3"]
    assert [row["number"] for row in rows.read(path).kept] == [0, 1, 2] and lines[0]["torch"] == "2"
    whole = Path(path).read_bytes()
    with rows.opened(path, HEADER | {"torch": "4"}) as kept:  # nothing new, so nothing was made there
        kept.add([])
    assert Path(path).read_bytes() == whole


def test_one_run_writes_a_file(tmp_path):
    path = str(tmp_path / "r.jsonl")
    with (
        rows.opened(path, HEADER),
        pytest.raises(InputError, match="another run is writing"),
        rows.opened(path, HEADER),
    ):
        pass


@pytest.mark.parametrize("content", ["earlier\n", "earlier", '{"a": 1}\n', "[]\n", '{"kind": "other"}\n', "\n"])
def test_files_of_something_else_are_kept(content, here, capsys):
    Path("p.txt").write_text(f"{EASY}\n")
    Path("r").write_text(content)
    assert main(["eval", "sudoku", "--data", "p.txt", "--rows", "r"]) == 2
    assert "something else than rows" in said(capsys) and Path("r").read_text() == content


@pytest.mark.parametrize("line", ["x", "[]", "{}", '{"number": "1"}', '{"number": 0, "text": "other"}'])
def test_lines_that_are_no_rows(line, tmp_path):
    path = tmp_path / "r.jsonl"
    path.write_text(json.dumps({"kind": rows.KIND, "n": 2}) + f'\n{{"number": 0}}\n{line}\n')
    with pytest.raises(InputError, match="line 3 of"):
        rows.read(path)


def test_a_row_that_is_there_twice_is_read_as_one(tmp_path):
    """Two runs at once can leave it: all but the seconds is equal, and nothing is lost."""
    path = tmp_path / "r.jsonl"
    lines = [{"kind": rows.KIND, "n": 2}, {"number": 0, "text": "a", "seconds": 1.0}, {"number": 1, "text": "b"}]
    again = {"number": 0, "text": "a", "seconds": 2.0}
    path.write_text("".join(json.dumps(line) + "\n" for line in [*lines, again]))
    found = rows.read(path)
    assert found.kept == lines[1:] and not found.missing
    path.write_text("".join(json.dumps(line) + "\n" for line in [*lines, again | {"text": "c"}]))
    with pytest.raises(InputError, match=r"line 4 of '.*' repeats row 0 with other values: remove one of the two"):
        rows.read(path)


@pytest.fixture
def lockless(monkeypatch):
    fcntl = pytest.importorskip("fcntl")

    def none(*given):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", none)


def test_a_file_system_without_locks_has_a_lock_file(tmp_path, lockless):
    path = str(tmp_path / "r.jsonl")
    lock = Path(f"{path}.lock")
    with rows.opened(path, HEADER) as kept:
        assert lock.read_text().startswith(f"process {os.getpid()} on ")
        kept.add([{"number": 0}])
        for _ in range(2):  # a refusal does not take the lock away
            with (
                pytest.raises(InputError, match=r"another run is writing .* \(process .*remove '.*lock'.*has no locks"),
                rows.opened(path, HEADER),
            ):
                pass
    assert not lock.exists()
    rows.check_place(path)
    assert not lock.exists() and len(rows.read(path).kept) == 1


def test_the_lock_file_of_a_killed_run_is_taken_over(tmp_path, lockless):
    path = str(tmp_path / "r.jsonl")
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    lock = Path(f"{path}.lock")
    lock.write_text(f"process {ended.pid} on {socket.gethostname()}")
    with rows.opened(path, HEADER) as kept:
        kept.add([{"number": 0}])
    lock.write_text(f"process {ended.pid} on another machine")  # nobody knows whether it runs
    with pytest.raises(InputError, match="on another machine"), rows.opened(path, HEADER):
        pass
    assert lock.exists() and len(rows.read(path).kept) == 1
    lock.unlink()
    rows.append(path, [{"number": 1}])
    assert not lock.exists() and len(rows.read(path).kept) == 2


def test_the_header_has_threads_and_batch_and_older_ones_are_resumed(here, capsys):
    Path("p.txt").write_text(f"{EASY}\n" * 3)
    given = ["eval", "sudoku", "--data", "p.txt", "--rows", "r", "--steps", "2"]
    assert main([*given, "--batch", "2"]) == 0
    header, *lines = [json.loads(line) for line in Path("r").read_text().splitlines()]
    assert (header["threads"], header["batch"], header["workers"]) == (torch.get_num_threads(), 2, None)
    older = {name: value for name, value in header.items() if name not in ("threads", "batch", "workers")}
    Path("r").write_text("".join(json.dumps(line) + "\n" for line in [older, *lines[:1]]))
    assert main(given) == 0
    found = rows.read("r")
    assert not found.missing and found.header["batch"] == 32
    assert [rows.timeless(row) for row in found.kept] == [rows.timeless(row) for row in lines]


def test_bad_places_for_rows(here, capsys):
    Path("p.txt").write_text(f"{EASY}\n")
    for path, words in (
        ("none/r", "cannot write 'none/r': No such file"),
        (".", "'.' is not a regular file"),
        ("/dev/null", "'/dev/null' is not a regular file"),
        ("p.txt", "'p.txt' holds the data"),
    ):
        assert main(["eval", "sudoku", "--data", "p.txt", "--rows", path]) == 2
        assert words in said(capsys)


# --- killed and resumed ----------------------------------------------------------------------------------------------

SETTINGS = "--sampler uniform --temperature 1 --steps 2 --search best-of-n --particles 2 --batch 2 --json".split()


def without_times(path: str) -> list[dict[str, object]]:
    return [row | {"seconds": None} for row in rows.read(path).kept]


def test_a_run_killed_twice_has_the_same_rows(here, capsys):
    assert main("puzzles sudoku --count 24 --clues 66 -o p.txt".split()) == 0
    given = ["eval", "sudoku", "--data", "p.txt", *SETTINGS, "--rows"]
    assert main([*given, "alone.jsonl"]) == 0
    alone = json.loads(capsys.readouterr().out)
    dice, environment = random.Random(), {**os.environ, "OMP_NUM_THREADS": "1"}
    before = 0
    for _ in range(2):
        with subprocess.Popen(
            [sys.executable, "-m", "unmask", *given, "killed.jsonl"],
            stdout=subprocess.DEVNULL,
            env=environment | {"PYTHONPATH": os.pathsep.join(sys.path)},
        ) as run:
            while run.poll() is None and _lines("killed.jsonl") <= before + 2:
                time.sleep(0.01)
            time.sleep(dice.random() * 0.1)
            assert run.poll() is None, "it ended before it was killed"
            run.send_signal(signal.SIGKILL)
        before = _lines("killed.jsonl")
    with open("killed.jsonl", "a") as file:
        file.write('{"task": "sudoku", "number"')  # as torn as a line can be
    assert main([*given, "killed.jsonl"]) == 0
    killed = json.loads(capsys.readouterr().out)
    assert without_times("killed.jsonl") == without_times("alone.jsonl")
    times = ("seconds", "tokens_per_second", "date", "machine")  # the machine says how many threads torch has
    assert {k: v for k, v in killed.items() if k not in times} == {k: v for k, v in alone.items() if k not in times}


def _lines(path: str) -> int:
    return Path(path).read_bytes().count(b"\n") if Path(path).exists() else 0


def test_a_finished_run_is_only_told(here, capsys, monkeypatch):
    Path("p.txt").write_text(f"{EASY}\n")
    given = ["eval", "sudoku", "--data", "p.txt", "--steps", "4", "--rows", "r.jsonl", "--json"]
    assert main(given) == 0
    first, content = capsys.readouterr().out, Path("r.jsonl").read_bytes()
    monkeypatch.setattr("unmask.cli.models.load", lambda *given, **more: pytest.fail("there is nothing to decode"))
    assert main(given) == 0
    assert json.loads(capsys.readouterr().out)["strict"] == json.loads(first)["strict"]
    assert Path("r.jsonl").read_bytes() == content
    Path("other.txt").write_text(f"{EASY}\n\n")
    given[3] = "other.txt"
    assert main(given) == 2
    assert "the SHA-256 of the data is" in said(capsys)


def test_a_batch_of_which_rows_are_there_is_decoded_as_it_was(here):
    Path("p.txt").write_text(f"{EASY}\n" * 4)
    task, model, recipe = TASKS["sudoku"], load("sudoku"), Recipe("uniform", steps=3, temperature=1.0)
    questions = canvases(task, task.examples("p.txt"))
    whole = run(task, model, questions, recipe, batch=3)
    rest = run(task, model, questions, recipe, batch=3, done={0, 2})
    assert [row.number for row in rest] == [1, 3]
    assert [row.path_entropy for row in rest] == [whole[1].path_entropy, whole[3].path_entropy]


def test_data_from_standard_input(here, capsys, monkeypatch):
    for _ in range(2):  # and it goes on, as it is the same data
        monkeypatch.setattr(sys, "stdin", io.StringIO("15,44,79,50\n"))
        assert main("eval countdown --data - --steps 4 --rows r.jsonl --json".split()) == 0
        assert json.loads(capsys.readouterr().out)["n"] == 1


def test_text_goes_on(here, capsys, monkeypatch):
    monkeypatch.setattr(prose, "DRAWS", 1)
    licence = Path(__file__).parents[1] / "LICENSE"
    given = ["eval", "text", "--data", str(licence), "--limit", "1", "--rows", "r.jsonl", "--json"]
    assert main(given) == 0
    first = json.loads(capsys.readouterr().out)
    lines = Path("r.jsonl").read_text().splitlines(keepends=True)
    Path("r.jsonl").write_text("".join(lines[:-1]) + lines[-1][:20])
    assert main(given) == 0
    assert json.loads(capsys.readouterr().out)["bits_per_byte"] == first["bits_per_byte"]
    shutil.copy("r.jsonl", "again.jsonl")
    assert main(["compare", "r.jsonl", "again.jsonl"]) == 2
    assert "'r.jsonl' holds no graded answers: its task is text" in said(capsys)


def test_rows_that_someone_changed(here, capsys):
    Path("one.txt").write_text("15,44,79,50\n")
    assert main("eval countdown --data one.txt --steps 4 --rows r.jsonl --json".split()) == 0
    whole = Path("r.jsonl").read_text()
    for old, new, words in (
        ('"strict": false', '"strict": "yes"', "row 0 of 'odd.jsonl' has an unknown or wrong 'strict'"),
        ('"steps": 4, "calls"', '"calls"', "row 0 of 'odd.jsonl' has no 'steps'"),
    ):
        assert whole.count(old) == 1
        Path("odd.jsonl").write_text(whole.replace(old, new))
        capsys.readouterr()
        assert main(["compare", "r.jsonl", "odd.jsonl"]) == 2
        assert words in said(capsys)


# --- tasks of text ---------------------------------------------------------------------------------------------------

FUNCTION = {
    "task_id": "T/0",
    "prompt": 'def two():\n    """Two."""\n',
    "entry_point": "two",
    "canonical_solution": "    return 2\n",
    "test": "def check(f):\n    assert f() == 2\n",
}
GRID = {"input": "0320\n0204\n3040\n2010", "output": "4321\n1234\n3142\n2413"}
QUESTIONS = {
    "sudoku4": ("a.csv", "Puzzle,Solution\n" + "0320020430402010,4321123431422413\n" * 3),
    "sudoku4-dream": ("a.jsonl", (json.dumps(GRID) + "\n") * 9),
    "countdown-chat": ("a.jsonl", '{"input": "2,6,3,15", "output": "2*6=12,12+3=15"}\n' * 3),
    "countdown-dream": ("a.jsonl", '{"input": "2,6,3,15", "output": "2*6=12,12+3=15"}\n' * 9),
    "gsm8k": ("a.jsonl", '{"question": "1+1?", "answer": "2\\n#### 2"}\n' * 5),
    "math500": ("a.jsonl", '{"problem": "1+1?", "answer": "2"}\n' * 3),
    "gpqa": (
        "a.csv",
        "Question,Correct Answer,Incorrect Answer 1,Incorrect Answer 2,Incorrect Answer 3,Record ID\n"
        + "".join(f"Which?,a,b,c,d,r{n}\n" for n in range(8)),
    ),
    "humaneval": ("a.jsonl", (json.dumps(FUNCTION) + "\n") * 3),
}


@pytest.fixture(scope="module")
def llada(tmp_path_factory):
    """A random checkpoint that has a chat template, and room for worked examples."""
    place = tmp_path_factory.mktemp("models") / "tiny"
    fabricate("llada", place)
    config = json.loads((place / "config.json").read_text())
    (place / "config.json").write_text(json.dumps(config | {"max_sequence_length": 8192}))
    return str(place)


@pytest.mark.parametrize("name", QUESTIONS)
def test_every_task_goes_through(name, llada, here, capsys):
    if name == "math500":
        pytest.importorskip("math_verify")
    file, content = QUESTIONS[name]
    Path(file).write_text(content)
    given = ["eval", name, "--data", file, "--model", llada, "--limit", "2", "--length", "8", "--steps", "2"]
    given += ["--shots", file] if TASKS[name].pool == "train" else []
    assert main([*given, "--rows", "r.jsonl", "--json"]) == 0
    found, kept = json.loads(capsys.readouterr().out), rows.read("r.jsonl")
    assert (found["n"], found["evaluations"], found["tokens"], found["failures"]) == (2, 4, 16, [])
    assert kept.header["chat"] is TASKS[name].chat and kept.header["recipe"]["length"] == 8
    for row in kept.kept:
        assert row["task"] == name and len(row["prompt"]) == 16 and row["puzzle"] is None
        assert row["seed"] == row["number"] and isinstance(row["text"], str)
    assert main([*given, "--rows", "r.jsonl"]) == 0
    assert capsys.readouterr().out.startswith("solved 0.000")


def test_the_length_and_the_prompts_are_the_tasks_own(llada, here):
    Path("a.jsonl").write_text(QUESTIONS["countdown-dream"][1])
    assert main(f"eval countdown-dream --data a.jsonl --model {llada} --limit 1 --steps 1 --rows r.jsonl".split()) == 0
    kept = rows.read("r.jsonl")
    assert kept.header["recipe"]["length"] == kept.kept[0]["tokens"] == TASKS["countdown-dream"].length


def test_votes_are_cast_with_answers(llada, here, capsys):
    Path("a.jsonl").write_text(QUESTIONS["humaneval"][1])
    given = f"eval humaneval --data a.jsonl --model {llada} --limit 2 --length 8 --steps 2 --temperature 1"
    assert main([*given.split(), "--search", "vote", "--particles", "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["evaluations"] == 12
    recipe = Recipe("uniform", "vote", length=2, temperature=1.0, particles=3)
    seen = []
    results = decode_batch(load("table"), ["s", "t"], recipe=recipe, answer=[lambda text: seen.append(text), len])
    assert seen == [particle.text for particle in results[0].particles]  # each is asked about its own texts
    with pytest.raises(InputError, match="1 function for 2 prompts"):
        decode_batch(load("table"), ["s", "t"], recipe=recipe, answer=[len])


def test_programs_run_in_the_sandbox(here):
    """What models may write: right, wrong, endless."""
    Path("a.jsonl").write_text(json.dumps(FUNCTION) + "\n")
    task = TASKS["humaneval"]
    [example] = task.examples("a.jsonl")
    grade = grader(task)
    assert grade("    return 2\n", example) == (True, True, None)
    assert grade("    return 3\n", example) == (False, False, None)
    endless = grader(replace(task, seconds=0.5))("    while True: pass\n    return 2\n", example)
    assert endless == (False, False, "timed out")


def test_a_grader_that_breaks_costs_one_row():
    def broken(text, example):
        raise RecursionError("too deep")

    task = replace(TASKS["gsm8k"], strict=broken)
    assert grader(task)("1", Example("0", {}, "#### 1")) == (
        False,
        False,
        "grading failed: RecursionError: too deep",
    )


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("gsm8 --data a.jsonl", "unknown task 'gsm8': did you mean 'gsm8k'?"),
        ("chess", "unknown task 'chess'"),
        ("gsm8k --data a.jsonl --model random", "put gsm8k_train.jsonl into a folder and add --data-dir"),
        ("gsm8k --data a.jsonl --shots a.jsonl", "gsm8k needs a language model: add --model"),
        ("gsm8k --data a.jsonl --shots a.jsonl --recipe llada-gsm8k-confidence", "add --model GSAI-ML/LLaDA"),
        ("gsm8k --data a.jsonl --shots a.jsonl --model random", "question 1 of gsm8k"),
        ("gsm8k --data a.jsonl --shots a.jsonl --model text --length 600", "question 1 of gsm8k: a canvas of"),
        ("gsm8k --data a.jsonl --shots none.jsonl --model text", "cannot read 'none.jsonl'"),
        ("gsm8k --data empty.jsonl --shots a.jsonl --model text", "there is no question in 'empty.jsonl'"),
        ("gsm8k --data a.jsonl --shots empty.jsonl --model text", "there is no question in 'empty.jsonl'"),
        ("gsm8k --data a.jsonl --shots a.jsonl --model text --limit 0", "limit is 0: it must be at least 1"),
        ("gsm8k --data a.jsonl --shots a.jsonl --model text --batch 0", "batch is 0"),
        ("gsm8k --data a.jsonl --shots a.jsonl --model text --insist", "--insist has no effect on gsm8k"),
        ("sudoku4 --data a.csv --model text", "text has no chat template: add --no-chat"),
        ("math500 --data math.jsonl --model text --shots a.jsonl", "--shots has no effect on math500"),
        (
            "humaneval --model text",
            "put HumanEval.jsonl.gz into a folder and add --data-dir FOLDER; or give --data FILE",
        ),
        ("sudoku", "sudoku needs --data FILE: `unmask puzzles sudoku"),
        ("sudoku --data a.jsonl --chat", "--chat has no effect on sudoku"),
        ("sudoku --data a.jsonl --shots a.jsonl", "--shots has no effect on sudoku"),
        ("text", "text needs --data FILE"),
        ("text --data a.jsonl --batch 2", "--batch has no effect on text"),
    ],
)
def test_bad_runs_are_one_line(given, words, here, capsys):
    Path("a.jsonl").write_text(QUESTIONS["gsm8k"][1])
    Path("math.jsonl").write_text(QUESTIONS["math500"][1])
    Path("a.csv").write_text(QUESTIONS["sudoku4"][1])
    Path("empty.jsonl").write_text("\n")
    assert main(["eval", *given.split()]) == 2
    assert words in said(capsys)


def test_a_damaged_archive_is_one_line(here, capsys):
    Path("a.jsonl.gz").write_bytes(gzip.compress(b"{}" * 99)[:-9])
    assert main(["eval", "humaneval", "--data", "a.jsonl.gz", "--model", "text"]) == 2
    assert "cannot read 'a.jsonl.gz'" in said(capsys)


# --- compare ---------------------------------------------------------------------------------------------------------


def made(path, verdicts, **header):
    """A file of rows with these strict verdicts, by number."""
    about = {**HEADER, "data": "d", "n": len(verdicts), **header}
    with rows.opened(str(path), about) as kept:
        for number, right in verdicts.items():
            one = Row(
                task="sudoku",
                number=number,
                id=str(number),
                seed=number,
                puzzle="",
                prompt=None,
                text="",
                answer=None,
                as_published=False,
                strict=right,
                fault=None,
                path_entropy=0.5 - right / 4,
                steps=2,
                calls=2,
                evaluations=2 * header.get("cost", 1),
                tokens=3,
                seconds=0.5,
            )
            known = {"surprise": header["surprise"][number]} if "surprise" in header else {}  # older rows have none
            kept.add([{name: value for name, value in vars(one).items() if name != "surprise"} | known])
    return str(path)


def _fill(path, limit) -> None:
    """One row, then one more than there is room for."""
    with rows.JsonLines(path) as file:
        file.add([{"a": 1}])
        limit()
        file.add([{"a": "x" * 99}])


def test_a_disk_without_room_is_told(tmp_path):
    """Closing the file fails, too: that must not hide the reason."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    path = tmp_path / "rows"
    try:
        with pytest.raises(InputError, match=r"cannot write the rows: .* earlier rows are kept"):
            _fill(path, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20, before[1])))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    with rows.JsonLines(path) as file:
        assert file.lines == [{"a": 1}]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"model": ', '"modl": ', "the header of 'two' has no 'model'"),
        ('"recipe": ', '"recip": ', "the header of 'two' has no 'recipe'"),
        ('"data": ', '"dat": ', "the header of 'two' has no 'data'"),
        ('"evaluations": 2', f'"evaluations": {"9" * 400}', "row 0 of 'two' has an unknown or wrong 'evaluations'"),
    ],
    ids=["model", "recipe", "data", "large"],
)
def test_compare_refuses_files_that_were_changed(here, capsys, old, new, words):
    one, two = made("one", {n: n < 4 for n in range(5)}), made("two", {n: n < 3 for n in range(5)})
    text = Path(two).read_text()
    assert old in text
    Path(two).write_text(text.replace(old, new))
    assert main(["compare", one, two]) == 2
    assert words in capsys.readouterr().err


def test_compare(here, capsys):
    one = made("one", {n: n < 4 for n in range(10)})
    two = made("two", {n: n < 9 for n in range(1, 12)}, cost=3, n=20, surprise={n: n % 9 / 10 for n in range(12)})
    assert main(["compare", one, two, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["n"] == 9 and [run["left_out"] for run in found["runs"]] == [1, 2]
    assert [run["unfinished"] for run in found["runs"]] == [0, 9]
    first, second = found["runs"]
    assert (first["strict"], second["strict"], first["auroc"], first["against"]) == (3 / 9, 8 / 9, 1.0, None)
    assert (first["auroc"], first["auroc_surprise"], second["auroc_surprise"]) == (1.0, None, 0.0)
    over = second["against"]
    assert over["strict"]["difference"] == pytest.approx(5 / 9) and over["strict"]["p"] == 2 / 32
    assert (over["strict"]["better"], over["strict"]["worse"]) == (5, 0)
    assert over["evaluations_ratio"] == 3 and over["seconds_ratio"] == 1
    assert over["strict"]["low"] < 5 / 9 < over["strict"]["high"]
    assert main(["compare", one, two, f"./{one}"]) == 0
    out, err = capsys.readouterr()
    assert err == "unmask: warning: files that are given twice are shown once\n" and out.count("\n one ") == 1
    assert (
        "+0.556" in out and "(×3.00)" in out and "0.000 \n" in out and "9 questions of sudoku that all runs have" in out
    )
    assert "two: 2 questions not common, 9 are still to come" in out


def test_what_cannot_be_compared(here, capsys):
    made("one", {0: True})
    made("data", {0: True}, sha256="t")
    made("task", {0: True}, task="countdown")
    made("apart", {1: True})
    Path("foreign").write_text("x\n")
    Path("empty").write_text("")
    for files, words in (
        ("one", "there is one file of rows: give two or more"),
        ("one ./one", "there is one file of rows, 'one', given 2 times: give two or more"),
        ("one data", "'one' and 'data' are of different data: s and t"),
        ("one task", "'one' and 'task' are of different task: sudoku and countdown"),
        ("one apart", "no question in common"),
        ("one foreign", "'foreign' holds something else"),
        ("one empty", "'empty' is empty"),
        ("one none", "cannot read 'none': No such file"),
    ):
        assert main(["compare", *files.split()]) == 2
        assert words in said(capsys)


def test_real_runs_are_compared(here, capsys):
    assert main("puzzles sudoku --count 4 --clues 60 -o p.txt".split()) == 0
    for search in ("vanilla", "best-of-n"):
        given = (
            f"eval sudoku --data p.txt --sampler uniform --temperature 1 --steps 2 --rows {search} --search {search}"
        )
        assert main([*given.split(), *(["--particles", "2"] if search == "best-of-n" else [])]) == 0
    capsys.readouterr()
    assert main(["compare", "vanilla", "best-of-n"]) == 0
    assert "(×2.00)" in capsys.readouterr().out
    shutil.copy("vanilla", "again")
    assert main(["compare", "vanilla", "again", "--json"]) == 0
    over = json.loads(capsys.readouterr().out)["runs"][1]["against"]["strict"]
    assert (over["difference"], over["p"]) == (0, 1) and over["low"] == pytest.approx(-over["high"])
