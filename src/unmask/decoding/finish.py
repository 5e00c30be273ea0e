"""The parts of a walk -> finished paths: walk to the end, look again where the chooser does, read the texts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from unmask.core.denoiser import Denoiser, Head
from unmask.core.entropy import bits
from unmask.core.resampling import Resampled, Search
from unmask.core.sampler import Sampler
from unmask.core.slices import Walked
from unmask.core.state import State
from unmask.core.step import Moment, Over, Rules, Tally
from unmask.core.walk import walk
from unmask.decoding import slices
from unmask.decoding import trace as traces
from unmask.decoding.elsewhere import Elsewhere
from unmask.decoding.ends import cut, finish, shown
from unmask.decoding.form import Form
from unmask.decoding.prompt import Canvas
from unmask.decoding.result import Particle
from unmask.decoding.trace import OnEvent
from unmask.models.cache import without_approximation
from unmask.search.look import look


@dataclass(frozen=True)
class Reading:
    """How finished rows become texts."""

    rows: Sequence[Canvas]  # one a prompt
    stops: Sequence[str] = ()
    logprobs: int | None = None
    form: Form | None = None  # what the texts must be


@dataclass(frozen=True)
class Finished:
    """The paths of a walk, all of the same number of particles a prompt."""

    particles: list[Particle]
    state: State
    tally: Tally
    log_evidence: Tensor  # [P] float64


def finished(
    denoiser: Denoiser,
    state: State,
    sampler: Sampler,
    search: Search,
    rules: Rules,
    reading: Reading,
    record: OnEvent | None = None,
    looks: bool = False,
    known: Sequence[Mapping[tuple[int, ...], float]] | None = None,
    over: Over | None = None,
) -> Finished:
    """Walk to the end, then look again if `looks`. `record` gets the event of each step; `known` has, for each row,
    the answers that were looked at before; `over` says which texts are."""
    logprobs, mask = reading.logprobs, denoiser.vocab.mask
    written = None if logprobs is None else traces.Written(len(state.tokens), mask)
    if isinstance(denoiser, Elsewhere):
        walked, ask = slices.walk(denoiser, state, sampler, search, rules), partial(slices.look_again, denoiser)
    else:
        moments = walk(denoiser, state, sampler, search, rules, keeps_hidden=logprobs is not None, over=over)
        walked, ask = _followed(moments, denoiser.head, written, logprobs, record), None
    state, tally = walked.state, walked.tally
    if looks:
        before = None if known is None else _known(state, known)
        limit = rules.constraint if rules.constrained_entropy else None
        state, tally = look(without_approximation(denoiser), state, tally, known=before, constraint=limit, ask=ask)
    particles = _particles(denoiser, reading, state, tally.steps.tolist(), _along(walked.steps))
    if written:
        decided = written.tokens(denoiser.tokenizer, denoiser.vocab)
        particles = [replace(one, logprobs=some) for one, some in zip(particles, decided, strict=True)]
    none = torch.zeros(len(reading.rows), dtype=torch.float64)
    evidence = sum((r.log_evidence.cpu() for _, r in walked.steps if r is not None), none)
    return Finished(particles, state, tally, evidence)


def _followed(
    moments: Iterable[Moment],
    head: Head,
    written: traces.Written | None,
    logprobs: int | None,
    record: OnEvent | None,
) -> Walked:
    """A walk to its end, whose steps are recorded and noted as they come."""
    steps: list[tuple[Tensor, Resampled | None]] = []
    for moment in moments:
        event = traces.step_event(moment, head, logprobs) if record or written else {}
        if written:
            written.apply(event)
        if record:
            record(event)
        steps.append((moment.entropy, moment.resampled))
    return Walked(moment.state, moment.tally, steps)


def _known(state: State, looks: Sequence[Mapping[tuple[int, ...], float]]) -> Tensor:  # [B] float64
    """The looks at these answers from before; NaN where there was none."""
    lengths = state.attend.sum(1).tolist()
    canvases = [row[len(row) - length :] for row, length in zip(state.tokens.tolist(), lengths, strict=True)]
    found = [known.get(tuple(row), math.nan) for row, known in zip(canvases, looks, strict=True)]
    return torch.tensor(found, dtype=torch.float64, device=state.tokens.device)


def _along(moments: Sequence[tuple[Tensor, Resampled | None]]) -> list[list[float | None]]:
    """State entropies of every final row along its ancestry, in bits; found by walking back."""
    row = torch.arange(len(moments[0][0]), device=moments[0][0].device)
    back: list[Tensor] = []
    for entropy, resampled in reversed(moments):
        row = row if resampled is None else resampled.ancestors[row]
        back.append(entropy[row])
    return [traces.finite(path) for path in bits(torch.stack(back[::-1], 1)).tolist()]


def _particles(
    model: Denoiser, reading: Reading, state: State, steps: list[int], paths: list[list[float | None]]
) -> list[Particle]:
    kept = (state.tokens, bits(state.path_entropy), state.origin, state.log_prob, state.surprise, state.look)
    found = []
    for row, (tokens, entropy, origin, *score) in enumerate(zip(*(one.tolist() for one in kept), strict=True)):
        canvas = reading.rows[row // state.particles]
        tokens = tokens[len(tokens) - len(canvas.tokens) :]
        text = model.tokenizer.decode([tokens[column] for column in shown(tokens, canvas, state.vocab)])
        end = cut(text, reading.stops)
        why = finish(tokens, canvas, state.vocab, end < len(text))
        log_prob, surprise, again = score
        seen = again if math.isfinite(again) else None
        numbers = (entropy, paths[row], steps[row], origin, log_prob, surprise)
        found.append(Particle(tokens, text[:end], *numbers, finish=why, look=seen))
    return found
