"""What can go wrong, in one line each: the value, the choices and the way out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches


class UnmaskError(Exception):
    """Any error that a user can cause and mend; `hint` says how."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(f"{message}: {hint}" if hint else message)
        self.message, self.hint = message, hint


class InputError(UnmaskError):
    """A prompt, canvas or file that cannot be decoded as given."""


class SettingError(UnmaskError):
    """A setting out of range, unknown, or without effect on the chosen sampler or search; `setting` is its name."""

    def __init__(self, message: str, hint: str = "", *, setting: str = "") -> None:
        super().__init__(message, hint)
        self.setting = setting


class ModelError(UnmaskError):
    """A model that cannot be found, or whose output is not a distribution."""


class ProgressError(UnmaskError):
    """A sampler without a schedule that decided nothing in a step."""


class AlikeWarning(UserWarning):
    """All particles of a search took the same path, so that it cost more than one path and found nothing else."""


def first_line(error: BaseException) -> str:
    """The first line of an error's text, else the name of its class; at most 160 printable characters."""
    lines = (line.strip() for line in str(error).splitlines())
    return printable(next(filter(None, lines), type(error).__name__)[:160])


@contextmanager
def guarded(
    message: str, kind: type[UnmaskError] = ModelError, but: tuple[type[BaseException], ...] = ()
) -> Iterator[None]:
    """Any error of foreign code inside, a SystemExit or a panic too, becomes one of this kind; those in `but` pass."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, (UnmaskError, KeyboardInterrupt, MemoryError, *but)):
            raise
        raise kind(message, first_line(error)) from None


def printable(text: str) -> str:
    """The text; escaped if it holds characters that a terminal would interpret."""
    return text if text.isprintable() else ascii(text)[1:-1]


def many(number: int, one: str, several: str = "") -> str:
    """A number of things: `one` where it is 1, else `several`, by default with an s."""
    return f"{number} {one if number == 1 else several or f'{one}s'}"


def unknown(kind: str, name: object, choices: Iterable[str], where: str = "", *, setting: str = "") -> SettingError:
    """An unknown name, with the nearest of the known ones; else all of them, or `where` they are listed."""
    names = list(choices)
    near = get_close_matches(str(name), names, n=1, cutoff=0.6)
    hint = f"did you mean {near[0]!r}?" if near else where or "choose from " + ", ".join(names)
    return SettingError(f"unknown {kind} {name!r}", hint, setting=setting)
