"""The guide's pages about the server: Python blocks and curl commands run as printed, against a server."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import fields
from pathlib import Path

import pytest
from serving import Running

from unmask.decoding import trace
from unmask.server import schemas
from unmask.server.limits import Limits

GUIDE = Path(__file__).parent.parent.parent / "docs" / "guide"
PAGE = "".join((GUIDE / f"{name}.md").read_text() for name in ("serving", "requests", "operating"))


def blocks(language: str, here: Running) -> list[str]:
    found = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.M | re.S)
    return [block.replace("http://localhost:8000", here.url) for block in found]


def test_python(usual, capsys):
    names: dict[str, object] = {}
    for block in blocks("python", usual):
        exec(compile(block, "serve.md", "exec", dont_inherit=True), names)
    said = capsys.readouterr().out.splitlines()
    assert len(said) > 2
    grid = "534678912672195348198342567859761423426853791713924856961537284287419635345286179"
    assert said[said.index(grid) :][1:3] == ["None", "44-15=29,79-29=50"]  # as the page says


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
def test_curl(usual, tmp_path):
    commands = [block for block in blocks("sh", usual) if block.startswith("curl")]
    outputs = [
        subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
        for command in commands
    ]
    assert '"path_entropy"' in outputs[0] and "unmask_requests_total" in outputs[-1]
    assert trace.load(tmp_path / "path.jsonl")[-1]["event"] == "end"


def test_every_limit_and_refused_field_is_told():
    for flag in [limit.metadata["flag"] for limit in fields(Limits)]:
        assert f"`{flag}`" in PAGE or (flag == "--max-batch" and flag in PAGE), flag
    for name in schemas.NEUTRAL:
        assert f"`{name}`" in PAGE or name in ("tool_choice", "modalities", "service_tier"), name
