"""Every recorded case of the block-wise decoders, through the public `decode`: same tokens, seen after each call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from parity.recording import names, recorded
from unmask import Recipe, Result, decode
from unmask.core.state import Vocab
from unmask.core.walk import walk
from unmask.decoding.decode import prepare
from unmask.decoding.prompt import from_prompt
from unmask.models import load
from unmask.models.transformer import Transformer

Case = dict[str, Any]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    folder = Path(metafunc.config.getoption("--recordings")) / "blocks"
    known = [name for name in names(folder) if name in RULES]
    cases = [(name, number) for name in known for number in range(len(recorded(folder, name)["cases"]))]
    ids = [f"{name}/{recorded(folder, name)['cases'][number]['id']}" for name, number in cases]
    metafunc.parametrize("case", cases, ids=ids)


@cache
def model(recordings: Path, family: str, blocks: int | None, eos: tuple[int, ...]) -> Transformer:
    """The family's tiny checkpoint with these blocks and ends."""
    file = recorded(recordings / "blocks", family)
    found = load(
        recordings / file["checkpoint"], mask_id=file["mask_id"], **({} if blocks is None else {"blocks": blocks})
    )
    assert isinstance(found, Transformer)
    return replace(found, vocab=Vocab(file["mask_id"], eos, 0))


def columns(case: Case, size: int, length: int) -> int:
    """Positions after the prompt, up to the end of a block."""
    return -(-(len(case["prompt"]) + length) // size) * size - len(case["prompt"])


# --- a case of each family -> block length, ends, positions to generate, recipe --------------------------------------


def sdar(case: Case) -> tuple[int, tuple[int, ...], int, Recipe]:
    given = case["settings"]
    size, rule = given["block_length"], given["remasking_strategy"].removeprefix("low_confidence_")
    threshold = {"threshold": given["confidence_threshold"]} if rule == "dynamic" else {}
    recipe = Recipe("sdar", rule=rule, rounds=given["denoising_steps"], **threshold)
    return size, tuple(given["stop_ids"] or ()), columns(case, size, given["gen_length"]), recipe


def fast_dllm_v2(case: Case) -> tuple[int, tuple[int, ...], int, Recipe]:
    given = case["settings"]
    size, part = given["block_size"], given["small_block_size"]
    length = given["max_new_tokens"] // size * size - len(case["prompt"]) % size + 1
    kept = {"cache_block": part} if given["use_block_cache"] else {}
    recipe = Recipe("fast-dllm-v2", threshold=given["threshold"], sub_block=part, **kept)
    return size, (given["stop_token"],), length, recipe


def llada2(case: Case) -> tuple[int, tuple[int, ...], int, Recipe]:
    given = case["settings"]
    rounds = min(given["steps"], given["gen_length"] // given["minimal_topk"])
    recipe = Recipe("llada2", threshold=given["threshold"], rounds=rounds, early_stop=given["eos_early_stop"])
    return given["block_length"], (given["eos_id"],), columns(case, given["block_length"], given["gen_length"]), recipe


def llada21(case: Case) -> tuple[int, tuple[int, ...], int, Recipe]:
    given = case["settings"]
    recipe = Recipe(
        "llada2",
        threshold=given["threshold"],
        reveal=given["num_to_transfer"],
        edit_threshold=given["editing_threshold"],
        edit_rounds=given["max_post_steps"],
        early_stop=given["eos_early_stop"],
    )
    return given["block_length"], (given["eos_id"],), columns(case, given["block_length"], given["gen_length"]), recipe


def llada_moe(case: Case) -> tuple[None, tuple[int, ...], int, Recipe]:
    given = case["settings"]
    recipe = Recipe("semi-ar", steps=given["steps"], block_length=given["block_length"])
    return None, (), given["gen_length"], recipe


RULES: dict[str, Callable[[Case], tuple[int | None, tuple[int, ...], int, Recipe]]] = {
    "sdar": sdar,
    "fast_dllm_v2": fast_dllm_v2,
    "llada2": llada2,
    "llada2.1": llada21,
    "llada_moe": llada_moe,
}


def cut(answer: list[int], ends: tuple[int, ...]) -> list[int]:
    """Up to the first end."""
    return next((answer[: place + 1] for place, token in enumerate(answer) if token in ends), answer)


def returned(family: str, case: Case, result: Result, mask: int, ends: tuple[int, ...]) -> list[int]:
    """What the recorded function would have returned."""
    prompt, row = case["prompt"], list(result.best.tokens)
    answer = row[len(prompt) :]
    if family == "fast_dllm_v2":
        return prompt + cut(answer, ends)
    if family.startswith("llada2"):
        return cut(answer[: case["settings"]["gen_length"]], ends)
    if family == "sdar":  # blocks that it has not reached hold masks there, ends here
        return [mask if there == mask else here for here, there in zip(row, case["output"], strict=True)]
    return row


def calls(case: Case, size: int) -> list[tuple[int, list[int]]]:
    """First column and tokens of the open block in each call that decides something."""
    found = []
    for call in case["calls"]:
        if call[0] in ("denoise", "denoise_fill"):
            found.append((call[1], call[2]))
        elif call[0] == "denoise_sub":
            found.append((call[1] // size * size, call[3]))
    return found


@pytest.fixture
def recordings(request: pytest.FixtureRequest) -> Path:
    return Path(request.config.getoption("--recordings"))


def test_block_decoder(recordings: Path, case: tuple[str, int]) -> None:
    family, line = case[0], recorded(recordings / "blocks", case[0])["cases"][case[1]]
    size, ends, length, recipe = RULES[family](line)
    denoiser = model(recordings, family, size, ends)
    events: list[dict[str, Any]] = []
    result = decode(denoiser, line["prompt"], recipe=recipe.replace(length=length), on_event=events.append)
    mask = denoiser.vocab.mask
    assert returned(family, line, result, mask, ends) == line["output"]
    if family == "sdar" and mask in line["output"]:  # after the end
        here = result.best.tokens[line["output"].index(mask) :] if mask not in line["prompt"] else []
        assert set(here) <= {ends[0]}
    if size is None:
        changes = [[[c, t] for _, c, t, _ in e["changes"]] for e in events if e["event"] == "step"]
        assert changes == line["changes"] and result.evaluations == line["forward_calls"]
        return
    seen = blocks(denoiser, line["prompt"], recipe.replace(length=length), size)
    assert [one for one in seen if not alone(family, one, mask)] == calls(line, size)
    assert result.evaluations == len(seen) == decided(family, line)


def blocks(denoiser: Transformer, prompt: list[int], recipe: Recipe, size: int) -> list[tuple[int, list[int]]]:
    """First column and tokens of the block that was open in each step."""
    canvas = from_prompt(denoiser, prompt, recipe.length)
    wrapped, state, sampler, search, rules = prepare(denoiser, [canvas], [0], recipe)
    found = []
    for moment in walk(wrapped, state, sampler, search, rules):
        begin = len(prompt) // size * size + int(state.front[0]) // size * size
        found.append((begin, state.tokens[0, begin : begin + size].tolist()))
        state = moment.state
    return found


def alone(family: str, one: tuple[int, list[int]], mask: int) -> bool:
    """A call that decides the first token of a block, from the output before it."""
    return family == "fast_dllm_v2" and one[1][0] == mask


def decided(family: str, line: Case) -> int:
    """Calls of the public code that decide something. A prefill and a store ride along with ours."""
    kinds = [call[0] for call in line["calls"]]
    denoise = sum(kind.startswith("denoise") for kind in kinds)
    if family != "fast_dllm_v2":
        return denoise
    size, prompt = line["settings"]["block_size"], len(line["prompt"])
    return denoise + kinds.count("store") + ("prefill" in kinds and prompt % size == 0)
