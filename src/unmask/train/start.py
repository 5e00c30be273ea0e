"""A config of unmask's own layout -> a network of random weights; a trained network -> a checkpoint for `load`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from unmask.errors import ModelError
from unmask.models.family import Config
from unmask.models.native import read
from unmask.models.network import Network, empty
from unmask.models.write import write_json, write_weights

PLACES = ("embed", "row", "column", "box", "place")


def fresh(config: Mapping[str, Any], device: str | torch.device, seed: int) -> Network:
    """Random weights: embeddings of spread 1, so that places and tokens weigh the same; layers that keep sizes."""
    network = empty(read(Config(config)).shape, device, torch.float32)
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in network.named_parameters():
        if parameter.dim() == 1:
            parameter.fill_(0.0 if name.endswith("bias") else 1.0)
            continue
        scale = 1.0 if name.split(".")[0] in PLACES else parameter.shape[1] ** -0.5
        if name.endswith(("out.weight", "down.weight")):
            scale *= (2 * network.shape.layers) ** -0.5
        parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)
    return network


def take(network: Network, path: Path) -> None:
    """Start from the weights of a checkpoint instead."""
    try:
        weights = load_file(path)
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{str(path)!r} cannot be read", str(error).splitlines()[0]) from None
    for name, parameter in network.named_parameters():
        if name not in weights or weights[name].shape != parameter.shape:
            raise ModelError(f"{str(path)!r} is of another network: {name} differs", "train from the beginning")
        parameter.copy_(weights[name])


def save(directory: Path, config: Mapping[str, Any], network: Network) -> None:
    """The network as a model, in float16: half the size, and a rounding that no figure notices."""
    weights = {name: parameter.detach().half().cpu() for name, parameter in network.named_parameters()}
    write_weights(directory / "model.safetensors", weights, [])
    write_json(directory / "config.json", config, [])
