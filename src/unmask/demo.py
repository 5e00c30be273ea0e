"""Vanilla, E-BoN and E-SMC on six-letter words whose every probability is known -> a page in the terminal."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table as Grid

from unmask import show
from unmask import trace as traces
from unmask.decode import Result, decode, decode_batch
from unmask.errors import InputError
from unmask.models import Table
from unmask.models.words import WORDS, words
from unmask.recipe import Recipe
from unmask.trace import Event

SEEDS = 200  # answers of each method: a share is then known to within 7 points
SHOWN = 8  # of them are printed
TRACE = "runs/demo.jsonl"
SURE = 1.96  # standard errors to each side of a 95 % interval

BASE = Recipe(sampler="uniform", steps=3, length=6, temperature=1.0)
SMC = BASE.replace(search="smc", particles=8, every=1)
METHODS: dict[str, Recipe] = {
    "vanilla": BASE,
    "vanilla, 6 steps": BASE.replace(steps=6),
    "E-BoN": BASE.replace(search="best-of-n", particles=8),
    "E-SMC": SMC,
    "E-SMC, systematic": SMC.replace(scheme="systematic", target=0.5),
}

INTRO = (
    f"The model knows {len(WORDS)} six-letter words (and mistypes a letter now and then), so every probability is "
    "exact. Each method starts from six masks and frees two letters a step in random order; letters of one step "
    "cannot see each other. The state entropy h says how unsure the model is of what is still masked, the path "
    "entropy H is its mean along the way."
)
LEGEND = (
    "E-BoN walks 8 paths and keeps the one of lowest H. E-SMC also copies paths of low h over the others before each "
    "step, as printed in the paper; systematic: the copies are drawn evenly and the strength is solved for half the "
    "particles. Vanilla with 6 steps frees one letter a step, which draws from the model exactly. Real words are those "
    "of the model's list, evaluations are rows through the network."
)


def run(seeds: int = SEEDS, trace: str | Path = TRACE) -> None:
    """Decode with every method and the same seeds, then print samples, a path and the comparison."""
    if seeds < 2:
        raise InputError(f"{seeds} seeds make no mean", "give at least 2")
    model = words()
    results: dict[str, list[Result]] = {}
    with show.progress() as bar:
        for name, recipe in bar.track(METHODS.items(), description="decoding"):
            results[name] = answers(model, recipe, seeds)
    console = show.console()
    console.print(INTRO, _samples(results), sep="\n\n")
    print(_path(model, trace), end="\n\n")
    console.print(_comparison([measure(model, name, found) for name, found in results.items()], seeds), LEGEND)


def answers(model: Table, recipe: Recipe, seeds: int) -> list[Result]:
    """One result for each seed."""
    return decode_batch(model, [""] * seeds, recipe=recipe, seeds=range(seeds))


# --- samples ---------------------------------------------------------------------------------------------------------


def _samples(results: dict[str, list[Result]]) -> Grid:
    made = show.grid("seed", *results, right=("seed",))
    made.title, made.title_justify = "Answers to the same seeds (a dot marks a word)", "left"
    for rows in list(zip(*results.values(), strict=True))[:SHOWN]:
        made.add_row(str(rows[0].seed), *(f"{row.text} {'·' if row.text in WORDS else ''}" for row in rows))
    return made


# --- one path --------------------------------------------------------------------------------------------------------


def _path(model: Table, trace: str | Path) -> str:
    """Decode once with E-SMC, write its trace, and tell the chosen path from it."""
    Path(trace).parent.mkdir(parents=True, exist_ok=True)
    result = decode(model, recipe=METHODS["E-SMC"], trace=trace)
    lines = ["One path of E-SMC, read back from its trace (_ is a mask):"]
    for number, (canvas, entropy, came) in enumerate(lineage(traces.load(trace), result.chosen), 1):
        copied = "" if came is None else f"   then copied from particle {came[0]} to {came[1]}"
        lines.append(f"  step {number}   {model.tokenizer.decode(canvas)}   h = {entropy:.3f} bits{copied}")
    lines.append(f"  answer   {result.text}   H = {result.path_entropy:.3f} bits")
    return "\n".join([*lines, f"Its trace, with all particles: {trace}"])


def lineage(events: Sequence[Event], row: int) -> list[tuple[list[int], float, tuple[int, int] | None]]:
    """The states that led to a final row: canvas, state entropy in bits, and the copy (from, to) after it, if any."""
    steps = [event for event in events if event["event"] == "step"]
    canvases = list(traces.replay(events))
    path = []
    for place in reversed(range(len(steps))):
        source = steps[place]["ancestors"][row] if "ancestors" in steps[place] else row
        copy = None if source == row else (source, row)
        path.append((canvases[place][source], steps[place]["h"][source], copy))
        row = source
    return path[::-1]


# --- the comparison --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measured:
    """Means over answers, with the half-widths or ends of their 95 % intervals."""

    name: str
    path_entropy: tuple[float, float]  # bits
    likelihood: tuple[float, float]  # log2
    words: tuple[float, float, float]  # share, low, high
    evaluations: float


def measure(model: Table, name: str, results: Sequence[Result]) -> Measured:
    """What one method reached."""
    entropies = [result.path_entropy for result in results]
    likelihoods = [model.log_probability(result.tokens) / math.log(2) for result in results]
    hits = sum(result.text in WORDS for result in results)
    cost = statistics.fmean(result.evaluations for result in results)
    return Measured(name, _mean(entropies), _mean(likelihoods), wilson(hits, len(results)), cost)


def _mean(numbers: Sequence[float]) -> tuple[float, float]:
    return statistics.fmean(numbers), SURE * statistics.stdev(numbers) / math.sqrt(len(numbers))


def wilson(hits: int, total: int) -> tuple[float, float, float]:
    """A share and its 95 % interval after Wilson, which stays inside 0 and 1."""
    share, slack = hits / total, SURE**2 / total
    centre = (share + slack / 2) / (1 + slack)
    half = math.sqrt(share * (1 - share) * slack + slack**2 / 4) / (1 + slack)
    return share, centre - half, centre + half


def _comparison(rows: Sequence[Measured], seeds: int) -> Grid:
    columns = "path entropy", "log2-likelihood", "real words", "evaluations"
    made = show.grid("method", *columns, right=columns)
    made.title, made.title_justify = (
        f"Means of {seeds} answers with 95 % intervals; entropy and likelihood in bits",
        "left",
    )
    for row in rows:
        share, low, high = row.words
        made.add_row(
            row.name,
            f"{row.path_entropy[0]:.3f} ± {row.path_entropy[1]:.3f}",
            f"{row.likelihood[0]:.2f} ± {row.likelihood[1]:.2f}",
            f"{share:.0%} ({low:.0%}–{high:.0%})",
            f"{row.evaluations:g}",
        )
    return made
