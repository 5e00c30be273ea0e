"""Parts and crews: a part is a pure function of what can be sent, and who does the parts changes no row."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, replace

import pytest
import torch

from unmask import Recipe, load
from unmask.errors import InputError
from unmask.evaluate import crew
from unmask.evaluate.bulk import Generating, Prompt
from unmask.evaluate.crew import Crew, Here, Work
from unmask.evaluate.fleet.queue import Queue
from unmask.evaluate.parts import Shard, cut, lacking, to_shard
from unmask.evaluate.rows import timeless
from unmask.evaluate.run import Answering, asked, evaluate, run
from unmask.tasks import TASKS, with_prompt
from unmask.tasks.own import read_task

GRIDS = [
    "5346789126721953481983425678597614234268537917139248569615372842874196353452861..",
    "..46789126721953481983425678597614234268537917139248569615372842874196353452861..",
]
WAVES = {"search": "best-of-n", "particles": 4, "until": 0.6}
HOW = {
    "alone": {},
    "smc": {"search": "smc", "particles": 3, "every": 1},
    "until": WAVES,
    "escalate": {"search": "auto", "particles": 2, "until": 0.3, "most": 4, "escalate": "entropy steps=2"},
}


@dataclass
class Strangers:
    """A crew whose parts go through pickle, backwards, and twice each."""

    model: object
    refill: int = 1
    twice: bool = True

    device = torch.device("cpu")

    @property
    def name(self):
        return self.model.name

    @property
    def settings(self):
        return Here(self.model).settings

    @property
    def origin(self):
        return {}

    def prepare(self, jobs):
        sent = [pickle.loads(pickle.dumps(pair)) for pair in jobs]
        return [job.prepared(self.model, items) for job, items in sent]

    def work(self, jobs, parts, store):
        for part in parts[::-1] * 2:
            sent = pickle.loads(pickle.dumps(jobs[part.job]))
            made = []
            sent.do(self.model, pickle.loads(pickle.dumps(part.items)), made.extend)
            store(part, made)


@pytest.fixture(scope="module")
def sudoku():
    return load("sudoku")


@pytest.fixture
def grids(tmp_path):
    path = tmp_path / "grids.txt"
    path.write_text("".join(f"{grid}\n" for grid in GRIDS * 3))
    return path


def near(value):
    """The same with room for the rounding of floats: tokens, texts, choices and counts must be equal."""
    if isinstance(value, dict):
        return {name: near(one) for name, one in value.items()}
    if isinstance(value, list):
        return [near(one) for one in value]
    return pytest.approx(value, rel=1e-5) if isinstance(value, float) else value


def alike(rows):
    return [timeless(vars(row)) for row in sorted(rows, key=lambda row: row.number)]


@pytest.mark.parametrize("more", [{}, WAVES], ids=["alone", "until"])
def test_who_does_the_parts_changes_no_row(more, sudoku, grids):
    """Also where rows are refilled with the next prompts: those of a part with each other, and no other."""
    task, recipe = TASKS["sudoku"], Recipe(sampler="uniform", temperature=1.0, steps=2, **more)
    questions = asked(task, grids).fit
    here = run(task, sudoku, questions, recipe, batch=2)
    stored = []
    there = run(task, Strangers(sudoku), questions, recipe, batch=2, on_rows=stored.extend)
    assert isinstance(Strangers(sudoku), Crew) and isinstance(Here(sudoku), Crew)
    assert len(there) == len(stored) == 6 and alike(there) == alike(here)
    some = run(task, Strangers(sudoku), questions, recipe, batch=2, done={0, 1, 3})
    assert alike(some) == [row for row in alike(here) if row["number"] not in (0, 1, 3)]


def test_a_crew_has_the_defaults_of_its_model(sudoku, grids):
    one, two = (evaluate(TASKS["sudoku"], crew, data=grids, limit=2, steps=3) for crew in (sudoku, Strangers(sudoku)))
    assert alike(one) == alike(two)


@pytest.mark.parametrize("how", HOW)
def test_prompts_are_a_job_too(how):
    model = load("random")
    items = [Prompt(number, text) for number, text in enumerate(["s", "te", "nea", "ra", "an"])]
    given = {"sampler": "uniform", "temperature": 1.0, "steps": 3, "length": 6, "seed": 7, **HOW[how]}
    job = Generating(Recipe(**given), 2, whole=False, given=given, stop=["e"], logprobs=1)
    found = []
    for one in (Here(model), Strangers(model)):
        rows = []
        crew.run(one, [Work(job, items, rows.extend)])
        found.append([timeless(row) for row in sorted(rows, key=lambda row: row["number"])])
    assert found[0] == near(found[1]) and [row["prompt"] for row in found[0]] == [one.text for one in items]
    assert found[0] == found[1] or job.refills  # there the company of a prompt, and so its rounding, is another


def test_the_longest_of_all_prompts_says_the_length_and_not_that_of_a_part():
    model, rows = load("table"), []
    items = [Prompt(0, "s"), Prompt(1, "an"), Prompt(2, "nea")]
    crew.run(Strangers(model), [Work(Generating(Recipe(), 1, whole=False), items, rows.extend)])
    assert len(rows) == 3 and len({len(row["tokens"]) - len(row["prompt"]) for row in rows}) == 1


def test_a_row_that_comes_twice_is_stored_once():
    model, rows = load("table"), []
    crew.run(Strangers(model), [Work(Generating(Recipe(length=2), 2), [Prompt(0, "s"), Prompt(1, "t")], rows.extend)])
    assert [row["number"] for row in rows] == [0, 1]


def test_jobs_stand_in_one_line_and_each_has_its_own_rows():
    """Equal numbers of different jobs are different items; a job that lacks nothing has ended at once."""
    model, ends = load("table"), []
    items = [Prompt(number, text) for number, text in enumerate("stna")]
    jobs = [Generating(Recipe(length=length), size) for length, size in ((1, 2), (2, 3), (3, 1))]
    found = []
    for one in (Here(model), Strangers(model)):
        rows = [[], [], []]
        works = [Work(job, items, rows[n].extend, on_end=lambda n=n: ends.append(n)) for n, job in enumerate(jobs)]
        works[1] = replace(works[1], done=range(4))
        crew.run(one, works)
        found.append([[timeless(row) for row in sorted(some, key=lambda row: row["number"])] for some in rows])
    one, two = found
    assert one == two and [len(some) for some in one] == [4, 0, 4]
    assert {len(row["tokens"]) - len(row["prompt"]) for row in one[2]} == {3}
    assert ends == [1, 0, 2, 1, 2, 0]


def test_tasks_are_sent_by_name_or_file(tmp_path, grids):
    file = tmp_path / "mine.py"
    file.write_text(
        "from unmask import task\n@task([('a', 'b'), ('c', 'd')])\ndef same(text, answer):\n    return True\n"
    )
    job = Answering(read_task(file), Recipe(length=2), 2)
    got = pickle.loads(pickle.dumps(job))
    assert (got.task.name, got.task.defined_in, got.recipe, got.size) == ("same", job.task.defined_in, job.recipe, 2)
    data = pickle.dumps(job)
    file.write_text(file.read_text() + "# other\n")
    with pytest.raises(InputError, match=r"mine\.py' differs on .*: copy the file to every machine"):
        pickle.loads(data)
    prompt = tmp_path / "p.txt"
    prompt.write_text("Q: <<question>>\nA:")
    worded = with_prompt(TASKS["gsm8k"], prompt)
    assert pickle.loads(pickle.dumps(Answering(worded, Recipe(), 1))).task.wording == worded.wording
    other = replace(TASKS["sudoku"], strict=lambda text, example: True)
    with pytest.raises(
        InputError, match="the task sudoku cannot be sent to other processes: define it in a Python file"
    ):
        pickle.dumps(Answering(other, Recipe(), 1))


# --- parts -----------------------------------------------------------------------------------------------------------


def numbered(count: int) -> list[Prompt]:
    return [Prompt(number, str(number)) for number in range(count)]


def test_parts_are_cut_at_the_same_places_whatever_is_done():
    parts = cut(numbered(7), 3)
    assert [part.numbers for part in parts] == [[0, 1, 2], [3, 4, 5], [6]]
    assert [part.number for part in lacking(parts, {0, 1, 2, 4})] == [1, 2]
    assert [part.numbers for part in lacking(parts, {0, 1, 2, 4}, refills=True)] == [[3, 5], [6]]
    assert parts[0].named() == "1, 2, 3" and parts[0].named(2) == "1, 2 and 1 more"


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_shards_have_every_part_once(size, count):
    items = numbered(14)
    shards = [Shard(place, count).of(items, size) for place in range(1, count + 1)]
    whole = sorted(part.numbers for part in cut(items, size))
    assert sorted(part.numbers for shard in shards for part in cut(shard, size)) == whole


def test_what_is_not_a_shard():
    assert str(to_shard("3/16")) == "3/16"
    for text in ("0/2", "3/2", "1", "a/b", "1/0", "-1/2"):
        with pytest.raises(InputError, match="give I/N with I from 1 to N"):
            to_shard(text)
    with pytest.raises(InputError, match="shard 3/3 is empty: there are 2 parts of 2: use fewer shards"):
        Shard(3, 3).of(numbered(4), 2)


# --- the queue of a fleet --------------------------------------------------------------------------------------------


def test_lost_parts_are_first_in_line():
    queue = Queue(cut(numbered(12), 2))
    first = [queue.next(worker, 2, 0.0).number for worker in ("a", "b", "a")]
    assert first == [0, 1, 2] and queue.next("a", 2, 0.0) is None  # two at most
    assert queue.gone("a") is None and queue.again == 2
    assert [queue.next(worker, 2, 1.0).number for worker in ("c", "b")] == [0, 2]
    assert queue.lost == {0: 1} and queue.left == 6  # the one that it was doing, not the one that it had in store


def test_near_the_end_each_worker_has_one_part():
    queue = Queue(cut(numbered(6), 2))
    assert queue.next("a", 2, 0.0) is not None and queue.next("a", 2, 0.0) is None
    assert queue.next("b", 2, 0.0).number == 1


def test_a_part_that_was_lost_three_times_is_given_up():
    queue = Queue(cut(numbered(2), 1), tries=3)
    for worker in ("a", "b"):
        assert queue.next(worker, 1, 0.0).number == 0 and queue.gone(worker) is None
    assert queue.next("c", 1, 0.0).number == 0
    assert queue.gone("c").named() == "1" and queue.left == 1
    assert queue.next("d", 1, 0.0).number == 1
    assert queue.finished("d", cut(numbered(2), 1)[1], 1.0) == (True, []) and not queue.left


def test_an_idle_worker_helps_with_what_is_late_and_the_first_result_counts():
    parts = cut(numbered(3), 1)
    queue = Queue(parts, patience=10.0)
    assert queue.next("a", 2, 0.0).number == 0 and queue.next("b", 2, 0.0).number == 1
    assert queue.finished("b", parts[1], 4.0) == (True, []) and queue.next("b", 2, 4.0).number == 2
    assert queue.finished("b", parts[2], 8.0) == (True, [])
    assert queue.next("b", 2, 11.0) is None and queue.limit == 12.0  # 3 × 4 s
    assert queue.next("b", 2, 12.0).number == 0 and queue.next("c", 3, 12.0) is None
    assert queue.finished("b", parts[0], 13.0) == (True, ["a"]) and not queue.left
    assert queue.finished("a", parts[0], 14.0) == (False, [])
    assert queue.gone("a") is None and not queue.lost


def test_a_lost_part_that_another_has_too_waits_for_that_one():
    parts = cut(numbered(1), 1)
    queue = Queue(parts, patience=1.0)
    assert queue.next("a", 2, 0.0).number == 0 and queue.next("b", 2, 5.0).number == 0
    assert queue.gone("a") is None and not queue.waiting and queue.left == 1
    assert queue.finished("b", parts[0], 6.0)[0]
