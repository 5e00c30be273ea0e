"""The views as modules of a page: events one at a time, two views, few kept states."""

from __future__ import annotations

import ast
import functools
import itertools
import subprocess
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest
from screen import Open, large, settle

from unmask.decoding import trace
from unmask.decoding.trace import Event
from unmask.report.page import WEB

LIVE = """<!doctype html><html><head><link rel="stylesheet" href="/base.css"><link rel="stylesheet" href="/views.css">
<link rel="stylesheet" href="/media.css"><link rel="icon" href="data:,"></head>
<body><div id="a"></div><div id="b"></div><script type="module">
import { mount } from "/views.js";
window.views = ["a", "b"].map((id) => mount(document.getElementById(id)));
</script></body></html>"""


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None: ...

    def do_GET(self) -> None:
        if self.path != "/":
            return super().do_GET()
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.end_headers()
        self.wfile.write(LIVE.encode())


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(WEB)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    thread.join()
    server.server_close()


def test_few_states_are_kept_where_they_are_large(site: str, show: Open) -> None:
    page = show(site, wait="() => window.views")
    events = list(large(particles=4, columns=200, every=7))
    many, wrong = page.evaluate(
        """async ([events, states]) => {
          const { Trace } = await import("/trace.js");
          const trace = new Trace(9 * 4 * 200 * 12);
          for (const event of events) trace.add(event);
          const order = [...states.keys()].map((step) => (step * 73) % states.length);
          const differs = (step) => trace.at(step).tokens.some((token, cell) => token !== states[step][cell]);
          const wrong = order.filter(differs);
          return [trace.kept.length, wrong];
        }""",
        [events, [[*itertools.chain(*state)] for state in trace.replay(events)]],
    )
    assert 4 <= many <= 9 and wrong == []


def test_labels_of_an_axis_and_a_prompt_that_is_a_sign(site: str, show: Open) -> None:
    page = show(site, wait="() => window.views")
    scaled = page.evaluate("""async () => {
      const { scaled } = await import("/draw.js");
      return [0.0001, 0.0074, 0.013, 6.2].map((most) => scaled(most, 4, "bits"));
    }""")
    assert [unit for _, unit in scaled] == ["10⁻⁴ bits", "10⁻³ bits", "bits", "bits"]
    assert [label for _, label in scaled[0][0]] == ["0", "0.25", "0.5", "0.75", "1"]
    assert all(len(label) <= 5 for labels, _ in scaled for _, label in labels)
    assert all(len({label for _, label in labels}) == len(labels) for labels, _ in scaled)
    said = page.evaluate("""async () => {
      const { shell } = await import("/words.js");
      const model = { id: "text", unmask: { device: "cpu" } };
      return ["-", "-x", ""].map((prompt) => shell({ kind: "text", prompt }, model, { length: 2 }));
    }""")
    command = "unmask generate --model text --recipe none --length 2 --"
    assert said == [f"printf %s - | {command} -", f"{command} -x", f"{command} ''"]


def test_two_outcomes_are_compared_by_what_was_chosen_by(site: str, show: Open) -> None:
    page = show(site, wait="() => window.views")
    said = page.evaluate(
        """async (pairs) => {
      const { versus } = await import("/versus.js");
      const one = ([choice, entropy, surprise, likelihood, right, text]) =>
        ({ choice, figures: { entropy, surprise, likelihood }, right, text, evaluations: 1234 });
      return pairs.map((pair) => versus(...pair.map(one)));
    }""",
        [
            [["surprise", 2.0, 0.25, -3.0, True, "a"], [None, 1.0, 0.5, -4.0, False, "b"]],
            [["likelihood", 2.0, 0.25, -3.0, None, "a"], ["likelihood", 1.0, 0.5, -4.0, None, "a"]],
            [["surprise", 2.0, 0.25, -3.0, False, "a"], ["entropy", 1.0, 0.5, -4.0, False, "b"]],
            [["vote", 2.0, None, -3.0, True, "a"], [None, 2.0, None, -4.0, True, "b"]],
        ],
    )
    cost = "Evaluations: A 1,234, B 1,234."
    surprise = "Recipe A has the lower surprise, which A chose by: 0.250 against 0.500 nats a position."
    assert said == [
        f"Recipe A solves it, B does not. {surprise} {cost}",
        "Recipe A has the higher log-probability, which A and B chose by: -3.000 against -4.000 nats. "
        f"{cost} Both give the same answer.",
        f"Neither solves it. {surprise} Recipe B has the lower path entropy, which B chose by: "
        f"1.000 against 2.000 bits. {cost}",
        f"Both solve it. A chose by vote. Both have the same path entropy: 2.000 bits. {cost}",
    ]


def test_a_copied_command_holds_no_control_characters(site: str, show: Open) -> None:
    page = show(site, wait="() => window.views")
    prompts = ["Vienna\x03\necho PWNED\n", "it's \\n\t\x7f\x1b[31m \x85", "two\nlines", "plain 'words' \\"]
    said = page.evaluate(
        """async (prompts) => {
      const { python, shell } = await import("/words.js");
      const model = { id: "text", unmask: { device: "cpu" } };
      return prompts.map((prompt) => [shell, python].map((how) => how({ kind: "text", prompt }, model, {})));
    }""",
        prompts,
    )
    for prompt, (command, code) in zip(prompts, said, strict=True):
        assert command.isprintable() and code.replace("\n", "").isprintable()
        words = command.replace("unmask", "printf '%s\\0'", 1)
        env = {"LC_ALL": "C.UTF-8", "PATH": "/usr/bin:/bin"}
        found = subprocess.run(["bash", "-c", words], capture_output=True, check=True, env=env).stdout
        assert found.decode().split("\0")[-2] == prompt
        call = next(node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call) and len(node.args) == 2)
        assert ast.literal_eval(call.args[1]) == prompt


def test_events_one_at_a_time_in_two_views(board: list[Event], prose: list[Event], site: str, show: Open) -> None:
    page = show(site, wait="() => window.views")
    for number in range(max(len(board), len(prose))):
        for place, events in enumerate((board, prose)):
            if number < len(events):
                page.evaluate("([place, event]) => views[place].add(event)", [place, events[number]])
        if number == 4:
            settle(page)
            assert page.evaluate("views.map((view) => view.step)") == [4, 4]  # they follow
            page.evaluate("views[0].go(2)")
    settle(page)
    assert page.evaluate("views.map((view) => view.step)") == [2, len(prose) - 2]  # who looks back is left alone
    for place, events in enumerate((board, prose)):
        found = page.evaluate("(place) => [...views[place].trace.last.tokens]", place)
        assert found == [*itertools.chain(*list(trace.replay(events))[-1])]
    assert page.locator("#a tr.chosen").count() == page.locator("#b tr.chosen").count() == 1
    page.evaluate("(events) => { views[0].addAll(events); views[1].remove(); }", prose)  # another walk, and no more
    settle(page)
    assert page.locator("#a h2.model").text_content() == "text" and page.locator("#b canvas").count() == 0
    assert page.locator("#a .both.board").count() == 0
