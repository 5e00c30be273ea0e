"""Many prompts -> results, batch after batch; a Result -> its row in the file of a run that can be resumed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from unmask.decoding.decode import Result
from unmask.evaluate.batch import parts
from unmask.evaluate.rows import Line, to_json

Decode = Callable[[Sequence[int]], list[Result]]  # numbers of prompts -> their results
HEADED = ("recipe", "choose")  # parts of a result that the header has, once for all rows


@dataclass(frozen=True)
class Done:
    """One prompt that was decoded."""

    number: int  # its place, from 0
    result: Result
    share: int  # prompts of its batch


def run(n: int, size: int, decode: Decode, done: Collection[int] = ()) -> Iterator[list[Done]]:
    """The results of n prompts, batch after batch, but for the numbers in `done`.

    Batches are cut at the same places whatever is in `done`, so that a resumed run rounds like one that was never
    stopped.
    """
    for part in parts(range(n), size):
        if any(number not in done for number in part):
            found = zip(part, decode(part), strict=True)
            yield [Done(number, result, len(part)) for number, result in found if number not in done]


def row(one: Done, prompt: str) -> Line:
    """Its row in the file of the run."""
    about = {name: value for name, value in one.result.to_dict().items() if name not in HEADED}
    seconds = one.result.seconds / one.share
    line: Line = to_json({"number": one.number, "prompt": prompt, **about, "seconds": seconds})
    return line
