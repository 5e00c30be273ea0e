"""Task: how to read its file, to ask, to find the answer in a text and to grade it twice; its worked examples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any, Protocol

from unmask.errors import InputError, ModelError
from unmask.tasks import files

Messages = list[dict[str, str]]


@dataclass(frozen=True)
class Example:
    """One question of a benchmark."""

    id: str
    fields: Mapping[str, Any]  # what the prompt and the graders need
    gold: str  # the reference answer, as the file has it


@dataclass(frozen=True)
class Program:
    """Python to run in a sandbox; it got to its end if it printed `proof`."""

    code: str
    proof: str


class Outcome(Protocol):
    """What became of a program."""

    @property
    def ok(self) -> bool:
        """It ended by itself, in time, with status 0."""

    @property
    def stdout(self) -> str:
        """What it printed."""


Grader = Callable[[str, Example], bool]  # (the generated text, the question) -> whether it is right
Run = Callable[[str], Outcome]  # code -> what became of it


@dataclass(frozen=True)
class Source:
    """Where the file of a task is from; `repo` and `file` where the hub has it in a format that is read here.

    `names` are those that the file has in a folder of data, the likeliest first. `pool_file` and `pool_names` are the
    same for the questions that worked examples are drawn from.
    """

    about: str
    repo: str | None = None
    file: str | None = None
    names: tuple[str, ...] = ()
    pool_file: str | None = None
    pool_names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Puzzle:
    """How a model of a puzzle's own tokens is asked, and its answer read; the text of a puzzle is a field `input`."""

    mask: int  # id of the mask in a canvas
    parse: Callable[[str], Any]
    check: Callable[[Any], str | None]  # refuses what has nothing to solve; a remark on some of the others
    canvas: Callable[[Any], list[int]]
    answer: Callable[[list[int]], str]  # decoded tokens as text
    fault: Callable[[str, Any], str | None]  # what is wrong with an answer


@dataclass(frozen=True)
class Field:
    """Something of a question that a template may name."""

    text: Callable[[Example], str]
    says: tuple[str, ...] = ()  # the parts of the question that it holds; a template must hold all of them


def named(name: str) -> Field:
    """A field of the question as it is in the example."""
    return Field(lambda example: str(example.fields[name]), (name,))


@dataclass(frozen=True)
class Wording:
    """Which prompt a task asks with: the package's own, or that of a file."""

    name: str = "ours"
    sha256: str | None = None  # of the file

    def __str__(self) -> str:
        return self.name if self.sha256 is None else f"{self.name} {self.sha256[:16]}"


@dataclass(frozen=True)
class DefinedIn:
    """The user's own Python file that defines a task."""

    file: str  # its name, without folders
    sha256: str
    place: str = ""  # its whole path, with :NAME of the task, to read it again in another process


@dataclass(frozen=True)
class Task:
    """One evaluation. `as_published` gives the verdicts of the public grader, `strict` the truth."""

    name: str
    about: str
    source: Source
    read: Callable[[Path], Iterable[Example]]
    ask: Callable[[Example, Sequence[Example]], str]  # the text of the prompt, with worked examples
    extract: Callable[[str, Example], str | None]  # the answer in a generated text, as `strict` reads it
    as_published: Grader
    strict: Grader
    answer: Callable[[Example], str]  # a text with the gold answer in the requested format
    length: int  # tokens to generate
    shots: int = 0  # worked examples in the published prompt
    shown: tuple[Example, ...] = ()  # those that belong to the task; else they come from a file
    pool: str = ""  # which file that is: `train`, or `same` for the head of the file itself
    chat: bool = False  # the prompt is one user turn in the model's chat template
    stop: tuple[str, ...] = ()  # the text ends before the first of these
    programs: tuple[Callable[[str, Example], Program], ...] = ()  # as published, strict: what the graders run
    seconds: float = 10.0  # that a program may take
    ready: Callable[[], object] = lambda: None  # raises where something is missing that the graders need
    bundled: str | None = None  # the bundled model that is asked by default
    recipe: Mapping[str, Any] = field(default_factory=dict)  # settings over the model's default recipe
    group: Callable[[Example], str | None] = lambda example: None  # questions whose figures are also given apart
    puzzle: Puzzle | None = None  # for a model of its own tokens, which is given a canvas and not a prompt
    fields: Mapping[str, Field] = field(default_factory=dict)  # what a template may name of a question
    solved: Mapping[str, Callable[[Example], str]] = field(default_factory=dict)  # and besides of a worked example
    wording: Wording = Wording()  # the prompt that `ask` writes
    held: tuple[Example, ...] = ()  # questions that are part of the task; else they come from a file
    defined_in: DefinedIn | None = None  # the user's file that it is from
    form: str | None = None  # a regular expression that right answers match from end to end
    constrained: bool = False  # answers are decoded in this form

    def examples(self, path: str | Path | None = None, limit: int | None = None) -> list[Example]:
        """The questions of a file; without one, the task's own or those of the hub."""
        if self.held:
            if path is not None:
                raise InputError(f"{self.name} has its questions in its code", f"leave {str(path)!r} out")
            return list(self.held[:limit])
        found = list(islice(self.read(located(self, path)), limit))
        if not found:
            raise InputError(f"there is no question in {str(path)!r}", f"{self.name} reads {self.source.about}")
        return found

    def prompt(self, example: Example, shots: Sequence[Example] | None = None) -> str | Messages:
        """What the model is given: text, or a chat of one message. `shots` default to the task's own."""
        if shots is None and self.shots and not self.shown:
            raise InputError(f"{self.name} has no worked examples of its own", f"give {self.shots} of them as shots")
        text = self.ask(example, self.shown if shots is None else shots)
        return [{"role": "user", "content": text}] if self.chat else text

    def cut(self, text: str) -> str:
        """The generated text, up to the first stop string."""
        return before_any(text, self.stop)

    def read_strictly(self, text: str) -> str:
        """The text that `strict` and `extract` read: a fenced program ends with its fence, all else as in `cut`."""
        return text if self.programs and text.lstrip().startswith("```") else self.cut(text)

    def grades(self, text: str, example: Example) -> tuple[bool, bool]:
        """Both verdicts on a generated text: as published, strict."""
        return self.as_published(self.cut(text), example), self.strict(self.read_strictly(text), example)

    def running(self, run: Run) -> Task:
        """The same task, with something that runs programs; only tasks of code need it."""
        if not self.programs:
            raise InputError(f"{self.name} runs no programs", "grade without `running`")
        published, strict = (graded_by(program, run) for program in self.programs)
        return replace(self, as_published=published, strict=strict)


def in_form(task: Task) -> Task:
    """The task with answers decoded in its form; refused where it has none."""
    if task.form is None:
        raise InputError(f"{task.name} has no form to decode answers in", "leave --constrained out")
    return replace(task, constrained=True)


def before_any(text: str, stops: Sequence[str]) -> str:
    """The text before the first of some strings."""
    return text[: min((text.find(stop) for stop in stops if stop in text), default=len(text))]


def puzzle_of(task: Task) -> Puzzle:
    """The puzzle of a task for a model of its own tokens; refused where the task asks with prompts."""
    if task.puzzle is None:
        raise InputError(f"{task.name} is not a puzzle", "ask it with prompts")
    return task.puzzle


def graded_by(program: Callable[[str, Example], Program], run: Run) -> Grader:
    """A grader that runs what `program` makes of a text."""

    def grade(text: str, example: Example) -> bool:
        made = program(text, example)
        outcome = run(made.code)
        return outcome.ok and made.proof in outcome.stdout

    return grade


def unrun(text: str, example: Example) -> bool:
    """The grader of a task of code before `running`."""
    raise InputError("this task runs programs", "pass a sandbox: task.running(run)")


def located(task: Task, path: str | Path | None, pool: bool = False) -> Path:
    """The file of a task: the given one, or the one on the hub; `pool`: that of its worked examples."""
    if path is not None:
        return Path(path)
    file = task.source.pool_file if pool else task.source.file
    if task.source.repo is None or file is None:
        verb = "give" if task.defined_in else "fetch"
        raise InputError(f"{task.name} needs a file", f"{verb} {task.source.about}")
    from unmask.models.files.hub import download  # only where there is something to download

    try:
        found = download(task.source.repo, files=[file], kind="dataset") / file
    except ModelError as error:
        flag = "--shots" if pool else "--data"
        way_out = f"fetch {file} of the hub's dataset {task.source.repo} and give it as {flag} FILE"
        raise InputError(error.message, way_out) from None
    files.check_readable(found)
    return found


# --- worked examples -------------------------------------------------------------------------------------------------

SEED = 1234  # lm-eval's for worked examples


def shots(task: Task, questions: Sequence[Example], pool: Sequence[Example] | None = None) -> list[list[Example]]:
    """For each question, in the order of the file: the task's own examples, or those of the pool.

    `same`: the first ones of the file itself, for all questions. `train`: drawn anew for every question from another
    file. `others`: drawn from the questions, leaving out the one that is asked.
    """
    if task.shown or not task.shots:
        return [list(task.shown)] * len(questions)
    if pool is None and task.pool == "train":
        raise InputError(f"{task.name} draws its worked examples from another file", "give the training questions")
    found = list(questions if pool is None else pool)
    extra = task.pool == "others"
    if len(found) < task.shots + extra:
        raise InputError(f"{len(found)} questions to draw from", f"{task.name} shows {task.shots} of them")
    if task.pool == "same":
        return [found[: task.shots]] * len(questions)
    dice = Random(SEED)
    drawn = [dice.sample(found, task.shots + extra) for _ in questions]
    pairs = zip(questions, drawn, strict=True)
    return [[one for one in some if not extra or one.id != question.id][: task.shots] for question, some in pairs]
