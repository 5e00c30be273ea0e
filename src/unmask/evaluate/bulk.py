"""Many prompts -> results, batch after batch; a Result -> its row in the file of a run that can be resumed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from unmask.decoding.decode import OnResults, Result
from unmask.evaluate.batch import parts
from unmask.evaluate.rows import Line, to_json

# numbers of prompts, how many at once (None: all), a callback for results as they come -> their results
Decode = Callable[[Sequence[int], int | None, OnResults | None], list[Result]]
HEADED = ("recipe", "choose")  # parts of a result that the header has, once for all rows


@dataclass(frozen=True)
class Done:
    """One prompt that was decoded."""

    number: int  # its place, from 0
    result: Result
    share: int  # prompts of its batch


def run(
    n: int,
    size: int,
    decode: Decode,
    on_done: Callable[[list[Done]], None],
    done: Collection[int] = (),
    refills: bool = False,
) -> None:
    """The results of n prompts, batch after batch, but for the numbers in `done`; `on_done` gets them as they come.

    Batches are cut at the same places whatever is in `done`, so that a resumed run rounds like one that was never
    stopped. Where prompts stop early, a batch `refills` with the next ones, and results come in any order.
    """
    if refills:
        todo = [number for number in range(n) if number not in done]

        def store(count: int, total: int, new: list[Result]) -> None:
            on_done([Done(todo[result.number], result, 1) for result in new])

        if todo:
            decode(todo, size, store)
        return
    for part in parts(range(n), size):
        if any(number not in done for number in part):
            found = zip(part, decode(part, None, None), strict=True)
            on_done([Done(number, result, len(part)) for number, result in found if number not in done])


def row(one: Done, prompt: str) -> Line:
    """Its row in the file of the run."""
    about = {name: value for name, value in one.result.to_dict().items() if name not in HEADED}
    seconds = one.result.seconds / one.share if one.result.share is None else one.result.share
    line: Line = to_json({"number": one.number, "prompt": prompt, **about, "seconds": seconds})
    return line
