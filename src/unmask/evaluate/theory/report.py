"""Known texts × model × Recipe -> rows, all quantities of the theory, and their picture."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from unmask.core.denoiser import Denoiser
from unmask.core.entropy import BIT, bits
from unmask.decoding.decode import Result
from unmask.decoding.recipe import Recipe
from unmask.errors import SettingError
from unmask.evaluate.rows import to_json
from unmask.evaluate.stats import Mean, average, mean
from unmask.evaluate.theory import quantities
from unmask.evaluate.theory.calibrate import Calibration
from unmask.evaluate.theory.noised_states import States, join, measure
from unmask.evaluate.theory.reference import Known, ReferencePath, generated, reference
from unmask.report import chart
from unmask.report.chart import Band, Curve

TEXTS = 4  # measured and kept at a time: an interrupt loses no more than these
RANDOM = ("ancestral", "uniform")  # the theory is about random order
Row = dict[str, Any]


@dataclass(frozen=True)
class Study:
    """The measurements of some texts."""

    recipe: Recipe
    states: States
    reference: list[list[ReferencePath]]
    generated: list[Result]
    bits: list[float] | None = None  # of each text under the law of the data, where all are known

    @property
    def evaluations(self) -> int:
        paths = sum(path.evaluations for some in self.reference for path in some)
        return self.states.evaluations + paths + sum(result.evaluations for result in self.generated)


def study(
    model: Denoiser,
    texts: Sequence[Known],
    recipe: Recipe,  # sampler, steps and seed
    draws: int = 16,
    paths: int = 2,
    best_of: int = 1,  # decoded paths of each text
    on_progress: Callable[[int, int], None] = lambda done, total: None,
    on_rows: Callable[[list[Row]], None] = lambda rows: None,
) -> Study:
    """Noised states, reference paths and decoded paths of every text; `on_rows` gets the rows of each batch."""
    if recipe.sampler not in RANDOM:
        raise SettingError(f"the theory is about random order, not {recipe.sampler}", f"use {' or '.join(RANDOM)}")
    parts: list[Study] = []
    for begin in range(0, len(texts), TEXTS):
        some = texts[begin : begin + TEXTS]
        now = recipe.replace(seed=recipe.seed + begin, temperature=1.0, search="vanilla")
        own = now if best_of == 1 else now.replace(search="best-of-n", particles=best_of)
        seeds = [recipe.seed + begin + place for place in range(len(some))]
        states = measure(model, some, draws, seeds=seeds)
        true = reference(model, some, now, paths, seeds=seeds)
        part = Study(now, states, true, generated(model, some, own), law(some))
        on_rows(rows(part, begin))
        parts.append(part)
        on_progress(begin + len(some), len(texts))
    return Study(
        recipe,
        join([part.states for part in parts]),
        [row for part in parts for row in part.reference],
        [row for part in parts for row in part.generated],
        law(texts),
    )


def law(texts: Sequence[Known]) -> list[float] | None:
    """-log2 p of each text under the law of the data; None where one is not known."""
    found = [text.bits for text in texts if text.bits is not None]
    return found if len(found) == len(texts) else None


def rows(found: Study, begin: int = 0) -> list[Row]:
    """Everything as flat rows, in bits; `begin` is the number of the first text."""
    made: list[Row] = []
    states = found.states
    for text in range(len(states.open)):
        about: Row = {"text": begin + text, "open": int(states.open[text])}
        for column in range(states.masked.shape[1]):
            numbers = {
                name: float(bits(getattr(states, name)[text, column])) for name in ("entropy", "loss", "watched")
            }
            made.append({"kind": "state", **about, "masked": int(states.masked[text, column]), **numbers})
        made += [
            {"kind": "reference", **about, "draw": draw, **vars(one)} for draw, one in enumerate(found.reference[text])
        ]
        own = found.generated[text]
        if found.bits is not None:
            made.append({"kind": "data", **about, "bits": found.bits[text]})
        path: Row = {"path_entropy": own.path_entropy, "state_entropy": own.best.state_entropy, "seed": own.seed}
        if len(own.particles) > 1:
            path["path_entropies"] = [particle.path_entropy for particle in own.particles]
        made.append({"kind": "generated", **about, **path, "evaluations": own.evaluations})
    return [to_json(row) for row in made]


def summary(found: Study, width: int, counts: Mapping[int, int] | None, data_entropy: float | None) -> Row:
    """All quantities, for JSON; without a `data_entropy` of all texts their own bits count, where they are known."""
    known = found.bits if data_entropy is None else data_entropy
    own = [[particle.path_entropy for particle in result.particles] for result in found.generated]
    steps = found.recipe.steps
    loss = [
        average([path.loss for path in some]) / n
        for some, n in zip(found.reference, found.states.open.tolist(), strict=True)
    ]
    one_by_one = bits(found.states.loss[:, found.states.parts]).mean(1).tolist()
    several = [many - one for many, one in zip(loss, one_by_one, strict=True)]
    made = {
        "texts": len(own),
        "evaluations": found.evaluations,
        "bins": quantities.bins(found.states, width),
        "integrals": quantities.integrals(found.states),
        "ends": quantities.ends(found.states, counts),
        "context": quantities.context(found.states),
        "divergence": quantities.divergence(found.reference, own, width, steps, known),
        "law": None if known is None else quantities.law(found.states, known),
        "step_loss": mean(loss),  # bits a token: the NELBO of `steps` steps
        "several_at_once": mean(several),  # of it, what deciding several tokens in a step costs
        # nats: the NELBO is never under the entropy of the data, so the divergence is at least what is above the NELBO
        "kl_at_least": mean([one * n * BIT for one, n in zip(several, found.states.open.tolist(), strict=True)]),
    }
    return {name: to_json(value) for name, value in made.items()}


# --- pictures --------------------------------------------------------------------------------------------------------


def draw(found: Study, width: int, counts: Mapping[int, int] | None, path: Path) -> None:
    """Four panels: state entropy and loss over time, their gap, context, and paths."""
    bins, ends = quantities.bins(found.states, width), quantities.ends(found.states, counts)
    context = quantities.context(found.states)
    entropy = [(0.0, ends.single), *((b.time, b.entropy) for b in bins), (1.0, ends.full)]
    loss = [(0.0, ends.single_loss), *((b.time, b.loss) for b in bins), (1.0, ends.full_loss)]
    most = ends.unigram_corrected
    unigram: dict[str, Curve] = {} if most is None else {"entropy of token counts": [(0.0, most), (1.0, most)]}
    gap = [(b.time, b.gap) for b in bins]
    zero: dict[str, Curve] = {"0": [(0.0, 0.0), (1.0, 0.0)]}
    one = list(zip(context.time, context.entropy, strict=True))
    true = quantities.along([path.state_entropy for some in found.reference for path in some])
    own = quantities.along([result.best.state_entropy for result in found.generated])
    chart.save(
        path,
        [
            _panel("bits of a masked token over the share of masks", {"state entropy": entropy, "loss": loss}, unigram),
            _panel("loss less state entropy, bits, over the share of masks", {"gap": gap}, zero),
            _panel("bits of one position over the share of masks around it", {"entropy": one}, {}),
            _panel("state entropy, bits, over steps", {"reference paths": true, "decoded paths": own}, {}),
        ],
    )


def draw_calibration(found: Calibration, path: Path) -> None:
    """Path entropy over the strength, with the reference."""
    true, curve = mean(found.reference), found.curve()
    ends = [0.0, max(strength for strength, _ in curve)]
    lines = {"decoded": curve, "reference": [(end, true) for end in ends]}
    scaled = {name: [(_scale(x), y) for x, y in points] for name, points in lines.items()}
    marks = [0.0, *(10.0**power for power in range(7) if 10.0**power <= ends[1])]
    title = f"path entropy of the {found.of}, bits, over the strength"
    chart.save(path, [_panel(title, scaled, {}, {_scale(mark): f"{mark:g}" for mark in marks})])


def _scale(strength: float) -> float:
    return math.log1p(strength)


def _panel(
    title: str,
    measured: Mapping[str, Sequence[tuple[float, Mean]]],
    more: Mapping[str, Curve],
    ticks: Mapping[float, str] | None = None,
) -> Callable[[int], str]:
    """Curves with the bands of their intervals, and lines beside them."""
    curves: dict[str, Curve] = {name: [(x, y.value) for x, y in points] for name, points in measured.items()}
    bands: dict[str, Band] = {
        name: [(x, y.low, y.high) for x, y in points if y.low is not None and y.high is not None]
        for name, points in measured.items()
    }
    return partial(chart.panel, title=title, curves={**curves, **more}, bands=bands, pale=tuple(more), ticks=ticks)
