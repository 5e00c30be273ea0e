"""A directory with config.json and safetensors -> its tensors, their names, shapes and types checked; and back.

Nothing in a checkpoint is trusted: files are data, links must stay inside, and every tensor must have the place and
the shape that the config promises before any memory is taken.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor

from unmask.errors import ModelError, first_line, printable
from unmask.models.families.blueprint import Blueprint
from unmask.models.files import bits
from unmask.models.network import parameter_shapes

Progress = Callable[[int, int], None]  # bytes read, bytes in all
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
TYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
WHOLE = {"I8": torch.int8}  # of matrices with scales
DTYPES = {"float64": torch.float64, "float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
SHORT = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp64": "float64"}  # other names of them
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
MOST_BYTES = 256 * 2**20  # of a file that is read whole: the largest tokenizer.json is a tenth of it
MOST_SETTINGS = 16 * 2**20  # of config.json and the like: parsed, a file takes many times its size
LARGE = ("tokenizer.json", "vocab.json", INDEX)


def dtype_name(given: str) -> str | None:
    """The name in DTYPES; None, which means the model's own, for `auto`."""
    return None if given == "auto" else SHORT.get(given, given)


@dataclass(frozen=True)
class Tensors:
    """The file, shape and type of every tensor of a checkpoint."""

    files: Mapping[str, Path]  # name -> file
    shapes: Mapping[str, tuple[int, ...]]
    types: Mapping[str, str]

    def bytes(self, name: str) -> int:
        return torch.Size(self.shapes[name]).numel() * (TYPES | WHOLE)[self.types[name]].itemsize


# --- files -----------------------------------------------------------------------------------------------------------


def inside(directory: Path, name: str) -> Path | None:
    """The regular file `name` of a directory, or None. A link may stay within it or lead to the hub cache's blobs."""
    path = directory / name
    try:
        found = path.exists()
    except OSError as error:  # a name that is too long, a directory that may not be read
        raise ModelError(f"cannot read {_some([name])}", first_line(error)) from None
    if not found:
        if path.is_symlink():
            raise ModelError(f"{path.name} is a link to nothing", "download the checkpoint again")
        return None
    home, real = directory.resolve(), path.resolve()
    homes = [home]
    repository = home.parent.parent
    if home.parent.name == "snapshots" and repository.name.startswith("models--"):
        # models--org--name/snapshots/revision/file -> models--org--name/blobs/…, which may link to blobs of all models
        homes += [repository / "blobs", repository.parent / "blobs"]
    if not any(real.is_relative_to(allowed) for allowed in homes):
        raise ModelError(f"{path.name} is a link that leaves {label(directory)}", "copy the file itself there")
    if not real.is_file():
        raise ModelError(f"{path.name} is not a regular file", "download the checkpoint again")
    return path


def read_bytes(directory: Path, name: str) -> bytes | None:
    """A file of the checkpoint, up to a sane size; None where there is no such file."""
    path = inside(directory, name)
    if path is None:
        return None
    try:
        most = MOST_SETTINGS if name.endswith(".json") and name not in LARGE else MOST_BYTES
        if path.stat().st_size > most:
            raise ModelError(f"{name} has {path.stat().st_size} bytes", f"at most {most} make sense")
        return path.read_bytes()
    except OSError as error:
        raise ModelError(f"cannot read {name}", first_line(error)) from None


def read_json(directory: Path, name: str) -> dict[str, Any] | None:
    """A JSON object from a file of the checkpoint; None where there is no such file."""
    text = read_bytes(directory, name)
    if text is None:
        return None
    try:
        values = json.loads(text.decode(), parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{name} is not JSON", first_line(error)) from None
    if not isinstance(values, dict):
        raise ModelError(f"{name} holds a {type(values).__name__}", "it must be an object")
    return values


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")


def survey(directory: Path) -> Tensors:
    """All tensors of a checkpoint, from the headers of its files; the weights themselves are not read."""
    index = read_json(directory, INDEX)
    if index is None:
        if inside(directory, WEIGHTS) is None:
            raise _no_weights(directory)
        return headers(directory, [WEIGHTS])
    places = index.get("weight_map")
    if not isinstance(places, dict) or not places or not all(isinstance(file, str) for file in places.values()):
        raise ModelError(f"{INDEX} has no weight_map", "download the checkpoint again")
    for file in sorted(set(places.values())):
        if Path(file).name != file or not file.endswith(".safetensors") or not file.isprintable():
            raise ModelError(f"{INDEX} names the file {file[:80]!r}", "only safetensors files beside it are read")
    found = headers(directory, sorted(set(places.values())))
    astray = [name for name, file in places.items() if name not in found.files or found.files[name].name != file]
    if astray:
        raise ModelError(f"{INDEX} names tensors that are not in its files: {_some(astray)}", "download it again")
    return found


def _no_weights(directory: Path) -> ModelError:
    pickles = sorted(path.name for path in directory.iterdir() if path.suffix in PICKLES)
    if pickles:
        hint = "a pickle can run code; only safetensors are loaded (`unmask convert` reads Lightning checkpoints)"
        return ModelError(f"{label(directory)} has its weights as pickle: {_some(pickles)}", hint)
    return ModelError(f"{label(directory)} has no {WEIGHTS} and no {INDEX}", "only safetensors are loaded")


def label(directory: Path) -> str:
    """The name of a checkpoint for messages: its hub id, or the name of its directory."""
    home = directory.resolve()
    repository = home.parent.parent.name
    if home.parent.name == "snapshots" and repository.startswith("models--"):
        return repository.removeprefix("models--").replace("--", "/")
    return home.name


def headers(directory: Path, names: Iterable[str]) -> Tensors:
    """The tensors of these files."""
    files: dict[str, Path] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    types: dict[str, str] = {}
    for name in names:
        path = inside(directory, name)
        if path is None:
            raise ModelError(f"{label(directory)} lacks {name}", "download the checkpoint again")
        with opened(path) as file:
            _check_names(path)
            for key in file.keys():  # noqa: SIM118 - not a dict
                if key in files:
                    raise ModelError(f"{_some([key])} is in {files[key].name} and in {name}", "download it again")
                part = file.get_slice(key)
                files[key], shapes[key], types[key] = path, tuple(part.get_shape()), part.get_dtype()
    return Tensors(files, shapes, types)


def _check_names(path: Path) -> None:
    """Refuse a header, which the library has read, with a name twice: readers differ in which one counts."""

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        names = [name for name, _ in pairs]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ModelError(f"{path.name} has {_some([twice])} twice in its header", "download it again")
        return dict(pairs)

    with path.open("rb") as file:
        json.loads(file.read(int.from_bytes(file.read(8), "little")), object_pairs_hook=unique)


# --- tensors ---------------------------------------------------------------------------------------------------------


def dtype_of(config: Mapping[str, Any], tensors: Tensors) -> torch.dtype:
    """The type that the config names, or the one of the weights."""
    name = config.get("torch_dtype") if config.get("dtype") is None else config["dtype"]
    if isinstance(name, str) and name in DTYPES:
        return DTYPES[name]
    kinds = {TYPES[kind] for kind in tensors.types.values() if kind in TYPES}
    return next(iter(kinds)) if len(kinds) == 1 else torch.float32


def fit(plan: Blueprint, tensors: Tensors) -> None:
    """Refuse a checkpoint with missing or unknown tensors, or with wrong shapes or types."""
    expected = tensor_shapes(plan)
    missing = [name for name in expected if name not in tensors.files]
    known = {*expected, *plan.copies, *plan.buffers}
    strange = [name for name in tensors.files if name not in known]
    if missing:
        raise ModelError(
            f"{len(missing)} tensors are missing: {_some(missing)}", "the checkpoint or its config is damaged"
        )
    if strange:
        raise ModelError(f"{len(strange)} tensors are unexpected: {_some(strange)}", "the config is of another model")
    for name in expected:
        if tensors.shapes[name] != expected[name]:
            shape, wanted = as_text(tensors.shapes[name]), as_text(expected[name])
            raise ModelError(f"{name} is {shape}, by the config it must be {wanted}", "one of them is damaged")
        types = WHOLE if name in plan.scales else TYPES
        if tensors.types[name] not in types:
            raise ModelError(f"{name} has the type {tensors.types[name]}", f"only {', '.join(types)} are loaded")


def as_text(shape: Sequence[int]) -> str:
    """A shape for messages."""
    return " × ".join(map(str, shape[:9])) or "a number"


def tensor_shapes(plan: Blueprint) -> dict[str, tuple[int, ...]]:
    """The shape that every tensor of such a checkpoint has."""
    whole = parameter_shapes(plan.shape)
    shapes = {name: slot.shape(whole[slot.parameter]) for name, slot in plan.slots.items()}
    parts = {} if plan.group is None else {name: (bits.groups(shapes[name][1], plan.group),) for name in plan.scales}
    return shapes | {scale: shapes[name][:1] + parts.get(name, ()) for name, scale in plan.scales.items()}


def read(tensors: Tensors, name: str) -> Tensor:
    """One tensor, on the host."""
    with opened(tensors.files[name]) as file:
        found: Tensor = file.get_tensor(name)
    return found


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """All tensors of a safetensors file, and its metadata."""
    with opened(path) as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """A safetensors file to take tensors from."""
    from safetensors import SafetensorError, safe_open  # loaded with the first checkpoint

    try:
        with path.open("rb"):  # a file without permission is not a damaged one
            pass
        with safe_open(path, framework="pt") as file:
            yield file
    except PermissionError:
        raise ModelError(f"{path.name} may not be read", "change its permissions") from None
    except (SafetensorError, OSError) as error:
        problem = f"{path.name} is not a whole safetensors file ({first_line(error)})"
        raise ModelError(problem, "download it again") from None


def _some(names: Iterable[str], most: int = 4) -> str:
    listed = [printable(name[:80]) for name in names]
    return ", ".join(listed[:most]) + (f" and {len(listed) - most} more" if len(listed) > most else "")


# --- writing ---------------------------------------------------------------------------------------------------------


def vacant(directory: Path) -> None:
    """Refuse a directory with files in it."""
    try:
        if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
            raise ModelError(f"{str(directory)!r} exists already", "give a new or an empty directory")
    except OSError as error:
        raise ModelError(f"cannot read {str(directory)!r}", first_line(error)) from None


@contextmanager
def new_checkpoint(directory: Path) -> Iterator[list[Path]]:
    """A new directory to write into; the list takes the files that were begun, config.json last.

    After an error all of them are removed.
    """
    from safetensors import SafetensorError

    vacant(directory)
    begun: list[Path] = []
    new: list[Path] = []
    try:
        new += [path for path in (directory, *directory.parents) if not path.exists()]
        directory.mkdir(parents=True, exist_ok=True)
        yield begun
    except BaseException as error:
        with suppress(OSError):
            for path in begun:
                path.unlink(missing_ok=True)
            for path in new:
                path.rmdir()
        if isinstance(error, OSError | SafetensorError):
            reason = getattr(error, "strerror", None) or first_line(error)
            raise ModelError(f"cannot write {str(directory)!r}", reason) from None
        raise


def write_weights(path: Path, tensors: dict[str, Tensor], begun: list[Path]) -> None:
    """One safetensors file."""
    from safetensors.torch import save_file

    begun.append(path)
    save_file(tensors, path, metadata={"format": "pt"})
    path.chmod(0o644)  # the library leaves it to the owner alone


def write_json(path: Path, values: Mapping[str, Any], begun: list[Path]) -> None:
    begun.append(path)
    path.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
