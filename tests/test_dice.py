"""Philox against its published answers; uniforms that depend on what they are for and on nothing else."""

import itertools
import math

import pytest
import torch

from unmask.core.dice import Purpose, gumbel, philox, uniform, uniform_reference

# Random123 (Salmon et al. 2011), tests/kat_vectors, philox4x32 with 10 rounds.
KNOWN = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def words(text: str) -> tuple[torch.Tensor, ...]:
    return tuple(torch.tensor(int(word, 16)) for word in text.split())


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN)
def test_known_answers(counter: str, key: str, answer: str) -> None:
    assert philox(words(counter), words(key)) == words(answer)


def test_known_answers_all_at_once() -> None:
    """The same function of integer tensors of any shape."""
    counter = tuple(torch.stack(column) for column in zip(*(words(c) for c, _, _ in KNOWN), strict=True))
    key = tuple(torch.stack(column) for column in zip(*(words(k) for _, k, _ in KNOWN), strict=True))
    found = torch.stack(philox(counter, key), 1)
    assert torch.equal(found, torch.stack([torch.stack(words(a)) for _, _, a in KNOWN]))


def roll(key: int, slot: int, step: int, column: int, purpose: Purpose) -> float:
    return float(uniform(torch.tensor(key), torch.tensor(slot), step, torch.tensor(column), purpose))


def test_words_have_their_places() -> None:
    """Counter (slot, step, column, purpose), key (low, high): written down, so that a trace can be checked anywhere."""
    counter = tuple(torch.tensor(n) for n in (3, 7, 11, int(Purpose.SELECT)))
    a, b, _, _ = philox(counter, (torch.tensor(5), torch.tensor(9)))
    expected = (((int(a) >> 6) << 26 | (int(b) >> 6)) + 0.5) * 2.0**-52
    assert roll(5 + (9 << 32), 3, 7, 11, Purpose.SELECT) == expected


def test_every_argument_matters() -> None:
    base = (5, 3, 7, 11, Purpose.TOKEN)
    others = [
        (6, 3, 7, 11, Purpose.TOKEN),
        (5 + 2**32, 3, 7, 11, Purpose.TOKEN),
        (5, 4, 7, 11, Purpose.TOKEN),
        (5, 3, 8, 11, Purpose.TOKEN),
        (5, 3, 7, 12, Purpose.TOKEN),
        *[(5, 3, 7, 11, purpose) for purpose in Purpose if purpose is not Purpose.TOKEN],
        (7, 3, 5, 11, Purpose.TOKEN),
    ]
    assert len({roll(*arguments) for arguments in [base, *others]}) == len(others) + 1


def test_never_0_never_1() -> None:
    """The smallest and the largest number that there can be, and many others."""
    assert 0 < 0.5 * 2.0**-52 and (2.0**52 - 0.5) * 2.0**-52 < 1
    rolled = uniform(torch.tensor(1), torch.tensor(0), 0, torch.arange(200_000), Purpose.TOKEN)
    assert float(rolled.min()) > 0 and float(rolled.max()) < 1
    assert torch.isfinite(gumbel(torch.tensor(1), torch.tensor(0), 0, torch.arange(200_000), Purpose.TOKEN)).all()


def test_alone_equals_in_a_batch() -> None:
    keys, slots = torch.tensor([0, -1, 2**63 - 1, -(2**63), 12345]), torch.tensor([0, 1, 2, 3, 2**31])
    columns = torch.arange(-1, 9)
    together = uniform(keys[:, None], slots[:, None], 4, columns[None], Purpose.ORDER)
    assert together.shape == (5, 10) and together.dtype == torch.float64
    for (i, key), (j, column) in itertools.product(enumerate(keys.tolist()), enumerate(columns.tolist())):
        assert float(together[i, j]) == roll(key, int(slots[i]), 4, column, Purpose.ORDER)
    assert len(set(together.flatten().tolist())) == together.numel()


def test_numpy_and_tensor_operations_have_the_same_bits() -> None:
    """On a processor NumPy computes them; elsewhere, and in a compiled step, tensor operations do."""
    keys, slots = torch.tensor([0, -1, 2**63 - 1, -(2**63), 12345]), torch.tensor([0, 1, 2, 3, 2**31])
    columns = torch.arange(-1, 9).expand(5, 10)
    for step, purpose in itertools.product((0, 7, 2**32 + 1, torch.tensor(3)), Purpose):
        given = (keys[:, None], slots[:, None], step, columns, purpose)
        assert torch.equal(uniform(*given), uniform_reference(*given))


@pytest.mark.parametrize("axis", ["key", "slot", "step", "column"])
def test_moments_along_every_axis(axis: str) -> None:
    """Mean, variance and the correlation of neighbours within 5 standard errors; χ² of 64 bins at 1e-6."""
    n = 1000 if axis == "step" else 40_000
    many = torch.arange(n)
    at = {"key": torch.tensor(17), "slot": torch.tensor(1), "column": torch.tensor(2)}
    if axis == "step":
        rolled = torch.stack([uniform(at["key"], at["slot"], s, at["column"], Purpose.TOKEN) for s in range(n)])
    else:
        at[axis] = many
        key, slot, column = torch.broadcast_tensors(at["key"], at["slot"], at["column"])
        rolled = uniform(key, slot, 3, column, Purpose.TOKEN)
    assert abs(float(rolled.mean()) - 1 / 2) < 5 * math.sqrt(1 / 12 / n)
    assert abs(float(rolled.var()) - 1 / 12) < 5 * math.sqrt(1 / 180 / n)
    centred = rolled - 0.5
    assert abs(float((centred[1:] * centred[:-1]).mean())) < 5 / 12 / math.sqrt(n)
    bins = (rolled * 64).long().bincount(minlength=64).double()
    statistic = ((bins - n / 64) ** 2 / (n / 64)).sum()
    assert float(torch.special.gammaincc(torch.tensor(63 / 2).double(), statistic / 2)) > 1e-6


def test_gumbel_is_standard() -> None:
    noise = gumbel(torch.tensor(3), torch.tensor(0), 0, torch.arange(100_000), Purpose.SELECT)
    assert float(noise.mean()) == pytest.approx(0.5772156649, abs=5 * math.pi / math.sqrt(6 * 100_000))
    assert float(noise.var()) == pytest.approx(math.pi**2 / 6, rel=0.03)


def test_low_and_high_bits_are_both_used() -> None:
    """52 random bits: no number repeats, and the low half is as even as the high half."""
    rolled = uniform(torch.tensor(9), torch.tensor(0), 0, torch.arange(100_000), Purpose.TOKEN)
    assert len(rolled.unique()) == 100_000
    low = (rolled * 2**26 % 1 * 16).long().bincount(minlength=16).double()
    statistic = ((low - 6250) ** 2 / 6250).sum()
    assert float(torch.special.gammaincc(torch.tensor(15 / 2).double(), statistic / 2)) > 1e-6


def test_a_step_on_the_device_has_the_same_bits() -> None:
    key, slot, column = torch.tensor([[3], [-7]]), torch.tensor([[0], [5]]), torch.arange(9)
    for step in (0, 17, 2**32 + 5):
        here = uniform(key, slot, step, column, Purpose.TOKEN)
        assert torch.equal(uniform(key, slot, torch.tensor(step), column, Purpose.TOKEN), here)
