"""Notebooks of this folder -> the same with the outputs of their cells, which are what the cells print.

python docs/notebooks/run.py writes them; tests/test_docs.py compares them with the committed ones.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


@contextlib.contextmanager
def elsewhere() -> Iterator[None]:
    """In an empty folder, for files that cells write."""
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)


def run(path: Path) -> dict[str, Any]:
    """A notebook whose code cells have run from top to bottom, as plain Python."""
    notebook: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    names: dict[str, Any] = {"__name__": path.stem}
    with elsewhere():
        for number, cell in enumerate(one for one in notebook["cells"] if one["cell_type"] == "code"):
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                exec(compile("".join(cell["source"]), f"{path.name}, cell {number + 1}", "exec"), names)
            text = out.getvalue().splitlines(keepends=True)
            cell["execution_count"] = number + 1
            cell["outputs"] = [{"name": "stdout", "output_type": "stream", "text": text}] if text else []
    return notebook


def written(notebook: dict[str, Any]) -> str:
    """A notebook as the text of its file."""
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    import torch

    torch.set_num_threads(1)  # as the tests have it
    for one in sorted(HERE.glob("*.ipynb")):
        one.write_text(written(run(one)), encoding="utf-8")
