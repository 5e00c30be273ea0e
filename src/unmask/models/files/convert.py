"""A Lightning checkpoint of MDLM -> a directory with config.json and model.safetensors, which `load` opens.

A pickle can name any code. Here torch's weights-only reader does the work, and every class that it does not know
(OmegaConf's, a tokenizer) is an empty one of ours: nothing that the file names is imported or run.
"""

from __future__ import annotations

import pickle
import pickletools
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.serialization import get_unsafe_globals_in_checkpoint, safe_globals

from unmask.errors import ModelError, first_line
from unmask.models.families.blueprint import Config
from unmask.models.families.mdlm import MDLM
from unmask.models.files import checkpoint

EMBEDDING, TIME = "backbone.vocab_embed.embedding", "backbone.sigma_map.mlp.0.weight"
PACE = "backbone.rotary_emb.inv_freq"  # the only buffer; says how wide a head is
COMPILED = "_orig_mod."  # what torch.compile puts into names
FLOATS = tuple(checkpoint.TYPES.values())
PLAIN = "take the plain weights: --plain, or ema=False in Python"


@dataclass(frozen=True)
class Converted:
    """What was written, and what was left out of it."""

    directory: Path
    config: Mapping[str, Any]
    parameters: int
    ema: bool
    ignored: tuple[str, ...]  # classes that the pickle names and that were not loaded


def convert(
    source: Path,
    directory: Path,
    *,
    ema: bool = True,
    length: int = 1024,
    time_conditioning: bool = False,
    mask_id: int | None = None,
) -> Converted:
    """Write the weights of a .ckpt in the published layout, in float32; `ema` takes the running averages.

    The pickled training config is not read: `length` and `time_conditioning` replace it, and `mask_id` names the
    mask where it is not the last token.
    """
    source, directory = Path(source).expanduser(), Path(directory).expanduser()
    checkpoint.vacant(directory)
    values, ignored = _read(source)
    plain = _plain(values, source.name)
    config = {**MDLM.published.full, **_sizes(plain), "model_length": length, "time_conditioning": time_conditioning}
    config |= {} if mask_id is None else {"mask_token_id": mask_id}
    plan = MDLM.read(Config(config))
    shapes = {name: tuple(tensor.shape) for name, tensor in plain.items()}
    checkpoint.fit(plan, checkpoint.Tensors(dict.fromkeys(plain, source), shapes, dict.fromkeys(plain, "F32")))
    buffers = MDLM.buffers(plan.shape)
    if not torch.allclose(plain[PACE].flatten().float(), buffers[PACE], rtol=1e-2):  # bf16 keeps two digits
        raise ModelError("the rotary frequencies are not those of MDLM", "this is another model")
    weights = {name: tensor for name, tensor in plain.items() if name in plan.slots}
    weights = _averages(values, weights, list(plan.slots)) if ema else weights
    exact = _exact(weights, source.stat().st_size)
    with checkpoint.new_checkpoint(directory) as begun:
        checkpoint.write_weights(directory / checkpoint.WEIGHTS, exact | buffers, begun)
        checkpoint.write_json(directory / "config.json", config, begun)
    return Converted(directory, config, sum(tensor.numel() for tensor in exact.values()), ema, ignored)


# --- reading ---------------------------------------------------------------------------------------------------------


class _Nothing:
    """Stands in for a class of the pickle: takes any arguments and state, and keeps nothing."""

    def __new__(cls, *given: object) -> _Nothing:
        return super().__new__(cls)

    def __init__(self, *given: object) -> None: ...

    def __setstate__(self, state: object) -> None: ...


def _table(*given: object) -> dict[object, object]:
    """Stands in for a defaultdict: items may only be put into a plain dict."""
    return {}


def _stand_in(name: str) -> tuple[Any, str]:
    return (_table if name == "collections.defaultdict" else type("Nothing", (_Nothing,), {})), name


def _read(path: Path) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The values of a checkpoint, tensors mapped rather than read, and the classes that were not loaded."""
    _zipped(path)
    try:
        names = tuple(sorted(get_unsafe_globals_in_checkpoint(str(path))))
        with safe_globals([_stand_in(name) for name in names]):
            values = torch.load(str(path), map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # damaged pickles raise of every kind
        raise ModelError(
            f"{path.name} cannot be read ({_reason(error)})", "nothing of it was run; get the weights as safetensors"
        ) from None
    if not isinstance(values, dict) or not isinstance(values.get("state_dict"), dict):
        raise ModelError(f"{path.name} has no state_dict", "give the .ckpt that Lightning wrote")
    return values, names


def _zipped(path: Path) -> None:
    """Refuse a file that torch.save did not write as a whole."""
    try:
        with path.open("rb") as file:
            start = file.read(4)
        if start[:1] == b"\x80":
            hint = "read it with torch.load(weights_only=True) and save that with torch.save"
            raise ModelError(f"{path.name} is a bare pickle, as torch.save wrote it before 1.6", hint)
        if start != b"PK\x03\x04":
            raise ModelError(f"{path.name} is not a checkpoint of torch.save", "give the .ckpt that Lightning wrote")
        with zipfile.ZipFile(path) as archive:
            if any(part.compress_type != zipfile.ZIP_STORED for part in archive.infolist()):
                raise ModelError(f"{path.name} was compressed", "give the file as torch.save wrote it")
            _no_room_for_nothing(path.name, archive)
    except FileNotFoundError:
        raise ModelError(f"there is no file {str(path)!r}", "give the .ckpt that Lightning wrote") from None
    except OSError as error:
        raise ModelError(f"cannot read {str(path)!r}", str(error.strerror)) from None
    except (zipfile.BadZipFile, ValueError, NotImplementedError):
        raise ModelError(f"{path.name} is not whole", "download or copy it again") from None


def _no_room_for_nothing(name: str, archive: zipfile.ZipFile) -> None:
    """Refuse a pickle that names bytearray: torch calls it, and a number of 4 bytes makes 2 GiB."""
    for part in archive.namelist():
        if Path(part).name != "data.pkl":
            continue
        try:
            found = {given for _, given, _ in pickletools.genops(archive.read(part)) if isinstance(given, str)}
        except ValueError as error:
            raise ModelError(f"{name} cannot be read ({first_line(error)})", "download or copy it again") from None
        if found & {"builtins bytearray", "__builtin__ bytearray"}:
            raise ModelError(f"{name} makes a bytearray", "save it again without: weights need none")


def _reason(error: Exception) -> str:
    """The reason in torch's message, without the advice around it."""
    lines = [line for line in str(error).splitlines() if line.strip() and not line.startswith("Check the doc")]
    if lines and isinstance(error, pickle.UnpicklingError):
        return first_line(ValueError(lines[-1].strip().removeprefix("WeightsUnpickler error: ")))
    return first_line(error)


# --- tensors ---------------------------------------------------------------------------------------------------------


def _plain(values: Mapping[str, Any], file: str) -> dict[str, Tensor]:
    """The network's own tensors, under their published names."""
    named = ((str(name).replace(COMPILED, ""), value) for name, value in values["state_dict"].items())
    found = {name: _dense(name, value) for name, value in named if name.startswith("backbone.")}
    for name in (EMBEDDING, TIME, PACE):
        if name not in found:
            raise ModelError(f"{file} has no tensor {name}", "only checkpoints of MDLM's DiT are converted")
    return found


def _dense(name: str, value: object) -> Tensor:
    """The value, if it is a plain tensor of floats."""
    if type(value) not in (Tensor, torch.nn.Parameter):
        raise ModelError(f"{name} is a {type(value).__name__}", "it must be a tensor")
    assert isinstance(value, Tensor)
    if value.is_nested or value.layout != torch.strided or value.is_meta or value.dtype not in FLOATS:
        raise ModelError(f"{name} is not a dense tensor of floats", "the checkpoint is damaged or quantized")
    return value.detach()


def _exact(tensors: Mapping[str, Tensor], most: int) -> dict[str, Tensor]:
    """Copies in float32, of finite numbers that take at most the bytes of the file."""
    if sum(tensor.nbytes for tensor in tensors.values()) > most:  # strides of 0: small in the file, endless here
        raise ModelError("the tensors are larger than their file", "the checkpoint is damaged")
    exact = {name: tensor.to(torch.float32, copy=True).contiguous() for name, tensor in tensors.items()}
    for name, tensor in exact.items():
        if not tensor.isfinite().all():
            raise ModelError(f"{name} has values that are not finite", "the checkpoint is damaged")
    return exact


def _sizes(tensors: Mapping[str, Tensor]) -> dict[str, int]:
    """The sizes that a published config names, from shapes."""
    embedding, time, pairs = tensors[EMBEDDING], tensors[TIME], tensors[PACE].numel()
    if embedding.dim() != 2 or time.dim() != 2 or not pairs or embedding.shape[1] % (2 * pairs):
        raise ModelError("embedding, time input and rotary frequencies do not fit", "the checkpoint is damaged")
    blocks = {name.split(".")[2] for name in tensors if name.startswith("backbone.blocks.")}
    return {
        "vocab_size": embedding.shape[0],
        "hidden_dim": embedding.shape[1],
        "n_blocks": len(blocks),
        "n_heads": embedding.shape[1] // (2 * pairs),
        "cond_dim": time.shape[0],
    }


def _averages(values: Mapping[str, Any], plain: Mapping[str, Tensor], names: list[str]) -> dict[str, Tensor]:
    """The running averages that training kept, by name."""
    kept = values.get("ema")
    shadows = kept.get("shadow_params") if isinstance(kept, dict) else None
    if not isinstance(shadows, list | tuple):
        raise ModelError("the checkpoint has no running averages (EMA)", PLAIN)
    if list(plain) != names:
        raise ModelError("the tensors are in another order than MDLM's, so that averages have no names", PLAIN)
    if len(shadows) != len(names):
        raise ModelError(f"there are {len(shadows)} running averages for {len(names)} tensors", PLAIN)
    found = {name: _dense(f"the running average of {name}", one) for name, one in zip(names, shadows, strict=True)}
    for name, one in found.items():
        if one.shape != plain[name].shape:
            shape, wanted = checkpoint.as_text(one.shape), checkpoint.as_text(plain[name].shape)
            raise ModelError(f"the running average of {name} is {shape}, the tensor itself {wanted}", PLAIN)
    return found
