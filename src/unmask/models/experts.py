"""Hidden states -> hidden states: gated MLPs side by side, of which a router chooses a few for each token."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmask.core.gpu import layer
from unmask.models.elementwise import gated
from unmask.models.packed import Packed, times

MOST = 1 << 26  # numbers at a time where all experts are computed


@dataclass(frozen=True)
class Experts:
    """Which layers have experts, their sizes, and how those of a token are chosen and weighed."""

    layers: tuple[int, ...]
    count: int
    used: int  # by each token
    inner: int  # width of one expert
    score: str = "softmax"  # over all experts; or "sigmoid" of each
    bias: bool = False  # is added to the scores where experts are chosen, not where they are weighed
    groups: int = 1  # of neighbouring experts
    used_groups: int = 1  # those in which the two best scores have the largest sum; others are not chosen
    normed: bool = False  # weights of a token sum to 1, before they are scaled
    scale: float = 1.0
    shared: int = 0  # width of an MLP that every token passes besides; 0: none


class ExpertMLP(nn.Module):
    """The experts of one layer; their weights are stacked."""

    def __init__(self, width: int, experts: Experts) -> None:
        super().__init__()
        self.sizes = experts
        self.router = nn.Linear(width, experts.count, bias=False)
        self.up: Tensor | Packed = nn.Parameter(torch.empty(experts.count, 2 * experts.inner, width))
        self.down: Tensor | Packed = nn.Parameter(torch.empty(experts.count, width, experts.inner))
        if experts.bias:
            self.bias = nn.Parameter(torch.empty(experts.count))
        if experts.shared:
            self.shared_up = nn.Linear(width, 2 * experts.shared, bias=False)
            self.shared_down = nn.Linear(experts.shared, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:  # [R, S, D]
        tokens = x.flatten(0, 1)
        weights, chosen = self.route(tokens)
        mixed = (self._chosen if waits(x) else self._all)(tokens, weights, chosen).to(x.dtype)
        if self.sizes.shared:
            mixed = mixed + _gated(tokens, self.shared_up.weight, self.shared_down.weight)
        return mixed.view_as(x)

    def route(self, tokens: Tensor) -> tuple[Tensor, Tensor]:  # [T, D] -> [T, used], [T, used] int64
        """The weights of each token's experts, and which these are; in float32 at least."""
        sizes, exact = self.sizes, torch.promote_types(tokens.dtype, torch.float32)
        scores = F.linear(tokens.to(exact), self.router.weight.to(exact))
        scores = scores.softmax(1) if sizes.score == "softmax" else scores.sigmoid()
        ranks = scores + self.bias if sizes.bias else scores
        if sizes.used_groups < sizes.groups:
            groups = ranks.view(len(ranks), sizes.groups, sizes.count // sizes.groups)  # [T, groups, E / groups]
            best = groups.topk(min(2, groups.shape[2]), 2).values.sum(2).topk(sizes.used_groups, 1).indices
            stays = torch.zeros_like(groups[:, :, 0], dtype=torch.bool).scatter(1, best, True)
            ranks = groups.masked_fill(~stays[:, :, None], -torch.inf).flatten(1)
        chosen = ranks.topk(sizes.used, 1).indices
        weights = scores.gather(1, chosen)
        if sizes.normed:
            weights = weights / weights.sum(1, keepdim=True)
        return weights * sizes.scale, chosen

    def _chosen(self, tokens: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:  # [T, D]
        """Each expert computes the tokens that chose it. The host reads how many they are, once."""
        order = chosen.flatten().argsort(stable=True)  # places token * used + i, by their expert
        source, mixed = order // self.sizes.used, tokens.new_empty(len(order), tokens.shape[1])
        begin = 0
        for expert, many in enumerate(chosen.flatten().bincount(minlength=self.sizes.count).tolist()):
            if many:
                mine = tokens[source[begin : begin + many]]
                mixed[begin : begin + many] = _gated(mine, self.up, self.down, expert)
                begin += many
        mixed = mixed[order.argsort()].view(*chosen.shape, tokens.shape[1])  # [T, used, D]
        return (mixed * weights[:, :, None]).sum(1)

    def _all(self, tokens: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:  # [T, D]
        """Every expert computes all tokens; the weight is 0 where it was not chosen. Nothing waits for the device."""
        widest = max(1, len(tokens)) * max(self.up.shape[1], self.down.shape[1])
        if isinstance(self.up, Packed):  # it may be unpacked
            widest = max(widest, self.up.shape[1] * self.up.shape[2])
        step = max(1, MOST // widest)
        slices = [slice(begin, begin + step) for begin in range(0, self.sizes.count, step)]
        parts = ((some, _gated(tokens, self.up, self.down, some)) for some in slices)
        mixed = weights.new_zeros(tokens.shape)
        plain = [one for one in (self.up, self.down) if isinstance(one, Tensor)]
        if weights.dtype == torch.float32 and layer.usable(weights) and layer.usable(tokens, *plain):
            for some, part in parts:
                layer.add_chosen(mixed, part, weights, chosen, some.start)
            return mixed
        share = weights.new_zeros(len(tokens), self.sizes.count).scatter(1, chosen, weights).T[:, :, None]  # [E, T, 1]
        for some, part in parts:
            mixed = mixed + (part * share[some]).sum(0)
        return mixed


def waits(x: Tensor) -> bool:
    """Whether the host may read numbers: a GPU would stand still, and a compiled or captured network cannot."""
    return not (x.is_cuda or torch.compiler.is_compiling())


def _gated(x: Tensor, up: Tensor | Packed, down: Tensor | Packed, at: int | slice | None = None) -> Tensor:
    """[T, D], [(E,) 2 I, D], [(E,) D, I] -> [(E,) T, D]; `at`: of these experts."""
    return times(gated(times(x, up, at)), down, at)
