"""The picture of a training: well-formed, all of it on the page, whatever the log holds."""

from __future__ import annotations

import json
import math
from xml.etree import ElementTree

import pytest

from unmask.evaluate.rows import to_json
from unmask.train.log import LOG, draw, read_log, smooth

SVG = "{http://www.w3.org/2000/svg}"


def step(number, loss):
    return {"event": "step", "step": number, "seconds": 1.0, "loss": loss, "rate": 0.1}


def check(number, **figures):
    return {"event": "validation", "step": number, "seconds": 1.0, **figures}


def picture(events, path):
    """The texts of a picture, and its curves as points that all lie on the page."""
    draw(events, path / "loss.svg")
    root = ElementTree.parse(path / "loss.svg").getroot()
    wide, high = float(root.get("width")), float(root.get("height"))
    curves = []
    for line in root.iter(f"{SVG}polyline"):
        curves.append([tuple(map(float, point.split(","))) for point in line.get("points").split()])
        assert all(0 <= x <= wide and 0 <= y <= high for x, y in curves[-1])
    return [text.text.strip() for text in root.iter(f"{SVG}text")], curves


def test_both_panels(tmp_path):
    events = [{"event": "start", "step": 0}, *(step(n, 4 - n / 100) for n in range(1, 200))]
    events += [check(100, solved_28=0.25, solved_25=0.1), check(199, solved_28=0.75, solved_25=0.5)]
    texts, curves = picture(events, tmp_path)
    assert {"loss, nats a token", "validation", "each logged step", "smoothed", "solved_28", "solved_25"} <= set(texts)
    loss, smoothed, one, two = curves
    assert len(loss) == len(smoothed) == 199 and len(one) == len(two) == 2
    assert loss[10][1] < loss[-1][1]  # it falls: down is a larger y
    assert all(a[1] >= b[1] for a, b in zip(loss, smoothed, strict=True))  # the average is behind
    assert one[0][1] > one[1][1] and two[0][1] > one[0][1]
    assert min(y for _, y in one) > max(y for _, y in loss)  # the second panel is below
    assert one[0][0] == pytest.approx((one[1][0] - 60) * 100 / 199 + 60, abs=0.1)


@pytest.mark.parametrize(
    ("events", "panels"),
    [
        ([], 1),
        ([step(1, 2.0)], 1),
        ([step(1, 2.0), step(2, 2.0)], 1),
        ([step(1, 2.0), check(1)], 1),
        ([step(1, 2.0), check(1, solved=0.0)], 2),
        ([check(0, solved=1.0)], 2),
        ([step(1, 2.0), check(1, bits=2.0), check(2, bits=2.0)], 2),
        ([step(1, 2.0), check(1, bits=2.0, low=None), check(2, bits=2.0, low=None)], 2),
        ([step(1, math.nan), step(2, 3.0), check(2, bits=math.inf, other=1.0)], 2),
        ([step(1, 2.0), check(1), check(2, bits=2.0)], 2),
        ([step(1, 1e30), step(2, -1e30), check(2, bits=1e-30)], 2),
        ([step(1, 2.0), check(1, **{'<a> & "b"': 1.0})], 2),
    ],
)
def test_little_to_show(events, panels, tmp_path):
    texts, curves = picture(events, tmp_path)
    assert len(curves) >= 2 and ("validation" in texts) == (panels == 2)
    assert "nan" not in " ".join(texts)


def test_a_single_figure_is_a_point(tmp_path):
    picture([step(1, 2.0), step(2, 1.0), check(2, bits=2.0, other=None)], tmp_path)
    points = list(ElementTree.parse(tmp_path / "loss.svg").getroot().iter(f"{SVG}circle"))
    assert len(points) == 1  # of the validation: the loss has a line
    assert float(points[0].get("cx")) == 720 and 340 < float(points[0].get("cy")) < 680


def test_smoothing():
    assert smooth([]) == [] and smooth([(1, 5.0)]) == [(1, 5.0)]
    assert smooth([(x, 3.0) for x in range(9)]) == [(x, 3.0) for x in range(9)]
    late = smooth([*((x, 0.0) for x in range(50)), (50, 1.0)], 0.2)
    assert late[-1] == (50, pytest.approx(0.2)) and late[:-1] == [(x, 0.0) for x in range(50)]
    assert 0.2 < smooth([(0, 0.0), (1, 1.0)], 0.2)[1][1] < 1  # soon away from where it began


def test_a_log_that_was_cut_off(tmp_path):
    lines = [json.dumps(step(n, 1.0)) for n in (1, 2, 3)]
    (tmp_path / LOG).write_text("\n".join(lines)[:-7])
    assert read_log(tmp_path) == [step(1, 1.0), step(2, 1.0)]


STRANGE = [
    b"\xff\xfe\x00",
    b'{"event": "step", "step": 1, "loss": "\xe9"}',
    b"[1, 2]",
    b"3",
    b"null",
    b"[" * 100_000,
    b"{}",
    b'{"event": "step"}',
    b'{"step": 3}',
    b'{"event": "start", "step": null}',
]


def as_line(event):
    return json.dumps(to_json(event), allow_nan=False) + "\n"


@pytest.mark.parametrize("strange", STRANGE)
def test_lines_that_hold_no_event_are_left_out(tmp_path, strange):
    (tmp_path / LOG).write_bytes(as_line(step(1, 1.0)).encode() + strange + b"\n" + as_line(step(2, 2.0)).encode())
    assert read_log(tmp_path) == [step(1, 1.0), step(2, 2.0)]


def test_a_figure_that_is_no_number_is_null(tmp_path):
    (tmp_path / LOG).write_text("".join(map(as_line, [step(1, math.nan), step(2, 2.0), check(2, bits=math.inf)])))
    assert "NaN" not in (tmp_path / LOG).read_text()
    found = read_log(tmp_path)
    assert found == [step(1, None), step(2, 2.0), check(2, bits=None)]
    assert len(picture(found, tmp_path)[1][0]) == 1


def test_events_of_others_are_not_drawn(tmp_path):
    events = [{"event": "step", "step": 1}, {"event": "step", "step": 2, "loss": "low"}, step(3, 1.0)]
    assert len(picture([*events, check(3, bits=[1])], tmp_path)[1][0]) == 1
