"""Countdown: problems and answers, the exact solver, problems by the thousand, the columns, and the commands."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import combinations, pairwise, permutations, product
from pathlib import Path
from random import Random

import numpy as np
import pytest

from unmask import Recipe, load
from unmask.cli import main
from unmask.errors import InputError
from unmask.evaluate import rows as files
from unmask.evaluate.run import canvases, run
from unmask.tasks import TASKS
from unmask.tasks.countdown import COUNTDOWN, example
from unmask.tasks.puzzles.countdown import (
    ALPHABET,
    HEAD,
    MASK,
    Problem,
    answer,
    canvas,
    check,
    columns,
    fault,
    parse,
    solutions,
)
from unmask.tasks.puzzles.problems import keys, problems, reserved
from unmask.train import countdown
from unmask.train.countdown import CONFIG, SHARES, Problems, keys_of
from unmask.train.initial import as_denoiser, fresh
from unmask.train.log import LOG
from unmask.train.task import hashes

TINY = '{"width": 16, "layers": 1, "heads": 2, "inner": 16}'
RIGHT = [
    ("15,44,79,50", "44-15=29,79-29=50"),
    ("15,44,79,50", "15+79=94,94-44=50"),
    ("10,20,30,60", "20+10=30,30+30=60"),
    ("90,9,5,50", "90/9=10,10*5=50"),
    ("7,1,7,50", "7*7=49,49+1=50"),
    ("1,2,3,4,24", "4*3=12,12*2=24,24*1=24"),
    ("99,98,50,2,26", "50/2=25,99-98=1,25+1=26"),
    ("50,50,33,10,23", "50-50=0,33+0=33,33-10=23"),
    ("5,5,5,5,5,25", "5+5=10,5+5=10,10+10=20,20+5=25"),
    ("60,12,3,4,1,16", "60/12=5,5*4=20,20-3=17,17-1=16"),
    ("12,34,56,78,90,22", "90-78=12,12/12=1,56-34=22,22*1=22"),
    ("15,44,79,50", " 44 - 15 = 29 , 79 - 29 = 50 "),
]
WRONG = [
    ("44-15=29,44-29=15", "44 in 44-29=15 is not there"),
    ("44-15=29,29+29=58", "29 in 29+29=58 is not there"),
    ("44-15=29,79-28=51", "28 in 79-28=51 is not there"),
    ("79-44=35", "15 left over"),
    ("44-15=30,79-30=49", "44-15=30 is false"),
    ("79*15=1184,1184-44=1140", "79*15=1184 is false"),
    ("79/15=5,44+5=49", "79/15=5 is false"),
    ("44-15=29,79+29=108", "it ends with 108, not 50"),
    ("15-44=-29,79+-29=50", "'15-44=-29' is not an equation"),
    ("44-15=29,79-29=50,", "'' is not an equation"),
    ("44-15=29;79-29=50", "is not an equation"),
    ("44-15=29=29,79-29=50", "is not an equation"),
    ("", "'' is not an equation"),
    ("fifty", "'fifty' is not an equation"),
    ("4_-15=29,79-29=50", "'4_-15=29' is not an equation"),
    ("4 4-15=29,79-29=50", "'4 4-15=29' is not an equation"),
    ("044-15=29,79-29=50", "'044-15=29' is not an equation"),
    ("44-15=029,79-29=50", "'44-15=029' is not an equation"),
    ("٤٤-15=29,79-29=50", "is not an equation"),
    (f"44-15={'9' * 5000},79-29=50", "is not an equation"),
]


# --- problems and answers --------------------------------------------------------------------------------------------


def test_text_of_a_problem():
    assert parse(" 15, 44,79 ,50\n") == Problem((15, 44, 79), 50)
    assert str(parse("1,2,3,4,5,99")) == "1,2,3,4,5,99"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("15,x,79,50", "'x' is not a number"),
        ("15,4.4,79,50", "'4.4' is not a number"),
        ("15,-4,79,50", "-4 is not from 1 to 99"),
        ("15,٤٤,79,50", "is not a number"),
        ("15,44,79,", "a number is missing beside a comma of '15,44,79,'"),
        ("", "'' is not a number"),
        ("15,44,50", "2 numbers and a target"),
        ("1,2,3,4,5,6,50", "6 numbers and a target"),
        ("0,44,79,50", "0 is not from 1 to 99"),
        ("15,44,100,50", "100 is not from 1 to 99"),
        ("15,44,79,100", "100 is not from 1 to 99"),
    ],
)
def test_bad_problems(given, said):
    with pytest.raises(InputError, match=said) as error:
        parse(given)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("problem", "said"), RIGHT)
def test_right_answers(problem, said):
    assert fault(said, parse(problem)) is None


@pytest.mark.parametrize(("said", "why"), WRONG)
def test_wrong_answers(said, why):
    found = fault(said, parse("15,44,79,50"))
    assert found is not None and why in found


def test_other_wrong_answers():
    assert fault("5-5=0,7/0=7", parse("5,5,7,7")) == "7/0=7 is false"
    assert fault("25+25=50", parse("25,25,50,50")) == "50 left over"  # the target, but not of all numbers


# --- the exact solver ------------------------------------------------------------------------------------------------


def joined(a: int, b: int) -> dict[str, int]:
    """What an equation makes of two numbers, larger first."""
    found = {"+": a + b, "-": a - b, "*": a * b}
    return found | {"/": a // b} if b and a % b == 0 else found


def answers(numbers: tuple[int, ...], target: int) -> set[str]:
    """All answers with three numbers, written out without recursion."""
    found = set()
    for one, two, three in permutations(numbers):
        a, b = max(one, two), min(one, two)
        for sign, middle in joined(a, b).items():
            c, d = max(middle, three), min(middle, three)
            for last, end in joined(c, d).items():
                if end == target:
                    found.add(f"{a}{sign}{b}={middle},{c}{last}{d}={end}")
    return found


def reached(numbers: tuple[int, ...]) -> set[int]:
    """Every number that all of these make: any two parts of them, each made in every way."""
    if len(numbers) == 1:
        return set(numbers)
    found = set()
    places = range(len(numbers))
    for size in range(1, len(numbers) // 2 + 1):
        for some in combinations(places, size):
            rest = tuple(numbers[place] for place in places if place not in some)
            for one, two in product(reached(tuple(numbers[place] for place in some)), reached(rest)):
                found |= set(joined(max(one, two), min(one, two)).values())
    return found


def test_every_answer_is_found_once():
    dice = Random(0)
    some = 0
    for _ in range(300):
        numbers = tuple(dice.randint(1, 12) for _ in range(3))
        target = dice.choice([dice.randint(1, 30), *reached(numbers)])
        found = list(solutions(Problem(numbers, target)))
        assert len(found) == len(set(found)) and set(found) == answers(numbers, target)
        some += bool(found)
    assert 150 < some < 300


@pytest.mark.parametrize("given", ["15,44,79,50", "nothing", None, (15, 44, 79, 50)])
def test_a_canvas_is_of_a_problem(given):
    with pytest.raises(InputError, match=r"is not a Problem: make one with countdown.parse"):
        canvas(given)


@pytest.mark.parametrize(("many", "cases"), [(3, 60), (4, 12), (5, 1)])
def test_an_answer_is_found_where_there_is_one(many, cases):
    dice = Random(many)
    for _ in range(cases):
        numbers = tuple(dice.randint(1, 99) for _ in range(many))
        possible = reached(numbers)
        for target in dice.sample(range(1, 100), 99 if many == 3 else 8):
            problem = Problem(numbers, target)
            first = next(solutions(problem), None)
            assert (first is not None) == (target in possible)
            assert first is None or fault(first, problem) is None


def test_problems_without_an_answer_are_refused():
    check(parse("15,44,79,50"))
    assert 99 not in reached((1, 1, 1))
    with pytest.raises(InputError, match="no answer makes 99"):
        check(parse("1,1,1,99"))


# --- columns ---------------------------------------------------------------------------------------------------------


def text(tokens) -> str:
    return "".join(ALPHABET[token] for token in tokens)


def test_a_canvas_is_the_problem_and_masks():
    made = canvas(parse("7,44,15,50"))
    assert text(made[:HEAD]) == "44,15, 7      :50:"
    assert made[HEAD:] == [MASK] * 27 and len(made) == columns(3)
    assert text(canvas(parse("1,2,3,4,5,9"))[:HEAD]) == " 5, 4, 3, 2, 1: 9:"


def test_an_answer_is_what_stands_in_the_columns():
    row = [*canvas(parse("15,44,79,50"))[:HEAD], *map(ALPHABET.index, "  44- 15=  29,  79- 29=  50")]
    assert answer(row) == "44-15=29,79-29=50"
    gap = [*row[:HEAD], *map(ALPHABET.index, " 4 4- 15=  29,  79- 29=  50")]
    assert answer(gap) == "4_4-15=29,79-29=50"  # a number with a hole is none
    wide = [*row[:HEAD], *map(ALPHABET.index, "4  4- 15=  29,  79- 29=  50")]
    assert answer(wide) == "4_4-15=29,79-29=50"
    left = [*row[:HEAD], *map(ALPHABET.index, "44  -15 =29  ,79  -29 =50  ")]
    assert answer(left) == "44-15=29,79-29=50"
    assert fault(answer(canvas(parse("15,44,79,50"))), parse("15,44,79,50")) == f"{'_' * 27!r} is not an equation"


# --- problems by the thousand ----------------------------------------------------------------------------------------


def read(row: list[int]) -> Problem:
    """The problem at the head of a row."""
    head = text(row[:HEAD])
    assert head[14] == head[17] == ":"
    return Problem(tuple(int(part) for part in head[:14].split(",")), int(head[15:17]))


def equations(said: str) -> list[tuple[int, int, int]]:
    """The operands and the result of each."""
    for sign in "+-*/=":
        said = said.replace(sign, " ")
    return [(a, b, c) for a, b, c in (map(int, part.split()) for part in said.split(","))]


@pytest.mark.parametrize("many", [3, 4, 5])
def test_generated_problems_are_right(many):
    made = problems(400, many, np.random.default_rng(many))
    assert made.shape == (400, columns(many))
    unsorted = dependent = 0
    for row in made.tolist():
        problem, said = read(row), answer(row)
        assert fault(said, problem) is None
        assert len(problem.numbers) == many and 10 <= problem.target <= 99
        assert row[:HEAD] == canvas(problem)[:HEAD]
        steps = equations(said)
        assert all(a >= b for a, b, _ in steps)
        for (first, _, result), (second, other, _) in pairwise(steps):
            assert first >= second or result in (second, other)
            dependent += result in (second, other)
            unsorted += first < second
    assert dependent > unsorted > 20
    assert len(np.unique(made[:, :HEAD], axis=0)) > 390
    assert set(text(made[:, HEAD:].ravel())) == set("0123456789+-*/=, ")


def test_equal_dice_give_equal_problems():
    made = problems(50, 4, np.random.default_rng(1))
    assert np.array_equal(made, problems(50, 4, np.random.default_rng(1)))
    assert not np.array_equal(made, problems(50, 4, np.random.default_rng(2)))


def test_batches_depend_on_their_number_only():
    lengths = set()
    for number in range(40):
        tokens, open = Problems().batch(number, 3)
        assert np.array_equal(tokens, Problems().batch(number, 3)[0])
        assert open.tolist() == [column >= HEAD for column in range(tokens.shape[1])]
        lengths.add(tokens.shape[1])
    assert lengths == {columns(many) for many in SHARES}


def test_excluded_problems_never_appear(tmp_path):
    dice = Random(0)
    batches = [[read(row) for row in Problems().batch(number, 60)[0].tolist()] for number in range(20, 32)]
    assert {len(problem.numbers) for batch in batches for problem in batch} == {3, 4, 5}
    gone = [dice.choice(batch) for batch in batches for _ in range(15)]
    mixed = [Problem(tuple(dice.sample(problem.numbers, len(problem.numbers))), problem.target) for problem in gone]
    (tmp_path / "one.txt").write_text("".join(f"{problem}\n" for problem in mixed[:100]))
    (tmp_path / "two.jsonl").write_text("".join(json.dumps({"input": str(problem)}) + "\n" for problem in mixed[100:]))
    paths = [str(tmp_path / "one.txt"), str(tmp_path / "two.jsonl")]
    source = Problems(keys_of(paths), held=4)
    assert list(hashes(paths)) == ["one.txt", "two.jsonl"]
    known = set(keys(gone).tolist())
    for number, batch in enumerate(batches, 20):
        assert known & set(keys(batch).tolist())  # without the exclusion they are there
        rows = source.batch(number, 60)[0]
        assert rows.shape[0] == 60
        assert not known & set(keys([read(row) for row in rows.tolist()]).tolist())


def test_keys_know_numbers_in_any_order_but_not_others():
    some = [parse("1,2,3,50"), parse("1,2,3,51"), parse("1,2,4,50"), parse("1,1,2,3,50"), parse("50,1,2,3")]
    assert len(keys(some)) == 5
    assert len(keys([*some, parse("3,1,2,50"), parse("3,2,1,1,50")])) == 5
    assert len(keys([])) == 0


# --- the network -----------------------------------------------------------------------------------------------------


def test_columns_that_mean_the_same_begin_alike():
    network = fresh({**CONFIG, "width": 32, "layers": 1, "heads": 2, "inner": 16}, "cpu", 0)
    countdown.place(network)
    table = network.place.weight
    assert len(table.unique(dim=0)) == len(table)  # no two are the same
    assert float(table.std()) == pytest.approx(1, abs=0.1)
    one, two = table[HEAD : HEAD + 14], table[HEAD + 14 : HEAD + 28]
    apart = one - two  # which equation: the same in each of its columns
    assert float((apart - apart[:1]).abs().max()) < 1e-5


def test_a_network_is_measured_on_its_own_problems():
    network = fresh({**CONFIG, "width": 16, "layers": 1, "heads": 2, "inner": 16}, "cpu", 0)
    assert Problems(held=2).validate(network) == {"solved_3": 0, "solved_4": 0, "solved_5": 0}
    made = [read(row) for row in problems(6, 3, np.random.default_rng(77), held=True).tolist()]
    questions = canvases(COUNTDOWN, [example("", str(one), "") for one in made])
    rows = run(COUNTDOWN, as_denoiser("countdown", CONFIG, load("countdown").network), questions, Recipe("confidence"))
    assert sum(row.strict for row in rows) >= 5  # the embedded model, which solves nearly all of them


@pytest.mark.parametrize("many", [3, 4, 5])
def test_one_problem_in_64_is_reserved(many):
    """Training draws none of them, and what is measured is nothing else."""
    sorts = [
        reserved(keys([read(row) for row in problems(2000, many, np.random.default_rng(5), held=held).tolist()]))
        for held in (False, True)
    ]
    assert not sorts[0].any() and sorts[1].all()
    assert abs(reserved(np.arange(10**6)).mean() - 1 / 64) < 0.001


# --- the commands ----------------------------------------------------------------------------------------------------


def test_solve(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["solve", "15,44,79,50"]) == 0
    out, err = capsys.readouterr()
    (said,), (verdict, cost) = out.splitlines(), err.splitlines()
    assert fault(said, parse("15,44,79,50")) is None and verdict == "solved" and "27 evaluations" in cost
    Path("p.jsonl").write_text('{"input": "79,15,44,50", "output": ""}\n')  # as `unmask puzzles` writes it
    assert main(["solve", "p.jsonl"]) == 0
    assert capsys.readouterr().out == f"{said}\n"
    Path("p.txt").write_text("79, 15, 44, 50\n")
    assert main(["solve", "p.txt", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["puzzle"], found["answer"], found["strict"], found["fault"]) == ("79,15,44,50", said, True, None)


def test_solve_says_why_an_answer_is_wrong(capsys, monkeypatch):
    late = replace(COUNTDOWN.puzzle, fault=lambda answer, problem: "it came late")
    monkeypatch.setitem(TASKS, "countdown", replace(COUNTDOWN, puzzle=late))
    assert main(["solve", "15,44,79,50"]) == 1
    assert "not solved: it came late" in capsys.readouterr().err
    assert main(["solve", "15,44,79,50", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["strict"], found["fault"]) == (False, "it came late")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["1,1,1,99"], "no answer makes 99 of these numbers"),
        (["15,44,79,100"], "100 is not from 1 to 99"),
        (["15,44,50"], "2 numbers and a target"),
        (["15,a,79,50"], "'a' is not a number"),
        (["15 44  79 50"], "'15 44  79 50' has no commas: write 15,44,79,50"),
        (["15;44; 79;50"], "'15;44; 79;50' has no commas: write 15,44,79,50"),
        (["15,44,79,50,"], "a number is missing beside a comma of '15,44,79,50,'"),
        (["-3,4,5,12"], "-3 is not from 1 to 99"),
        (["--json", "-3,4,5,12"], "-3 is not from 1 to 99"),
        (["many.txt"], "'many.txt' holds 2 puzzles: `unmask eval countdown --data many.txt` decodes them all"),
        (["15,44,79,50", "--model", "sudoku"], "sudoku is not a model of countdown"),
        (["15,44,79,50", "--model", "text"], "text is not a model of countdown"),
    ],
)
def test_bad_problems_are_one_line(given, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("many.txt").write_text("15,44,79,50\n1,2,3,6\n")
    assert main(["solve", *given]) == 2
    err = capsys.readouterr().err
    assert said in err and err.count("\n") == 1


def test_eval(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    given = ["15,44,79,50", "1,1,1,99", "10,20,30,60"]  # the second has no answer
    Path("p.jsonl").write_text("\n".join(json.dumps({"input": one, "output": ""}) for one in given) + "\n\n")
    assert main(["eval", "countdown", "--data", "p.jsonl", "--json", "--rows", "rows.jsonl"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {"n", "strict", "path_entropy_bits", "auroc", "evaluations", "seconds"} <= set(found)
    assert (found["task"], found["model"], found["n"], found["evaluations"]) == ("countdown", "countdown", 2, 54)
    rows = files.read("rows.jsonl").kept
    assert [row["puzzle"] for row in rows] == given[::2] and found["skipped"] == 1
    assert [row["strict"] for row in rows] == [fault(row["answer"], parse(row["puzzle"])) is None for row in rows]
    assert rows[0]["strict"] and found["strict"] == sum(row["strict"] for row in rows) / 2
    assert found["path_entropy_bits"] == pytest.approx(sum(row["path_entropy"] for row in rows) / 2)
    Path("p.txt").write_text("15,44,79,50\n\n1,1,1,99\n")
    assert main(["eval", "countdown", "--data", "p.txt", "--limit", "1"]) == 0
    assert capsys.readouterr().out.startswith("solved 1.000")


@pytest.mark.parametrize(
    ("content", "given", "said"),
    [
        ("15,44,79,50\n\n15,44,790,50\n", [], "line 3 of 'p.txt': 790 is not from 1 to 99"),
        ('{"input": "15,44,79,50"}\n{"inputs": "1"}\n', [], "line 2 of 'p.txt': there is no text `input`"),
        ('{"input": [1, 2, 3, 4]}\n', [], "line 1 of 'p.txt': there is no text `input`"),
        ('{"input": "1,2\n', [], "line 1 of 'p.txt': there is no text `input`"),
        ("", [], "there is no countdown in 'p.txt'"),
        ("\n \n", [], "there is no countdown in 'p.txt'"),
        (b"\xff\xfe", [], "cannot read 'p.txt': it is not UTF-8 text"),
        (None, [], "cannot read 'p.txt': No such file"),
        ("15,44,79,50\n", ["--limit", "0"], "limit is 0"),
        ("15,44,79,50\n", ["--rows", "none/rows"], "cannot write 'none/rows'"),
        ("15,44,79,50\n", ["--model", "table"], "table is not a model of countdown"),
    ],
)
def test_bad_files_are_one_line(content, given, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    if content is not None:
        Path("p.txt").write_bytes(content if isinstance(content, bytes) else content.encode())
    assert main(["eval", "countdown", "--data", "p.txt", *given]) == 2
    err = capsys.readouterr().err
    assert said in err and err.count("\n") == 1


def test_train(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("gone.txt").write_text("15,44,79,50\n")
    given = ["--steps", "3", "--batch", "8", "--held", "1", "--log", "1", "--shape", TINY, "--exclude", "gone.txt"]
    assert main(["train", "countdown", "made", *given]) == 0
    events = [json.loads(line) for line in Path("made", LOG).read_text().splitlines()]
    assert [event["event"] for event in events] == ["start", "step", "step", "step", "validation"]
    assert events[0]["plan"]["tilt"] == 1.0 and {"solved_3", "solved_4", "solved_5"} <= set(events[-1])
    capsys.readouterr()
    assert main(["solve", "15,44,79,50", "--model", "made"]) == 1
    assert "not solved: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--exclude", "nowhere.txt"], "cannot read 'nowhere.txt'"),
        (["--corpus", "p.txt"], "--corpus has no effect on countdown"),
        (["--shape", '{"wdith": 3}'], "unknown size 'wdith': did you mean 'width'?"),
        (["--shape", '{"places": 100}'], "unknown size 'places'"),
    ],
)
def test_bad_trainings_are_one_line(given, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "countdown", "made", "--steps", "1", *given]) == 2
    err = capsys.readouterr().err
    assert said in err and err.count("\n") == 1
    assert not Path("made").exists()
