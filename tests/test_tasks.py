"""The tasks: every answer in its own words is right, and the two graders differ where they are said to."""

from __future__ import annotations

import gzip
import io
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from unmask.errors import InputError
from unmask.evaluate.judge import diversity
from unmask.evaluate.run import grader
from unmask.tasks import TASKS, Example, Task, files, gpqa, mbpp, sandbox, shots, sudoku4
from unmask.tasks.grading import code, plus, remote, same
from unmask.tasks.grading.boxes import boxed
from unmask.tasks.puzzles import sudoku


@dataclass(frozen=True)
class Done:
    ok: bool
    stdout: str


def trusted(code: str) -> Done:
    """Runs code of these tests, not of models."""
    try:
        done = subprocess.run([sys.executable, "-I", "-"], input=code, capture_output=True, text=True, timeout=300)
    except subprocess.TimeoutExpired:
        return Done(False, "")
    return Done(done.returncode == 0, done.stdout)


ADD = {
    "prompt": 'def add(a, b):\n    """The sum."""\n',
    "entry_point": "add",
    "canonical_solution": "    return a + b\n",
}
FULL = sudoku.write(sudoku.solutions([0] * 81, most=1)[0])
ROWS = {  # a made-up question for every task
    "sudoku4": sudoku4.example("0", "0320020430402010", "4321123431422413"),
    "sudoku4-dream": sudoku4.with_lines(sudoku4.example("0", "0320020430402010", "4321123431422413")),
    "sudoku": Example("0", {"input": "0" * 40 + FULL[40:]}, FULL),
    "countdown": Example("0", {"input": "2,6,3,15"}, ""),
    "problems": Example(
        "0",
        {
            "question": "Tom has 2 pens. Mia has 13 more pens than Tom. How many pens does Mia have?",
            "solution": " Mia has 2 + 13 = 15. The answer is 15.",
        },
        "15",
    ),
    "countdown-chat": Example("0", {"input": "2,6,3,15"}, "2*6=12,12+3=15"),
    "countdown-dream": Example("0", {"input": "2,6,3,15"}, "2*6=12,12+3=15"),
    "gsm8k": Example("0", {"question": "How much is a dozen dozens?"}, "12*12=<<12*12=144>>144.\n#### 144"),
    "math500": Example("0", {"problem": "Halve one."}, "\\frac{1}{2}"),
    "gpqa": gpqa.example(
        "0",
        {
            "Question": "Which?",
            "Correct Answer": "this one",
            "Incorrect Answer 1": "that",
            "Incorrect Answer 2": "neither",
            "Incorrect Answer 3": "both",
        },
    ),
    "humaneval": Example(
        "0", {**ADD, "test": "def check(f):\n    assert f(1, 2) == 3\n"}, str(ADD["canonical_solution"])
    ),
    "humaneval+": Example(
        "0",
        {**ADD, "task_id": "0", "test": "", "base_input": [[1, 2]], "plus_input": [[0.1, 0.2], [[], []]], "atol": 0},
        str(ADD["canonical_solution"]),
    ),
    "mbpp": Example(
        "11",
        {"text": "Add.", "test_list": ["assert add(1, 2) == three"], "test_setup_code": "three = add(1, 2)"},
        "def add(a, b):\n    return a + b",
    ),
    "mbpp+": Example(
        "Mbpp/2",
        {
            "task_id": "Mbpp/2",
            "text": "Add.",
            "prompt": "",
            "entry_point": "add",
            "canonical_solution": "def add(a, b):\n    return a + b",
            "test_list": ["assert add((1,), (2,)) == (1, 2)"],
            "base_input": [[[1], [2]]],
            "plus_input": [[[], [3]]],
            "atol": 0,
        },
        "def add(a, b):\n    return a + b",
    ),
}


def graded(name: str) -> Task:
    return TASKS[name].running(trusted) if TASKS[name].programs else TASKS[name]


@pytest.mark.parametrize("name", TASKS)
def test_the_gold_answer_is_right(name):
    task, example = graded(name), ROWS[name]
    assert task.grades(task.answer(example), example) == (name != "mbpp", True)  # as published nobody sets `three` up
    assert task.extract(task.answer(example), example) is not None


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("said", ["", "I do not know.", "(", "\\boxed{", "<answer>", "=" * 300, "```python\n1/0\n```"])
def test_nonsense_is_wrong(name, said):
    assert graded(name).grades(said, ROWS[name]) == (False, False)


@pytest.mark.parametrize("name", TASKS)
def test_prompts_show_the_published_number_of_examples(name):
    task, example = TASKS[name], ROWS[name]
    others = [Example(f"{n}x", example.fields, example.gold) for n in range(20)]
    shown = shots(task, [example, example], others)
    assert [len(some) for some in shown] == [task.shots] * 2
    prompt = task.prompt(example, shown[0])
    said = prompt[0]["content"] if isinstance(prompt, list) else prompt
    assert isinstance(prompt, list) == task.chat
    assert len(said) > len(task.ask(example, [])) or not task.shots
    assert not task.shown or task.prompt(example) == prompt


def test_how_examples_are_drawn():
    questions = [Example(str(n), {}, "") for n in range(30)]
    assert shots(TASKS["gsm8k"], questions, questions) == shots(TASKS["gsm8k"], questions, questions)
    assert shots(TASKS["countdown-dream"], questions) == [questions[:8]] * 30
    drawn = shots(TASKS["gpqa"], questions)
    assert all(len(some) == 5 and question not in some for question, some in zip(questions, drawn, strict=True))
    with pytest.raises(InputError, match="from another file"):
        shots(TASKS["gsm8k"], questions)
    with pytest.raises(InputError, match="no worked examples of its own"):
        TASKS["gsm8k"].prompt(questions[0])


GRID = "4321\n1234\n3142\n2413"


@pytest.mark.parametrize(
    ("name", "said", "published", "strict"),
    [
        ("sudoku4", f"<answer>\n{GRID}\n</answer>", False, True),  # the published grader keeps the lines
        ("sudoku4", f"{GRID}\n</answer>", True, True),
        ("sudoku4", "43211234314224130", True, False),
        ("sudoku4", "<answer>4321123431422431</answer>", False, False),
        ("sudoku4-dream", GRID.replace("\n", " "), False, True),
        ("sudoku4-dream", f"{GRID}\n\nInput:", True, True),
        ("countdown-chat", "The answer is: 6*2=12,12+3=15", False, True),
        ("countdown-chat", "The answer is: (6*2)+3 = 15", False, True),
        ("countdown-chat", "12*6=12,12+3=15", True, False),
        ("countdown-chat", "22*6=12,12+3=151", True, False),
        ("countdown-chat", "3*6=18,18-2=16,16-1=15", False, False),
        ("countdown-chat", "6×2=12, 12+3=15", False, True),
        ("countdown-chat", "5*3=15", False, False),
        ("countdown-chat", "2*6=1 2,12+3=15", False, False),
        ("countdown-chat", "2*6=12,12+3=15.7", True, False),
        ("countdown-chat", "2*6=12,12+3=15=16", True, False),
        ("countdown-chat", "2*6=12,12+3=15+1", True, False),
        ("countdown-chat", "2*6=12, 12+3=15.0.", False, True),
        ("countdown-chat", "1.2*6=12,12+3=15", True, False),
        ("countdown-dream", "6*2=12, 12+3=15", False, True),
        ("gsm8k", " 12 dozens are 144", True, False),  # the last number, but nothing says that it is the answer
        ("gsm8k", " #### 144.00", False, True),
        ("gsm8k", " The answer is $144. I am 99% sure", False, True),
        ("gsm8k", " #### 144\n\nQuestion: 1+1?\nAnswer: 2", True, True),
        ("gsm8k", " \\boxed{\\$144}", True, True),
        ("gsm8k", " \\boxed{144\\%}", True, True),
        ("gsm8k", " #### −144", True, False),  # the published grader does not know this minus sign
        ("gsm8k", " #### １44", False, False),
        ("problems", " Mia has 2 + 13 = 15. The answer is 15.", True, True),
        ("problems", " Mia has 2 + 13 = 16. The answer is 15.", True, False),  # a false step
        ("problems", " Mia has 13 + 2 = 15, 15 - 0 = 15. The answer is 15.0", True, True),
        ("problems", " The answer is 15.", True, False),  # no step
        ("problems", " Mia has 2 + 13 = 15.", True, False),  # the last number, which is not stated as the answer
        ("problems", " Mia has 2 + 13 = 15. The answer is 16.", False, False),
        ("problems", " The answer is 15. Mia has 2 + 13 = 15", True, True),
        ("problems", " Mia has 2 + 13 = 15 + 0 = 15. The answer is 15.", True, False),  # 2 + 13 is not 15 + 0 = 15
        ("problems", " Mia has = 15. The answer is 15.", True, False),
        ("math500", "\\boxed{-\\frac{1}{2}}", True, False),
        ("math500", "\\boxed{\\dfrac12}", False, True),
        ("math500", "\\boxed{0.5}", False, True),
        ("math500", "\\boxed{0.5.}", False, True),
    ],
)
def test_where_the_graders_differ(name, said, published, strict):
    if name == "math500":
        pytest.importorskip("math_verify")
    assert TASKS[name].grades(said, ROWS[name]) == (published, strict)


# Answers on which the public graders are at odds with a plain reading of their rules: their verdicts, worked out by
# running their rules on them.
@pytest.mark.parametrize(
    ("name", "question", "said", "published"),
    [
        ("countdown-dream", "2,3,2,18", "2*3**2=18", True),
        ("countdown-dream", "2,3,3,18", "2*3**2=18", False),  # the exponent is counted, too
        ("countdown-dream", "2,3,8", "2**3=8", False),  # it must begin with a sum of two numbers
        ("countdown-dream", "1,3,2,4", "1+3*(2-1)=4", True),  # a number before a bracket is not counted
        ("countdown-dream", "9,1,3,12", "9+1*3=12", True),
        ("countdown-dream", "9,3,1,4", "1+9//3=4", True),
        ("countdown-dream", "1,49,49,1", "1/49*49=1", False),  # in floats, 0.9999999999999999
        ("countdown-dream", "7,2,3,5", "7/2=3.5,3.5+3=6.5", False),
        ("countdown-dream", "2,6,3,15", "2*6=12,12+3= 15", False),
        ("countdown-dream", "2,6,3,15", "2*6=１２,12+3=15", False),
        ("countdown-dream", "2,6,3,15", "２*6=12,12+3=15", False),
        ("countdown-dream", "2,6,3,15", "9*9**9**9=12,12+3=15", False),
        ("countdown-dream", "2,6,3,15", "2*6/0=12,12+3=15", False),
        ("countdown-dream", "2,6,3,15", "2*6=twelve,12+3=15", False),
        ("sudoku4-dream", "0320020430402010", GRID.replace("4", "４"), True),
        ("sudoku4-dream", "0320020430402010", GRID.replace("4", "٤"), True),
        ("sudoku4-dream", "0320020430402010", GRID.replace("4", "⁴"), False),
        ("sudoku4-dream", "0320020430402010", f" {GRID}", False),  # cut to the length of the puzzle first
        ("sudoku4-dream", "0320020430402010", f"{GRID[:10]}\t{GRID[10:]}", False),
    ],
)
def test_published_verdicts_on_puzzles(name, question, said, published):
    puzzle = sudoku4.with_lines(sudoku4.example("0", question, ""))
    example = puzzle if name == "sudoku4-dream" else Example("0", {"input": question}, "")
    assert TASKS[name].as_published(said, example) is published


def test_dream_strips_blanks_around_a_grid_that_is_longer_than_its_digits():
    example = sudoku4.with_lines(ROWS["sudoku4"], f"{sudoku4.lines('0320020430402010')}\n")
    assert TASKS["sudoku4-dream"].as_published(f"\u3000{GRID}", example)


@pytest.mark.parametrize(
    ("said", "gold", "published"),
    [
        ("\\framebox{9}\n\\boxed{}", "9", True),  # an empty last box is passed over
        ("\\boxed{}\n\\framebox{9}", "9", True),
        ("\\boxed{9}\n\\boxed{}", "9", False),  # but not for another \\boxed
        ("\\boxed{8}\n\\framebox{9}", "9", False),
        ("\\boxed{\\framebox{9}}", "9", True),
        ("\\boxed{\\$9}", "9", True),
        ("\\boxed{9\\%}", "9", True),
        ("\\boxed{−9}", "-9", False),
        ("\\boxed{９}", "9", False),
        ("\\boxed{\n9}", "9", False),
        ("\\boxed {9}", "9", False),
    ],
)
def test_published_verdicts_on_boxes(said, gold, published):
    assert TASKS["math500"].as_published(said, Example("0", {}, gold)) is published


@pytest.mark.parametrize(
    ("said", "choices", "letter"),
    [
        ("- 7", ["- 5", "5", "6", "- 7"], None),  # its blank is stripped where it is found, not where it is looked up
        ("- 5", ["- 5", "5", "6", "- 7"], "B"),
        ("It is THAT", ["this", "that", "That!", "both"], "C"),  # of equal choices the last
        ("（A）", ["this", "that", "neither", "both"], None),
        ("Answer:\n B", ["this", "that", "neither", "both"], "B"),
    ],
)
def test_published_verdicts_on_choices(said, choices, letter):
    right = [gold for gold in "ABCD" if TASKS["gpqa"].as_published(said, Example("0", {"choices": choices}, gold))]
    assert right == [letter] * (letter is not None)


def test_gpqa():
    task, example = TASKS["gpqa"], ROWS["gpqa"]
    right = example.gold
    wrong = next(letter for letter in "ABCD" if letter != right)
    assert task.grades(f" The answer is ({right}).", example) == (True, True)
    assert task.grades(f" The answer is ({right}), not ({wrong}).", example) == (False, True)
    assert task.grades(" It is This One!", example) == (True, False)
    assert task.grades(f" Answer: {right}", example) == (True, False)
    assert task.grades(f" {right}", example) == (False, True)


def test_boxes():
    assert boxed("\\boxed{1} and \\boxed{\\frac{1}{2}}.") == "\\frac{1}{2}"
    assert boxed("\\boxed{\\{1\\}}") == "\\{1\\}"
    assert boxed("\\boxed{1} then \\boxed{2") == "1"
    assert boxed("nothing") is None


# --- code ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["humaneval", "humaneval+"])
def test_a_whole_function_counts_only_where_it_is_understood(name):
    said = "```python\ndef add(a, b):\n    return a + b\n```\nThat is all."
    task = graded(name)
    assert task.strict(said, ROWS[name])
    assert not task.strict(said.replace("+", "-"), ROWS[name])


@pytest.mark.parametrize("name", ["humaneval", "humaneval+"])
def test_stop_strings_do_not_cut_a_fenced_function(name):
    said = "```python\ndef add(a, b):\n    # the sum\n    return a + b\n\nif True:\n    pass\n```\nclass"
    assert graded(name).grades(said, ROWS[name]) == (False, True)
    assert graded(name).grades("    return a + b\ndef other(", ROWS[name]) == (True, True)


def test_an_answer_cannot_take_the_tests_away():
    """Tests that begin with `def check` are not decorated by what stands before them."""
    said = "    return None\n@(lambda f: lambda c: None)\n"
    assert graded("humaneval").grades(said, ROWS["humaneval"]) == (False, False)


CHEATS = {
    "zip": "builtins.zip = lambda *a, **b: []",
    "the dictionary": "vars(builtins)['zip'] = lambda *a, **b: []",
    "bool": "builtins.bool = lambda *a: True",
    "names of the grader": "import __main__\nadd = __main__.known['add']",
    "program.py": "open('program.py')\nadd = lambda a, b: a + b",  # as if it were found there
    "the comparison": (
        "import gc\nfor one in gc.get_objects():\n    if getattr(one, '__name__', '') == 'same':\n"
        "        one.__code__ = (lambda *a: True).__code__"
    ),
}


@pytest.mark.skipif(bool(sandbox.available().lacking()), reason="this kernel does not guard")
@pytest.mark.parametrize("cheat", CHEATS)
def test_the_reference_and_the_comparison_are_out_of_reach(cheat):
    said = f"import builtins\ndef add(a, b):\n    return 7\n{CHEATS[cheat]}\n```"
    assert grader(TASKS["mbpp+"])(said, ROWS["mbpp+"])[1] is False


EQUAL = "class E{0}:\n    def __eq__(self, other):\n        return True\n    __hash__ = None\n"
LIES = {  # tests, answer: wrong, and passed while both ran in one process
    "equal to everything": ("assert f(1, 2) == 3", EQUAL.format("") + "def add(a, b):\n    return E()"),
    "an equal number": ("assert f(1, 2) == 3", EQUAL.format("(int)") + "def add(a, b):\n    return E(7)"),
    "equal parts": ("assert f(1, 2) == [3]", EQUAL.format("") + "def add(a, b):\n    return [E()]"),
    "inside the comparison": (
        "assert abs(f(1, 2) - 3) < 1",
        "class E:\n    def __sub__(self, other):\n        return self\n    def __abs__(self):\n        return self\n"
        "    def __lt__(self, other):\n        return True\ndef add(a, b):\n    return E()",
    ),
    "abs of its own": ("assert abs(f(1, 2) - 3) < 1", "def add(a, b):\n    return 7\ndef abs(x):\n    return 0"),
    "a helper of its own": (
        "assert twice(f(1, 2)) == 6",
        "def add(a, b):\n    return 7\ndef twice(a):\n    return 6",
    ),
    "frames": (
        "assert f(1, 2) == 3",
        "import sys\ndef add(a, b):\n    frame = sys._getframe()\n    while frame:\n"
        "        if 'check' in frame.f_globals:\n            return frame.f_globals['__builtins__']['eval']('1 + 2')\n"
        "        frame = frame.f_back",
    ),
    "contains": (
        "assert 3 in f(1, 2)",
        "class E:\n    def __contains__(self, one):\n        return True\ndef add(a, b):\n    return E()",
    ),
}


@pytest.mark.parametrize("lie", LIES)
def test_what_an_answer_says_of_itself_does_not_count(lie):
    """The tests run in another process, which reads plain values only."""
    test, said = LIES[lie]
    test = f"def check(f):\n    {test}\n"
    prompt = "def twice(a):\n    return 2 * a\n\n\n" if "helper" in lie else ""
    row = Example("0", {**ADD, "prompt": prompt + str(ADD["prompt"]), "test": test}, "")
    right = f"def add(a, b):\n    return {'[a + b]' if lie in ('equal parts', 'contains') else 'a + b'}"
    verdicts = [graded("humaneval").strict(f"```python\n{one}\n```", row) for one in (said, right)]
    assert verdicts == [False, True]


def test_tests_reach_what_an_answer_defines():
    """Classes, generators and other objects stay in the process of the answer."""
    answer = (
        "from collections import Counter, deque, namedtuple\nfrom decimal import Decimal\n"
        "from fractions import Fraction\n"
        "class Node:\n    def __init__(self, value):\n        self.value, self.left = value, None\n"
        "def depth(node):\n    return 1 + depth(node.left) if node else 0\n"
        "def up(n):\n    yield from range(n)\n"
        "def sum(a):\n    return a + 1\n"
        "def raises():\n    raise KeyError('no')\n"
        "Point = namedtuple('Point', 'x y')\n"
        "def all_kinds():\n    return [Point(1, 2.5), Counter('aab'), deque([1]), Decimal('0.10'), Fraction(1, 3), 1j, "
        "range(3), {1}, b'x', 10 ** 5000, '\\ud800', None]\n"
    )
    tests = (
        "from collections import deque\nfrom decimal import Decimal\nfrom fractions import Fraction\n"
        "root = Node(1)\nroot.left = Node(2)\n"
        "assert depth(root) == 2 and root.left.value == 2 and root is not Node(1)\n"
        "assert list(up(3)) == [0, 1, 2] and up(3) != [0, 1, 2]\n"
        "assert sum(4) == 5\n"
        "try:\n    raises()\nexcept KeyError:\n    pass\nelse:\n    assert False\n"
        "assert all_kinds() == [(1, 2.5), {'a': 2, 'b': 1}, deque([1]), Decimal('0.10'), Fraction(1, 3), 1j, range(3), "
        "{1}, b'x', 10 ** 5000, '\\ud800', None]\n"
    )
    made = code.program(answer, tests, ["sum", "Node", "depth"])
    done = trusted(made.code)
    assert done.ok and made.proof in done.stdout
    alone = made.code.replace("os.fork()", "os.fork(None)").replace("except OSError", "except TypeError")
    assert made.proof in trusted(alone).stdout  # where no second process can be started


@pytest.mark.parametrize(
    "forged",
    [
        b"\x80\x04cos\nsystem\n.",
        b"\x80\x04cbuiltins\nobject\n(dS'other'\nI1\nsb.",  # an attribute of the only callable
        b"\x80\x04cbuiltins\nobject\n(S'eval'\nS'1'\ntR.",
        b"\x80\x04\x82\x01.",
        b"\x80\x04" + b"]" * 100,
        b"P1\n.",
        b"",
    ],
)
def test_a_forged_reply_is_not_read(forged):
    with pytest.raises(Exception, match=r"."):
        remote.Reader(io.BytesIO(forged), lambda place: None).load()


@pytest.mark.parametrize("name", ["humaneval", "humaneval+", "mbpp", "mbpp+"])
@pytest.mark.parametrize("leave", ["sys.exit(0)", "os._exit(0)", "print('ok'); raise SystemExit"])
def test_leaving_early_is_no_pass(name, leave):
    said = f"    import os, sys\n    {leave}\n" if "human" in name else f"import os, sys\n{leave}"
    assert graded(name).grades(said, ROWS[name]) == (False, False)


def test_mbpp_plus_really_runs_the_plus_inputs():
    said = "def add(a, b):\n    return (1, 2)\n```"
    assert graded("mbpp+").grades(said, ROWS["mbpp+"]) == (True, False)


def test_an_answer_that_never_ends_is_stopped(monkeypatch):
    monkeypatch.setattr(plus, "LEAST", 0.2)
    assert not graded("mbpp+").strict("def add(a, b):\n    while True: pass\n```", ROWS["mbpp+"])
    assert not graded("mbpp+").strict("while True: pass\n```", ROWS["mbpp+"])


@pytest.mark.skipif(sys.platform != "linux", reason="a kernel that ends a process with its parent")
def test_no_process_of_an_answer_is_left(monkeypatch, tmp_path):
    monkeypatch.setattr(plus, "LEAST", 0.2)
    said = f"import os\nopen({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\nwhile True: pass\n```"
    assert not graded("mbpp+").strict(said, ROWS["mbpp+"])
    answer = Path("/proc") / (tmp_path / "pid").read_text()
    for _ in range(100):
        if not answer.exists() or " Z " in (answer / "stat").read_text():
            return
        time.sleep(0.05)
    pytest.fail("the answer still runs")


def test_programs_need_a_sandbox():
    with pytest.raises(InputError, match="pass a sandbox"):
        TASKS["humaneval"].grades("    return 1", ROWS["humaneval"])
    with pytest.raises(InputError, match="runs no programs"):
        TASKS["gsm8k"].running(trusted)


def test_sanitiser():
    said = "import os\nx = 1\ny = 2\ndef f():\n\treturn g() + x\ndef g():\n    return 1\ndef h():\n    return 2\nor so"
    kept = code.sanitised(said, "f")
    assert kept.split() == "import os x = 1 def f(): return g() + x def g(): return 1".split()
    assert code.sanitised("def f():\n    pass\n", "f") == ""  # no return
    assert code.sanitised("", "f") == ""


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ("```python\nx = 1\n```", "x = 1\n"),
        ("```\nx = 1\n```", "x = 1\n"),
        ("x = 1\n```\nmore", "x = 1\n"),
        ("```py\nx = 1", "x = 1"),
        ("x = 1", "x = 1"),
    ],
)
def test_blocks(said, found):
    assert code.block(said) == found


def test_compare():
    assert same.same("f", [], 0.1 + 0.2, 0.3, 0)
    assert same.same("f", [], [1.0, 2.0], [1.0, 2.0 + 1e-9], 0)
    assert not same.same("f", [], [1.0], [1.0, 2.0], 0)
    assert not same.same("f", [], (1.0,), [1.1], 0)
    assert not same.same("f", [], 3, 4, 0)
    assert same.same("Diff", [], [2, 1], [1, 2], 0)
    assert same.same("check_str", [], None, False, 0) and not same.same("check_str", [], None, True, 0)
    assert same.same("find_zero", [[-1.0, 1.0]], 1.0, None, 1e-4)


def test_inputs_have_their_types():
    assert plus.inputs("Mbpp/2", [[[1], [2]]]) == [[(1,), (2,)]]
    assert plus.inputs("Mbpp/252", [["(1+2j)"]]) == [[1 + 2j]]
    assert plus.inputs("HumanEval/2", [[[1], [2]]]) == [[[1], [2]]]


def test_asserts_of_a_row():
    row = {
        "task_id": "Mbpp/1",
        "prompt": '"""\nAdd.\nassert f(1)\n"""\n',
        "assertion": "import os\n\nassert f(1)\nassert f(\n2)\n",
    }
    assert mbpp.described(row) == {"text": "Add.", "test_list": ["import os\n\nassert f(1)", "assert f(\n2)"]}


# --- files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "file", "content", "error"),
    [
        ("gsm8k", "a.jsonl", '{"question": "?"}\n', "row 1 of .* has no 'answer'"),
        ("gsm8k", "a.jsonl", "no\n", "line 1 of .* is not JSON"),
        ("gsm8k", "a.jsonl", "", "no question"),
        ("sudoku4", "a.csv", "Puzzle,Solution\n0000,1\n", "not a Sudoku of 4"),
        ("sudoku", "a.txt", "nothing\n", "no Sudoku"),
        ("mbpp+", "a.jsonl.gz", "plain", "cannot read"),
        pytest.param("gsm8k", "a.jsonl", "[" * 99_999, "line 1 of .* is not JSON", id="deep lines"),
        pytest.param("gsm8k", "a.json", "[" * 99_999, "is not JSON", id="deep"),
        pytest.param("sudoku4", "a.csv", f"Puzzle,Solution\n{'0' * 140_000},1\n", "is not CSV", id="a long field"),
    ],
)
def test_faulty_files(tmp_path, name, file, content, error):
    (tmp_path / file).write_text(content)
    with pytest.raises(InputError, match=error):
        TASKS[name].examples(tmp_path / file)


def test_files_are_bounded(tmp_path, monkeypatch):
    """A packed file of 3 MB may unpack to 3 GB, and a device never ends."""
    monkeypatch.setattr(files, "MOST", 1 << 21)
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(bytes(1 << 23)))
    for path in (tmp_path / "a.jsonl.gz", Path("/dev/zero")):
        with pytest.raises(InputError, match=r"holds more than 2,097,152 bytes: give a part of it"):
            TASKS["gsm8k"].examples(path)


def test_missing_files(tmp_path, monkeypatch):
    with pytest.raises(InputError, match="cannot read"):
        TASKS["gsm8k"].examples(tmp_path / "none.jsonl")
    with pytest.raises(InputError, match="countdown-chat needs a file: fetch cd3_test"):
        TASKS["countdown-chat"].examples()

    def refuse(*args: object, **settings: object) -> str:
        raise OSError("no network")

    monkeypatch.setattr("huggingface_hub.HfApi.repo_info", refuse)
    monkeypatch.setattr("huggingface_hub.snapshot_download", refuse)
    with pytest.raises(InputError, match=r"no network.*fetch gpqa_main.csv"):
        TASKS["gpqa"].examples()
    (tmp_path / "test.jsonl").write_text('{"problem": "1+1?", "answer": "2"}\n')
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *args, **settings: str(tmp_path))
    assert [one.gold for one in TASKS["math500"].examples()] == ["2"]


def test_without_math_verify(monkeypatch):
    monkeypatch.setitem(sys.modules, "math_verify", None)
    assert TASKS["math500"].as_published("\\boxed{2}", Example("", {}, "2"))
    with pytest.raises(InputError, match=r"pip install 'unmask\[tasks\]'"):
        TASKS["math500"].strict("\\boxed{3}", Example("", {}, "2"))


def test_diversity():
    assert diversity([1, 1, 1]) == 0.0
    assert diversity([1, 2, 3, 4]) == pytest.approx(1.386294)


# --- the real files --------------------------------------------------------------------------------------------------

DATA = {  # file -> task, questions, gold answers that are right as published; all are strictly right
    "sudoku4/test.csv": ("sudoku4", 500, 500),
    **{f"sudoku4/sudoku_4x4_{n}.jsonl": ("sudoku4-dream", 108, 108) for n in range(4, 13)},
    **{f"sudoku9/exchange_{kind}.txt": ("sudoku", 500, 500) for kind in ("easy", "medium", "hard", "diabolical")},
    "sudoku9/rated_simple.txt": ("sudoku", 1000, 1000),
    "countdown/cd3_test.jsonl": ("countdown-chat", 1000, 1000),
    "countdown/cd4_test.jsonl": ("countdown-dream", 1000, 1000),
    "countdown/cd5_test.jsonl": ("countdown-dream", 1000, 1000),
    "math/gsm8k_test.jsonl": ("gsm8k", 1319, 1319),
    "math/gsm8k_train.jsonl": ("gsm8k", 7473, 7473),
    "math/math500.jsonl": ("math500", 500, 498),  # two answers begin with a dot, which the public grader strips
    "code/HumanEval.jsonl.gz": ("humaneval", 164, 163),  # 50 tests with a function that the sanitiser drops
    "code/HumanEvalPlus.jsonl.gz": ("humaneval+", 164, 164),
    "code/mbpp.jsonl": ("mbpp", 500, 499),  # 367 needs its set-up code
    "code/MbppPlus.jsonl.gz": ("mbpp+", 378, 377),  # the asserts of 120 need an import
}


@pytest.mark.parametrize("file", DATA)
def test_gold_answers_of_the_real_files(request, file):
    folder = request.config.getoption("--data")
    if folder is None:
        pytest.skip("give the folder of the benchmarks with --data DIR")
    name, count, published = DATA[file]
    task = graded(name)
    examples = task.examples(Path(folder) / file)
    verdicts = [
        (task.as_published(task.answer(example), example), task.strict(task.answer(example), example))
        for example in examples
    ]
    assert (len(verdicts), sum(one for one, _ in verdicts), sum(two for _, two in verdicts)) == (
        count,
        published,
        count,
    )
