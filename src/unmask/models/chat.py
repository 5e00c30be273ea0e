"""A chat template of a checkpoint × messages -> the text of the prompt. The template runs in a sandbox.

`chat_process` calls it in a process of its own, since the sandbox bounds neither memory nor time.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from unmask.errors import InputError, UnmaskError, guarded

Message = Mapping[str, str]
LONGEST = 1 << 24  # characters of a rendered chat


def render(template: str, messages: Sequence[Message], names: Mapping[str, str]) -> str:
    """The dialogue up to where the answer begins; `names` are bos_token and the like."""
    given: dict[str, Any] = {"messages": [dict(message) for message in messages], "add_generation_prompt": True}
    given |= {"tools": None, "documents": None}  # templates of the hub expect to find them
    parts, length = [], 0
    with guarded("the chat template refuses these messages", InputError):
        for part in _sandbox().from_string(template).generate(**given, **names):
            parts.append(part)
            length += len(part)
            if length > LONGEST:
                raise InputError("the chat template does not end", "the checkpoint is damaged")
    return "".join(parts)


def answer_lines(seconds: float, memory: int) -> None:
    """Each line on stdin is a template with messages and names -> a line with its text or its error on stdout.

    A first line says that it is ready.
    """
    sys.stdout.buffer.write(b"ready\n")
    sys.stdout.buffer.flush()
    for line in sys.stdin.buffer:
        _limit(seconds, memory)
        try:
            answer: dict[str, Any] = {"text": render(*json.loads(line))}
        except UnmaskError as error:
            answer = {"error": [error.message, error.hint]}
        sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n")
        sys.stdout.buffer.flush()


def _limit(seconds: float, memory: int) -> None:
    """Of this process: its memory, and processor time for one more dialogue, should nobody be left to end it."""
    try:
        import resource
    except ImportError:  # not on this system
        return
    cpu = math.ceil(time.process_time() + seconds) + 1
    for which, most in ((resource.RLIMIT_AS, memory), (resource.RLIMIT_CPU, cpu)):
        _, hard = resource.getrlimit(which)
        soft = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(which, (soft, hard))


class _Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox with bounded products and sums."""

    intercepted_binops = frozenset({"*", "**", "+"})

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        sizes = [len(part) if isinstance(part, str | list | tuple) else part for part in (left, right)]
        if operator == "**" or any(isinstance(size, int) and abs(size) > LONGEST for size in sizes):
            raise jinja2.TemplateError(f"the result of {operator} may be too large")
        if operator == "*" and all(isinstance(size, int) for size in sizes) and abs(sizes[0] * sizes[1]) > LONGEST:
            raise jinja2.TemplateError("the product is too large")
        return super().call_binop(context, operator, left, right)


def _sandbox() -> _Sandbox:
    """No attribute that starts with an underscore, no change to its arguments, no long range."""
    environment = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation])
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda pattern: datetime.now().strftime(pattern)
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As templates of the hub call it."""
    few = min(indent, 8) if isinstance(indent, int) else None
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=few, separators=separators, sort_keys=sort_keys)


class _Generation(Extension):
    """{% generation %} marks the assistant's text, for training; here it is rendered like the rest."""

    tags = {"generation"}  # noqa: RUF012 - as jinja declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(str(message))
