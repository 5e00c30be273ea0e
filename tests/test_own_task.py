"""Tasks of the user's own: what a file must define, how it is run, and which changes a resumed run refuses."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from unmask import Recipe, load, task
from unmask.cli import main
from unmask.errors import InputError, UnmaskError
from unmask.evaluate.compare import summary
from unmask.evaluate.run import evaluate
from unmask.tasks import TASKS
from unmask.tasks.own import read_task

WORDS = """\
from unmask import task

WORDS = [("s", "t"), ("se", "e"), ("t", "r")]


@task(WORDS, length=4, recipe={"temperature": 1.0})
def letters(text, answer):
    "Words that hold a letter."
    return answer in text
"""


@pytest.fixture(autouse=True)
def _paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    Path("words.py").write_text(WORDS)


def run(*words: str) -> int:
    return main(["eval", *words, "--model", "table"])


def test_a_file_is_asked_graded_and_resumed(capsys):
    assert run("words.py", "--rows", "rows.jsonl") == 0
    printed = capsys.readouterr().out
    header, *rows = map(json.loads, Path("rows.jsonl").read_text().splitlines())
    assert (header["task"], header["task_file"], header["data"], header["n"]) == ("letters", "words.py", "words.py", 3)
    for row, (prompt, answer) in zip(rows, [("s", "t"), ("se", "e"), ("t", "r")], strict=True):
        assert row["strict"] == row["as_published"] == (answer in row["text"]) and len(row["text"]) == 4, prompt
        assert row["template"] == f"words.py {header['task_sha256'][:16]}" and row["fault"] is None
    assert printed.startswith(f"solved {sum(row['strict'] for row in rows) / 3:.3f} ") and "published" not in printed
    assert {row["strict"] for row in rows} == {True, False}  # the grader was asked

    Path("rows.jsonl").write_text("".join(Path("rows.jsonl").read_text().splitlines(keepends=True)[:2]))  # killed
    assert run("words.py", "--rows", "rows.jsonl") == 0
    again = [json.loads(line) for line in Path("rows.jsonl").read_text().splitlines()][1:]
    timeless = [[{**row, "seconds": 0} for row in some] for some in (rows, again)]
    assert timeless[0] == timeless[1]
    assert run("words.py", "--rows", "first.jsonl", "--limit", "2") == 0

    Path("words.py").write_text(WORDS.replace("in text", "not in text"))
    capsys.readouterr()
    assert run("words.py", "--rows", "rows.jsonl") == 2
    assert "the SHA-256 of the task's file is" in capsys.readouterr().err
    assert run("words.py", "--rows", "other.jsonl") == 0
    other = [json.loads(line) for line in Path("other.jsonl").read_text().splitlines()][1:]
    assert [row["strict"] for row in other] == [not row["strict"] for row in rows]
    assert main(["compare", "rows.jsonl", "other.jsonl"]) == 2  # two graders
    assert "different task file" in capsys.readouterr().err


def test_questions_of_a_file_and_a_prompt_of_a_file(capsys):
    Path("words.py").write_text(WORDS.replace("@task(WORDS", "@task(lambda path: path.read_text().split()")
                                .replace("text, answer", "text").replace("answer in", '"e" in'))  # fmt: skip
    assert run("words.py") == 2
    assert "letters needs a file: give the file that its function reads, with --data" in capsys.readouterr().err
    Path("questions.txt").write_text("s\nt\n")
    Path("prompt.txt").write_text("<<prompt>>e")
    assert run("words.py", "--data", "questions.txt", "--prompt", "prompt.txt", "--rows", "rows.jsonl") == 0
    header, *rows = map(json.loads, Path("rows.jsonl").read_text().splitlines())
    assert (
        header["data"] == "questions.txt" and header["template"] == "prompt.txt" and header["task_file"] == "words.py"
    )
    assert header["template_sha256"] != header["task_sha256"] and len(rows) == 2


def test_the_same_from_python():
    @task({"s": "t", "se": "e"}, length=4, extract=lambda text: text[:1])
    def letters(text, answer):
        return answer in text

    recipe = Recipe(sampler="uniform", temperature=1.0, search="vote", particles=4)
    rows = evaluate(letters, load("table"), recipe)
    assert [row.answer for row in rows] == [row.text[0] for row in rows]
    assert [row.strict for row in rows] == ["t" in rows[0].text, "e" in rows[1].text]
    assert summary(rows)["n"] == 2 and letters.name == "letters" and "letters" not in TASKS
    (row,) = evaluate(letters, load("table"), limit=1, length=2)
    assert len(row.text) == 2
    Path("words.py").write_text("from unmask.tasks import TASKS\nfrom dataclasses import replace\n"
                                "GSM8K = TASKS['gsm8k']\nLONG = replace(GSM8K, name='long', length=512)\n")  # fmt: skip
    assert read_task("words.py").length == 512


WRONG = [
    ("x = 1\n", "words.py", "'words.py' defines no task: define one: `@task(questions)`"),
    ("def f(:\n", "words.py", "cannot run 'words.py': line 1: SyntaxError"),
    ("\nimport nothing_of_this_name\n", "words.py", "line 2: ModuleNotFoundError: No module named"),
    ("raise SystemExit('no')\n", "words.py", "cannot run 'words.py': line 1: SystemExit: no"),
    (WORDS + WORDS.replace("letters", "more"), "words.py", "defines 2 tasks: choose one, as words.py:letters"),
    (WORDS, "words.py:leters", "unknown task 'leters': did you mean 'letters'?"),
    (WORDS, "wards.py", "cannot read 'wards.py'"),
    (WORDS.replace('("t", "r")', "7"), "words.py", "question 3 of letters is 7: give a prompt, or (prompt, answer)"),
    (WORDS.replace("WORDS = [", "WORDS = [][:0] and ["), "words.py", "letters has no questions"),
    (WORDS.replace("(text, answer)", "(text, answer, more)"), "words.py", "is not a function of (text) or"),
    (WORDS.replace("answer in text", "text[0]"), "words.py", "fails on an empty text: line 9: IndexError"),
    (WORDS.replace("answer in text", "0.5"), "words.py", "returned 0.5: return True or False"),
    (WORDS.replace("length=4", "length=0"), "words.py", "length is 0: give the number of tokens"),
    (WORDS.replace("answer in text", "1 / (text == '')"), "words.py", "fails on question 1: line 9: ZeroDivisionError"),
    (
        WORDS.replace("answer in text", "exit() if text else True"),
        "words.py",
        "of letters fails on question 1: line",
    ),
    (WORDS.replace("answer in text", "exit()"), "words.py", "of letters fails on an empty text: line"),
    (WORDS.replace("length=4", "length=4, extract=lambda text: 1 / 0"), "words.py", "extract of letters fails on '"),
    (WORDS.replace("length=4", "length=4, stop=[1]"), "words.py", "stop holds something else than texts"),
    (WORDS.replace("length=4", "length=4, stop=['']"), "words.py", "stop holds something else than texts"),
    (WORDS.replace("length=4", "length=4, name=5"), "words.py", "the name of a task is 5: give a few letters"),
    (WORDS.replace("length=4", "length=4, name='a\\x1b[31m'"), "words.py", "the name of a task is 'a\\x1b[31m'"),
    (
        WORDS.replace('"temperature"', '"temprature"'),
        "words.py",
        "unknown setting in the recipe of letters 'temprature'",
    ),
    (WORDS.replace('{"temperature": 1.0}', "'steps'"), "words.py", "recipe is a str: give settings by their names"),
    (WORDS.replace('"r")]', "{(1, 2): 3})]"), "words.py", "the answers of the questions cannot be told apart"),
    (
        WORDS.replace("@task(", "WORDS[0] = ('s', WORDS)\n@task("),
        "words.py",
        "the answers of the questions cannot be told",
    ),
    (
        WORDS.replace("WORDS = [", "WORDS = (str(n) for n in range(9**9)) or ["),
        "words.py",
        "has more than 1,000,000 questions",
    ),
]


@pytest.mark.parametrize(("code", "name", "said"), WRONG, ids=[said[:40] for *_, said in WRONG])
def test_what_is_wrong_with_a_file_is_said_in_one_line(code, name, said, capsys):
    Path("words.py").write_text(code)
    assert run(name) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


def test_a_file_of_questions_is_not_a_task(capsys):
    Path("questions.jsonl").write_text("{}\n")
    assert run("questions.jsonl") == 2
    assert "give its questions with --data, or a task of yours in a .py file" in capsys.readouterr().err
    assert run("words.py", "--data", "questions.jsonl") == 2
    assert "letters has its questions in its code" in capsys.readouterr().err
    with pytest.raises(InputError, match="question 1 of <lambda> is"):
        task([("a", "b", "c")])(lambda text: True)
    with pytest.raises(UnmaskError, match="leave"):
        read_task("words.py").examples("questions.jsonl")
