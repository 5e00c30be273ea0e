"""An invalid request -> one Refusal that names the field and the remedy, in the words of the API."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from pydantic import BaseModel

from unmask.decoding.settings import ALIASES, WORDS, known
from unmask.errors import ModelError, SettingError, UnmaskError
from unmask.server import schemas
from unmask.server.limits import Refusal, refusal

BODIES: dict[str, type[BaseModel]] = {
    "/v1/completions": schemas.Completion,
    "/v1/chat/completions": schemas.Chat,
    "/v1/paths": schemas.Paths,
}
# the kind of value of each field, for messages
WANTED: dict[str, str] = {
    **{name: WORDS[row.kind] for name, row in known().items()},
    "model": "the name of a model, as text",
    "prompt": "text, token ids, or a list of either that is not empty",
    "canvas": "text, or token ids",
    "puzzle": "text",
    "suffix": "text",
    "messages": "a list of messages that is not empty",
    **dict.fromkeys(("max_tokens", "max_completion_tokens", "n", "best_of"), WORDS[int]),
    **dict.fromkeys(("stream", "echo", "store", "parallel_tool_calls"), WORDS[bool]),
    **dict.fromkeys(("frequency_penalty", "presence_penalty"), WORDS[float]),
    "metadata": "an object of texts",
    "stream_options": 'an object like {"include_usage": true}',
    "tool_choice": "none or auto",
    "logit_bias": "an object of numbers",
    "response_format": 'an object like {"type": "json_schema", "json_schema": {"schema": {…}}}',
    "matches": "a regular expression as text, or a list of one for each hole",
    "choices": "a list of texts that is not empty",
    **dict.fromkeys(("tools", "modalities"), "a list"),
    **dict.fromkeys(("user", "safety_identifier", "prompt_cache_key", "service_tier"), "text"),
    "stop": f"text, or a list of at most {schemas.STOPS}",
    "logprobs": "a whole number from 0 to 5; in a chat, true or false",
    "top_logprobs": "a whole number from 0 to 20",
}


def invalid(errors: Sequence[Mapping[str, Any]], path: str, body: Any) -> Refusal:
    """The first invalid field, in one line."""
    first = errors[0]
    where = first["loc"][1:]
    if first["type"] == "json_invalid":
        return Refusal(400, "the body is not JSON", str(first.get("ctx", {}).get("error", "")))
    if isinstance(body, dict) and not where:
        return Refusal(400, "a field has a name that is not Unicode text", "send the fields of the request")
    if not isinstance(body, dict):
        return Refusal(400, "the body is not a JSON object", "send an object with the fields of the request")
    name = str(where[0])
    if len(where) == 1 and first["type"] == "extra_forbidden":
        return _unknown(name, path)
    if len(where) == 1 and first["type"] == "missing":
        return Refusal(400, f"{name} is missing", "it is required", param=name)
    mine = [one for one in errors if one["loc"][1] == name]
    if name in ("messages", "stream_options") and max(len(one["loc"]) for one in mine) > 2:
        return _inside(name, mine)
    one_text = name == "prompt" and path == "/v1/paths"
    wanted = WANTED["canvas" if one_text else ALIASES.get(name, name)]
    return Refusal(400, f"{name} is {_shown(body.get(name))}", f"it must be {wanted}", param=name)


def _unknown(name: str, path: str) -> Refusal:
    """An unknown field of this endpoint."""
    if name in schemas.ELSEWHERE:
        return Refusal(400, f"{name} is not supported", "leave it out", param=name)
    others = [other for other, body in BODIES.items() if other != path and name in body.model_fields]
    near = get_close_matches(name, [*BODIES[path].model_fields], n=1, cutoff=0.7)
    if others:
        hint = f"{' and '.join(others)} {'takes' if len(others) == 1 else 'take'} it"
        return Refusal(400, f"{name} is not a field of {path}", hint, param=name)
    hint = f"did you mean {near[0]!r}?" if near else "GET /openapi.json lists the fields"
    return Refusal(400, f"unknown field {name!r}", hint, param=name)


def _inside(name: str, errors: Sequence[Mapping[str, Any]]) -> Refusal:
    """The fault inside an object or a list of objects; of several readings, the one that got furthest."""
    rank = {"none_required": 1, "literal_error": 2}
    found = max(errors, key=lambda one: (len(one["loc"]), rank.get(one["type"], 0)))
    *outer, last = [part for part in found["loc"][1:] if isinstance(part, int) or str(part).isidentifier()]
    inner = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in outer[1:] if part != "str")
    place, value = f"{name}{inner}", found["input"]
    if found["type"] == "missing":
        return Refusal(400, f"{place}.{last} is missing", "it is required", param=name)
    if found["type"] == "extra_forbidden":
        return Refusal(400, f"unknown field {str(last)!r} in {place}", "leave it out", param=name)
    if last == "type":
        part, _, _ = place.rpartition("[")
        return Refusal(400, f"{part} has a part of type {_shown(value)}", "only text is supported", param=name)
    if found["type"] == "none_required":
        return Refusal(400, f"{place}.{last} is not supported", "leave it out", param=name)
    last = outer.pop() if last == "str" else last
    place = place.removesuffix(f".{last}")
    kinds = {
        "bool_type": WORDS[bool],
        "model_type": "an object",
        "model_attributes_type": "an object",
        "list_type": "a list",
    }
    plain = "text, or a list of parts" if last == "content" else kinds.get(found["type"], "text")
    wanted = str(found.get("ctx", {}).get("expected") or plain).replace("False", "false")
    where = f"{place}[{last}]" if isinstance(last, int) else f"{place}.{last}"
    return Refusal(400, f"{where} is {_shown(value)}", f"it must be {wanted}", param=name)


def about(error: UnmaskError, body: BaseModel) -> Refusal:
    """An error of the library with the names of the request, and the field at fault."""
    if isinstance(error, ModelError):
        return refusal(error)
    given = {name for name in type(body).model_fields if getattr(body, name) is not None}
    setting = error.setting if isinstance(error, SettingError) and error.setting in known() else ""
    names = {word: _called(word, given) for word in ("length", setting) if word}
    message, hint = (
        re.sub(rf"(?<![\w'])(?:the (?=length))?({'|'.join(names)})(?![\w'])", lambda found: names[found[1]], text)
        for text in (error.message, error.hint)
    )
    source = next((name for name in ("prompt", "messages", "canvas", "puzzle") if name in given), None)
    return Refusal(400, message, hint, param=names[setting] if setting else source)


def _called(setting: str, given: Collection[str]) -> str:
    """The name of a setting in a request."""
    also = [alias for alias, name in ALIASES.items() if name == setting]
    names = [setting, *also, *(schemas.LENGTHS if setting == "length" else ())]
    default = "max_tokens" if setting == "length" else setting
    return next((name for name in names if name in given), default)


def _shown(value: Any) -> str:
    """A value of the request, shortened."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else f"{text[:59]}…"
