"""A page of another origin, in Chromium, that wants to use a server without a token on this machine."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from playwright.sync_api import Browser
from test_live_page import hosted

from unmask import load

BODY = {"model": "table", "prompt": "se", "max_tokens": 4, "seed": 1}
# each tries to have something decoded or to read something; what it learns is its value, `null` for nothing
TRIES = """async ([target, body]) => {
  const found = {}, wait = (ms) => new Promise((done) => setTimeout(done, ms));
  const read = async (name, path, options) => {
    try {
      const answer = await fetch(target + path, options);
      found[name] = answer.type === "opaque" ? null : await answer.text();
    } catch { found[name] = null; }
  };
  const json = {"content-type": "application/json"}, post = {method: "POST", body};
  for (const path of ["/v1/completions", "/v1/chat/completions", "/v1/paths"]) {
    await read("json " + path, path, {...post, headers: json});
    await read("text " + path, path, {...post, headers: {"content-type": "text/plain"}});
    await read("plain " + path, path, post);
    await read("no-cors " + path, path, {...post, mode: "no-cors"});
    await read("no-cors json " + path, path, {...post, mode: "no-cors", headers: json});
    const mixed = {"content-type": "text/plain; application/json"};
    await read("mixed " + path, path, {...post, mode: "no-cors", headers: mixed});
    await read("form " + path, path, {method: "POST", mode: "no-cors", body: new URLSearchParams({a: body})});
    await read("bytes " + path, path, {method: "POST", mode: "no-cors", body: new Blob([body])});
    for (const type of ["application/json", "text/plain", "application/x-www-form-urlencoded"])
      navigator.sendBeacon(target + path, new Blob([body], {type}));
    for (const enctype of ["text/plain", "multipart/form-data", "application/x-www-form-urlencoded"]) {
      const frame = document.createElement("iframe"), form = document.createElement("form");
      frame.name = path + enctype;
      Object.assign(form, {method: "POST", action: target + path, enctype, target: frame.name});
      const field = document.createElement("input");
      [field.name, field.value] = [body.slice(0, -1) + ', "user": "', '"}'];
      form.append(field);
      document.body.append(frame, form);
      form.submit();
    }
  }
  for (const path of ["/", "/healthz", "/metrics", "/v1/models", "/v1/recipes", "/openapi.json", "/web/live.js"])
    for (const mode of ["cors", "no-cors"]) await read(mode + " " + path, path, {mode});
  for (const [tag, name, path] of [["script", "src", "/v1/models"], ["img", "src", "/web/icon.svg"],
      ["link", "href", "/web/base.css"], ["script", "src", "/web/live.js"]]) {
    const one = document.createElement(tag);
    one.rel = "stylesheet";
    one[name] = target + path;
    found[tag + path] = null;
    one.onload = () => (found[tag + path] = "loaded");
    document.body.append(one);
  }
  const frame = document.createElement("iframe");
  frame.src = target + "/";
  document.body.append(frame);
  const source = new EventSource(target + "/v1/paths");
  source.onmessage = () => (found.events = "read");
  await wait(1500);
  source.close();
  try { found.frame = frame.contentDocument && frame.contentDocument.title; } catch { found.frame = null; }
  try { found.frames = frames[frames.length - 1].unmask || null; } catch { found.frames = null; }
  return found;
}"""


@pytest.fixture
def elsewhere() -> Iterator[str]:
    """The address of a page of somebody else's."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(b"<!doctype html><title>elsewhere</title><body>")

        def log_message(self, *given: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
def test_a_page_of_another_origin_reads_and_decodes_nothing(browser: Browser, elsewhere: str, name: str) -> None:
    with hosted({"table": load("table")}) as (url, server):
        page = browser.new_page()
        page.goto(elsewhere)
        target = url.replace("localhost", name).replace("127.0.0.1", name)
        found = page.evaluate(TRIES, [target, json.dumps(BODY)])
        page.close()
        assert len(found) > 40 and {key: value for key, value in found.items() if value is not None} == {}
        text = server.batcher.metrics.text()  # type: ignore[attr-defined]
        text = text if isinstance(text, str) else text.decode()
        assert not [
            line for line in text.splitlines() if line.startswith(("unmask_evaluations_total", "unmask_choices_total"))
        ]
        assert 'unmask_requests_total{path="/v1/completions",status="415"}' in text  # they did arrive
