"""Many prompts -> results, batch after batch; or, as a job for a crew, -> rows in the file of a run to be resumed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from unmask.core.denoiser import Denoiser
from unmask.decoding.decode import OnResults, Result, decode_batch, in_waves, layout
from unmask.decoding.defaults import canonical
from unmask.decoding.form import Form
from unmask.decoding.prompt import Text, fitting_length
from unmask.decoding.recipe import Recipe
from unmask.decoding.trace import OnEvent
from unmask.evaluate.batch import parts
from unmask.evaluate.crew import Store
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


# --- as a job --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Prompt:
    """A prompt of a file, or a canvas."""

    number: int  # its place, from 0; each answer to it has one
    text: str


@dataclass(frozen=True)
class Generating:
    """The job of `unmask generate`: prompts -> their rows."""

    recipe: Recipe
    size: int  # prompts that are decoded together
    whole: bool = True  # the recipe is complete; else `given` are settings over the default ones of the model
    given: Mapping[str, Any] = field(default_factory=dict)
    canvas: bool = False
    chat: bool = False
    system: str | None = None
    stop: Sequence[str] | None = None
    logprobs: int | None = None
    form: Form | None = None

    @property
    def refills(self) -> bool:
        return in_waves(self.recipe)

    def check(self) -> None:
        """Texts are decoded anywhere."""

    def prepared(self, model: Denoiser, items: Sequence[Prompt]) -> Generating:
        """All texts fit; without a length, the longest of them says how much is generated after each."""
        if self.canvas:
            return self
        texts, made = self._texts(items), self
        if self.recipe.length is None and not self.whole:
            recipe = self.recipe.replace(length=fitting_length(model, texts))
            made = replace(self, recipe=recipe, given={**self.given, "length": recipe.length})
        at_most = not made.whole and canonical(made.given).get("length") is None
        layout(model, texts, None, made.recipe, at_most=at_most)
        return made

    def results(
        self,
        model: Denoiser,
        items: Sequence[Prompt],
        on_results: OnResults | None = None,
        on_event: OnEvent | None = None,
        trace: str | Path | None = None,
    ) -> list[Result]:
        """The results of some prompts, which are decoded together."""
        texts = self._texts(items)
        return decode_batch(
            model,
            None if self.canvas else texts,
            canvases=texts if self.canvas else None,
            recipe=self.recipe if self.whole else None,
            stop=self.stop,
            form=self.form,
            seeds=[self.recipe.seed + one.number for one in items],
            trace=trace,
            on_event=on_event,
            logprobs=self.logprobs,
            batch_size=self.size if self.refills else None,
            on_results=on_results,
            **self.given,
        )

    def do(self, model: Denoiser, items: Sequence[Prompt], store: Store, on_event: OnEvent | None = None) -> None:
        def as_they_come(count: int, total: int, found: list[Result]) -> None:
            share = 1 if self.refills else len(items)
            done = [(items[one.number], one) for one in found]
            store([row(Done(prompt.number, one, share), prompt.text) for prompt, one in done])

        self.results(model, items, as_they_come, on_event)

    def _texts(self, items: Sequence[Prompt]) -> list[Text]:
        return [_messages(one.text, self.system) if self.chat else one.text for one in items]


def _messages(prompt: str, system: str | None) -> list[dict[str, str]]:
    """A dialogue of one question, after what the system is told."""
    first = [] if system is None else [{"role": "system", "content": system}]
    return [*first, {"role": "user", "content": prompt}]
