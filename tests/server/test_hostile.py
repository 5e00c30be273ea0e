"""Requests that want to hold up the server for everyone else."""

from __future__ import annotations

import http.client
import json
import os
import socket
import time
from typing import Any

import pytest
from pydantic import ValidationError
from serving import ASK, HEAD, Running, Slow, begin, post, right, running

from unmask import load
from unmask.server import connections, schemas

MANY = 330_000
FLOODS = {
    "a prompt of objects": ("/v1/completions", {"prompt": [{}] * MANY}),
    "a canvas of texts": ("/v1/completions", {"canvas": ["a"] * (MANY // 2)}),
    "a ban of objects": ("/v1/completions", {"prompt": "s", "ban": [{}] * MANY}),
    "messages": ("/v1/chat/completions", {"messages": [1] * MANY}),
    "parts of a message": ("/v1/chat/completions", {"messages": [{"role": "user", "content": [1] * MANY}]}),
    "a path's prompt": ("/v1/paths", {"prompt": ["a"] * (MANY // 2)}),
    "unknown fields": ("/v1/completions", {f"f{place}": 0 for place in range(90_000)}),
    "metadata": ("/v1/completions", {"prompt": "s", "metadata": {f"f{place}": 0 for place in range(90_000)}}),
}


@pytest.mark.parametrize(("path", "given"), FLOODS.values(), ids=FLOODS)
def test_a_flood_of_values_is_refused_at_once(usual, path: str, given: dict[str, Any]):
    body = json.dumps({"model": "table", **given}, separators=(",", ":")).encode()
    assert len(body) < usual.config.limits.body
    began = time.process_time()
    status, said = post(usual, body, path)
    assert status == 413 and ("values" in said["error"]["message"] or "fields" in said["error"]["message"])
    assert time.process_time() - began < 0.7  # of all threads; 1 to 7 s if every value is validated
    right(usual)


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (schemas.Completion, {"prompt": [{}] * 999}),
        (schemas.Completion, {"prompt": [[{}] * 999] * 9}),
        (schemas.Completion, {"canvas": ["a"] * 999}),
        (schemas.Completion, {"ban": [{}] * 999}),
        (schemas.Chat, {"messages": [1] * 999}),
        (schemas.Chat, {"messages": [{"role": "user", "content": [1] * 999}] * 9}),
        (schemas.Chat, {"messages": [{"role": "user", "content": "a"}], "modalities": [1] * 999}),
        (schemas.Paths, {"prompt": ["a"] * 999}),
    ],
)
def test_one_error_of_a_list_is_enough(kind, given):
    with pytest.raises(ValidationError) as caught:
        kind(model="table", **given)
    assert caught.value.error_count() < 10


@pytest.mark.parametrize(
    ("escalate", "status", "words"),
    [
        ("pc background={file}", 400, "a file only the server"),
        ("uniform; pc background={file}", 400, "a file only the server"),
        ("pc background=text background={file}", 400, "a file only the server"),
        ("uniform steps=1000000000", 413, "steps is 1,000,000,000"),
        ("draft-refine loops=1000000", 413, "loops is 1,000,000"),
        ("uniform;" * 100_000, 400, "more than 16 samplers"),
        ("uniform search=smc", 400, "escalate"),
        ("uniform particles=100000", 413, "more than 65,536"),
    ],
)
def test_a_request_cannot_escalate_to_what_it_may_not_ask_for(usual, tmp_path, escalate, status, words):
    """A sampler that is escalated to has the same limits, and its settings name no file either."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)  # who opens it waits for ever
    body = {"model": "table", "prompt": "s", "max_tokens": 4, "search": "auto", "until": 1e-9}
    began = time.monotonic()
    found, said = post(usual, json.dumps(body | {"escalate": escalate.replace("{file}", str(pipe))}).encode())
    assert (found, words in said["error"]["message"]) == (status, True), said
    assert time.monotonic() - began < 5


# --- connections that cost their client nothing ----------------------------------------------------------------------


def connect(here: Running, sent: bytes = b"") -> socket.socket:
    line = socket.create_connection(("127.0.0.1", here.port), timeout=10)
    line.sendall(sent)
    return line


GET = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"


@pytest.mark.parametrize(
    "sent", [b"", b"POST /v1/completions HT", GET + b"GET /v1/mod"], ids=["none", "half", "second"]
)
def test_a_header_that_never_comes_is_not_waited_for(monkeypatch, sent):
    monkeypatch.setattr("unmask.server.connections.HEADER", 0.3)
    with running({"table": load("table")}) as here, connect(here, sent) as line:
        began, found = time.monotonic(), b""
        try:
            while part := line.recv(1000):
                found += part
        except ConnectionResetError:
            pass
        assert time.monotonic() - began < 4 and found.count(b" 200 ") == sent.count(b"/healthz")
        body = json.dumps(ASK).encode()
        with connect(here, HEAD.format("/v1/completions", len(body)).encode()) as line:
            time.sleep(0.6)  # a body has the time of --timeout
            line.sendall(body)
            assert line.recv(1000).startswith(b"HTTP/1.1 200")


def test_idle_connections_make_room_for_others(monkeypatch, wait):
    monkeypatch.setattr("unmask.server.connections.capacity", lambda: (8, 16))
    with running({"random": Slow(load("random"), 0.01)}) as here:
        busy = begin(here, {"model": "random", "prompt": "a", "max_tokens": 40})
        wait(lambda: bool(here.batcher.running))
        lines = [connect(here) for _ in range(30)]
        for _ in range(5):
            with connect(here, GET) as line:
                assert line.recv(1000).startswith(b"HTTP/1.1 200")
        wait(lambda: len(here.server.server_state.connections) <= 8)
        assert busy.recv(1000).startswith(b"HTTP/1.1 200")  # what is decoded is not idle
        for line in [busy, *lines]:
            line.close()


def test_a_stream_that_nobody_reads_ends(wait, monkeypatch):
    """`--timeout` is the patience, here less."""
    bounded = connections.bounded
    monkeypatch.setattr(connections, "bounded", lambda patience, most: bounded(patience / 100, most))
    body = {"model": "random", "prompt": "a", "max_tokens": 1000, "steps": 2, "sampler": "uniform", "stream": True}
    body |= {"search": "best-of-n", "particles": 60, "logprobs": 5}
    data = json.dumps(body).encode()
    with running({"random": load("random")}, seconds=50) as here, socket.socket() as line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        line.connect(("127.0.0.1", here.port))
        line.sendall(HEAD.format("/v1/completions", len(data)).encode() + data)
        wait(lambda: bool(here.batcher.running))
        wait(lambda: not here.server.server_state.connections)
        wait(lambda: not here.server.server_state.tasks and not here.batcher.running)


# --- texts that are not what they seem -------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/paths"])
def test_no_text_ends_a_line_of_a_stream(usual, path):
    """Some readers split at more than \\n: httpx's iter_lines, str.splitlines."""
    body = {
        "model": "text",
        "canvas": "a\u2028data: [DONE]\u2029b\u0085data: {}\x0b\x0c\x1c c [MASK]",
        "temperature": 0,
    }
    status, text = post(usual, json.dumps(body | {"stream": True} if "comp" in path else body).encode(), path)
    assert status == 200
    lines = [line for line in text.decode().splitlines() if line.startswith("data: ")]
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line != "data: [DONE]"]
    assert lines.count("data: [DONE]") == ("comp" in path) and len(events) > 1
    assert "\u2028data: [DONE]" in json.dumps(events, ensure_ascii=False)


@pytest.mark.parametrize(
    "body",
    [
        {"model": "x" * 900_000},
        {"model": "table", "y" * 900_000: 1},
        {"model": "table", "sampler": "y" * 900_000},
        {"model": "table", "background": "y" * 900_000},
    ],
    ids=["model", "field", "sampler", "background"],
)
def test_errors_do_not_repeat_a_whole_request(usual, body):
    status, said = post(usual, json.dumps(body).encode())
    assert status in (400, 404) and len(said["error"]["message"]) <= 1000 and len(said["error"]["param"]) <= 100
    assert "…" in said["error"]["message"] and ": " in said["error"]["message"][-200:]  # with its way out


def test_errors_name_the_field_at_fault(usual):
    for body, param, words in (
        ({"ban": list(range(6))}, "ban", "every token is banned"),
        ({"\ud800": 1}, None, "a field has a name that is not Unicode text"),
        ([1], None, "the body is not a JSON object"),
    ):
        given = {"model": "table", "prompt": "s", **body} if isinstance(body, dict) else body
        status, said = post(usual, json.dumps(given).encode())
        assert (status, said["error"]["param"]) == (400, param) and said["error"]["message"].startswith(words)


# --- browsers and proxies --------------------------------------------------------------------------------------------


def test_only_whole_names_are_those_of_this_machine(usual):
    for host in ("localhost", "LOCALHOST:80", "127.0.0.1:8000", "[::1]", "[::1]:1", "localhost:"):
        assert post(usual, json.dumps(ASK).encode(), host=host)[0] == 200, host
    for host in ("localhost:x.example", "127.0.0.1:80@x.example", "[localhost]x", "[::1]x", "localhost.x", "::1", "x"):
        assert post(usual, json.dumps(ASK).encode(), host=host)[0] == 421, host


def test_other_sites_may_not_embed_a_file(usual):
    line = http.client.HTTPConnection("127.0.0.1", usual.port)
    for path in ("/web/icon.svg", "/", "/healthz", "/nothing"):
        line.request("GET", path)
        answer = line.getresponse()
        answer.read()
        assert answer.headers["cross-origin-resource-policy"] == "same-origin", path


def test_no_redirect_to_a_host_of_the_request(usual):
    line = http.client.HTTPConnection("127.0.0.1", usual.port)
    for path in ("/web/x/", "/web/icon.svg/", "/healthz/", "/v1/recipes/"):
        line.request("GET", path)
        answer = line.getresponse()
        answer.read()
        assert answer.status == 404 and "location" not in answer.headers, path


def test_a_request_with_two_lengths_is_the_last_of_its_connection(usual):
    body = json.dumps(ASK).encode()
    head = HEAD.format("/v1/completions", 5).replace("\r\n\r\n", "\r\ntransfer-encoding: chunked\r\n\r\n").encode()
    with connect(usual, head + b"%x\r\n" % len(body) + body + b"\r\n0\r\n\r\n" + GET) as line:
        found = b""
        while part := line.recv(1000):
            found += part
    assert found.startswith(b"HTTP/1.1 400") and found.count(b"HTTP/1.1") == 1 and b"two lengths" in found
