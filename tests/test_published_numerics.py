"""Options that draw and rank as public code does, defects included: MDLM's noise, PC-Sampler's product in float32."""

from __future__ import annotations

import math

import pytest
import torch

from unmask import Recipe, decode, load
from unmask.core.beliefs import STAYS, DrawRule, draw_float32
from unmask.core.denoiser import Head
from unmask.decoding.decode import decode_batch
from unmask.errors import SettingError
from unmask.samplers import SAMPLERS
from unmask.samplers.scores import Positional

P = torch.tensor([0.5, 0.3, 0.2 - 1e-9, 1e-9], dtype=torch.float64)


def drawn(n: int, noise, stay: float = 0.0) -> torch.Tensor:
    """n draws from P, one a row."""
    hidden = P.log().float().expand(n, 1, 4)
    head = Head(4)
    where = torch.ones(n, 1, dtype=torch.bool)
    return draw_float32(hidden, head, where, torch.full((n,), stay), noise, DrawRule(temperature=1.0)).token[:, 0]


def test_the_law_of_the_draw_is_that_of_the_kernel() -> None:
    generator = torch.Generator().manual_seed(0)
    noise = lambda rows, columns, n: torch.rand(len(rows), n, generator=generator, dtype=torch.float64)  # noqa: E731
    n = 40_000
    tokens = drawn(n, noise, stay=0.4)
    for token, share in [(STAYS, 0.4), (0, 0.3), (1, 0.18), (2, 0.12)]:
        assert abs((tokens == token).float().mean() - share) < 5 * math.sqrt(share / n)


def test_float32_noise_never_draws_a_rare_token() -> None:
    """The best noise for it against the worst for all others: with 52 bits it wins, with 24 it cannot."""

    def best(rows, columns, n):
        uniform = torch.full((len(rows), n), 1e-12, dtype=torch.float64)
        uniform[:, 3] = 1 - 2.0**-52
        return uniform

    assert drawn(1, best).item() == 0
    exact = P / -torch.log(torch.tensor([1e-12, 1e-12, 1e-12, 1 - 2.0**-52], dtype=torch.float64))
    assert exact.argmax() == 3


def test_ancestral_with_float32_noise_decodes_what_exact_noise_decodes() -> None:
    """On a table: everything is decided, the number of steps is the same, and equal seeds give equal tokens."""
    model = load("table")
    recipe = Recipe(
        sampler="ancestral", steps=4, temperature=1.0, noise="float32", search="smc", particles=3, every=2, length=6
    )
    one, two = decode(model, "", recipe=recipe), decode(model, "", recipe=recipe)
    assert one.tokens == two.tokens and model.vocab.mask not in one.tokens and one.steps <= 4
    exact = decode_batch(
        model, [""] * 300, recipe=Recipe(sampler="ancestral", steps=4, temperature=1.0, length=6), seeds=range(300)
    )
    rough = decode_batch(
        model, [""] * 300, recipe=recipe.replace(search="vanilla", particles=None, every=None), seeds=range(300)
    )
    means = [sum(one.path_entropy for one in some) / 300 for some in (exact, rough)]
    assert means[0] == pytest.approx(means[1], abs=0.15)
    alone = decode_batch(model, [""], recipe=recipe, seeds=[7])[0]
    assert decode_batch(model, ["", ""], recipe=recipe, seeds=[3, 7])[1].tokens == alone.tokens
    with pytest.raises(SettingError, match="unknown noise 'single'"):
        Recipe(sampler="ancestral", noise="single")
    with pytest.raises(SettingError, match="noise has no effect on sampler uniform"):
        Recipe(sampler="uniform", noise="float32")


def test_the_product_of_pc_is_zero_from_position_416() -> None:
    class Even:
        def frequency(self, token):
            return torch.full(token.shape, 0.01)

    class Given:
        def draw(self, where):
            from unmask.core.beliefs import Drawn

            sure = torch.where(torch.arange(where.shape[1]) % 2 == 0, -3.0, 0.0)[None]  # every other token is doubted
            return Drawn(torch.zeros(where.shape, dtype=torch.long), sure, sure, sure, sure, sure)

    where, offset = torch.ones(1, 1024, dtype=torch.bool), torch.arange(1024)[None]
    plain, rounded = (Positional(Even(), 0.25, 10.0, underflows=flag)(Given(), where, offset) for flag in (False, True))
    zeros = (rounded.order == 0).nonzero()[:, 1]
    assert (rounded.order[0, 416:] == 0).all() and len(zeros) < 1024 - 400
    ours, theirs = (one.order[0].argsort(descending=True, stable=True) for one in (plain, rounded))
    assert (ours[:300] == theirs[:300]).all() and rounded.exact
    assert (theirs[-500:] == torch.arange(524, 1024)).all() and not (ours[-500:] == theirs[-500:]).all()
    with pytest.raises(SettingError, match="unknown product 'double'"):
        Recipe(sampler="pc", background="text", product="double")
    assert SAMPLERS["pc"](background="text", product="float32").score.underflows


def test_the_chance_of_a_rare_token_under_float32_noise() -> None:
    """The closed form of `experiments/float32_noise.py`, against all numbers that 24 bits can hold."""
    grid = 2.0**-24
    k = torch.arange(1, 200_000, dtype=torch.float64)  # 1 - u in units of the grid; of more there is nothing to add
    for weight in (1e-9, 3e-8, 1e-7, 1e-6):
        wins = (grid * torch.exp(-k * grid / weight)).sum()  # all others stay below the score weight / (k grid)
        assert float(wins) == pytest.approx(grid / math.expm1(grid / weight), rel=1e-6)
    assert grid / math.expm1(grid / 1e-6) == pytest.approx(1e-6, rel=0.05)
    assert grid / math.expm1(grid / 5e-9) < 0.001 * 5e-9
