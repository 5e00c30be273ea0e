"""The source of PC-Sampler's prompts -> templates of our tasks. The source is parsed, and nothing in it runs."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path
from string import Formatter

from unmask.errors import InputError
from unmask.tasks import TASKS, files
from unmask.tasks.task import Wording
from unmask.tasks.templates import FIELD, worded

FILE = "src/template.py"
WAY_OUT = f"give a copy of github.com/NEUIR/PC-Sampler with its {FILE} as it is"
FUNCTIONS = {  # the function that writes a prompt -> our task, and what its arguments are there
    "gsm8k_prompt": ("gsm8k", ("question",)),
    "math_500_prompt": ("math500", ("problem",)),
    "gpqa_prompt": ("gpqa", ("question", "choice1", "choice2", "choice3", "choice4")),
    "countdown_prompt": ("countdown-chat", ("input",)),
    "sudoku_prompt": ("sudoku4", ("puzzle",)),
}
BY_FOUR = "'\\n'.join({0}[i:i+4] for i in range(0, len({0}), 4))"  # 16 digits as four lines

Texts = Mapping[str, str]  # what a name of the source stands for


def templates(path: str | Path) -> dict[str, str]:
    """The prompts of a copy of the repository, or of that one file, by the name of our task."""
    file = Path(path) / FILE if Path(path).is_dir() else Path(path)
    if not file.is_file():
        raise InputError(f"there is no {str(file)!r}", WAY_OUT)
    try:
        tree = ast.parse(files.read(file))
        known = _constants(tree)
        functions = [one for one in tree.body if isinstance(one, ast.FunctionDef) and one.name in FUNCTIONS]
        found = {FUNCTIONS[one.name][0]: _prompt(one, known) for one in functions}
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        why = f"line {error.args[0]}" if isinstance(error, _NotText) else "it does not parse"
        raise InputError(f"cannot read the prompts of {str(file)!r}, {why}", WAY_OUT) from None
    if not found:
        raise InputError(f"there is no prompt in {str(file)!r}", WAY_OUT)
    for name, text in found.items():
        worded(TASKS[name], text, Wording(f"{name} of {file.name}"))  # refused here rather than when it is used
    return found


class _NotText(ValueError):
    """Something at a line of the source that is not a text put together of texts."""


def _constants(tree: ast.Module) -> dict[str, str]:
    """The texts that the module gives names to."""
    return {
        node.targets[0].id: _text(node.value, {})
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and _is_text(node.value)
    }


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _prompt(function: ast.FunctionDef, known: Texts) -> str:
    """What a function returns, with marks for its arguments."""
    names, fields = [one.arg for one in function.args.args], FUNCTIONS[function.name][1]
    if len(names) != len(fields):
        raise _NotText(function.lineno)
    local = {**known, **{name: f"<<{field}>>" for name, field in zip(names, fields, strict=True)}}
    for line in function.body:
        if isinstance(line, ast.Return) and line.value is not None:
            return _text(line.value, local)
        if isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name):
            local[line.targets[0].id] = _text(line.value, local)
        elif not (isinstance(line, ast.Expr) and _is_text(line.value)):  # else a docstring
            raise _NotText(line.lineno)
    raise _NotText(function.lineno)


def _text(node: ast.expr, local: Texts) -> str:
    """The text that an expression makes of texts: constants, names, f-strings, sums, format and replace."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and not FIELD.search(node.value):
        return node.value
    if isinstance(node, ast.Name) and node.id in local:
        return local[node.id]
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part, local) for part in node.values)
    if isinstance(node, ast.FormattedValue) and node.conversion == -1 and node.format_spec is None:
        return _text(node.value, local)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _text(node.left, local) + _text(node.right, local)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return _called(node, node.func, local)
    raise _NotText(node.lineno)


def _called(node: ast.Call, method: ast.Attribute, local: Texts) -> str:
    """A text of a method call: `format` with names, `replace`, or digits in lines of four."""
    for name, text in local.items():
        if text == "<<puzzle>>" and ast.dump(node) == ast.dump(ast.parse(BY_FOUR.format(name), mode="eval").body):
            return "<<rows>>"
    whole, given = _text(method.value, local), [_text(one, local) for one in node.args]
    if method.attr == "format" and not given:
        return _formatted(node, whole, {str(one.arg): _text(one.value, local) for one in node.keywords})
    if method.attr == "replace" and len(given) == 2 and not node.keywords:
        return whole.replace(given[0], given[1])
    raise _NotText(node.lineno)


def _formatted(node: ast.Call, text: str, given: Texts) -> str:
    parts = []
    for before, name, spec, conversion in Formatter().parse(text):
        if name is not None and (name not in given or spec or conversion):
            raise _NotText(node.lineno)
        parts += [before, given[name] if name is not None else ""]
    return "".join(parts)
