"""Every recorded schedule, through a walk: how many positions are decided, or left, after each step."""

import json
from pathlib import Path
from typing import Any

import pytest

from unmask import Recipe, decode
from unmask.models.transformer import random_transformer

RECIPES: dict[str, dict[str, Any]] = {
    "llada_quota": {"sampler": "confidence"},
    "open_dllm_left": {"sampler": "dream", "rule": "maskgit_plus"},
    "dream_left": {"sampler": "dream", "rule": "maskgit_plus"},
    "open_dllm_p2_left": {"sampler": "p2", "rule": "fresh-draw"},
    "path_planning_p2_left": {"sampler": "p2", "rule": "self-planning"},
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    lines = json.loads((Path(metafunc.config.getoption("--recordings")) / "schedules.json").read_text())
    rows = [(name, line) for name in lines for line in lines[name]]
    ids = [f"{name}/{line['masked']}in{line['steps']}" for name, line in rows]
    metafunc.parametrize(("name", "line"), rows, ids=ids)


def test_schedule(name: str, line: dict[str, Any]) -> None:
    left: list[int] = []
    masks = line["masked"]
    model = random_transformer(width=8, layers=1, heads=1)

    def watch(event: dict[str, Any]) -> None:
        nonlocal masks
        if event["event"] == "step":
            tokens = [token for _, _, token, _ in event["changes"]]
            masks += sum(1 if token == model.vocab.mask else -1 for token in tokens)
            left.append(masks)

    eps = {"eps": line["eps"]} if "eps" in line else {}
    decode(model, recipe=Recipe(**RECIPES[name], **eps, steps=line["steps"], length=line["masked"]), on_event=watch)
    if "quota" in line:
        assert [before - after for before, after in zip([line["masked"], *left], left, strict=False)] == line["quota"]
    else:
        assert left == line["left_after_each_call"]
