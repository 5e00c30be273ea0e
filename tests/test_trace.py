"""Events by hand: replay, lineages and ancestry; and the fields that a real walk writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from unmask import Recipe, Table, UnmaskError, decode, decode_batch, load
from unmask.decoding import trace
from unmask.report.page import pack
from unmask.search.choosers import CHOOSERS

M = 9
# One prompt, two particles. Step 1 resamples: both rows come from row 1.
EVENTS: list[trace.Event] = [
    {"event": "start", "version": 1, "particles": 2, "canvases": [[5, M, M]], "mask": M},
    {"event": "step", "step": 0, "h": [1.0, 1.0], "changes": [[0, 1, 2, 0.5], [1, 2, 3, 0.25]]},
    {"event": "step", "step": 1, "h": [0.8, 0.4], "ancestors": [1, 1], "changes": [[0, 1, 7, 0.1], [1, 1, 8, 0.1]]},
    {"event": "end"},
]


def test_replay_by_hand() -> None:
    assert list(trace.replay(EVENTS)) == [
        [[5, M, M], [5, M, M]],
        [[5, 2, M], [5, M, 3]],
        [[5, 7, 3], [5, 8, 3]],
    ]


def test_replay_hands_out_its_own_lists() -> None:
    for rows in trace.replay(EVENTS):
        rows[0][0] = 77
        rows.append([])
    assert list(trace.replay(EVENTS))[-1] == [[5, 7, 3], [5, 8, 3]]
    assert EVENTS[0]["canvases"] == [[5, M, M]]


def test_lineages_follow_the_ancestors() -> None:
    assert trace.lineages(EVENTS) == [[1.0, 0.4], [1.0, 0.4]]
    assert trace.ancestry(EVENTS) == [[1, 0], [1, 1]]


def test_replay_of_a_beginning() -> None:
    assert list(trace.replay(EVENTS[:2])) == [[[5, M, M], [5, M, M]], [[5, 2, M], [5, M, 3]]]
    assert trace.lineages(EVENTS[:2]) == [[1.0], [1.0]]
    assert trace.ancestry(EVENTS[:1]) == [[0], [1]]


def test_numbers_that_are_no_json() -> None:
    assert trace.numbers(torch.tensor([1.5, torch.nan, torch.inf, -torch.inf])) == [1.5, None, None, None]


@pytest.fixture(scope="module")
def model() -> Table:
    generator = torch.Generator().manual_seed(3)
    return Table(torch.rand((3,) * 5, generator=generator, dtype=torch.float64) + 0.05, eos=(2,))


RECIPE = Recipe(sampler="uniform", search="smc", particles=3, every=1, temperature=1.0)


def test_every_event_is_plain_json(model: Table, tmp_path: Path) -> None:
    path, seen = tmp_path / "walk.jsonl", list[trace.Event]()
    decode_batch(model, canvases=[[0, 3, 3], [3] * 5], recipe=RECIPE, trace=path, on_event=seen.append)
    lines = path.read_text(encoding="utf-8").splitlines()
    strict: Any = {"parse_constant": lambda name: pytest.fail(f"{name} is no JSON")}
    assert [json.loads(line, **strict) for line in lines] == json.loads(json.dumps(seen)) == trace.load(path)


def test_what_the_events_say(model: Table) -> None:
    seen = list[trace.Event]()
    results = decode_batch(model, canvases=[[0, 3, 3], [3] * 5], recipe=RECIPE, seeds=[4, 9], on_event=seen.append)
    start, *steps, end = seen
    assert start["event"] == "start" and start["version"] == trace.VERSION
    assert start["model"] == "table" and start["mask"] == 3 and start["particles"] == 3
    assert start["seeds"] == [4, 9] and start["canvases"] == [[0, 3, 3], [3] * 5] and start["given"] == [0, 0]
    assert Recipe.from_dict(start["recipe"]) == RECIPE
    assert [event["step"] for event in steps] == list(range(5)) and "ancestors" not in steps[0]
    for event in steps[1:]:
        assert len(event["ancestors"]) == len(event["h"]) == 6
        assert len(event["ess"]) == len(event["strength"]) == len(event["log_evidence"]) == len(event["lineages"]) == 2
    assert steps[3]["h"][:3] == [None] * 3 and steps[3]["ess"][0] is None  # the first prompt is done
    assert end["chosen"] == [result.chosen for result in results]
    assert end["path_entropy"] == [p.path_entropy for result in results for p in result.particles]
    assert end["lineages"] == [result.lineages for result in results]
    assert end["log_evidence"] == [result.log_evidence for result in results]
    for prompt, result in enumerate(results):
        grown = sum(event["log_evidence"][prompt] or 0.0 for event in steps[1:])
        assert result.log_evidence == pytest.approx(grown, abs=1e-12)


@pytest.mark.parametrize(
    "settings",
    [{"search": "vote"}, *({"search": "best-of-n", "choose": name} for name in CHOOSERS)],
    ids=lambda settings: settings.get("choose", settings["search"]),
)
def test_the_end_says_what_the_search_went_by(model: Table, settings: dict[str, Any]) -> None:
    seen = list[trace.Event]()
    recipe = Recipe(sampler="uniform", steps=2, temperature=1.0, particles=4, **settings)
    more = {"reward": len} if settings.get("choose") == "reward" else {}
    results = decode_batch(model, canvases=[[3] * 5, [0, 3, 3]], recipe=recipe, on_event=seen.append, **more)
    end = seen[-1]
    named = settings.get("choose", "vote")
    assert end["choose"] == ("surprise" if named == "auto" else named)  # this sampler has a plan
    assert end["log_prob"] == [one.log_prob for result in results for one in result.particles]
    if end["choose"] == "likelihood":
        for place, chosen in enumerate(end["chosen"]):
            mine = end["log_prob"][4 * place : 4 * place + 4]
            assert mine[chosen] == max(mine)
    kept = pack(json.loads(json.dumps(seen)))[-1]
    assert kept["choose"] == end["choose"] and kept["log_prob"] == pytest.approx(end["log_prob"], rel=1e-4)


def test_columns_count_from_the_first_real_token(model: Table) -> None:
    """The same changes, alone or beside a longer canvas that pads it."""
    alone, beside = list[trace.Event](), list[trace.Event]()
    decode(model, canvas=[0, 3, 3], recipe=RECIPE.replace(seed=4), on_event=alone.append)
    decode_batch(model, canvases=[[0, 3, 3], [3] * 5], recipe=RECIPE, seeds=[4, 9], on_event=beside.append)
    for one, both in zip(alone[1:3], beside[1:3], strict=True):
        mine = [change for change in both["changes"] if change[0] < 3]
        assert [change[:3] for change in one["changes"]] == [change[:3] for change in mine]
        assert [change[3] for change in one["changes"]] == pytest.approx([change[3] for change in mine])
        assert {change[1] for change in mine} <= {1, 2}


def test_a_prompt_says_where_its_text_begins(model: Table) -> None:
    seen = list[trace.Event]()
    result = decode(model, [0, 1], recipe=Recipe(length=3), on_event=seen.append)
    assert seen[0]["given"] == [2] and seen[0]["canvases"] == [[0, 1, 3, 3, 3]]
    assert seen[-1]["texts"] == [result.text]


def test_a_trace_of_another_version(tmp_path: Path) -> None:
    path = tmp_path / "walk.jsonl"
    path.write_text(json.dumps({**EVENTS[0], "version": 2}) + "\n")
    with pytest.raises(Exception, match="trace version 2"):
        trace.load(path)


# --- the events of a batch, for each of its prompts ------------------------------------------------------------------


def rounded(value: Any) -> Any:
    """Numbers to twelve digits, wherever they are."""
    if isinstance(value, dict):
        return {name: rounded(one) for name, one in value.items()}
    if isinstance(value, list):
        return [rounded(one) for one in value]
    return float(f"{value:.12g}") if isinstance(value, float) else value


@pytest.mark.parametrize(
    "settings",
    [
        {"sampler": "uniform", "search": "smc", "particles": 4, "every": 1},
        {"sampler": "confidence", "search": "beam", "beams": 2, "candidates": 2, "every": 1},
        {"sampler": "eb", "bound": 0.5},
        {"sampler": "p2", "steps": 5},
    ],
    ids=lambda settings: settings["sampler"],
)
def test_parts_of_a_batch_are_the_events_alone(settings: dict[str, Any]) -> None:
    model, recipe = load("table"), Recipe(temperature=1.0, **settings)
    canvases, seeds = ["t[MASK*4]t", "[MASK]e[MASK*2]", "[MASK*6]"], [5, 6, 9]

    def events(places: list[int]) -> list[list[trace.Event]]:
        found: list[list[trace.Event]] = [[] for _ in places]
        parts = trace.Parts()

        def watch(event: trace.Event) -> None:
            for mine, part in zip(found, parts(event), strict=True):
                if part is not None:  # times differ, and a batch is asked together
                    mine.append({name: part[name] for name in part if name not in ("seconds", "calls")})

        given, keys = [canvases[place] for place in places], [seeds[place] for place in places]
        decode_batch(model, canvases=given, recipe=recipe, seeds=keys, on_event=watch, logprobs=2)
        return found

    together = events([0, 1, 2])
    alone = [events([place])[0] for place in (0, 1, 2)]
    assert rounded(together) == rounded(alone)  # a sum over a wider canvas may differ in its last bit
    for mine in together:
        assert len(list(trace.replay(mine))) == len(mine) - 1


def test_log_probabilities_are_those_of_the_exact_distribution() -> None:
    """Of a known joint distribution, one token at a time from the left: the chain rule."""
    model, events = load("table"), []
    recipe = Recipe(sampler="uniform", block_length=1, temperature=1.0, length=6, seed=3)
    result = decode_batch(model, [""], recipe=recipe, on_event=events.append, logprobs=3)[0]
    steps = [event for event in events if event["event"] == "step"]
    logs = [log for event in steps for log, _ in event["logprobs"]]
    joint = model.joint
    assert sum(logs) == pytest.approx(float((joint / joint.sum())[tuple(result.tokens)].log()), abs=1e-5)
    for event in steps:
        for (_, _, token, _), (log, most) in zip(event["changes"], event["logprobs"], strict=True):
            assert [p for _, p in most] == sorted((p for _, p in most), reverse=True)
            assert len(most) <= 3 and dict(most).get(token, log) == log
    tokens = decode(model, "", recipe=recipe, logprobs=3).logprobs
    assert [one.token for one in tokens or []] == result.tokens
    assert [(one.log_prob, one.entropy, one.step) for one in tokens or []] == [
        (log, event["changes"][0][3], event["step"]) for event, log in zip(steps, logs, strict=True)
    ]
    assert decode(model, "", recipe=recipe).logprobs is None


def test_a_trace_that_was_cut_is_read_as_far_as_it_goes(tmp_path):
    """As of a decode that was killed."""
    path, seen = tmp_path / "path.jsonl", []

    def watch(event):
        seen.append(event)
        assert len(path.read_text().splitlines()) == len(seen)  # an event is in the file before anybody hears of it

    decode(load("table"), recipe=Recipe(length=4), trace=path, on_event=watch)
    whole = trace.load(path)
    text = path.read_text()
    path.write_text(text[: text.rindex("{", 0, -1) + 20])
    assert trace.load(path) == whole[:-1]
    path.write_text("[" * 100_000)
    with pytest.raises(UnmaskError, match="is not a trace"):
        trace.load(path)


def test_watch_is_the_former_name_of_on_event() -> None:
    seen: list[trace.Event] = []
    with pytest.warns(DeprecationWarning, match="watch is now called on_event"):
        decode(load("table"), recipe=Recipe(length=4), watch=seen.append)
    assert [seen[0]["event"], seen[-1]["event"]] == ["start", "end"]


def test_canvases_count_masks_and_keep_log_probabilities() -> None:
    canvases = trace.Canvases()
    canvases.apply(EVENTS[0])
    assert canvases.masked == 4
    canvases.apply({**EVENTS[1], "logprobs": [[-0.5, []], [-0.25, []]]})
    assert canvases.masked == 2 and canvases.logprobs == [{1: [-0.5, []]}, {2: [-0.25, []]}]
    canvases.apply(EVENTS[2])
    assert canvases.masked == 0 and [*canvases.logprobs[0]] == [2]  # with the tokens of its ancestor
    canvases.apply(EVENTS[3])
    assert canvases.rows == [[5, 7, 3], [5, 8, 3]]


@pytest.mark.parametrize(
    ("place", "field", "value"),
    [
        (1, "ancestors", None),
        (1, "ancestors", 5),
        (1, "ancestors", [9, 9, 9]),
        (1, "changes", [[7, 0, 1, 0.0]]),
        (1, "changes", {"a": 1}),
        (1, "h", None),
        (0, "particles", 2**40),
        (0, "particles", "3"),
        (0, "canvases", []),
    ],
)
def test_events_that_do_not_fit_together_are_told_in_one_line(place: int, field: str, value: Any) -> None:
    seen: list[trace.Event] = []
    decode(load("table"), "s", length=4, temperature=1.0, search="smc", particles=3, every=1, on_event=seen.append)
    seen[place] = {**seen[place], field: value}
    errors: list[UnmaskError] = []
    for read in (lambda: list(trace.replay(seen)), lambda: trace.lineages(seen), lambda: trace.ancestry(seen)):
        try:
            read()
        except UnmaskError as error:  # not each of them reads every field
            errors.append(error)
    assert errors and "\n" not in "".join(map(str, errors))
