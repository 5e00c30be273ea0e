"""The bound on the `table` model, whose joint is known: enumerated it is log p, by Monte Carlo it is on average."""

from __future__ import annotations

import math
from itertools import permutations

import pytest
import torch

from unmask import Recipe, Table, decode, load
from unmask.decoding.likelihood import Piece, Question, greedy, masks, score, windows
from unmask.decoding.prompt import Canvas, start
from unmask.models.wrap import Counted, Guided


def bound(model, question, draws=128, together=32):
    ((place, found),) = score(model, [question], draws, together)
    assert place == 0
    return found


def random_table(letters=3, length=8):
    generator = torch.Generator().manual_seed(5)
    joint = torch.rand((letters,) * length, generator=generator, dtype=torch.float64) ** 4 + 1e-4
    return Table(joint / joint.sum())


@pytest.fixture(scope="module")
def table():
    return load("table")


# --- against the exact joint -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("known", range(6))
def test_all_masks_together_are_the_log_probability(table, known):
    ids = table.tokenizer.encode("senate")
    exact = table.log_probability(ids) - (table.log_probability(ids[:known]) if known else 0)
    found = bound(table, Question([Piece(ids[:known], ids[known:])], 0))
    assert found.value == pytest.approx(exact, abs=1e-12)
    assert found.exact
    assert found.evaluations == 2 ** (6 - known) - 1


def test_monte_carlo_has_the_log_probability_as_its_mean():
    model = random_table()
    ids = [0, 2, 1, 1, 0, 2, 2, 1]
    values = torch.tensor([bound(model, Question([Piece(ids[:1], ids[1:])], key), 16).value for key in range(300)])
    exact = model.log_probability(ids) - model.log_probability(ids[:1])
    error = float(values.double().std() / math.sqrt(len(values)))
    assert abs(float(values.double().mean()) - exact) < 4 * error
    assert error < 0.05 * abs(exact)  # and it is an estimate worth having


def test_the_bound_is_the_mean_over_all_orders():
    """Of a network whose conditionals belong to no distribution: decide the tokens in any order, one at a time."""
    model = load("random", dtype="float64")
    given, target = model.tokenizer.encode("once"), model.tokenizer.encode(" upo")

    def log(known: frozenset[int], place: int) -> float:
        """The log-probability of one token of the target, given these of the others."""
        tokens = [token if i in known else model.vocab.mask for i, token in enumerate(target)]
        canvas = Canvas([*given, *tokens], len(given))
        state = start(model, [canvas], [0], Recipe().build_sampler(), 1)
        hidden, _ = model.look(state, torch.arange(1))
        return float(model.head.logits(hidden[:, len(given) + place]).log_softmax(1)[0, target[place]])

    paths = [
        sum(log(frozenset(order[:step]), place) for step, place in enumerate(order)) for order in permutations(range(4))
    ]
    found = bound(model, Question([Piece(given, target)], 0))
    assert found.value == pytest.approx(sum(paths) / len(paths))
    assert max(paths) - min(paths) > 0.01  # the order matters to it


def test_a_model_that_knows_nothing_is_never_wrong_about_it():
    """Every draw of a uniform model is n/k times k log V: no mask adds noise."""
    model = Table(torch.full((4,) * 7, 4.0**-7, dtype=torch.float64))
    found = bound(model, Question([Piece([], [0, 1, 2, 3, 0, 1, 2])], 9), draws=20)
    assert found.value == pytest.approx(-7 * math.log(4))
    assert found.path_entropy == pytest.approx(2)  # bits
    assert not found.exact and 10 < found.evaluations <= 20


def test_the_path_entropy_is_the_mean_over_all_paths(table):
    """All orders, one position a step: the mean of the state entropies of their inputs."""
    ids = table.tokenizer.encode("tsetse")[:3]
    entropies: list[list[float]] = [[], [], []]
    for hidden in range(1, 8):
        canvas = [table.vocab.mask if hidden >> i & 1 else token for i, token in enumerate(ids)]
        path = decode(table, canvas=canvas, recipe=Recipe(steps=1)).best
        entropies[hidden.bit_count() - 1].append(path.path_entropy)
    expected = sum(sum(values) / len(values) for values in entropies) / 3
    assert bound(table, Question([Piece([], ids)], 0)).path_entropy == pytest.approx(expected)


# --- masks -----------------------------------------------------------------------------------------------------------


def test_every_number_of_masks_comes_equally_often():
    hidden, weight = masks(10, 200, key=3)
    many = hidden.sum(1)
    share = weight * many / 10
    assert torch.bincount(many, share).tolist() == pytest.approx([0, *[0.1] * 10])
    assert (share[:, None] * hidden).sum(0).sub(0.55).abs().max() < 0.12  # each position alike
    assert 100 < len({tuple(row.tolist()) for row in hidden}) == len(hidden) <= 200  # none is asked twice
    assert weight[many == 10].tolist() == pytest.approx([0.1])


def test_masks_follow_the_key_and_nothing_else():
    torch.manual_seed(1)
    one = masks(30, 16, key=-7)
    torch.manual_seed(2)
    assert torch.equal(one[0], masks(30, 16, key=-7)[0])
    assert not torch.equal(one[0], masks(30, 16, key=-6)[0])
    assert not torch.equal(one[0], masks(30, 16, key=-7, first=16)[0])
    assert masks(30, 16, key=2**63 + 5)[0].any(1).all()  # any integer


@pytest.mark.parametrize(("count", "draws", "rows"), [(1, 1, 1), (1, 128, 1), (7, 128, 127), (2, 3, 3)])
def test_masks_are_enumerated_where_that_is_no_more_work(count, draws, rows):
    assert len(masks(count, draws, 0)[0]) == rows


# --- windows ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("context", "target"), [(0, 25), (3, 25), (9, 11), (40, 30), (4, 6), (30, 10), (5, 1), (8, 0)])
@pytest.mark.parametrize("limit", [10, 11, None])
def test_windows_score_every_token_once(context, target, limit):
    ids = list(range(context + target))
    pieces = windows(ids[:context], ids[context:], limit)
    assert [token for piece in pieces for token in piece.target] == ids[context:]
    for piece in pieces:
        whole = [*piece.given, *piece.target]
        assert whole == ids[whole[0] : whole[-1] + 1]  # what is given is what stands before
        assert limit is None or len(whole) <= limit
    if limit is None or target <= limit:
        assert len(pieces) == (target > 0)
    else:
        assert all(len(piece.given) >= limit // 2 - 1 for piece in pieces[1:])


def test_pieces_add_up_by_the_chain_rule(table):
    ids = table.tokenizer.encode("senate")
    whole = bound(table, Question([Piece([], ids)], 0))
    parts = bound(table, Question([Piece([], ids[:2]), Piece(ids[:2], ids[2:])], 0))
    assert parts.value == pytest.approx(whole.value)
    assert parts.evaluations == 3 + 15


# --- batches ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["table", "random"])
def test_alone_and_in_a_batch_are_the_same(name):
    model = load(name, dtype="float64")
    words = ["senate", "tan", "e", "nearer", "teaser"]
    ids = [model.tokenizer.encode(word) for word in words]
    questions = [Question([Piece(i[: n % 3], i[n % 3 :])] if i[n % 3 :] else [], n) for n, i in enumerate(ids)]
    alone = [bound(model, question, 20, 1) for question in questions]
    for together in (3, 64):
        counted = Counted(model)
        found = dict(score(counted, questions, 20, together))
        for place, one in enumerate(alone):
            assert found[place].value == pytest.approx(one.value, abs=1e-9)
            assert found[place].evaluations == one.evaluations
        assert counted.count.rows == sum(one.evaluations for one in alone)


def test_nothing_is_certain(table):
    found = bound(table, Question([], 0))
    assert (found.value, found.evaluations) == (0, 0)


def test_guidance_counts_twice_and_changes_the_numbers(table):
    ids = table.tokenizer.encode("senate")
    question = Question([Piece(ids[:3], ids[3:])], 0)
    plain, guided = bound(table, question), bound(Guided(table, 1.0), question)
    assert guided.evaluations == 2 * plain.evaluations
    assert guided.value != pytest.approx(plain.value)


# --- greedy ----------------------------------------------------------------------------------------------------------


def test_greedy_is_what_confidence_order_decodes(table):
    given = table.tokenizer.encode("str")
    best = decode(table, "str", recipe=Recipe(length=3)).tokens[3:]
    other = table.tokenizer.encode("ant")
    assert greedy(table, [Piece(given, best), Piece(given, other), Piece([], best)]) == [
        (True, 3),
        (False, 3),
        (False, 3),
    ]
