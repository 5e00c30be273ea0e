"""A config of unmask's own layout -> a network of random weights; a trained network -> a checkpoint for `load`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unmask.core.state import Vocab
from unmask.errors import ModelError, unknown
from unmask.models import BUNDLED
from unmask.models import WEIGHTS as BUNDLED_WEIGHTS
from unmask.models.families.blueprint import Config
from unmask.models.families.native import BITS, NATIVE, read
from unmask.models.files import checkpoint
from unmask.models.files.bits import pack, unpack
from unmask.models.files.directory import RECIPE
from unmask.models.files.fill import fill
from unmask.models.files.hub import TOKENIZER
from unmask.models.network import Network, Shape, empty
from unmask.models.tokenizers import Characters
from unmask.models.transformer import Transformer

PLACES = ("embed", "row", "column", "box", "place")
FIXED = ("vocabulary", "position", "places", "tied", "condition")  # of a Shape: set by the task
FREE = tuple(field.name for field in fields(Shape) if field.name not in FIXED)  # sizes that a user may change


def fresh(config: Mapping[str, Any], device: str | torch.device, seed: int) -> Network:
    """Random weights: embeddings of spread 1, so that positions and tokens weigh the same; layers that keep scales."""
    network = empty(read(Config(config)).shape, device, torch.float32)
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in network.named_parameters():
        if parameter.dim() == 1:
            parameter.fill_(0.0 if name.endswith("bias") else 1.0)
            continue
        scale = 1.0 if name.split(".")[0] in PLACES else parameter.shape[1] ** -0.5
        if name == "place.weight" and network.shape.position == "both":
            scale = 0.0  # rotary positions are there from the start
        if name.endswith(("out.weight", "down.weight")):
            scale *= (2 * network.shape.layers) ** -0.5
        parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)
    return network


def bundled_config(name: str) -> dict[str, Any]:
    """The config of a bundled model, with which training starts by default."""
    return _network(checkpoint.read_json(BUNDLED_WEIGHTS / name, "config.json") or {})


def weights_at(name: str) -> Path:
    """The file of weights for a path, a directory, or the name of a bundled model."""
    path = BUNDLED_WEIGHTS / name if name in BUNDLED else Path(name).expanduser()
    path = path / checkpoint.WEIGHTS if path.is_dir() else path
    if not path.is_file():
        way_out = f"give a {checkpoint.WEIGHTS}, its directory, or {', '.join(BUNDLED)}"
        raise ModelError(f"there is no {str(path)!r}", way_out)
    return path


def sizes(directory: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """The sizes of the model of ours in a directory, to train it further; {} where there is none.

    It must be of the task whose config is given.
    """
    kept = checkpoint.read_json(directory, "config.json") or {}
    if kept.get("model_type") not in NATIVE.types:
        return {}
    if any(kept.get(name) != config.get(name) for name in ("position", "alphabet")):
        raise ModelError(f"the model in {str(directory)!r} is of another task", "give another directory")
    return {name: kept[name] for name in FREE if name in kept}


def fit(path: Path, found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
    """Refuse tensors of another network."""
    for name in {**wanted, **found}:
        there, here = (
            checkpoint.as_text(tensors[name].shape) if name in tensors else "missing" for tensors in (found, wanted)
        )
        if there != here:
            raise ModelError(
                f"{str(path)!r} is of another network: {name} is {there}, here {here}", "give its --shape, or another"
            )


def take(network: Network, path: Path) -> None:
    """Replace the weights by those of a checkpoint, of 16 bits or 8."""
    weights = unpack(checkpoint.read_tensors(path)[0])
    parameters = dict(network.named_parameters())
    fit(path, weights, parameters)
    for name, parameter in parameters.items():
        parameter.copy_(weights[name])


def as_denoiser(name: str, config: Mapping[str, Any], network: Network) -> Transformer:
    """A network of characters as a model."""
    mask = config["mask_token_id"]
    return Transformer(
        network, Vocab(mask), Characters(config["alphabet"]), name, limit=config["limit"], absent=(mask,)
    )


def save(directory: Path, config: Mapping[str, Any], network: Network, bits: int = 16) -> None:
    """The network as a model: in 16 bits as float16, which changes no figure, or in 8 (`models.files.bits`)."""
    _write(directory, config, dict(network.named_parameters()), bits, None, [])


def bring_recipe(directory: Path, task: str) -> None:
    """Give a trained model the default recipe of the bundled one of its task, unless it has its own."""
    bundled = checkpoint.read_bytes(BUNDLED_WEIGHTS / task, RECIPE)
    if bundled is not None and not (directory / RECIPE).exists():
        (directory / RECIPE).write_bytes(bundled)


def merge(sources: Sequence[Path], target: Path, bits: int = 8, group: int | None = None) -> None:
    """Checkpoints of one network of ours -> the mean of their weights, with the first one's tokenizer and recipe.

    The mean of two runs from one start is often better than either.
    """
    with checkpoint.new_checkpoint(target) as begun:
        config, weights = _weights(sources[0])
        for source in sources[1:]:
            other, more = _weights(source)
            if _network(other) != _network(config):
                raise ModelError(f"{str(source)!r} is of another network than {str(sources[0])!r}", "they have no mean")
            weights = {name: weight + more[name] for name, weight in weights.items()}
        for name in (*TOKENIZER, RECIPE):
            data = checkpoint.read_bytes(sources[0], name)
            if data is not None:
                begun.append(target / name)
                begun[-1].write_bytes(data)
        _write(target, config, {name: weight / len(sources) for name, weight in weights.items()}, bits, group, begun)


def _weights(source: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    config = checkpoint.read_json(source, "config.json") or {}
    if config.get("model_type") not in NATIVE.types:
        raise ModelError(f"{str(source)!r} is not a model of unmask's own layout", "only these can be merged")
    network = fill(read(Config(config)), checkpoint.survey(source), torch.device("cpu"), torch.float32)
    return config, {name: parameter.detach() for name, parameter in network.named_parameters()}


def _network(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config without the fields about how its weights are stored."""
    return {name: value for name, value in config.items() if name not in ("bits", "group")}


def _write(
    directory: Path,
    config: Mapping[str, Any],
    weights: Mapping[str, Tensor],
    bits: int,
    group: int | None,
    begun: list[Path],
) -> None:
    if bits not in BITS:
        raise unknown("number of bits", bits, map(str, BITS))
    halves = {name: weight.detach().half().cpu() for name, weight in weights.items()} if bits == 16 else {}
    kept = {"bits": 8} | ({} if group is None else {"group": group}) if bits == 8 else {}
    checkpoint.write_weights(directory / checkpoint.WEIGHTS, halves or pack(weights, group), begun)
    checkpoint.write_json(directory / "config.json", _network(config) | kept, begun)
