"""Requests that no client sends, to one process and to the front of replicas: both say the same, and go on."""

from __future__ import annotations

import json
import os
import re
import socket
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from serving import ASK, HEAD, Running, post, right, running
from test_front import Here, fronted

from unmask import load
from unmask.evaluate.fleet import cluster
from unmask.evaluate.fleet.cluster import LOCAL, connected
from unmask.server import middleware

BODY = json.dumps(ASK).encode()
POST = HEAD.format("/v1/completions", len(BODY)).encode()
AGAIN = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"


def get(line: str, *headers: str) -> bytes:
    return "\r\n".join([line, "host: localhost", *headers, "", ""]).encode("latin-1")


def posted(*headers: str, body: bytes = BODY) -> bytes:
    lines = ["POST /v1/completions HTTP/1.1", "host: localhost", "content-type: application/json", *headers, "", ""]
    return "\r\n".join(lines).encode("latin-1") + body


LENGTH = f"content-length: {len(BODY)}"
CHUNKED = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
PATHS = [
    "/web/../../etc/passwd",
    "/web/%2e%2e/%2e%2e/etc/passwd",
    "/web/..%2f..%2f..%2fetc%2fpasswd",
    "/web/..\\..\\secret",
    "/web//etc/passwd",
    "//evil.example/",
    "/web/%00.js",
    "/web/icon.svg%00",
    "/%ff%fe",
    "/v1/models/../../x",
    "/" + "a" * 60_000,
    "/healthz?" + "a=1&" * 10_000,
    "http://evil.example/healthz",
    "/;/..;/metrics",
    "/HEALTHZ",
    "*",
]
REQUESTS: dict[str, tuple[bytes, set[int]]] = {  # what is sent, and what may be said: 0 is nothing but an end
    **{f"path {path[:30]}": (get(f"GET {path} HTTP/1.1"), {200, 400, 404, 405, 421}) for path in PATHS},
    **{
        f"method {name}": (get(f"{name} /v1/completions HTTP/1.1"), {400, 404, 405, 415})
        for name in ("TRACE", "CONNECT", "OPTIONS", "PUT", "DELETE", "PATCH", "BREW", "get", "G\u00e9T")
    },
    "preflight": (
        get("OPTIONS /v1/completions HTTP/1.1", "origin: http://evil.example", "access-control-request-method: POST"),
        {405},
    ),
    "no host": (b"GET / HTTP/1.1\r\n\r\n", {400}),
    "no host, 1.0": (b"GET / HTTP/1.0\r\n\r\n", {421}),
    "two hosts": (b"GET / HTTP/1.1\r\nhost: localhost\r\nhost: evil.example\r\n\r\n", {400, 421}),
    "two hosts, the other first": (b"GET / HTTP/1.1\r\nhost: evil.example\r\nhost: localhost\r\n\r\n", {400, 421}),
    "another host": (b"GET / HTTP/1.1\r\nhost: evil.example\r\n\r\n", {421}),
    "a host and its port": (b"GET / HTTP/1.1\r\nhost: evil.example:80\r\norigin: http://localhost\r\n\r\n", {421}),
    "a forwarded host": (b"GET / HTTP/1.1\r\nhost: evil.example\r\nx-forwarded-host: localhost\r\n\r\n", {421}),
    "version 0.9": (b"GET /\r\n", {0, 400}),
    "version 2": (b"PRI * HTTP/2.0\r\n\r\n", {400, 421}),
    "version 9.9": (b"GET / HTTP/9.9\r\nhost: localhost\r\n\r\n", {200, 400, 505}),
    "upgrade to h2c": (get("GET / HTTP/1.1", "upgrade: h2c", "connection: upgrade, http2-settings"), {200}),
    "upgrade to websocket": (
        get("GET /v1/completions HTTP/1.1", "upgrade: websocket", "connection: upgrade", "sec-websocket-version: 13"),
        {400, 404, 405},
    ),
    "a header without colon": (get("GET / HTTP/1.1", "nonsense"), {400}),
    "a blank before the colon": (get("GET / HTTP/1.1", "x : y"), {400}),
    "a folded header": (get("GET / HTTP/1.1", "x: y", " z"), {200, 400}),
    "a zero byte": (get("GET / HTTP/1.1", "x: \x00"), {400}),
    "a lone carriage return": (get("GET / HTTP/1.1", "x: a\rb"), {400}),
    "bytes of no text": (get("GET / HTTP/1.1", "x: \xff\xfe"), {200}),
    "5,000 headers": (get("GET / HTTP/1.1", *(f"x{n}: y" for n in range(5000))), {200, 400, 431}),
    "a header of 1 MB": (get("GET / HTTP/1.1", "x: " + "y" * 2**20), {0, 400, 431}),
    "two lengths": (posted(LENGTH, "content-length: 3"), {400}),
    "a list of lengths": (posted(f"content-length: {len(BODY)}, 3"), {400}),
    "a negative length": (posted("content-length: -1"), {400}),
    "a length with a sign": (posted(f"content-length: +{len(BODY)}"), {400}),
    "a length in hex": (posted(f"content-length: {len(BODY):#x}"), {400}),
    "a length of 10^30": (posted("content-length: 1" + "0" * 30), {0, 400, 413}),
    "length and chunks": (posted(LENGTH, "transfer-encoding: chunked", body=CHUNKED), {400}),
    "chunks, and something else": (posted("transfer-encoding: chunked, identity", body=CHUNKED), {400, 501}),
    "xchunked": (posted("transfer-encoding: xchunked", body=CHUNKED), {400, 501}),
    "two encodings": (posted("transfer-encoding: chunked", "transfer-encoding: x", body=CHUNKED), {400, 501}),
    "a chunk without end": (posted("transfer-encoding: chunked", body=b"F" * 20 + b"\r\n"), {0, 400}),
    "a negative chunk": (posted("transfer-encoding: chunked", body=b"-1\r\n"), {0, 400}),
    "chunks with trailers": (
        posted("transfer-encoding: chunked", body=CHUNKED[:-2] + b"host: evil.example\r\n\r\n"),
        {200},
    ),
    "no body": (posted(LENGTH, "expect: 100-continue"), {200}),
    "a form": (POST.replace(b"application/json", b"text/plain") + BODY, {415}),
    "no content type": (b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\n{}", {415}),
    "JSON of another name": (POST.replace(b"application/json", b"application/jsonx") + BODY, {415}),
}


@pytest.fixture(scope="module")
def both() -> Iterator[tuple[Running, Running, Here]]:
    """One process, and the front of two replicas, with the same limits."""
    with running({"table": load("table")}, seconds=20.0) as alone, fronted(seconds=20.0) as (front, replicas):
        yield alone, front, replicas


def said(here: Running, sent: bytes, half: bool = False) -> bytes:
    """All that comes back until the server has nothing to add; `half`: what was sent is not a whole request."""
    found = b""
    with socket.create_connection(("127.0.0.1", here.port), timeout=20) as line:
        try:
            line.sendall(sent)
            if half:  # or it would be waited for
                line.shutdown(socket.SHUT_WR)
            while part := line.recv(65536):
                found += part
                found = found.replace(b"HTTP/1.1 100 Continue\r\n\r\n", b"").replace(b"HTTP/1.1 100 \r\n\r\n", b"")
                head, _, body = found.partition(b"\r\n\r\n")
                length = re.search(rb"content-length: (\d+)", head)
                if length is not None and len(body) >= int(length[1]):
                    line.settimeout(0.1)  # for a second answer
        except OSError:  # it has ended already, or says no more
            pass
    return found


def status(found: bytes) -> int:
    return int(found.split(b" ", 2)[1]) if found.startswith(b"HTTP/1.1 ") else 0


@pytest.mark.parametrize("name", REQUESTS)
def test_odd_requests_are_answered_alike(name, both):
    alone, front, _ = both
    sent, allowed = REQUESTS[name]
    one, two = (said(here, sent, half=0 in allowed) for here in (alone, front))
    both_said = {status(one), status(two)}
    # 0: the line was cut with bytes unread, and the system may drop an answer that was on its way
    assert both_said <= allowed and len(both_said - {0}) < 2, (one[:300], two[:300])
    for found in (one, two):
        assert found.count(b"HTTP/1.1 ") <= 1, found
        assert b"access-control" not in found.lower() and b"root:" not in found and b"Traceback" not in found
        assert b"evil" not in b"\r\n".join(found.split(b"\r\n\r\n")[:1])  # in no header


@pytest.mark.parametrize("place", [0, 1], ids=["alone", "front"])
def test_what_follows_a_refused_request_is_not_taken_for_another(place, both):
    """A body whose length is in doubt must not become a request of its own."""
    here = both[place]
    for name in ("two lengths", "a list of lengths", "length and chunks", "xchunked", "chunks, and something else"):
        found = said(here, REQUESTS[name][0] + AGAIN)
        assert found.count(b"HTTP/1.1 ") == 1 and status(found) in (400, 501), (name, found)
    right(here)


def test_no_refused_request_reaches_a_replica(both):
    _, front, replicas = both
    asked = replicas.asked
    for name in ("another host", "two hosts", "length and chunks", "a form", "no content type", "a zero byte"):
        said(front, REQUESTS[name][0])
    assert post(front, b"x" * (front.config.limits.body + 1))[0] == 413
    assert replicas.asked == asked


FORMS = {
    "Bearer sesame": True,
    "bearer sesame": True,
    "BEARER  sesame ": True,
    "Bearer SESAME": False,
    "Bearer Sesame": False,
    "Bearer sesam": False,
    "Bearer sesamee": False,
    "Bearer sesame sesame": False,
    "Bearer": False,
    "Bearer ": False,
    "sesame": False,
    "Basic sesame": False,
    "Bearer\tsesame": False,
    "Bearer, sesame": False,
    "Bearer s\xe9same": False,
    "": False,
}


@pytest.mark.parametrize("front", [False, True], ids=["alone", "front"])
def test_only_the_whole_token_opens(front, monkeypatch):
    """In the same time whichever letter is wrong: tokens are compared by a function that reads all of both."""
    compared: list[bytes] = []
    whole = middleware.hmac.compare_digest

    def compare(given: bytes, token: bytes) -> bool:
        compared.append(given)
        return whole(given, token)

    monkeypatch.setattr(middleware.hmac, "compare_digest", compare)
    with fronted("sesame") if front else running({"table": load("table")}, "sesame") as made:
        here: Running = made[0] if front else made  # type: ignore[index, assignment]
        for form, opens in FORMS.items():
            assert (post(here, BODY, authorization=form)[0] == 200) == opens, form
        assert {b"SESAME", b"Sesame", b"sesam", b"sesame"} <= set(compared)
        for path in ("/v1/models", "/metrics", "/v1/recipes", "/nothing", "/Healthz", "//healthz", "/web", "/WEB/x"):
            assert status(said(here, get(f"GET {path} HTTP/1.1"))) == 401, path
        for path in ("/", "/healthz", "/openapi.json", "/web/icon.svg"):
            found = said(here, get(f"GET {path} HTTP/1.1"))
            assert status(found) == 200 and b"sesame" not in found, path


def test_a_cluster_of_this_machine_stays_on_it(monkeypatch):
    """Without Ray: what it is told. On Linux it would listen at all addresses, and let everybody run programs."""
    alone = cluster._alone
    names = ("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_USAGE_STATS_ENABLED")
    for name in names:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    ray, private, seen = ModuleType("ray"), ModuleType("ray._private"), dict[str, Any]()
    constants = ModuleType("ray._private.ray_constants")
    private.worker = ModuleType("ray._private.worker")  # type: ignore[attr-defined]
    ray.is_initialized = lambda: False  # type: ignore[attr-defined]
    ray.init = lambda **how: seen.update(how, env={name: os.environ.get(name) for name in names})  # type: ignore[attr-defined]
    for name, module in {"ray._private": private, constants.__name__: constants}.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "ray", raising=False)
    monkeypatch.setattr(cluster, "_alone", lambda: (alone(), monkeypatch.setitem(sys.modules, "ray", ray)))
    connected(LOCAL, 1, 0, 1)
    assert seen["_node_ip_address"] == "127.0.0.1" and not seen["include_dashboard"]
    assert seen["env"][names[0]] == "0" and constants.ENABLE_RAY_CLUSTER is False
    assert seen["env"]["RAY_AUTH_MODE"] == "token" and len(seen["env"]["RAY_AUTH_TOKEN"]) == 64
