"""A checkpoint in a layout that unmask does not know -> Remote: its own code runs, by transformers."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from unmask.core.denoiser import Head, Tokenizer
from unmask.core.state import State, Vocab
from unmask.errors import InputError, ModelError, guarded
from unmask.models.files.directory import chosen_mask
from unmask.models.files.hub import download, is_hub_id, local
from unmask.models.tokenizers import FileTokenizer, Numbers

# The classes with a head come first: some checkpoints offer their bare backbone as AutoModel.
CLASSES = ("AutoModelForMaskedLM", "AutoModelForCausalLM", "AutoModel")
TOKENIZER = ("tokenizer_config.json", "tokenizer.json")  # without either there is none
FILES = ["*.json", "*.py", "*.safetensors", "*.bin", "*.txt", "*.model", "*.jinja"]
LIMITS = ("max_position_embeddings", "max_sequence_length", "model_length")
RENAMED = (4, 56)  # the version of transformers in which torch_dtype became dtype


@dataclass(frozen=True, eq=False)
class Remote:
    """A model of transformers as a denoiser; its logits are the hidden states of an identity head."""

    model: Any
    vocab: Vocab
    head: Head
    tokenizer: Tokenizer
    name: str
    device: torch.device
    limit: int | None = None
    shift: bool = False  # output i belongs to token i + 1
    cost: int = 1
    timed: bool = False

    @torch.no_grad()
    def look(self, state: State, rows: Tensor) -> tuple[Tensor, None]:
        """Logits of these rows. Rows of one length run together, without their padding and without a mask.

        Some models ignore an attention mask, others turn causal when given one; here none sees padding.
        """
        tokens, padding = state.tokens[rows], (~state.attend[rows]).sum(1)  # [R, L], [R]
        widths = sorted(set(padding.tolist()))
        if widths == [0]:
            return self._logits(tokens), None
        hidden: Tensor | None = None
        for width in widths:
            alike = (padding == width).nonzero()[:, 0]
            logits = self._logits(tokens[alike, width:])
            hidden = logits.new_zeros(*tokens.shape, logits.shape[2]) if hidden is None else hidden
            hidden[alike, width:] = logits
        assert hidden is not None
        return hidden, None

    def _logits(self, tokens: Tensor) -> Tensor:  # [R, S] -> [R, S, V]
        logits = torch.as_tensor(self.model(input_ids=tokens).logits)
        # The first token has no left neighbour and keeps its own output.
        return torch.cat([logits[:, :1], logits[:, :-1]], 1) if self.shift else logits


class RemoteTokenizer(FileTokenizer):
    """A tokenizer of transformers."""

    def _encoded(self, text: str) -> Iterable[int]:
        ids: list[int] = self.fast.encode(text, add_special_tokens=False)
        return ids

    def _decoded(self, ids: list[int]) -> str:
        return str(self.fast.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def _rendered(self, template: str, messages: Sequence[Mapping[str, str]]) -> str:
        turns = [dict(message) for message in messages]
        with guarded("the chat template refuses these messages", InputError):
            return str(self.fast.apply_chat_template(turns, tokenize=False, add_generation_prompt=True))


# --- loading ---------------------------------------------------------------------------------------------------------


def from_remote_code(
    name: str,
    device: torch.device,
    dtype: torch.dtype | None,
    *,
    mask_id: int | None,
    revision: str | None,
    shift: bool,
) -> Remote:
    """The model of a directory or hub id, by its own code; `dtype` None is the model's own."""
    try:
        transformers: Any = importlib.import_module("transformers")
    except ImportError:
        raise ModelError("trust_remote_code needs transformers", "pip install 'unmask[remote]'") from None
    here = local(name, revision)
    if here is None and not is_hub_id(name):
        raise ModelError(f"there is no directory {name!r}", "give a directory or a hub id")
    place = str(here or download(name, revision, FILES))  # its code too
    warnings.warn(f"the code of {name} runs with your rights: trust_remote_code", UserWarning, stacklevel=3)
    source: dict[str, Any] = {"trust_remote_code": True, "revision": revision or "main"}
    kind = "dtype" if _version(transformers) >= RENAMED else "torch_dtype"
    with guarded(f"cannot load {name} by its own code"):
        config = transformers.AutoConfig.from_pretrained(place, **source)
        offered = getattr(config, "auto_map", None) or {}
        best = next((cls for cls in CLASSES if cls in offered), CLASSES[0])
        if hasattr(config, "use_cache"):
            config.use_cache = False  # every call sees the whole canvas
        model = getattr(transformers, best).from_pretrained(place, config=config, **{kind: dtype or "auto"}, **source)
        model = model.to(device).eval().requires_grad_(False)
        has_words = any(transformers.utils.has_file(place, file, revision=source["revision"]) for file in TOKENIZER)
        pieces = transformers.AutoTokenizer.from_pretrained(place, **source) if has_words else None
    rows = _rows(model, config)
    mask = chosen_mask(mask_id, _ids("mask_token_id", (config, pieces), rows), rows)
    width = _probe(name, model, mask, device)
    eos = _ids("eos_token_id", (config, getattr(model, "generation_config", None), pieces), width)
    pad = (*_ids("pad_token_id", (config, pieces), rows or width), *eos, 0)[0]
    words: Tokenizer = Numbers() if pieces is None else RemoteTokenizer(pieces, pieces.chat_template)
    return Remote(model, Vocab(mask, eos, pad), Head(width), words, name, device, _limit(config), shift)


def _version(transformers: Any) -> tuple[int, ...]:
    return tuple(int(part) for part in str(transformers.__version__).split(".")[:2])


def _rows(model: Any, config: Any) -> int | None:
    """The rows of the embedding; None where the code does not say."""
    try:
        return int(model.get_input_embeddings().weight.shape[0])
    except (AttributeError, NotImplementedError, TypeError):
        found = getattr(config, "vocab_size", None)
        return found if type(found) is int else None


def _ids(field: str, sources: Sequence[Any], below: int | None) -> tuple[int, ...]:
    """The token ids that these configs and tokenizers name, each once; a field may hold one id or a list."""
    found = [getattr(source, field, None) for source in sources]
    flat = [token for value in found for token in (value if isinstance(value, list | tuple) else [value])]
    fits = [token for token in flat if type(token) is int and token >= 0 and (below is None or token < below)]
    return tuple(dict.fromkeys(fits))


def _probe(name: str, model: Any, mask: int, device: torch.device) -> int:
    """The number of logits, from a canvas of one mask."""
    with guarded(f"cannot load {name} by its own code"), torch.no_grad():
        logits = getattr(model(input_ids=torch.tensor([[mask]], device=device)), "logits", None)
    if not isinstance(logits, Tensor):
        raise ModelError(f"{name}: the model gives no logits", "its code must offer a class with a language head")
    if logits.dim() != 3 or logits.shape[:2] != (1, 1) or not logits.is_floating_point():
        raise ModelError(
            f"{name}: for one token the model gives logits of shape {tuple(logits.shape)} and type {logits.dtype}",
            "it must be one row of one position of numbers",
        )
    return logits.shape[2]


def _limit(config: Any) -> int | None:
    """The longest canvas that the config allows."""
    found = (getattr(config, field, None) for field in LIMITS)
    return next((length for length in found if type(length) is int and length > 0), None)
