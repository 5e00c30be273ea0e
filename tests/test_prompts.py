"""Prompts of files: what they ask, what is refused, which runs they make, how they are made of PC-Sampler's source."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from test_tasks import ROWS
from unmask.cli import main
from unmask.errors import InputError
from unmask.evaluate import rows
from unmask.evaluate.paper.cells import PaperRun, run
from unmask.evaluate.paper.output import markdown
from unmask.evaluate.paper.plan import read
from unmask.models.made.fabricate import fabricate
from unmask.tasks import TASKS, Example, Task, countdown, gpqa, shots, sudoku4, with_prompt
from unmask.tasks.pc_sampler import templates
from unmask.tasks.task import Wording
from unmask.tasks.templates import worded

PROMPTED = [name for name, task in TASKS.items() if task.puzzle is None]


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def asked(task: Task, example: Example, shown: list[Example] | None = None) -> str:
    prompt = task.prompt(example, shown)
    return prompt if isinstance(prompt, str) else prompt[0]["content"]


# --- templates -------------------------------------------------------------------------------------------------------

OURS = {  # our own prompts as templates
    "problems": "<<question>>",
    "sudoku4": f"{sudoku4.RULES}\n\n{sudoku4.AGAIN}\n\n"
    "<<examples>>\nPuzzle: <<rows>>\n<answer>\n<<answer_rows>>\n</answer>\n\n<<end>>\n"
    "Puzzle: <<rows>>\n<answer>\n\n",
    "sudoku4-dream": "<<examples>>\nInput:\n<<rows>>\nOutput:\n<<answer_rows>>\n\n<<end>>\nInput:\n<<rows>>\nOutput:\n",
    "countdown-chat": f"{countdown.RULES}\n\n"
    "<<examples>>\nQuestion: <<input>>\nSolution: The answer is: <<answer>>\n\n<<end>>\n"
    "New Question: <<input>>\nSolution: ",
    "countdown-dream": "<<examples>>\nInput: <<input>>\nOutput: <<answer>>\n\n<<end>>\nInput: <<input>>\nOutput: ",
    "gsm8k": "<<examples>>\nQuestion: <<question>>\nAnswer: <<answer>>\n\n<<end>>\nQuestion: <<question>>\nAnswer:",
    "math500": "<<examples>>\nQ: <<problem>>\n\n  A: <think><<thought>></think>\n"
    "<answer>\\boxed{<<answer>>}</answer>\n\n<<end>>\nQ: <<problem>>\n\n  A:\n",
    "gpqa": f"{gpqa.ABOVE}"
    "<<examples>>\nQuestion: <<question>>\nChoices:\n<<choices>>\nAnswer: (<<answer>>)\n\n<<end>>\n"
    "Question: <<question>>\nChoices:\n(A) <<choice1>>\n(B) <<choice2>>\n(C) <<choice3>>\n(D) <<choice4>>\nAnswer:",
    "humaneval": "<<prompt>>",
    "humaneval+": "<<prompt>>",
    "mbpp": "<<text>> Your code should pass these tests:\n\n<<tests>>```python\n",
    "mbpp+": "<<text>> Your code should pass these tests:\n\n<<tests>>```python\n",
}


@pytest.mark.parametrize("name", PROMPTED)
def test_our_own_prompt_as_a_template(name, tmp_path):
    task, example = TASKS[name], ROWS[name]
    shown = shots(task, [example], [Example(f"{n}x", example.fields, example.gold) for n in range(20)])[0]
    (tmp_path / "own.txt").write_text(OURS[name])
    made = with_prompt(task, tmp_path / "own.txt")
    assert made.prompt(example, shown) == task.prompt(example, shown)
    assert not shown or (made.shots, made.shown, made.pool) == (task.shots, task.shown, task.pool)
    assert task.wording == Wording() and str(task.wording) == "ours"
    assert str(made.wording).startswith("own.txt ") and len(str(made.wording)) == len("own.txt ") + 16


def test_a_template_without_examples_shows_its_own(tmp_path):
    (tmp_path / "a.txt").write_bytes("\ufeffQ: 1+1? <<2*1=2>> #### 2\r\nQ: <<question>>\r\n".encode())
    task = with_prompt(TASKS["gsm8k"], tmp_path / "a.txt")
    assert (task.shots, task.shown, task.pool) == (0, (), "")
    said = Example("0", {"question": "What is <<question>>?"}, "#### 4")
    assert task.prompt(said) == "Q: 1+1? <<2*1=2>> #### 2\nQ: What is <<question>>?\n"  # each field is filled once
    assert shots(task, [said]) == [[]]
    assert task.grades("#### 4", said) == (True, True)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("gsm8k", "", "the prompt 'a.txt' is empty: it needs <<question>>"),
        ("gsm8k", " \n", "the prompt 'a.txt' is empty"),
        ("gsm8k", "<<qestion>>", "the prompt 'a.txt': unknown field 'qestion': did you mean 'question'?"),
        ("gsm8k", "{question}", "the prompt 'a.txt' leaves out the question of gsm8k: write <<question>>"),
        ("gsm8k", "<<question>> <<answer>>", "the prompt 'a.txt' gives <<answer>> away: write it between <<examples>>"),
        ("gsm8k", "<<examples>> <<question>>", "has <<examples>> without <<end>>: write both, or neither"),
        ("gsm8k", "<<question>> <<end>>", "has <<end>> without <<examples>>"),
        ("gsm8k", "<<examples>><<answer>><<end>>" * 2 + "<<question>>", "has <<examples>> twice"),
        ("gsm8k", "<<examples>>" * 80_000 + "<<question>>", "has <<examples>> twice"),  # each looked for its end
        ("gsm8k", "<<question>>" * 100_000, "the prompt 'a.txt' has more than 1,048,576 characters"),
        ("gsm8k", "<<examples>><<question>><<end>><<question>>", "have no answer: write <<answer>>"),
        ("gsm8k", "<<examples>><<gold>><<end>><<question>>", "unknown field 'gold': choose from question, answer"),
        ("gsm8k", "<<examples>><<answer>><<end>>", "leaves out the question of gsm8k"),
        ("problems", "<<examples>>1<<end>><<question>>", "has <<examples>>: problems has none, leave them out"),
        ("sudoku4", "Solve it.", "leaves out the puzzle of sudoku4: write <<puzzle>> or <<rows>>"),
        ("sudoku4", "<<examples>>1<<end>><<rows>>", "have no answer: write <<answer>> or <<answer_rows>>"),
        ("gpqa", "<<question>> <<choice1>>", "leaves out the choice2 of gpqa: write <<choices>> or <<choice2>>"),
        ("sudoku", "<<input>>", "sudoku has no prompt, its model is given a canvas: leave the prompt out"),
    ],
)
def test_bad_templates(name, text, words):
    with pytest.raises(InputError) as error:
        worded(TASKS[name], text, Wording("a.txt"))
    assert words in str(error.value)


def test_every_prompt_can_be_worded():
    assert set(OURS) == set(PROMPTED)
    assert all(bool(task.shots) == bool(task.solved) for name, task in TASKS.items() if name in PROMPTED)


# --- runs ------------------------------------------------------------------------------------------------------------

QUESTION = '{"question": "Tom has 2 pens. Mia has 1 more pen than Tom. How many pens does Mia have?", "answer": 3}\n'
GIVEN = "eval problems --data q.jsonl --length 8 --steps 2 --rows r.jsonl".split()


def test_rows_name_the_prompt_and_other_prompts_are_other_runs(here, capsys):
    Path("q.jsonl").write_text(QUESTION * 2)
    Path("a.txt").write_text("Problem: <<question>>")
    assert main([*GIVEN, "--prompt", "a.txt"]) == 0
    kept = rows.read("r.jsonl")
    assert kept.header["template"] == "a.txt" and len(kept.header["template_sha256"]) == 64
    assert {row["template"] for row in kept.kept} == {f"a.txt {kept.header['template_sha256'][:16]}"}
    whole = Path("r.jsonl").read_bytes()
    Path("b.txt").write_bytes(Path("a.txt").read_bytes())  # the same prompt under another name
    assert main([*GIVEN, "--prompt", "b.txt"]) == 0 and Path("r.jsonl").read_bytes() == whole
    Path("a.txt").write_text("Problem: <<question>>\n")
    capsys.readouterr()
    for words in ([*GIVEN, "--prompt", "a.txt"], GIVEN):
        assert main(words) == 2
        assert "the SHA-256 of the prompt's file is" in capsys.readouterr().err
    assert main([*GIVEN[:-1], "ours.jsonl", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["template"] == "ours"
    ours = rows.read("ours.jsonl")
    assert ours.header["template_sha256"] is None and {row["template"] for row in ours.kept} == {"ours"}
    assert {row["prompt"] for row in ours.kept}.isdisjoint(row["prompt"] for row in kept.kept)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("problems --data q.jsonl --prompt none.txt", "cannot read 'none.txt': No such file"),
        ("problems --data q.jsonl --prompt latin.txt", "cannot read 'latin.txt': it is not UTF-8 text"),
        ("problems --data q.jsonl --prompt empty.txt", "the prompt 'empty.txt' is empty"),
        ("problems --data q.jsonl --prompt wrong.txt", "the prompt 'wrong.txt': unknown field 'input'"),
        ("gsm8k --data q.jsonl --shots q.jsonl --prompt own.txt", "--shots has no effect on gsm8k, which has its own"),
        ("sudoku --data q.jsonl --prompt own.txt", "--prompt has no effect on sudoku, whose model is given a canvas"),
        ("text --data q.jsonl --prompt own.txt", "--prompt has no effect on text"),
    ],
)
def test_bad_prompts_are_one_line(given, words, here, capsys):
    Path("q.jsonl").write_text(QUESTION)
    Path("latin.txt").write_bytes("<<question>> é".encode("latin-1"))
    Path("empty.txt").write_text("\n")
    Path("wrong.txt").write_text("<<input>>")
    Path("own.txt").write_text("<<question>>")
    assert main(["eval", *given.split()]) == 2
    err = capsys.readouterr().err
    assert words in err and err.count("\n") == 1


def test_other_contents_of_a_background_are_another_run(here, capsys):
    board = "530070000600195000098000060800060003400803001700020006060000280000419005000080079\n"
    Path("q.txt").write_text(board * 2)
    table = {"num_token": 3, "p_baseline_dict": {"1": 1, "2": 2}}
    Path("t.json").write_text(json.dumps(table))
    given = "eval sudoku --data q.txt --sampler pc --background t.json --steps 2 --rows r.jsonl".split()
    assert main(given) == 0 and main(given) == 0
    Path("t.json").write_text(json.dumps(table | {"num_token": 4}))
    capsys.readouterr()
    assert main(given) == 2
    assert "the SHA-256 of the background table is" in capsys.readouterr().err
    old = Path("r.jsonl").read_text().splitlines(keepends=True)
    header = json.loads(old[0])
    del header["background"], header["template"], header["template_sha256"]  # as version 0.1 wrote it
    Path("r.jsonl").write_text(json.dumps(header) + "\n" + "".join(old[1:]))
    assert main(given) == 0


# --- the paper's experiments -----------------------------------------------------------------------------------------

SMALL = """
title = "Small"
where = "nowhere"
kind = "cells"
claim = "Nothing."
axes = ["sampler"]

[[cell]]
labels = ["pc"]
sampler = "pc"
steps = 2
length = 4

[places.gsm8k]
model = "tiny"
task = "gsm8k"

[places.text]
model = "text"
n = 1
"""


def test_prompts_shots_and_backgrounds_make_other_files_of_the_paper(here):
    fabricate("llada", Path("tiny"))
    for name in ("a", "b"):
        Path(f"{name}.jsonl").write_text((json.dumps({"question": "1+1?", "answer": f"{name} #### 2"}) + "\n") * 4)
        Path(f"{name}.txt").write_text(f"{name} <<examples>><<answer>><<end>><<question>>")
    Path("t.json").write_text('{"num_token": 3, "p_baseline_dict": {"1": 1, "2": 2}}')
    experiment = read("small", SMALL)
    place = replace(experiment.places["gsm8k"], settings={"background": "t.json"})
    job = PaperRun(experiment, place, Path("out"), limit=1, data="a.jsonl", shots="a.jsonl", prompt="a.txt")
    found = [run(job)[0], run(job)[0], run(replace(job, shots="b.jsonl"))[0], run(replace(job, prompt="b.txt"))[0]]
    Path("t.json").write_text('{"num_token": 4, "p_baseline_dict": {"1": 1, "2": 2}}')
    found.append(run(job)[0])
    files = [one["rows"] for one in found]
    assert files[0] == files[1] and len(set(files)) == 4
    kept = [rows.read(Path("out/rows", file)) for file in files[1:]]
    assert [one.header["template"] for one in kept] == ["a.txt", "a.txt", "b.txt", "a.txt"]
    assert [one.kept[0]["template"].split()[0] for one in kept] == ["a.txt", "a.txt", "b.txt", "a.txt"]
    assert len({one.kept[0]["prompt"] for one in kept}) == 3  # the table does not change the prompt
    assert "gsm8k with the prompt a.txt;" in markdown(experiment, place, found[:1], "unmask paper small")
    for other in ({"shots": None}, {"prompt": None}):
        with pytest.raises(InputError, match="has no effect on text: leave it out"):
            run(replace(job, place=experiment.places["text"], **other))


# --- PC-Sampler's source ---------------------------------------------------------------------------------------------

SOURCE = '''
import os
os.remove("everything")

LIMIT = 4

def math_500_prompt(question): # the place of the question is a text
    prompt = r\'\'\'Q: Halve \\frac{1}{2}.

  A: \\boxed{1}

Q: {{question}}
  A:
\'\'\'
    return prompt.replace("{{question}}", question)

SUDOKU_SYSTEM_PROMPT = """
Solve it.
"""

SUDOKU_PROMPT = """Like this: {{}}

Puzzle: {puzzle_str}
<answer>

"""

def sudoku_prompt(puzzle_str: str):
    """The puzzle in four lines."""
    puzzle_str = \'\\n\'.join(puzzle_str[i:i+4] for i in range(0, len(puzzle_str), 4))
    question = SUDOKU_PROMPT.format(puzzle_str=puzzle_str)

    return SUDOKU_SYSTEM_PROMPT + \'\\n\\n\' + question

def countdown_prompt(question):
    prompt = f\'\'\'Reach it {{so}}.
Question: {question}
Solution: \'\'\'
    return prompt

def gsm8k_prompt(question):
    prompt = f"Question: {question}"
    return prompt

def gpqa_prompt(question, choice1, choice2, choice3, choice4):
    shot = "Question: which? (A) this"
    asked = f"Question: {question} (A) {choice1} (B) {choice2} (C) {choice3} (D) {choice4}: "
    both = shot + "\\n\\n" + asked
    return both

def other_prompt(question):
    return os.environ[question]
'''


def test_prompts_of_a_source(here, capsys):
    Path("copy/src").mkdir(parents=True)
    Path("copy/src/template.py").write_text(SOURCE)
    assert templates("copy") == {
        "math500": "Q: Halve \\frac{1}{2}.\n\n  A: \\boxed{1}\n\nQ: <<problem>>\n  A:\n",
        "sudoku4": "\nSolve it.\n\n\nLike this: {}\n\nPuzzle: <<rows>>\n<answer>\n\n",
        "countdown-chat": "Reach it {so}.\nQuestion: <<input>>\nSolution: ",
        "gsm8k": "Question: <<question>>",
        "gpqa": "Question: which? (A) this\n\n"
        "Question: <<question>> (A) <<choice1>> (B) <<choice2>> (C) <<choice3>> (D) <<choice4>>: ",
    }
    assert main(["prompts", "copy", "-o", "out/of/it"]) == 0
    out = capsys.readouterr().out
    assert "unmask eval gsm8k --prompt out/of/it/gsm8k.txt --chat --data FILE" in out
    assert "unmask eval sudoku4 --prompt out/of/it/sudoku4.txt --data FILE" in out and "not in this copy" not in out
    for name in TASKS.keys() & templates("copy"):
        task = with_prompt(TASKS[name], f"out/of/it/{name}.txt")
        assert "<<" not in asked(task, ROWS[name]) and "{{" not in asked(task, ROWS[name])
    assert asked(with_prompt(TASKS["sudoku4"], "out/of/it/sudoku4.txt"), ROWS["sudoku4"]).endswith(
        "Puzzle: 0320\n0204\n3040\n2010\n<answer>\n\n"
    )
    assert main(["prompts", "copy", "-o", "out/of/it"]) == 2
    assert "is there already: give another folder" in capsys.readouterr().err
    Path("copy/src/template.py").write_text(SOURCE.replace("def gsm8k_prompt", "def gsm_prompt"))
    assert main(["prompts", "copy/src/template.py", "-o", "old"]) == 0
    assert capsys.readouterr().out.endswith("not in this copy: gsm8k\n") and not Path("old/gsm8k.txt").exists()


LINE = "cannot read the prompts of 'template.py', line "


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("Reach it", "Reach <<input>>", LINE),
        ("i:i+4", "i:i+2", LINE),
        ("{question}\nSolution", "{question!r}\nSolution", LINE),
        ("{question}\nSolution", "{question:>9}\nSolution", LINE),
        ("{question}\nSolution", "{input(question)}\nSolution", LINE),
        ("def countdown_prompt(question)", "def countdown_prompt(question, shots)", LINE),
        ("format(puzzle_str=puzzle_str)", "format(puzzle=puzzle_str)", LINE),
        ("    return both", "    return", LINE),
        ("    return both", "    for x in both: return x", LINE),
        ("    return both", "    both", LINE),
        ("(D) {choice4}", "", "the prompt 'gpqa of template.py' leaves out the choice4 of gpqa"),
        ("LIMIT = 4", "LIMIT = ", "'template.py', it does not parse: give a copy of github.com/NEUIR/PC-Sampler"),
        ("LIMIT = 4", "LIMIT = '\0'", "it does not parse"),
        ("LIMIT = 4", "LIMIT = " + "-" * 100_000 + "4", "it does not parse"),
    ],
)
def test_another_source_is_refused(old, new, words, here):
    assert SOURCE.count(old) == 1
    Path("template.py").write_text(SOURCE.replace(old, new))
    with pytest.raises(InputError) as error:
        templates("template.py")
    assert words in str(error.value)


def test_no_source(here):
    with pytest.raises(InputError, match=r"there is no '.*template.py': give a copy of github.com/NEUIR/PC-Sampler"):
        templates(".")
    Path("template.py").write_text("x = 1\n")
    with pytest.raises(InputError, match=r"there is no prompt in 'template.py'"):
        templates("template.py")
