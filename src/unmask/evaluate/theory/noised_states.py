"""Known texts × model -> state entropy and loss of states that the forward process makes of them.

A state is drawn by its number of masks, k of L open positions. At a time t that is uniform on (0, 1), with masks of
chance t, k given k > 0 is uniform on 1 … L, so a mean over uniform k is an integral over time. And the NELBO of a text,
whatever its schedule, is L times the mean, over uniform k, of the loss of a masked token: a set M of k positions has
∫ w(t) P(M_t = M) dt = (k - 1)! (L - k)! / L!. The masks of one text are nested: its states differ by context only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from unmask.core import dice
from unmask.core.beliefs import ask
from unmask.core.denoiser import Denoiser
from unmask.core.dice import Purpose
from unmask.core.entropy import bits, state_entropy
from unmask.core.state import State, begin, padded
from unmask.errors import InputError, SettingError
from unmask.evaluate import batch
from unmask.evaluate.stats import Mean, mean
from unmask.evaluate.theory.reference import Known, Progress
from unmask.models.made.table import Table


@dataclass(frozen=True)
class States:
    """Columns: one mask; one state in each of D equal parts of 1 … L masks; everything masked. Nats."""

    masked: Tensor  # [N, D + 2] int64: k
    open: Tensor  # [N] int64: L
    entropy: Tensor  # [N, D + 2] float64: state entropy
    loss: Tensor  # [N, D + 2] float64: mean -log p of the true tokens over the masked positions
    watched: Tensor  # [N, D + 2] float64: the entropy at one position that is masked in all of them
    evaluations: int

    @property
    def share(self) -> Tensor:  # [N, D + 2] float64
        """k / L, the time."""
        return self.masked.double() / self.open[:, None]

    @property
    def parts(self) -> slice:
        """The columns that make up an integral over time."""
        return slice(1, self.masked.shape[1] - 1)


@torch.no_grad()
def measure(
    model: Denoiser,
    texts: Sequence[Known],
    draws: int = 16,
    seed: int = 0,
    on_progress: Progress = lambda done, total: None,
    seeds: Sequence[int] | None = None,
) -> States:
    """D = `draws` states of each text, and its two ends; text i has the seed `seed` + i."""
    if draws < 1:
        raise SettingError(f"draws is {draws}", "it must be at least 1")
    if not texts or not all(any(text.open) for text in texts):
        raise InputError("there is nothing to mask", "give texts of at least one token")
    keys = [seed + place for place in range(len(texts))] if seeds is None else list(seeds)
    size = batch.size("known", model.device, draws + 2)
    parts = []
    for place in range(0, len(texts), size):
        state, truth, rank = _noised(model, texts[place : place + size], keys[place : place + size], draws)
        parts.append([state.masked.sum(1), state.open, *_beliefs(model, state, truth, rank == 0)])
        on_progress(min(place + size, len(texts)), len(texts))
    masked, open, entropy, loss, watched = (torch.cat(column).cpu() for column in zip(*parts, strict=True))
    wide = (len(texts), draws + 2)
    entropy, loss, watched = (numbers.view(wide) for numbers in (entropy, loss, watched))
    return States(masked.view(wide), open.view(wide)[:, 0], entropy, loss, watched, len(masked) * model.cost)


def _noised(
    model: Denoiser, texts: Sequence[Known], keys: Sequence[int], draws: int
) -> tuple[State, Tensor, Tensor]:  # and [B, L] int64 each
    """The states; the true tokens; the place of each open position in the order in which masks come."""
    vocab, place = model.vocab, model.device
    truth, attend = (part.to(place) for part in padded([text.tokens for text in texts], vocab.pad))
    open = padded([[int(free) for free in text.open] for text in texts], 0)[0].bool().to(place)
    key = dice.keys(keys).to(place)
    state = begin(truth, open, attend, key, vocab, draws + 2)
    none = torch.zeros_like(state.key)[:, None]
    noise = dice.uniform(state.key[:, None], none, 0, state.columns, Purpose.NOISE)  # one order for all of a text
    rank = noise.where(state.writable, torch.inf).argsort(1).argsort(1)
    within = dice.uniform(state.key, state.slot, 1, torch.zeros_like(state.slot), Purpose.NOISE)
    count = ((state.slot - 1 + within) / draws * state.open).long() + 1  # uniform on 1 … L over all parts
    count = count.where(state.slot > 0, 1).where(state.slot <= draws, state.open)
    hide = (rank < count[:, None]) & state.writable
    tokens = state.tokens.masked_fill(hide, vocab.mask)
    return state.replace(tokens=tokens, time=count / state.open), state.tokens, rank


def _beliefs(model: Denoiser, state: State, truth: Tensor, watched: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """State entropy, mean loss and the entropy of the watched position, [B] each."""
    size = batch.size("known", model.device)
    found = []
    for rows in torch.split(torch.arange(len(truth), device=truth.device), size):
        where = state.masked[rows]
        beliefs = ask(model, state, rows, where, truth[rows])
        here = beliefs.entropy.double().where(watched[rows], 0.0).sum(1)
        found.append((state_entropy(beliefs.entropy, where), state_entropy(-beliefs.standing, where), here))
    entropy, loss, one = (torch.cat(column) for column in zip(*found, strict=True))
    return entropy, loss, one


@dataclass(frozen=True)
class OracleStates:
    """Proposition 1 on a model whose joint distribution is known: bits, of each state with two masks or more."""

    joint: Mean  # entropy of all masked positions together
    sum: Mean  # state entropy times the number of masks
    gap: Mean  # sum - joint, paired: never below 0
    least: float  # the smallest gap


@torch.no_grad()
def oracle(model: Table, texts: Sequence[Known], draws: int = 16, seed: int = 0) -> OracleStates:
    """The oracle's uncertainty beside its upper bound, over noised states of the texts."""
    totals, joints = [], []
    for place, text in enumerate(texts):
        state, _, _ = _noised(model, [text], [seed + place], draws)
        rows = (state.masked.sum(1) > 1).nonzero()[:, 0]
        beliefs = ask(model, state, rows, state.masked[rows], state.tokens[rows])
        totals.append(state_entropy(beliefs.entropy, state.masked[rows]) * state.masked[rows].sum(1))
        joints.append(model.joint_entropy(state.tokens[rows]))
    total, joint = bits(torch.cat(totals)), bits(torch.cat(joints))
    return OracleStates(mean(joint), mean(total), mean(total - joint), float((total - joint).min()))


def join(parts: Sequence[States]) -> States:
    """The states of several batches of texts."""
    names = ("masked", "open", "entropy", "loss", "watched")
    numbers = [torch.cat([getattr(part, name) for part in parts]) for name in names]
    return States(*numbers, sum(part.evaluations for part in parts))  # type: ignore[call-arg, arg-type]
