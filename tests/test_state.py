"""State: what follows a particle and what stays with its slot."""

import dataclasses

import pytest
import torch

from unmask import Table
from unmask.core.dice import Purpose
from unmask.core.state import State, Vocab, begin
from unmask.decoding.prompt import from_canvas, from_prompt, start
from unmask.samplers import Reveal, counts, scores

M, PAD = 9, 0
VOCAB = Vocab(mask=M, eos=(8,), pad=PAD)


def make(rows: list[list[int]], particles: int = 2, steps: int | None = None) -> State:
    longest = max(map(len, rows))
    tokens = torch.tensor([[PAD] * (longest - len(row)) + row for row in rows])
    attend = torch.tensor([[False] * (longest - len(row)) + [True] * len(row) for row in rows])
    keys = torch.arange(len(rows)) + 100
    return begin(tokens, (tokens == M) & attend, attend, keys, VOCAB, particles, steps)


def test_rows_are_prompt_by_prompt() -> None:
    state = make([[1, M], [2, 3, M, M]], particles=3)
    assert state.tokens.tolist() == [[0, 0, 1, M]] * 3 + [[2, 3, M, M]] * 3
    assert state.key.tolist() == [100] * 3 + [101] * 3
    assert state.slot.tolist() == state.origin.tolist() == [0, 1, 2] * 2
    assert state.budget.tolist() == [1] * 3 + [2] * 3
    assert make([[1, M], [2, 3, M, M]], 1, steps=7).budget.tolist() == [7, 7]
    assert state.entropy.isnan().all() and state.path_entropy.isnan().all()
    assert state.time.tolist() == [1.0] * 6


def test_left_padding_counts_from_the_first_real_token() -> None:
    state = make([[1, M], [2, M, 3, M]], particles=1)
    assert state.columns.tolist() == [[-1, -1, 0, 1], [0, 1, 2, 3]]
    assert state.attend.tolist() == [[False, False, True, True], [True] * 4]
    assert state.writable.tolist() == [[False, False, False, True], [False, True, False, True]]
    assert state.rank[1].tolist()[1::2] == [0, 1]
    assert state.open.tolist() == [1, 2]


def test_masked_is_read_off_the_tokens() -> None:
    state = make([[1, M, M]], particles=1)
    assert state.masked.tolist() == [[False, True, True]]
    decided = state.replace(tokens=torch.tensor([[M, 4, M]]))  # a mask id in a given place is no mask
    assert decided.masked.tolist() == [[False, False, True]]
    assert state.tokens.tolist() == [[1, M, M]]


def numbered(particles: int = 4) -> State:
    """Every field of every row is different."""
    state = make([[1, M, M], [M, M]], particles)
    rows = torch.arange(len(state.slot))
    changes = {}
    for field in dataclasses.fields(state):
        value = getattr(state, field.name)
        if isinstance(value, torch.Tensor):
            grid = rows.view(-1, *[1] * (value.dim() - 1)).expand_as(value)
            changes[field.name] = grid % 2 == 0 if value.dtype == torch.bool else grid.to(value.dtype)
    return state.replace(**changes, cache=rows.double())


def tensors(state: State) -> list[str]:
    return [field.name for field in dataclasses.fields(state) if isinstance(getattr(state, field.name), torch.Tensor)]


def test_take_moves_contents_and_slot_together() -> None:
    state, rows = numbered(), torch.tensor([3, 3, 0])
    taken = state.take(rows)
    assert len(tensors(state)) == 21  # twenty fields and the cache
    for name in tensors(state):
        assert torch.equal(getattr(taken, name), getattr(state, name)[rows]), name
    assert taken.vocab is state.vocab and taken.particles == state.particles


def test_resample_moves_contents_and_keeps_the_slot() -> None:
    state, ancestors = numbered(), torch.tensor([1, 1, 1, 0, 4, 7, 7, 7])
    copied = state.resample(ancestors)
    for name in tensors(state):
        kept = name == "slot"
        assert torch.equal(getattr(copied, name), getattr(state, name)[slice(None) if kept else ancestors]), name


def test_nothing_is_written_in_place() -> None:
    state = numbered()
    before = {name: getattr(state, name).clone() for name in tensors(state)}
    state.resample(torch.tensor([1, 1, 1, 0, 4, 7, 7, 7])).take(torch.tensor([0])).replace(tokens=torch.zeros(1, 3))
    assert all(torch.equal(getattr(state, name), value) for name, value in before.items())
    with pytest.raises(dataclasses.FrozenInstanceError):
        state.tokens = state.tokens  # type: ignore[misc]


def test_uniforms_do_not_know_the_padding_or_the_other_rows() -> None:
    together = make([[1, M, M], [2, 3, 4, M, M]], particles=2).uniform(3, Purpose.TOKEN)
    alone = make([[1, M, M]], particles=2).uniform(3, Purpose.TOKEN)
    assert torch.equal(together[:2, 2:], alone)
    assert not torch.equal(together[0], together[1])  # slots differ
    noise = make([[1, M, M]], particles=2).gumbel(3, Purpose.TOKEN)
    assert torch.allclose(noise, -torch.log(-torch.log(alone)))


def test_start_pads_on_the_left_with_the_pad_id() -> None:
    model = Table(torch.ones((3,) * 5))
    sampler = Reveal(scores.by_entropy, counts.quota)
    rows = [from_prompt(model, [1], 2), from_canvas(model, [0, 3, 1, 3, 3])]
    state = start(model, rows, [7, 8], sampler, 1)
    assert state.tokens.tolist() == [[model.vocab.pad] * 2 + [1, 3, 3], [0, 3, 1, 3, 3]]
    assert state.attend.tolist() == [[False, False, True, True, True], [True] * 5]
    assert state.writable.tolist() == [[False, False, False, True, True], [False, True, False, True, True]]
    assert state.budget.tolist() == [2, 3] and state.key.tolist() == [7, 8]


def test_padding_with_the_mask_id_is_no_hole() -> None:
    tokens, attend = torch.tensor([[M, M, 1, M]]), torch.tensor([[False, False, True, True]])
    state = begin(tokens, (tokens == M) & attend, attend, torch.tensor([0]), VOCAB, 1)
    assert state.masked.tolist() == [[False, False, False, True]] and state.open.tolist() == [1]
