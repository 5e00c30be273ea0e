"""The name of a size -> a model of random weights in it, made on its device without files: for benchmarks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from unmask.core.state import Vocab
from unmask.errors import unknown
from unmask.models import memory
from unmask.models.families.blueprint import Config, Family
from unmask.models.families.fast_dllm import FAST_DLLM
from unmask.models.families.llada import LLADA
from unmask.models.families.llada_moe import LLADA2
from unmask.models.families.mdlm import MDLM
from unmask.models.families.sdar import SDAR
from unmask.models.files.checkpoint import DTYPES
from unmask.models.files.directory import assembled
from unmask.models.network import Network, empty, parameter_shapes
from unmask.models.packed import packed_of, packings, to_bits
from unmask.models.tokenizers import Numbers
from unmask.models.transformer import Transformer


@dataclass(frozen=True)
class Size:
    """A published config, and the default lengths of a prompt and of its completion."""

    family: Family
    config: Mapping[str, Any]
    prompt: int
    length: int


SIZES = {
    "mdlm": Size(MDLM, MDLM.published.full, 0, 1024),
    "llada": Size(LLADA, LLADA.published.full, 256, 256),
    "sdar": Size(SDAR, SDAR.published.full, 256, 256),
    "fast-dllm-v2": Size(FAST_DLLM, FAST_DLLM.published.full, 256, 256),
    "llada2": Size(LLADA2, LLADA2.published.full, 256, 256),
    "tiny": Size(LLADA, LLADA.published.tiny, 8, 32),
    "tiny-sdar": Size(SDAR, SDAR.published.tiny, 8, 32),
}


def make(
    name: str, device: torch.device, dtype: torch.dtype | None = None, seed: int = 0, weights: str | None = None
) -> Transformer:
    """A model of this size; by default in bfloat16 on a GPU or where that is published, otherwise in float32."""
    if name not in SIZES:
        raise unknown("size", name, SIZES)
    family, config = SIZES[name].family, SIZES[name].config
    plan = family.read(Config(config))
    half = device.type == "cuda" or DTYPES[config["torch_dtype"]] == torch.bfloat16
    kind = dtype or (torch.bfloat16 if half else torch.float32)
    packing = packings(parameter_shapes(plan.shape), to_bits(weights))
    memory.check_room(f"the size {name}", plan.shape, device, kind, packing)
    network = empty(plan.shape, device, kind, packing)
    _fill(network, torch.Generator(device).manual_seed(seed))
    mask = plan.mask if plan.mask is not None else plan.last
    assert mask is not None
    return assembled(name, family, plan, network, Vocab(mask, plan.eos, plan.pad or 0), Numbers())


def _fill(network: Network, generator: torch.Generator) -> None:
    """Random weights that keep the size of activations; norms are near 1, biases small."""
    packed = packed_of(network)
    for one in packed.values():  # even numbers, with the same spread
        one.whole.random_(0, 256, generator=generator)
        one.scale.fill_((12 / one.columns) ** 0.5 / 2**one.bits)
        one.zero.fill_(2 ** (one.bits - 1))
    for name, parameter in network.named_parameters():
        if name.rpartition(".")[0] in packed:
            continue
        if parameter.dim() > 1:
            parameter.normal_(0, parameter.shape[-1] ** -0.5, generator=generator)
        elif name.endswith("bias"):
            parameter.normal_(0, 0.02, generator=generator)
        else:
            parameter.normal_(1, 0.1, generator=generator)
