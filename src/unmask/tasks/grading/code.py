"""Texts with Python in them -> the code that was meant, and programs that a sandbox runs."""

from __future__ import annotations

import ast
import re
import secrets
import warnings
from collections.abc import Collection
from pathlib import Path

from unmask.tasks.grading import remote
from unmask.tasks.task import Program

# A grader's own names and builtins: an answer reaches neither by importing `__main__` nor by changing `builtins`.
APART = """\
import builtins
exec(compile({body!r}, "grader", "exec"), {{"__builtins__": dict(vars(builtins)), "builtins": builtins}})
"""
DRIVER = """\
import io, os, sys
said, sys.stdout = sys.stdout, io.StringIO()
names = {{"__builtins__": __builtins__}}
server = {server!r}
own = {{"__name__": "remote", "__builtins__": __builtins__}}
exec(compile(server, "remote", "exec", dont_inherit=True), own)
exec(compile({context!r}, "context", "exec", dont_inherit=True), names)
answer = own["Answer"]({answer!r}, server)
for name in {used!r}:
    if name in answer.names and (name in {entries!r} or name not in names and name not in __builtins__):
        names[name] = answer.ask("name", name)
    elif name not in answer.names:
        names.pop(name, None)
exec(compile({tests!r}, "tests", "exec", dont_inherit=True), names)
print({proof!r}, file=said)
"""


def program(answer: str, tests: str, entries: Collection[str] = (), context: str = "") -> Program:
    """Code and its tests, in two processes -> a program that prints its proof at the end, and nothing else.

    `entries` are the names that the answer is to define. Of the other names that the tests use, the answer gives those
    that nothing else has: builtins, helpers and imports are those of Python and of `context`, which is code of the row.
    What the answer does not define is not there for the tests either.
    """
    proof = secrets.token_hex(16)
    made = DRIVER.format(
        server=Path(remote.__file__).read_text(encoding="utf-8"),
        context=context,
        answer=answer,
        used=sorted(used(tests)),
        entries=sorted(entries),
        tests=tests,
        proof=proof,
    )
    return Program(apart(made), proof)


def used(tests: str) -> set[str]:
    """The names that code reads, wherever in it they may come from."""
    return {part.id for part in ast.walk(tree(tests)) if isinstance(part, ast.Name)} if parses(tests) else set()


def imports(source: str) -> str:
    """The imports of a reference solution."""
    body = tree(source).body if parses(source) else []
    return "\n".join(ast.unparse(node) for node in body if isinstance(node, ast.Import | ast.ImportFrom))


def defined(source: str) -> set[str]:
    """The names of the functions, classes and variables of a reference solution."""
    body = tree(source).body if parses(source) else []
    named = {node.name for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    return named | {
        part.id for node in body if isinstance(node, ast.Assign) for part in node.targets if isinstance(part, ast.Name)
    }


def apart(body: str) -> str:
    """A grader as a program."""
    return APART.format(body=body)


def before_fence(text: str) -> str:
    """Open-dLLM: the text up to a fence, after a ```python if there is one."""
    return text.partition("```python")[2].partition("```")[0] if "```python" in text else text.partition("```")[0]


def block(text: str) -> str:
    """The first fenced block; without one, the text up to a closing fence (the prompt may have opened it)."""
    found = re.search(r"```(?:[Pp]ython|py)?[ \t]*\n(.*?)(?:```|\Z)", text, re.DOTALL)
    before, fence, _ = text.partition("```")
    return found[1] if found is not None and not before.strip() else before if fence else text


# --- Open-dLLM's sanitiser -------------------------------------------------------------------------------------------


def sanitised(code: str, entry: str) -> str:
    """Open-dLLM: of the longest piece that parses, the imports and the definitions that the entry point needs.

    Kept are classes, assignments and functions with a `return`, each name the first time; all else is dropped.
    """
    text = longest(code.replace("\t", "    "))
    imports: list[str] = []
    named: dict[str, ast.stmt] = {}
    for node in tree(text).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            imports.append(ast.unparse(node))
        else:
            name = _defined(node)
            if name is not None:
                named.setdefault(name, node)
    needed = reachable(entry, named)
    return "\n".join(imports + [ast.unparse(node) for name, node in named.items() if name in needed])


def longest(code: str, most: int = 100) -> str:
    """The run of lines, of the first `most`, that parses and has the most lines with something on them."""
    lines = code.split("\n")[:most]
    full = [bool(line.strip()) for line in lines]
    best, found = 0, ""
    for begin in range(len(lines)):
        for end in range(len(lines), begin, -1):
            if sum(full[begin:end]) <= best:
                break
            if parses("\n".join(lines[begin:end])):
                best, found = sum(full[begin:end]), "\n".join(lines[begin:end])
                break
    return found


def parses(code: str) -> bool:
    try:
        tree(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def tree(code: str) -> ast.Module:
    """Python code, parsed without the warnings that a model's backslashes would give."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(code)


def _defined(node: ast.stmt) -> str | None:
    """The name that a statement defines, if the sanitiser keeps such statements."""
    if isinstance(node, ast.FunctionDef):
        returns = any(isinstance(part, ast.Return) for part in ast.walk(node))
        return node.name if returns and not node.decorator_list else None
    if isinstance(node, ast.ClassDef):
        return None if node.decorator_list else node.name
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        return node.targets[0].id
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return node.target.id
    return None


def reachable(entry: str, named: dict[str, ast.stmt]) -> set[str]:
    """The entry point, and all names that it uses, and that those use."""
    found, new = set(), {entry}
    while new:
        found |= new
        parts = [part for name in new if name in named for part in ast.walk(named[name])]
        used = {part.id for part in parts if isinstance(part, ast.Name)}
        used |= {part.attr for part in parts if isinstance(part, ast.Attribute)}
        new = used - found
    return found
