"""Recipe × Task × model -> rows: the decoded answer, both verdicts on it, its path entropy and its cost."""

from __future__ import annotations

import hashlib
import json
import math
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from unmask.core.denoiser import Denoiser
from unmask.decoding import settings as table
from unmask.decoding.decode import OnResults, Result, decode_batch, in_waves
from unmask.decoding.defaults import Settings, canonical, over
from unmask.decoding.prompt import Text, from_prompt
from unmask.decoding.recipe import Recipe
from unmask.decoding.trace import OnEvent
from unmask.errors import InputError, ModelError, UnmaskError, unknown
from unmask.evaluate.batch import size as rows_at_once
from unmask.evaluate.crew import Crew, Store, Work, crew_of, resumed
from unmask.evaluate.crew import run as run_works
from unmask.evaluate.rows import Line, Row, Rows
from unmask.tasks import Example, Task, puzzle_of, sandbox, shots
from unmask.tasks.own import Sent, received, sent
from unmask.tasks.task import Wording

MEMORY = 4 * 2**30  # of a program, as EvalPlus has it: the gold answer of Mbpp/255 takes more than one GiB


@dataclass(frozen=True)
class Question:
    """One example and the prompt or canvas that is made of it."""

    number: int  # its place in the file, from 0
    example: Example
    ask: Text  # a prompt; of a puzzle, its canvas


@dataclass(frozen=True)
class Sifted:
    """The questions of a file, and remarks by their number in it, from 1."""

    fit: list[Question]  # there is something to solve
    skipped: dict[int, str]  # why there is not
    strange: dict[int, str]  # remarks on some that fit

    def remark(self) -> str | None:
        """All that was found, in one line."""
        parts = [
            f"{len(found)} puzzle{'s are' if len(found) > 1 else ' is'} {fate}: {named(found)}"
            for found, fate in ((self.skipped, "skipped"), (self.strange, "judged by the rules alone"))
            if found
        ]
        return "; ".join(parts) or None


def named(found: Mapping[int, str], most: int = 4) -> str:
    """The first few numbers, with the remark on each."""
    some = [f"number {number} ({why})" for number, why in list(found.items())[:most]]
    return ", ".join(some) + (f" and {len(found) - most} more" if len(found) > most else "")


# --- questions -------------------------------------------------------------------------------------------------------


def canvases(task: Task, examples: Sequence[Example]) -> list[Question]:
    """The canvases for a model of a puzzle's own tokens."""
    kind = puzzle_of(task)
    boards = [kind.canvas(kind.parse(example.fields["input"])) for example in examples]
    return [Question(place, *pair) for place, pair in enumerate(zip(examples, boards, strict=True))]


def sift(task: Task, questions: Sequence[Question]) -> Sifted:
    """Separate the puzzles with something to solve from the others."""
    found = Sifted([], {}, {})
    kind = puzzle_of(task)
    for one in questions:
        try:
            strange = kind.check(kind.parse(one.example.fields["input"]))
        except InputError as error:
            found.skipped[one.number + 1] = error.message
            continue
        found.fit.append(one)
        if strange is not None:
            found.strange[one.number + 1] = strange
    if not found.fit:
        raise InputError("no puzzle can be solved", named(found.skipped))
    return found


def prompts(task: Task, examples: Sequence[Example], shown: Sequence[Sequence[Example]], chat: bool) -> list[Question]:
    """The prompts for a language model; `shown` are the worked examples of each question."""
    asked = replace(task, chat=chat)
    pairs = enumerate(zip(examples, shown, strict=True))
    return [Question(place, example, asked.prompt(example, worked)) for place, (example, worked) in pairs]


def asked(
    task: Task,
    data: str | Path | None = None,
    pool: str | Path | None = None,
    limit: int | None = None,
    chat: bool | None = None,
) -> Sifted:
    """The questions of a file, or the task's own, as they are asked; `pool` has those of worked examples."""
    if task.puzzle is not None:
        return sift(task, canvases(task, task.examples(data, limit)))
    examples = task.examples(data)  # all of them, for worked examples may be among them
    shown = shots(task, examples, None if pool is None else task.examples(pool))
    return Sifted(prompts(task, examples[:limit], shown[:limit], task.chat if chat is None else chat), {}, {})


def suits(task: Task, model: Denoiser) -> None:
    """Refuse a model whose tokens are not those of the puzzle."""
    if model.vocab.mask != puzzle_of(task).mask:
        raise ModelError(f"{model.name} is not a model of {task.name}", f"train one with `unmask train {task.name}`")


# --- the run ---------------------------------------------------------------------------------------------------------


def evaluate(
    task: Task,
    model: Denoiser | Crew,
    recipe: Recipe | None = None,
    *,
    data: str | Path | None = None,
    shots: str | Path | None = None,
    limit: int | None = None,
    chat: bool | None = None,
    batch_size: int | None = None,
    on_event: OnEvent | None = None,
    **settings: Any,
) -> list[Row]:
    """The questions of a task through a model or a crew, as `unmask eval` asks and grades them, without a file of rows.

    Without a recipe the model's default holds, with those of the task and the `settings` over it. `data` is the file of
    the questions where the task does not hold them, `shots` that of the worked examples.
    """
    check(task)
    questions = asked(task, data, shots, limit, chat).fit
    crew = crew_of(model, on_event)
    used = default(task, settings, crew.settings, crew.name) if recipe is None else recipe.replace(**settings)
    return run(task, crew, questions, used, batch=batch_size)


def default(task: Task, given: Settings, of_model: Settings, name: str) -> Recipe:
    """The settings that are `given`, over the task's own, over the default ones of the model of this `name`."""
    for setting in task.recipe:
        if setting not in table.known() and setting not in table.ALIASES:
            raise unknown(f"setting in the recipe of {task.name}", setting, table.known())
    return over(given, {**canonical(of_model), **task.recipe}, name, canvas=True)  # its length is the task's


def together(task: Task, recipe: Recipe, device: torch.device) -> int:
    """Questions that are decoded together on a device, by default."""
    kind = "prompt" if task.puzzle is None else "puzzle"
    return rows_at_once(kind, device, recipe.build_search().particles)


@dataclass(frozen=True)
class Answering:
    """The job of an evaluation: questions -> their rows."""

    task: Task
    recipe: Recipe
    size: int  # questions that are decoded together
    insist: bool = False
    given: Mapping[int, list[int]] = field(default_factory=dict)  # number of a question -> its prompt as ids; not sent

    @property
    def refills(self) -> bool:
        return in_waves(self.recipe)

    def check(self) -> None:
        """Answers can be graded here: programs are confined, packages are there."""
        check(self.task, self.insist)

    def prepared(self, model: Denoiser, items: Sequence[Question]) -> Answering:
        if self.task.puzzle is not None:
            suits(self.task, model)
        return replace(self, given={one.number: _encoded(self.task, model, self.recipe, one) for one in items})

    def do(self, model: Denoiser, items: Sequence[Question], store: Store, on_event: OnEvent | None = None) -> None:
        task, grade = self.task, grader(self.task, self.insist)
        known = self.given or self.prepared(model, items).given
        given = [known[one.number] for one in items]
        if not self.refills:
            results = _decoded(task, model, items, given, self.recipe, on_event)
            pairs = zip(items, given, results, strict=True)
            store([vars(_row(task, *pair, len(items), grade)) for pair in pairs])
            return

        def as_they_come(count: int, total: int, found: list[Result]) -> None:
            store([vars(_row(task, items[one.number], given[one.number], one, 1, grade)) for one in found])

        _decoded(task, model, items, given, self.recipe, on_event, self.size, as_they_come)

    def __reduce__(self) -> tuple[Any, ...]:
        """Tasks hold functions, which cannot be sent: their name is, or that of the file that defines them."""
        return _received, (sent(self.task), self.task.wording, self.recipe, self.size, self.insist)


def _received(task: Sent, wording: Wording, recipe: Recipe, size: int, insist: bool) -> Answering:
    return Answering(replace(received(task), wording=wording), recipe, size, insist)


def run(
    task: Task,
    model: Denoiser | Crew,
    questions: Sequence[Question],
    recipe: Recipe,
    *,
    done: Collection[int] = (),
    batch: int | None = None,
    insist: bool = False,
    on_rows: Callable[[list[Row]], None] = lambda rows: None,
    on_event: OnEvent | None = None,
) -> list[Row]:
    """Every question decoded and graded, but for the numbers in `done`; number i has the seed recipe.seed + i.

    `on_rows` gets the rows of each batch, `on_event` every event of decoding. Batches are cut at the same places
    whatever is in `done`, so that a resumed run rounds like one that was never stopped. `insist` grades programs where
    the kernel cannot confine them. A crew in place of the model does the batches in other processes.
    """
    if task.puzzle is not None and not isinstance(model, Crew):
        suits(task, model)
    crew, rows = crew_of(model, on_event), list[Row]()

    def store(lines: list[Line]) -> None:
        rows.extend(new := [Row(**line) for line in lines])
        on_rows(new)

    run_works(crew, [Work(answering(task, recipe, crew.device, batch, insist), questions, store, done)])
    return rows


def answering(
    task: Task, recipe: Recipe, device: torch.device, batch: int | None = None, insist: bool = False
) -> Answering:
    """The job, with the task's length and the batch of the device where none is given."""
    if task.puzzle is None and recipe.length is None:
        recipe = recipe.replace(length=task.length)
    return Answering(task, recipe, batch or together(task, recipe, device), insist)


def resume(
    task: Task,
    model: Denoiser | Crew,
    questions: Sequence[Question],
    recipe: Recipe,
    kept: Rows,
    *,
    batch: int | None = None,
    insist: bool = False,
    on_event: OnEvent | None = None,
) -> None:
    """`run` what a file of rows lacks; each batch is stored at once."""
    crew = crew_of(model, on_event)
    job = answering(task, recipe, crew.device, batch, insist)
    run_works(crew, [resumed(job, questions, crew, kept)])


def _encoded(task: Task, model: Denoiser, recipe: Recipe, question: Question) -> list[int]:
    """The prompt as ids, if there is room for it and an answer; a canvas is ids already."""
    if task.puzzle is not None:
        return list(question.ask)  # type: ignore[arg-type]
    try:
        found = from_prompt(model, question.ask, recipe.length)
    except InputError as error:
        raise InputError(f"question {question.number + 1} of {task.name}: {error.message}", error.hint) from None
    return found.tokens[: found.given]


def _decoded(
    task: Task,
    model: Denoiser,
    part: Sequence[Question],
    given: Sequence[list[int]],
    recipe: Recipe,
    on_event: OnEvent | None,
    size: int | None = None,
    on_results: OnResults | None = None,
) -> list[Result]:
    seeds = [recipe.seed + one.number for one in part]
    how: dict[str, Any] = {"recipe": recipe, "seeds": seeds, "on_event": on_event}
    how |= {"batch_size": size, "on_results": on_results, "matches": task.form if task.constrained else None}
    if task.puzzle is not None:
        return decode_batch(model, canvases=given, **how)
    votes = recipe.build_search().choose.needs_answers
    answers = [_reader(task, one.example) for one in part] if votes else None
    return decode_batch(model, given, answer=answers, **how)


def _reader(task: Task, example: Example) -> Callable[[str], str | None]:
    return lambda text: task.extract(task.read_strictly(text), example)


def _row(task: Task, question: Question, given: list[int], found: Result, share: int, grade: Grade) -> Row:
    puzzle, example = task.puzzle, question.example
    text = found.text if puzzle is None else puzzle.answer(found.tokens)
    published, strict, fault = grade(text, example)
    return Row(
        task=task.name,
        number=question.number,
        id=example.id,
        seed=found.seed,
        puzzle=None if puzzle is None else str(example.fields["input"]),
        prompt=None if puzzle is not None else hashlib.sha256(json.dumps(question.ask).encode()).hexdigest()[:16],
        text=text,
        answer=task.extract(task.read_strictly(text), example),
        as_published=published,
        strict=strict,
        fault=fault,
        path_entropy=found.path_entropy,
        steps=found.steps,
        calls=found.calls,
        evaluations=found.evaluations,
        tokens=len(found.tokens) - len(given) if puzzle is None else given.count(puzzle.mask),
        seconds=found.seconds / share if found.share is None else found.share,
        surprise=found.best.surprise,
        finish=found.finish,
        rows=found.rows,
        paths=len(found.particles),
        look=found.best.look,
        group=task.group(example),
        template=None if puzzle is not None else str(task.wording),
        spread=spread(found),
    )


def spread(found: Result) -> float | None:
    """The SD of path entropy, in bits, over the paths of one question; None for one path."""
    paths = [particle.path_entropy for particle in found.particles]
    return statistics.stdev(paths) if len(paths) > 1 and all(map(math.isfinite, paths)) else None


# --- grading ---------------------------------------------------------------------------------------------------------

Grade = Callable[[str, Example], tuple[bool, bool, str | None]]


def check(task: Task, insist: bool = False) -> None:
    """Refuse a task that cannot be graded here, before the long work."""
    task.ready()
    if task.programs:
        sandbox.run("pass", insist=insist)


def grader(task: Task, insist: bool = False) -> Grade:
    """A function: both verdicts, and why a text could not be graded to the end; programs run in the sandbox."""

    def grade(text: str, example: Example) -> tuple[bool, bool, str | None]:
        ends: list[str] = []

        def program(code: str) -> sandbox.Outcome:
            outcome = sandbox.run(code, limits=sandbox.Limits(task.seconds, MEMORY), insist=insist, copy=False)
            ends.append(outcome.why)
            return outcome

        try:
            graded = task.running(program) if task.programs else task
            published, strict = graded.grades(text, example)
        except UnmaskError:  # something is missing here, which says nothing about the text
            raise
        except Exception as error:  # graders parse what models write
            return False, False, f"grading failed: {type(error).__name__}: {error}"[:200]
        return published, strict, next((end for end in ends if end not in ("passed", "failed")), None)

    return grade


# --- the figures -----------------------------------------------------------------------------------------------------
