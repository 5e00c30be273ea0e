"""The public names of the package -> docs/reference/python.md: signatures, docstrings, fields with their comments."""

from __future__ import annotations

import dataclasses
import inspect
import re
import textwrap
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import unmask
from unmask.decoding.settings import SETTINGS

HEAD = """\
# Python

Every name of `import unmask`, and the names of its modules that the guide uses. Types are shown as they are written in
the code; a name that is not explained here is in [the architecture](../development/architecture.md). In a notebook
`help(decode)`, or `decode?`, shows the same words.

| type | meaning |
| --- | --- |
| `Text` | a text, token ids (also what a tokenizer of transformers returns), or messages of a chat |
| `Stops` | a string, or several |
| `Answer` | a function of a text: the answer that a vote counts, None if there is none |
| `Reward` | a function of a text: a number, higher is better |
| `Verify` | a function of a text: whether it is right |
| `OnEvent` | a function that gets each [event](trace-format.md) as it happens |
| `OnResults` | a function of the number of results so far, the number in all, and the list of new ones |
| `Progress` | a function of the amount done and the amount in all |
"""
# heading -> module -> names
SHOWN: dict[str, dict[str, str]] = {
    "Decode": {
        "unmask": "load decode decode_batch Recipe Result Particle",
        "unmask.decoding.result": "Token",
        "unmask.models.transformer": "Transformer",
    },
    "Score": {"unmask": "score Scored"},
    "Registries": {
        "unmask": "MODELS SAMPLERS SEARCHES",
        "unmask.search": "POTENTIALS SCHEMES CHOOSERS",
        "unmask.tasks": "TASKS",
    },
    "Your own": {
        "unmask": "task Reveal walk DrawRule Rules Denoiser Head Vocab Table",
        "unmask.search": "Search Potential Chooser",
        "unmask.decoding.settings": "Setting",
        "unmask.models.laws": "check",
    },
    "Measure": {
        "unmask.evaluate.run": "evaluate",
        "unmask.evaluate.compare": "summary against",
        "unmask.evaluate.rows": "read",
    },
    "Traces": {"unmask.decoding.trace": "load replay lineages ancestry", "unmask.report.page": "report"},
    "Errors": {"unmask.errors": "UnmaskError InputError SettingError ModelError ProgressError AlikeWarning"},
}


def python_page() -> str:
    """The page; a public name that it leaves out is an error."""
    here = [name for part in SHOWN.values() for name in part.get("unmask", "").split()]
    missing = set(unmask.__all__) - {"UnmaskError"} - set(here)
    assert not missing, f"add {sorted(missing)} to SHOWN of python_page.py"
    parts = [HEAD]
    for heading, modules in SHOWN.items():
        parts.append(f"## {heading}\n")
        for module, names in modules.items():
            for name in names.split():
                parts += entry(module, name, getattr(import_module(module), name))
    return "\n".join(parts)


def entry(module: str, name: str, one: Any) -> Iterator[str]:
    """The part of one name."""
    inner = module != "unmask" and name.islower()  # a function of a module: `trace.load`
    yield f"### {module.rpartition('.')[2]}.{name}\n" if inner else f"### {name}\n"
    yield f"`from {module} import {name}`\n"
    if isinstance(one, dict):
        yield f"A dict of names: {', '.join(f'`{key}`' for key in one)}.\n"
    elif inspect.isclass(one):
        yield about(one)
        yield from members(one)
    else:
        yield f"```python\n{signature(name, one)}\n```\n"
        yield about(one)


def about(one: Any) -> str:
    """Its docstring, without what dataclasses write by themselves; of a Recipe without the list of fields below it."""
    text = inspect.cleandoc(one.__doc__ or "")
    text = "" if text.startswith(f"{getattr(one, '__name__', '')}(") else text.split("\nsampler: ")[0].rstrip()
    return re.sub(r"(?<!\n)\n(?!\n)", " ", text).replace("[", "\\[") + "\n"


def signature(name: str, one: Any) -> str:
    """`name(…) -> …` as the code has it, an argument to a line where one line is too short."""
    found = inspect.signature(one)
    given, kinds = listed(found), [argument.kind for argument in found.parameters.values()]
    keyword, several = inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_POSITIONAL
    if keyword in kinds and several not in kinds:
        given.insert(kinds.index(keyword), "*")
    back = "" if found.return_annotation is inspect.Signature.empty else f" -> {found.return_annotation}"
    line = f"{name}({', '.join(given)}){back}"
    return line if len(line) <= 100 else f"{name}(\n{''.join(f'    {one},{chr(10)}' for one in given)}){back}"


def listed(found: inspect.Signature) -> list[str]:
    """The arguments of a function; a default that is a function, or a value with many fields, by its name."""
    shown = []
    for one in found.parameters.values():
        stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}.get(one.kind, "")
        kind = "" if one.annotation is inspect.Parameter.empty else f": {one.annotation}"
        default = getattr(one.default, "__name__", None) or repr(one.default)
        default = f"{type(one.default).__name__}()" if isinstance(one.default, unmask.Rules) else default
        shown.append(f"{stars}{one.name}{kind}" + ("" if one.default is inspect.Parameter.empty else f" = {default}"))
    return shown


def members(one: type) -> Iterator[str]:
    """Tables of its fields, and of its properties and methods."""
    if dataclasses.is_dataclass(one):
        notes = {**comments(one), **({row.name: row.help for row in SETTINGS.values()} if one is unmask.Recipe else {})}
        shown = [field for field in dataclasses.fields(one) if not field.name.startswith("_")]
        rows = [(f"`{field.name}`", f"`{field.type}`", notes.get(field.name, "")) for field in shown]
        yield table(("field", "type", "meaning"), rows)
    fields = [field.name for field in dataclasses.fields(one)] if dataclasses.is_dataclass(one) else []
    named = [(name, part) for name, part in vars(one).items() if not name.startswith("_") and name not in fields]
    described = [row for name, part in named if (row := member(name, part)) is not None]
    if described:
        yield table(("member", "meaning"), described)


def member(name: str, part: Any) -> tuple[str, str] | None:
    """A property or method with its sentence; None for one without."""
    inner = getattr(part, "fget", None) or getattr(part, "func", None) or getattr(part, "__func__", None) or part
    words = inspect.getdoc(inner) if callable(inner) and getattr(inner, "__module__", "").startswith("unmask") else None
    if not words:
        return None
    if inner is not part and not isinstance(part, classmethod | staticmethod):
        return f"`{name}`", words.split("\n")[0]
    arguments = [one for one in listed(inspect.signature(inner)) if one not in ("self", "cls")]
    return f"`{name}({', '.join(arguments)})`", words.split("\n")[0]


def comments(one: type) -> dict[str, str]:
    """The comment beside each field of a dataclass."""
    source = textwrap.dedent(inspect.getsource(one))
    return dict(re.findall(r"^    (\w+): [^#\n]*?  # ([^\n]+)$", source, re.M))


def table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [heads, ("---",) * len(heads), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"
