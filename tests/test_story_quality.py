"""The figures of stories: the rule for empty and repeating texts, and what is printed for each number of steps."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "experiments"))
from story_quality import is_empty, is_repeating, main, words_of

STORY = (
    'Once upon a time, there was a cat. The cat said, "I want to play." A dog came to the house and they ran to the '
    "big tree. The cat was happy, and the dog was happy too. Then it rained, so both of them went home to sleep."
)


def test_the_rule():
    assert not is_empty(STORY) and not is_repeating(STORY)
    assert is_empty("") and is_empty("Once upon a time, there was - a cat ...")  # seven words
    assert not is_empty("one two three four five six seven eight nine ten")
    assert is_repeating("of the Church " * 30)
    assert is_repeating(" ".join(f"{n} we went to the sea" for n in range(5)))
    assert not is_repeating(" ".join(f"{n} {n}a {n}b {n}c we went to the sea" for n in range(4)))
    assert is_repeating("a b c " * 6 + "some more words that are all new here")
    assert words_of('He said, "No!" -- and (then) left.') == ["he", "said", "no", "and", "then", "left"]


def write(path: Path, rows: list[dict]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def test_figures_by_steps(tmp_path, monkeypatch, capsys):
    samples, rows = [], []
    for number in range(40):
        steps, entropy = (64, 256)[number % 2], number / 10
        about = {"steps": steps, "path_entropy": entropy, "finish": "end" if number % 4 < 2 else "length"}
        samples.append({"text": STORY if number else "", **about})
        if number:  # an empty text is not judged
            rows.append({**about, "ln_ppl": (2 if steps == 64 else 1) + entropy, "even": entropy, "odd": entropy})
    source = [{"ln_ppl": value} for value in (0.9, 1.0, 1.1)]
    files = [write(tmp_path / f"{name}.jsonl", some) for name, some in (("s", samples), ("r", rows), ("o", source))]
    monkeypatch.setattr(sys, "argv", ["", files[0], "--rows", f"exact={files[1]}", "--source", f"exact={files[2]}"])
    main()
    few, many = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert (few["steps"], few["n"], few["empty"]["count"], few["ended"]["mean"]) == (64, 20, 1, 0.5)
    assert (many["steps"], many["n"], many["flagged"]["count"], many["exact"]["n"]) == (256, 20, 0, 20)
    for found in (few, many):
        assert found["exact"]["pearson"]["mean"] == found["exact"]["spearman"]["mean"] == 1
        gap = found["exact"]["above_source"]
        assert gap["mean"] == pytest.approx(found["exact"]["ln_ppl"]["mean"] - 1, abs=2e-4)
        assert gap["low"] < gap["mean"] < gap["high"]
    own = many["exact"]["ln_ppl"]
    assert many["exact"]["above_source"]["high"] - many["exact"]["above_source"]["low"] > own["high"] - own["low"]
