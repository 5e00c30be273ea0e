"""docs/examples/adapter.py: it runs, its adapter keeps every law, and it stays short."""

from __future__ import annotations

import ast
import io
import runpy
import tokenize
from pathlib import Path

from unmask import Recipe, decode, decode_batch

EXAMPLE = Path(__file__).parent.parent / "docs" / "examples" / "adapter.py"
MOST = 40  # lines of code


def test_it_runs_and_keeps_the_laws(capsys):
    names = runpy.run_path(str(EXAMPLE), run_name="__main__")
    assert len(names["verdicts"]) >= 5
    assert not [verdict for verdict in names["verdicts"] if verdict.held is False]
    result, printed = names["result"], capsys.readouterr().out
    assert len(result.text) == 16 and repr(result.text) in printed
    assert f"{result.path_entropy:.3f} bits" in printed and 0 < result.path_entropy < 5

    model, recipe = names["model"], Recipe(length=6, temperature=1.0)
    prompts = ["a", "some words", ""]
    for place, together in enumerate(decode_batch(model, prompts, recipe=recipe)):
        alone = decode(model, prompts[place], recipe=recipe.replace(seed=place))
        assert together.tokens == alone.tokens


def test_it_is_short():
    text = EXAMPLE.read_text(encoding="utf-8")
    layout = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    tokens = [token for token in tokenize.generate_tokens(io.StringIO(text).readline) if token.type not in layout]
    code = {line for token in tokens for line in range(token.start[0], token.end[0] + 1)}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            code -= set(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    assert len(code) <= MOST, f"{len(code)} lines of code"
