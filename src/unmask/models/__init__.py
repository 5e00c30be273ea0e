"""MODELS: name -> function that loads a denoiser. `load` takes such a name, a directory or a hub id."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from unmask.core.denoiser import Denoiser, Head, Tokenizer
from unmask.errors import InputError, ModelError, unknown
from unmask.models.devices import Devices, Given, as_dtype, on_device, on_devices
from unmask.models.files.checkpoint import PICKLES, Progress, read_json
from unmask.models.files.directory import FAMILIES, default_settings, family_of, from_directory
from unmask.models.files.hub import MODEL, SETTINGS, TOKENIZER, download, is_hub_id, local, published
from unmask.models.made.table import Table, words
from unmask.models.tokenizers import FileTokenizer, Numbers, from_object, read_tokenizer
from unmask.models.transformer import random_transformer

WEIGHTS = Path(__file__).parent / "weights"  # of the bundled models
__all__ = [
    "FAMILIES",
    "MODELS",
    "Denoiser",
    "Head",
    "Table",
    "Tokenizer",
    "default_recipe",
    "family_name",
    "fingerprint",
    "load",
    "load_tokenizer",
    "on_device",
]


def random(device: str | torch.device = "cpu", dtype: torch.dtype = torch.float32) -> Denoiser:
    """A small network of random weights over letters, digits and a few signs, for tests: it writes nonsense."""
    return random_transformer(device, dtype)


def sudoku(device: Given | Devices = "cpu", dtype: torch.dtype = torch.float32, weights: str | None = None) -> Denoiser:
    """Sudoku of 9 × 9, any clues: 81 digits, trained on random grids."""
    return _bundled("sudoku", device, dtype, weights)


def countdown(
    device: Given | Devices = "cpu", dtype: torch.dtype = torch.float32, weights: str | None = None
) -> Denoiser:
    """Countdown with 3 to 5 numbers: a problem and its equations in fixed columns, trained on random ones."""
    return _bundled("countdown", device, dtype, weights)


def text(device: Given | Devices = "cpu", dtype: torch.dtype = torch.float32, weights: str | None = None) -> Denoiser:
    """Short English stories and word problems with worked steps, up to 256 tokens."""
    return _bundled("text", device, dtype, weights)


def _bundled(name: str, device: Given | Devices, dtype: torch.dtype, weights: str | None) -> Denoiser:
    place = device if isinstance(device, Devices) else on_devices(name, device)
    return from_directory(WEIGHTS / name, place, dtype, name=name, weights=weights)


BUNDLED = ("sudoku", "countdown", "text")  # names of the models in WEIGHTS
MODELS: dict[str, Callable[..., Denoiser]] = {
    "sudoku": sudoku,
    "countdown": countdown,
    "text": text,
    "table": words,
    "random": random,
}

FOREIGN = {  # what a checkpoint's own code does not take: why
    "tokenizer": "transformers loads the checkpoint's own",
    "blocks": "the checkpoint's own code sets its attention",
    "weights": "only networks of known layouts are packed",
    "adapter": "merge it beforehand",
}


def load(
    name: str | os.PathLike[str],
    device: str | torch.device | Sequence[str | torch.device] = "cpu",
    dtype: torch.dtype | str | None = None,
    *,
    mask_id: int | None = None,
    tokenizer: str | os.PathLike[str] | Any = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
    shift: bool = False,
    blocks: int | None = None,
    weights: str | None = None,
    adapter: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Denoiser:
    """The denoiser of this name: one of MODELS, a directory with config.json and safetensors, or a hub id.

    `device` auto is a GPU if there is one. Several devices, as a list or with commas, take a part of the layers
    each, in order and by their free memory, or as many as `cuda:0=20,cuda:1=12` says. `dtype` None, or auto, is the
    model's own. `mask_id` is for checkpoints that do not name their mask, `tokenizer` is for checkpoints without one: a
    directory or hub id that has it, or a fast tokenizer of transformers or tokenizers.
    `trust_remote_code` runs code of the checkpoint through transformers, for layouts that unmask does not know; `shift`
    then means that output i belongs to token i + 1. `blocks` is the length of the blocks of attention, where a model
    was trained with another one than its config names, or its config names none. `weights` int8 or int4 keeps the
    matrices of the layers in as few bits; float, as they are by default. `adapter` is a directory with a LoRA adapter
    of PEFT, which is merged. `progress` is called with the bytes read so far and in all.
    """
    name = _name(name)
    place, kind = on_devices(name, device), as_dtype(dtype)
    if shift and not trust_remote_code:
        raise InputError("shift has no effect", "only trust_remote_code needs it: known layouts say it themselves")
    given = {"mask_id": mask_id, "tokenizer": tokenizer, "revision": revision, "blocks": blocks, "adapter": adapter}
    if name in MODELS:
        return _named(name, place, kind, weights, {**given, "trust_remote_code": trust_remote_code or None})
    if trust_remote_code:
        given["weights"] = weights
        for extra, why in FOREIGN.items():
            if given[extra] is not None:
                raise InputError(f"{extra} has no effect with trust_remote_code", why)
        from unmask.models.remote import from_remote_code  # transformers is optional

        return from_remote_code(name, _one(name, place), kind, mask_id=mask_id, revision=revision, shift=shift)
    directory = _directory(name, revision)
    words_from = _tokenizer(tokenizer)
    if words_from is None and not Path(name).expanduser().is_dir():
        words_from = _borrowed(directory)
    return from_directory(
        directory,
        place,
        kind,
        name=name,
        mask_id=mask_id,
        tokenizer=words_from,
        blocks=blocks,
        weights=weights,
        adapter=_adapter(adapter),
        progress=progress,
    )


def _named(
    name: str, place: torch.device | Devices, kind: torch.dtype | None, weights: str | None, extras: Mapping[str, Any]
) -> Denoiser:
    """A model of MODELS, whose functions take none of the `extras`."""
    for extra, value in extras.items():
        if value is not None:
            raise InputError(f"{extra} has no effect on the model {name}", "leave it out")
    given = {} if weights is None else {"weights": weights}
    if given and name not in BUNDLED:
        raise InputError(f"weights has no effect on the model {name}", "leave it out")
    if name not in BUNDLED:
        place = _one(name, place)
    return MODELS[name](place, **given) if kind is None else MODELS[name](place, kind, **given)


def _one(name: str, device: torch.device | Devices) -> torch.device:
    """The device of a model whose layers are not divided."""
    if isinstance(device, Devices) and not device.few:
        raise ModelError(f"{name} is loaded on one device, not on {device}", "give one")
    return device.first if isinstance(device, Devices) else device


def default_recipe(name: str | os.PathLike[str], revision: str | None = None) -> Mapping[str, Any]:
    """The default settings of a model, without its weights: `recipe` of the loaded one."""
    name = _name(name)
    if name in MODELS and name not in BUNDLED:
        return {}
    directory = WEIGHTS / name if name in BUNDLED else _directory(name, revision, SETTINGS)
    config = read_json(directory, "config.json")
    return {} if config is None else default_settings(directory, family_of(config))


def family_name(name: str | os.PathLike[str], revision: str | None = None) -> str | None:
    """The family of a model, by its config alone; None for one without files."""
    name = _name(name)
    if name in MODELS and name not in BUNDLED:
        return None
    directory = WEIGHTS / name if name in BUNDLED else _directory(name, revision, SETTINGS)
    config = read_json(directory, "config.json")
    return None if config is None else family_of(config).name


def fingerprint(
    name: str | os.PathLike[str], revision: str | None = None, progress: Progress | None = None
) -> str | None:
    """SHA-256 of a model's weights, its files in the order of their names; None for a model without files."""
    name = _name(name)
    directory = WEIGHTS / name if name in MODELS else _directory(name, revision)
    return hashed(sorted(directory.glob("model*.safetensors")), progress)


def hashed(files: list[Path], progress: Progress | None = None) -> str | None:
    """SHA-256 of the contents of files, one after another; None where there are none."""
    total, found = sum(file.stat().st_size for file in files), hashlib.sha256()
    done = 0
    for file in files:
        with file.open("rb") as stream:
            while part := stream.read(1 << 24):
                found.update(part)
                done += len(part)
                if progress is not None:
                    progress(done, total)
    return found.hexdigest() if files else None


def load_tokenizer(
    name: str | os.PathLike[str], *, tokenizer: str | os.PathLike[str] | None = None, revision: str | None = None
) -> Tokenizer:
    """The tokenizer of a model, without its weights."""
    name = _name(name)
    if name in MODELS:
        return load(name, tokenizer=tokenizer, revision=revision).tokenizer
    if tokenizer is not None:
        directory = _directory(os.fspath(tokenizer), None, TOKENIZER)
    else:
        directory = _directory(name, revision, ["config.json", *TOKENIZER])
        directory = (None if Path(name).expanduser().is_dir() else _borrowed(directory)) or directory
    return read_tokenizer(directory) or Numbers()


def _tokenizer(given: str | os.PathLike[str] | Any) -> Path | FileTokenizer | None:
    """The directory of a tokenizer, or one that is here."""
    if isinstance(given, str | os.PathLike):
        return _directory(os.fspath(given), None, TOKENIZER)
    return None if given is None else from_object(given)


def _adapter(given: str | os.PathLike[str] | None) -> Path | None:
    """The directory of an adapter."""
    if given is None:
        return None
    path = Path(given).expanduser()
    if not path.is_dir():
        raise ModelError(f"there is no directory {os.fspath(given)!r}", "download the adapter, and give its directory")
    return path


def _name(given: object) -> str:
    name = os.fspath(given) if isinstance(given, str | os.PathLike) else None
    if not isinstance(name, str):
        raise ModelError(f"{given!r} is not a model's name", "give a name of `unmask models`, a directory or a hub id")
    return name


def _directory(name: str, revision: str | None = None, files: list[str] = MODEL) -> Path:
    """The directory of this name, or the one that a hub id is downloaded to."""
    path, here = Path(name).expanduser(), local(name, revision)
    if here is not None:
        return here
    if path.suffix in PICKLES and path.is_file():
        raise ModelError(f"{name!r} is a pickle, which can run code", "see `unmask convert` for Lightning checkpoints")
    if path.exists():
        raise ModelError(f"{name!r} is a file", "give the directory that it is in")
    if is_hub_id(name):
        return download(name, revision, files)
    if os.sep in name or name.startswith((".", "~")):
        raise ModelError(f"there is no directory {name!r}", "give a directory, a hub id or a name of `unmask models`")
    if files == TOKENIZER:
        raise ModelError(f"there is no tokenizer {name!r}", "give a directory or a hub id like openai-community/gpt2")
    full = published(name)
    if full is not None:
        raise unknown("model", name, (), f"did you mean {full!r}?")
    raise unknown("model", name, MODELS, f"choose from {', '.join(MODELS)}, or give a directory or a hub id")


def _borrowed(directory: Path) -> Path | None:
    """The tokenizer of another model of the hub, for families that publish none of their own."""
    config = read_json(directory, "config.json")
    family = None if config is None else family_of(config)
    if family is None or family.borrows is None or read_tokenizer(directory) is not None:
        return None
    return download(family.borrows, None, TOKENIZER)
