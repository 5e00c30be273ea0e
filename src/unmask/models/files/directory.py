"""FAMILIES: name -> Family; a directory of a published checkpoint -> Transformer."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from unmask.core.denoiser import Tokenizer
from unmask.core.state import Vocab
from unmask.errors import ModelError
from unmask.models.devices import Devices
from unmask.models.families.a2d import A2D
from unmask.models.families.blueprint import Blueprint, Config, Family
from unmask.models.families.diffcoder import STABLE_DIFFCODER
from unmask.models.families.dream import DREAM, OPEN_DCODER
from unmask.models.families.fast_dllm import FAST_DLLM
from unmask.models.families.llada import ILLADA, LLADA
from unmask.models.families.llada_moe import LLADA2, LLADA_MOE
from unmask.models.families.mdlm import MDLM
from unmask.models.families.native import NATIVE
from unmask.models.families.sdar import SDAR, SDAR_MOE
from unmask.models.files.adapter import read_adapter
from unmask.models.files.checkpoint import Progress, dtype_of, read_json, survey
from unmask.models.files.fill import fill
from unmask.models.files.gptq import read_config
from unmask.models.network import Network
from unmask.models.packed import to_bits
from unmask.models.tokenizers import Characters, FileTokenizer, Numbers, read_tokenizer
from unmask.models.transformer import Transformer

RECIPE, GENERATION, QUANTIZED = "recipe.json", "generation_config.json", "quantize_config.json"
FULL_ATTENTION = (MDLM, LLADA, ILLADA, DREAM, OPEN_DCODER, LLADA_MOE)
IN_BLOCKS = (SDAR, SDAR_MOE, LLADA2, FAST_DLLM, STABLE_DIFFCODER, A2D)
FAMILIES: dict[str, Family] = {family.name: family for family in (*FULL_ATTENTION, *IN_BLOCKS, NATIVE)}


def from_directory(
    directory: Path,
    device: torch.device | Devices,
    dtype: torch.dtype | None = None,
    *,
    name: str | None = None,
    mask_id: int | None = None,
    tokenizer: Path | FileTokenizer | None = None,
    blocks: int | None = None,
    weights: str | None = None,
    adapter: Path | None = None,
    progress: Progress | None = None,
) -> Transformer:
    """The model in this directory; `tokenizer` is another directory with its tokenizer, or the tokenizer.

    `blocks` is the length of its attention's blocks, where that is not the one of the config. `weights` is a name of
    `packed.WEIGHTS`, `adapter` a directory with LoRA.
    """
    to_bits(weights)
    config = read_json(directory, "config.json")
    if config is None:
        raise ModelError(f"{str(directory)!r} has no config.json", "give the directory of a checkpoint")
    family = family_of(config)
    beside = None if config.get("quantization_config") is not None else read_json(directory, QUANTIZED)
    how = read_config(config, beside)
    plan = _in_blocks(family, family.read(Config(config)), blocks)
    pieces = tokenizer if isinstance(tokenizer, FileTokenizer) else read_tokenizer(tokenizer or directory)
    if tokenizer is not None and pieces is None:
        raise ModelError(
            f"there is no tokenizer in {str(tokenizer)!r}", "it needs a tokenizer.json, or vocab.json with merges.txt"
        )
    if pieces is not None and pieces.size > plan.shape.vocabulary:
        raise ModelError(
            f"the tokenizer has ids up to {pieces.size - 1}, the network only up to {plan.shape.vocabulary - 1}",
            "it is of another model: give the directory of the right one as tokenizer",
        )
    mask = _mask(plan, family, pieces, mask_id)
    stops = read_json(directory, GENERATION) if family.stops else None
    eos = _ends(plan, family, pieces, Config(stops or {}))
    if mask in eos:
        raise ModelError(f"the mask is {mask}, which is an EOS too", "give the right one as mask_id")
    change = None if adapter is None else read_adapter(adapter)
    tensors = survey(directory)
    network = fill(plan, tensors, device, dtype or dtype_of(config, tensors), progress, weights, how, change)
    pad = plan.pad if plan.pad is not None else eos[0] if eos else 0
    words: Tokenizer = pieces or _alphabet(config) or Numbers()
    made = assembled(name or directory.resolve().name, family, plan, network, Vocab(mask, eos, pad), words)
    return replace(made, recipe=default_settings(directory, family))


def assembled(
    name: str, family: Family, plan: Blueprint, network: Network, vocab: Vocab, tokenizer: Tokenizer
) -> Transformer:
    """The network as a denoiser, with the quirks of its family."""
    return Transformer(
        network,
        vocab,
        tokenizer,
        name=name,
        family=family.name,
        limit=plan.limit,
        absent=(vocab.mask,) if plan.subs else (),
        shift=plan.shift,
        noise=plan.noise,
        blocks=plan.blocks,
        aligned=plan.aligned,
        block_causal=plan.aligned,
    )


def default_settings(directory: Path, family: Family) -> dict[str, Any]:
    """Default settings: of recipe.json, else of the family's programs and the generation_config.json that they read.

    They are checked where they are used, as any Recipe. A file that transformers wrote by itself holds no choice.
    """
    own = read_json(directory, RECIPE)
    if own is not None:
        return own
    values = None if family.generation is None else read_json(directory, GENERATION)
    found = dict(family.recipe)
    if family.generation is not None and values is not None and not values.get("_from_model_config"):
        found |= family.generation(values)
    return {name: value for name, value in found.items() if value is not None}


def _alphabet(config: dict[str, Any]) -> Characters | None:
    """The characters that are the tokens of a model of unmask's own layout."""
    letters = config.get("alphabet")
    return Characters(letters) if isinstance(letters, str) and letters else None


def family_of(config: dict[str, Any]) -> Family:
    """The family that config.json names in model_type."""
    kind = config.get("model_type")
    for family in FAMILIES.values():
        if kind in family.types and family.owns(config):
            return family
    known = dict.fromkeys(kind for family in FAMILIES.values() for kind in family.types)
    why = f"not one of {', '.join(known)}"
    if isinstance(kind, str) and kind in known:
        why = f"and the architectures {reprlib.repr(config.get('architectures'))} are of no known family"
    raise ModelError(
        f"config.json: model_type is {reprlib.repr(kind)}, {why}",
        "write an adapter (`unmask help own-model`), or let the checkpoint's own code run with trust_remote_code",
    )


def _mask(plan: Blueprint, family: Family, pieces: FileTokenizer | None, given: int | None) -> int:
    """The mask id: as given, or from the config, or from the tokenizer."""
    texts = () if pieces is None else (pieces.names.get("mask_token"), *family.mask_tokens)
    ids = [pieces.id(text) for text in texts if text and pieces is not None]
    return chosen_mask(given, [plan.mask, *ids, plan.last], plan.shape.vocabulary)


def chosen_mask(given: int | None, found: Iterable[int | None], rows: int | None) -> int:
    """The mask id as given, else the first that was found; ids are below `rows`, where that is known."""
    if given is not None:
        if type(given) is not int or given < 0 or (rows is not None and given >= rows):
            way_out = "token ids start at 0" if rows is None else f"token ids go from 0 to {rows - 1}"
            raise ModelError(f"mask_id is {given!r}", way_out)
        return given
    for mask in found:
        if mask is not None and (rows is None or mask < rows):
            return mask
    raise ModelError(
        "neither config.json nor the tokenizer names a mask token",
        "give its id as mask_id; a model without one is not a masked diffusion model",
    )


def _in_blocks(family: Family, plan: Blueprint, blocks: int | None) -> Blueprint:
    """The plan with another length of its attention's blocks; None: as it is."""
    if blocks is None:
        return plan
    if not family.blockwise:
        raise ModelError(f"blocks has no effect on {family.name}", "leave it out: its attention is not in blocks")
    if type(blocks) is not int or blocks < 1:
        raise ModelError(f"blocks is {blocks!r}", "it must be a whole number from 1 on")
    return replace(plan, blocks=blocks, aligned=True)


def _ends(plan: Blueprint, family: Family, pieces: FileTokenizer | None, stops: Config) -> tuple[int, ...]:
    """EOS ids of the config and of generation_config.json, then the tokens that end a turn."""
    if family.ends is None:
        return ()
    found = [*plan.eos, *stops.tokens("eos_token_id", plan.shape.vocabulary)]
    if pieces is not None:
        names = [pieces.names.get("eos_token"), *family.ends]
        found += [number for text in names if text and (number := pieces.id(text)) is not None]
    return tuple(dict.fromkeys(token for token in found if token < plan.shape.vocabulary))
