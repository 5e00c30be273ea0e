"""Every recorded decoding case, through the public `decode`: same tokens, same changes, same entropies."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from parity.mapping import recipe
from parity.recording import names, recorded
from parity.toy import toy
from unmask import decode

BITS = 1e-6  # tolerance of entropies


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    recordings = Path(metafunc.config.getoption("--recordings"))
    folder = recordings / "decoders"
    if "case" in metafunc.fixturenames:
        cases = [(name, number) for name in names(folder) for number in range(len(recorded(folder, name)["cases"]))]
        ids = [f"{name}/{recorded(folder, name)['cases'][number]['id']}" for name, number in cases]
        metafunc.parametrize("case", cases, ids=ids)
    elif "name" in metafunc.fixturenames:
        metafunc.parametrize("name", names(folder))


@pytest.fixture
def recordings(request: pytest.FixtureRequest) -> Path:
    return Path(request.config.getoption("--recordings"))


def masked(entropies: list[float | None]) -> list[float]:
    """The entries of states that had masks."""
    return [h for h in entropies if h is not None]


def test_decoder_network(recordings: Path, name: str) -> None:
    check = load_file(recordings / "toys" / f"{recorded(recordings / 'decoders', name)['toy']}_check.safetensors")
    network = toy(recordings, recorded(recordings / "decoders", name)["toy"])
    tokens = check["tokens"].long()
    logits = network.head.logits(network.hidden(tokens).flatten(0, 1)).view(*tokens.shape, -1)
    real = torch.arange(logits.shape[2]) != network.mask
    torch.testing.assert_close(logits[..., real], check["logits"][..., real], rtol=0, atol=1e-9)


def test_decoder_case(recordings: Path, case: tuple[str, int], tmp_path: Path) -> None:
    file = recorded(recordings / "decoders", case[0])
    line = file["cases"][case[1]]
    settings = dict(line["settings"])
    if "background" in settings:
        table = tmp_path / "background.json"
        table.write_text(json.dumps(file["backgrounds"][settings["background"]]))
        settings["background"] = str(table)

    changes: list[list[list[int]]] = []

    def watch(event: dict[str, Any]) -> None:
        if event["event"] == "step":
            changes.append([[column, token] for _, column, token, _ in event["changes"]])

    result = decode(
        toy(recordings, file["toy"]), canvas=line["canvas"], recipe=recipe(line["decoder"], settings), on_event=watch
    )

    assert result.tokens == line["tokens"]
    assert changes == line["changes"]
    assert result.steps == line["model_calls"]
    assert result.calls <= line["model_calls"]
    assert result.evaluations <= line["rows_evaluated"]
    guided = "guided_" if "guided_path_entropy_bits" in line else ""
    bits = line[f"{guided}state_entropy_bits"]
    assert [h is None for h in result.best.state_entropy] == [h is None for h in bits]
    assert masked(result.best.state_entropy) == pytest.approx(masked(bits), abs=BITS, rel=0)
    assert result.path_entropy == pytest.approx(line[f"{guided}path_entropy_bits"], abs=BITS, rel=0)
