"""Tasks × what the user gave × a folder of data -> the files of a run, or one message with all that is missing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from unmask.errors import InputError
from unmask.tasks import Task
from unmask.tasks.task import located

# family -> the names of its background table in a folder of data, PC-Sampler's own last
TABLES = {
    "llada": ("frequencies/llada.json", "llada.json", "reference_corpus_llada.json"),
    "dream": ("frequencies/dream.json", "dream.json", "reference_corpus_dream.json"),
}


@dataclass(frozen=True)
class Inputs:
    """The files of a run; None where it needs none, or takes the hub's."""

    data: str | None = None  # the questions
    shots: str | None = None  # questions to draw worked examples from
    background: str | None = None  # counts of tokens, for PC-Sampler


@dataclass(frozen=True)
class Lack:
    """A file that was not found."""

    what: str
    file: str  # its name in a folder of data
    flag: str
    why: str = ""  # the hub's answer, where it was asked


def gathered(
    wants: Sequence[tuple[Task, str | None]], given: Inputs = Inputs(), folder: str | Path | None = None
) -> list[Inputs]:
    """The files of each task; beside it the family whose background table is wanted, if one is.

    Files that were given come first, then those of the folder, then the hub. All that is missing is named at once.
    """
    if folder is not None and not Path(folder).is_dir():
        raise InputError(f"there is no folder {str(folder)!r}", "give one with the files of the tasks")
    lacks: list[Lack] = []
    found = [_of_task(task, family, given, folder, lacks) for task, family in wants]
    if lacks:
        raise _missing(list(dict.fromkeys(lacks)), folder)
    return found


def _of_task(task: Task, family: str | None, given: Inputs, folder: str | Path | None, lacks: list[Lack]) -> Inputs:
    made = given
    if given.data is None and not task.held:
        made = replace(made, data=_file(task, False, folder, lacks))
    if task.pool == "train" and not task.shown and task.shots:
        made = replace(made, shots=given.shots or _file(task, True, folder, lacks))
    else:
        made = replace(made, shots=given.shots)
    if family is None:
        return replace(made, background=None)
    if given.background is None:
        table = in_folder(folder, TABLES.get(family, ()))
        made = replace(made, background=table)
        if table is None:
            name = TABLES.get(family, ("counts.json",))[0]
            lacks.append(Lack(f"the background table of {family}", name, "--background"))
    return made


def _file(task: Task, pool: bool, folder: str | Path | None, lacks: list[Lack]) -> str | None:
    names = task.source.pool_names if pool else task.source.names
    here = in_folder(folder, names)
    if here is not None:
        return here
    what = f"the worked examples of {task.name}" if pool else f"the questions of {task.name}"
    why = ""
    if task.source.repo is not None:
        try:
            return str(located(task, None, pool))
        except InputError as error:
            why = f"{error.message}, {error.hint}" if "Parquet" in error.message else error.message
    lacks.append(Lack(what, names[0] if names else "FILE", "--shots" if pool else "--data", why))
    return None


def in_folder(folder: str | Path | None, names: Sequence[str]) -> str | None:
    """The first of these files in a folder, or in one of its folders."""
    if folder is None:
        return None
    for name in names:
        if (Path(folder) / name).is_file():
            return str(Path(folder) / name)
    for name in names:
        below = sorted(path for path in Path(folder).rglob(name) if path.is_file())
        if below:
            return str(below[0])
    return None


def _missing(lacks: Sequence[Lack], folder: str | Path | None) -> InputError:
    """Everything that was not found, and both ways to give it."""
    where = "" if folder is None else f" in {str(folder)!r}"
    whys = list(dict.fromkeys(lack.why for lack in lacks if lack.why))
    problem = f"not found{where}: {', '.join(lack.what for lack in lacks)}" + "".join(f" ({why})" for why in whys[:1])
    names, flags = (list(dict.fromkeys(getattr(lack, key) for lack in lacks)) for key in ("file", "flag"))
    into = "that folder" if folder is not None else "a folder and add --data-dir FOLDER"
    return InputError(problem, f"put {_listed(names)} into {into}; or give {_listed([f'{one} FILE' for one in flags])}")


def _listed(words: Sequence[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last
