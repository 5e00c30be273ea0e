"""Gradients -> new weights: Muon for the matrices of layers, AdamW for embeddings, heads, norms and biases.

Muon replaces the momentum of a matrix by the nearest orthogonal one before the step, so that every direction of it
moves at the same rate. Here matrices of one size are processed together, in a few products instead of hundreds; those
stacked in one parameter (queries, keys and values; gate and up) are split first.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from unmask.models.network import Network

OPTIMIZERS = ("muon", "adamw")
MOMENTUM, TURNS = 0.95, 5
CURVE = (3.4445, -4.7750, 2.0315)  # of Newton and Schulz: drives all singular values towards 1


class Optimizer:
    """Updates the weights of a network, and keeps their moments."""

    def __init__(self, network: Network, kind: str, decay: float) -> None:
        self.network, self.decay = network, decay
        self.matrices = dict(_matrices(network)) if kind == "muon" else {}
        self.momenta = {name: torch.zeros_like(weight) for name, (weight, _) in self.matrices.items()}
        self.rest = {name: weight for name, weight in network.named_parameters() if name not in self.matrices}
        groups: dict[tuple[float, float], list[Tensor]] = {}  # decay and share of the rate -> weights
        for name, weight in self.rest.items():
            tied = name == "embed.weight" and network.shape.tied  # its steps are scaled as the head is
            key = (0.0, 1 / network.shape.logit_scale) if tied else (decay if weight.dim() > 1 else 0.0, 1.0)
            groups.setdefault(key, []).append(weight)
        made = [{"params": some, "weight_decay": each, "share": share} for (each, share), some in groups.items()]
        self.adam = torch.optim.AdamW(made, betas=(0.9, 0.98), fused=network.embed.weight.device.type == "cuda")

    def step(self, rate: float) -> None:
        """One step along the gradients, which are cleared."""
        for group in self.adam.param_groups:
            group["lr"] = rate * group["share"]
        self.adam.step()
        self._muon(rate)
        for parameter in self.network.parameters():
            parameter.grad = None

    @torch.no_grad()
    def _muon(self, rate: float) -> None:
        alike: dict[tuple[int, int], list[tuple[Tensor, Tensor]]] = {}  # size -> parts of weights and their directions
        for name, (weight, parts) in self.matrices.items():
            assert weight.grad is not None
            momentum = self.momenta[name]
            momentum.lerp_(weight.grad, 1 - MOMENTUM)
            direction = weight.grad.lerp(momentum, MOMENTUM)  # Nesterov's look ahead
            for part, its in zip(weight.chunk(parts), direction.chunk(parts), strict=True):
                alike.setdefault((part.shape[0], part.shape[1]), []).append((part, its))
        for (rows, columns), pairs in alike.items():
            turned = orthogonal(torch.stack([direction for _, direction in pairs]))
            size = 0.2 * max(rows, columns) ** 0.5  # steps as large as those of AdamW, so that one rate serves both
            weights = [part for part, _ in pairs]
            torch._foreach_mul_(weights, 1 - rate * self.decay)
            torch._foreach_add_(weights, list(turned.to(weights[0].dtype).unbind()), alpha=-rate * size)

    def state(self) -> dict[str, Tensor]:
        """Its moments and momenta, by name."""
        kept = {f"momentum.{name}": momentum for name, momentum in self.momenta.items()}
        for name, weight in self.rest.items():
            moments = self.adam.state.get(weight, {})
            if moments:
                kept |= {f"first.{name}": moments["exp_avg"], f"second.{name}": moments["exp_avg_sq"]}
                kept[f"count.{name}"] = moments["step"]
        return kept

    def restore(self, kept: dict[str, Tensor]) -> None:
        """Resume from such a state; moments that it lacks start at zero."""
        for name, momentum in self.momenta.items():
            if f"momentum.{name}" in kept:
                momentum.copy_(kept[f"momentum.{name}"])
        for name, weight in self.rest.items():
            if f"count.{name}" in kept:
                first, second = (kept[f"{which}.{name}"].to(weight.device) for which in ("first", "second"))
                count = kept[f"count.{name}"].to(weight.device if weight.is_cuda else "cpu")
                self.adam.state[weight] = {"exp_avg": first, "exp_avg_sq": second, "step": count}


def _matrices(network: Network) -> Iterator[tuple[str, tuple[Tensor, int]]]:
    """The matrices of the layers by name, each with the number of matrices that are stacked in it."""
    shape = network.shape
    stacked = {"qkv": 3 if shape.kv == shape.heads else 1, "up": 2 if shape.gated else 1}
    for name, weight in network.named_parameters():
        if name.startswith("blocks.") and weight.dim() == 2:
            yield name, (weight, stacked.get(name.split(".")[-2], 1))


def orthogonal(batch: Tensor) -> Tensor:  # [N, R, C]
    """Each matrix with its singular values driven to about 1; in bf16 on a GPU, which is precise enough."""
    a, b, c = CURVE
    x: Tensor = batch.bfloat16() if batch.is_cuda else batch
    tall = x.shape[1] > x.shape[2]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(TURNS):
        square = x @ x.mT
        x = torch.add(a * x, (b * square + c * square @ square) @ x)
    return x.mT if tall else x
