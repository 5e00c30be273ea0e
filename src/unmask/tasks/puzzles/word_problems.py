"""Random numbers -> word problems with their worked steps: who has how many, in sentences that need each other.

A `Scene` is the structure of a problem: amounts, events and a question, about owners by number. `told` puts it into
words. Its `key` does not depend on the words or the order of the sentences, and one key in 64 is never trained on.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from random import Random
from typing import Literal, NamedTuple

from unmask.tasks.puzzles.wordings import (
    BOXES,
    COLOURS,
    CONTAINERS,
    GOODS,
    NAMES,
    PEOPLE,
    PLAIN_NAMES,
    PLAIN_THINGS,
    THINGS,
    TIMES,
    Wordings,
)

Form = Literal["plain", "any"]
FEWEST, PLAIN_MOST, MOST = 2, 6, 8  # owners of a problem
LARGEST = 999  # of all amounts of rich problems
QUESTION, SOLUTION = 128, 128  # tokens of them, at most, the latter with an end of text
LONGEST = 230  # tokens of both together
RESERVED = 64  # one key in so many is kept for measuring


@dataclass(frozen=True)
class WordProblem:
    """A question, its worked steps, and the number that they end in."""

    question: str
    solution: str  # begins with a space: it continues the question
    answer: int
    key: int  # of the structure: the same for other names, things, wordings and orders of the sentences
    people: int  # whose amounts are told
    steps: int  # equations of the solution


class Fact(NamedTuple):
    """How the amount of an owner follows from the amounts of others."""

    relation: str  # has, more, fewer, times, half, sum, sum3
    number: int  # 0 where the relation has none
    sources: tuple[int, ...]


class Event(NamedTuple):
    """What happens afterwards: some change from one owner to another, or are lost or gained."""

    kind: str  # give, lose, gain
    number: int
    owner: int
    to: int  # the owner that they are given to; the owner itself otherwise


class Scene(NamedTuple):
    """The structure of a problem; owners are numbers in the order of `facts`."""

    facts: list[Fact]
    amounts: list[int]  # before the events
    events: list[Event]
    question: str  # one, sum, all, difference
    asked: tuple[int, ...]
    rich: bool


def word_problem(dice: Random, held: bool = False, form: Form = "any", people: int | None = None) -> WordProblem:
    """A problem for training, or, where `held`, a reserved one: of the plain form, or half of them richer."""
    while True:
        rich = form == "any" and ((people or 0) > PLAIN_MOST or dice.random() < 0.5)
        made = (rich_scene if rich else plain_scene)(dice, people)
        if made is None:
            continue
        number = key(made)
        if (number % RESERVED == 0) == held:
            problem = told(made, dice, number)
            if not rich or fits(problem):
                return problem


def fits(problem: WordProblem) -> bool:
    """Whether a canvas of 256 positions holds the question, the solution and an end."""
    question, solution = tokens(problem.question), tokens(problem.solution)
    return question <= QUESTION and solution < SOLUTION and question + solution <= LONGEST


def tokens(text: str) -> int:
    """About how many tokens a text has, if words, blanks before numbers, digits and marks are one each."""
    coded = text.encode()
    digits = len(coded) - len(coded.translate(None, b"0123456789"))
    return digits + 1 + sum(text.count(mark) for mark in " .,?")


# --- the structure ---------------------------------------------------------------------------------------------------


def _whole(dice: Random, least: int, most: int) -> int:
    """As `randint`, in a third of its time."""
    return least + int(dice.random() * (most - least + 1))


def plain_scene(dice: Random, people: int | None = None) -> Scene:
    """Two to six people: the first amount is told, the others follow from one or two people before."""
    count = people or _whole(dice, FEWEST, PLAIN_MOST)
    facts = [Fact("has", _whole(dice, 2, 30), ())]
    amounts = [facts[0].number]
    for owner in range(1, count):
        source = _whole(dice, max(0, owner - 2), owner - 1)
        amount, kind = amounts[source], int(dice.random() * 5)
        if kind == 1 and amount > 2:
            fact = Fact("fewer", _whole(dice, 1, min(20, amount - 1)), (source,))
        elif kind == 2 and amount < 60:
            fact = Fact("times", _whole(dice, 2, 4), (source,))
        elif kind == 3 and owner >= 2:
            fact = Fact("sum", 0, tuple(dice.sample(range(owner), 2)))
        else:
            fact = Fact("more", _whole(dice, 1, 20), (source,))
        facts.append(fact)
        amounts.append(_amount(fact, amounts))
    if dice.random() < 0.5 and count > 2:
        return Scene(facts, amounts, [], "sum", tuple(dice.sample(range(count), 2)), False)
    return Scene(facts, amounts, [], "one", (count - 1,), False)


def _amount(fact: Fact, amounts: list[int]) -> int:
    """What the owner of a fact has."""
    relation, number, sources = fact
    if relation == "has":
        return number
    if relation == "more":
        return amounts[sources[0]] + number
    if relation == "fewer":
        return amounts[sources[0]] - number
    if relation == "times":
        return amounts[sources[0]] * number
    if relation == "half":
        return amounts[sources[0]] // 2
    return sum(amounts[source] for source in sources)


_KINDS = [
    "has",
    "more",
    "more",
    "more",
    "fewer",
    "fewer",
    "fewer",
    "times",
    "times",
    "half",
    "half",
    "sum",
    "sum",
    "sum3",
]


def rich_scene(dice: Random, people: int | None = None) -> Scene | None:
    """Two to eight owners, all relations, some with events after; None where an amount came out too large."""
    count = people or _whole(dice, FEWEST, MOST)
    most = 30 if dice.random() < 0.7 else 120
    facts: list[Fact] = []
    amounts: list[int] = []
    for _ in range(count):
        fact = _rich_fact(dice, amounts, most)
        facts.append(fact)
        amounts.append(_amount(fact, amounts))
    events = []
    after = list(amounts)
    if dice.random() < 0.4:
        for _ in range(1 if count > 5 or dice.random() < 0.6 else 2):
            event = _event(dice, after, most)
            if event is not None:
                events.append(event)
                _happen(event, after)
    question, asked = _question(dice, facts, after, events)
    total = sum(after[owner] for owner in asked)
    if max(*amounts, *after) > LARGEST or (total > LARGEST and question != "difference"):
        return None
    return Scene(facts, amounts, events, question, asked, True)


def _rich_fact(dice: Random, amounts: list[int], most: int) -> Fact:
    """A relation to owners before that gives a whole amount, above 0 and not too large."""
    owner = len(amounts)
    kind = _KINDS[int(dice.random() * len(_KINDS))]
    if not owner or (kind == "has" and owner > 1):  # at least one amount has to be worked out
        return Fact("has", _whole(dice, 2, most), ())
    source = owner - 1 if dice.random() < 0.4 else int(dice.random() * owner)
    amount = amounts[source]
    if kind == "fewer" and amount > 3:
        return Fact("fewer", _whole(dice, 2, min(most, amount - 1)), (source,))
    if kind == "times" and amount <= 100:
        return Fact("times", _whole(dice, 2, 5), (source,))
    if kind == "half":
        even = [index for index, amount in enumerate(amounts) if amount % 2 == 0 and amount > 2]
        if even:
            return Fact("half", 2, (even[int(dice.random() * len(even))],))
    if kind in ("sum", "sum3"):
        terms = 2 if kind == "sum" else 3
        if owner >= terms and sum(sorted(amounts)[-terms:]) <= LARGEST // 2:
            return Fact(kind, 0, tuple(dice.sample(range(owner), terms)))
    return Fact("more", _whole(dice, 2, min(most, 60)), (source,))


def _event(dice: Random, amounts: list[int], most: int) -> Event | None:
    """Some are given, lost or gained; None where the owner has too few."""
    owner, other = dice.sample(range(len(amounts)), 2)
    kind = ("give", "give", "give", "lose", "gain")[int(dice.random() * 5)]
    if kind == "gain":
        return Event(kind, _whole(dice, 2, min(most, 50)), owner, owner)
    if amounts[owner] < 3:
        return None
    number = _whole(dice, 2, min(most, amounts[owner]))
    return Event(kind, number, owner, other if kind == "give" else owner)


def _happen(event: Event, amounts: list[int]) -> None:
    """The amounts after an event."""
    amounts[event.owner] += event.number if event.kind == "gain" else -event.number
    if event.kind == "give":
        amounts[event.to] += event.number


def _question(dice: Random, facts: list[Fact], after: list[int], events: list[Event]) -> tuple[str, tuple[int, ...]]:
    """What is asked, and of whom: of one owner only where the amount has to be worked out."""
    count, luck = len(facts), dice.random()
    if luck < 0.25:
        return "sum", tuple(dice.sample(range(count), 3 if count > 3 and luck < 0.06 else 2))
    if luck < 0.4:
        one, two = dice.sample(range(count), 2)
        if after[one] != after[two]:
            return "difference", (one, two) if after[one] > after[two] else (two, one)
    if luck < 0.5 and count <= 5:
        return "all", tuple(range(count))
    moved = [owner for event in events for owner in (event.owner, event.to)]
    if moved and dice.random() < 0.7:
        return "one", (moved[int(dice.random() * len(moved))],)
    worked = [owner for owner in range(count) if facts[owner].sources]
    return "one", (worked[-1] if dice.random() < 0.4 else worked[int(dice.random() * len(worked))],)


# --- the key ---------------------------------------------------------------------------------------------------------

_SIGNS = {"has": "", "more": "+", "fewer": "-", "times": "*", "half": "/", "sum": "&", "sum3": "&&"}


def key(scene: Scene) -> int:
    """A stable number for relations, numbers, events and question, whatever the names, words and order."""
    labels: list[str] = []  # of an owner: its amount as a formula in prefix notation, down to the amounts told
    for relation, number, sources in scene.facts:
        terms = sorted([labels[source] for source in sources]) if len(sources) > 1 else [labels[s] for s in sources]
        labels.append(" ".join([f"{_SIGNS[relation]}{number}", *terms]))
    events = sorted(f"{kind} {number} {labels[owner]}>{labels[to]}" for kind, number, owner, to in scene.events)
    question = "sum" if scene.question == "all" else scene.question
    asked = sorted(labels[owner] for owner in scene.asked)
    text = "|".join([*sorted(labels), "!", *events, "?", question, *asked])
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


# --- the words -------------------------------------------------------------------------------------------------------


class _Cast(NamedTuple):
    """Who and what a problem is about."""

    wordings: Wordings
    owners: list[str]
    thing: str
    others: list[str]  # people that do not matter
    things: list[str]  # things that do not matter


def told(scene: Scene, dice: Random, number: int | None = None) -> WordProblem:
    """A scene in words, with names, things, wordings and an order of the sentences of its own."""
    cast = _cast(scene, dice)
    order = _order(scene, dice)
    lines = [_fact(scene.facts[owner], owner, cast, dice, scene.rich) for owner in order]
    if scene.rich:
        for line in _beside(scene, cast, dice):
            lines.insert(int(dice.random() * (len(lines) + 1)), line)
    for kind, amount, owner, to in scene.events:
        line = _pick(cast.wordings.moves[kind], dice, True)
        lines.append(_sentence(line.format(a=cast.owners[owner], b=cast.owners[to], n=amount, t=cast.thing)))
    lines.append(_asked(scene, cast, dice))
    steps, answer = _worked(scene, order, cast)
    body = " ".join(steps)
    return WordProblem(
        " ".join(lines),
        f" {body} The answer is {answer}.",
        answer,
        key(scene) if number is None else number,
        len(scene.facts),
        body.count("="),
    )


def _cast(scene: Scene, dice: Random) -> _Cast:
    count = len(scene.facts)
    if not scene.rich:
        return _Cast(PEOPLE, dice.sample(PLAIN_NAMES, count), dice.choice(PLAIN_THINGS), [], [])
    names, things = dice.sample(NAMES, count + 2), dice.sample(THINGS, count + 2)
    luck = dice.random()
    if luck < 0.15 and count <= 6:
        box = dice.choice(BOXES)
        owners = [f"the {colour} {box}" for colour in dice.sample(COLOURS, count)]
        return _Cast(CONTAINERS, owners, things[0], names, things[1:3])
    if luck < 0.3 and all(event.kind in GOODS.moves for event in scene.events):
        return _Cast(GOODS, things[:count], "things", names, things[count:])
    return _Cast(PEOPLE, names[:count], things[0], names[count:], things[1:3])


def _order(scene: Scene, dice: Random) -> list[int]:
    """Owners in the order of their sentences; each may come before the ones that it needs."""
    order = list(range(len(scene.facts)))
    if dice.random() < (0.7 if scene.rich else 0.5):
        rest = order[1:]
        dice.shuffle(rest)
        order[1:] = rest
        if dice.random() < 0.5:
            dice.shuffle(order)
    return order


def _pick(lines: tuple[str, ...], dice: Random, rich: bool) -> str:
    return lines[int(dice.random() * len(lines))] if rich else lines[0]


def _sentence(line: str) -> str:
    return line[0].upper() + line[1:]


def _fact(fact: Fact, owner: int, cast: _Cast, dice: Random, rich: bool) -> str:
    names = [cast.owners[source] for source in fact.sources]
    a, t, n = cast.owners[owner], cast.thing, fact.number
    line = _pick(cast.wordings.facts[fact.relation], dice, rich)
    if not names:
        return _sentence(line.format(a=a, n=n, t=t))
    if len(names) == 1:
        return _sentence(line.format(a=a, b=names[0], n=n, m=TIMES[n] if fact.relation == "times" else "", t=t))
    return _sentence(line.format(a=a, b=names[0], c=names[1], d=names[-1], t=t))


def _beside(scene: Scene, cast: _Cast, dice: Random) -> list[str]:
    """Sentences that do not matter: other facts, and amounts of other things."""
    if dice.random() < 0.55:
        return []
    lines = cast.wordings.alone if scene.question == "all" else (*cast.wordings.alone, *cast.wordings.beside)
    made: list[str] = []
    for line in dice.sample(lines, 1 if len(scene.facts) > 5 or dice.random() < 0.6 else 2):
        a, b = dice.sample(cast.owners, 2)
        x, u = cast.others[len(made)], cast.things[len(made)]
        made.append(_sentence(line.format(a=a, b=b, x=x, u=u, n=_whole(dice, 2, 40))))
    return made


def _asked(scene: Scene, cast: _Cast, dice: Random) -> str:
    names = [cast.owners[owner] for owner in scene.asked]
    question = scene.question
    last = [event for event in scene.events if scene.asked[0] in (event.owner, event.to)][-1:]
    if (
        question == "one"
        and last
        and last[0].owner == scene.asked[0]
        and last[0].kind != "gain"
        and dice.random() < 0.6
    ):
        question = "left"
    line = _pick((cast.wordings.now if scene.events else cast.wordings.asked)[question], dice, scene.rich)
    together = f"{', '.join(names[:-1])} and {names[-1]}" if question == "sum" else ""
    return _sentence(line.format(a=names[0], b=names[-1], l=together, t=cast.thing))


def _worked(scene: Scene, order: list[int], cast: _Cast) -> tuple[list[str], int]:
    """A step for every amount that follows, always the first sentence whose sources are known; then the answer."""
    amounts, step, owners = list(scene.amounts), cast.wordings.step, cast.owners
    known = {owner for owner, fact in enumerate(scene.facts) if not fact.sources}
    waiting = [owner for owner in order if owner not in known]
    steps: list[str] = []
    while waiting:
        owner = next(owner for owner in waiting if known.issuperset(scene.facts[owner].sources))
        waiting.remove(owner)
        known.add(owner)
        steps.append(_sentence(step.format(a=owners[owner], e=_equation(scene.facts[owner], amounts, amounts[owner]))))
    for event in scene.events:
        before = list(amounts)
        _happen(event, amounts)
        for owner in dict.fromkeys((event.owner, event.to)):
            sign = "+" if amounts[owner] > before[owner] else "-"
            equation = f"{before[owner]} {sign} {event.number} = {amounts[owner]}"
            steps.append(_sentence(step.format(a=owners[owner], e=equation)))
    asked = [amounts[owner] for owner in (order if scene.question == "all" else scene.asked)]
    if scene.question == "one":
        return steps, asked[0]
    if scene.question == "difference":
        steps.append(f"The difference is {asked[0]} - {asked[1]} = {asked[0] - asked[1]}.")
        return steps, asked[0] - asked[1]
    steps.append(f"Together {_sum(asked)}.")
    return steps, sum(asked)


def _equation(fact: Fact, amounts: list[int], result: int) -> str:
    relation, number, sources = fact
    source = amounts[sources[0]]
    if relation == "more":
        return f"{source} + {number} = {result}"
    if relation == "fewer":
        return f"{source} - {number} = {result}"
    if relation == "times":
        return f"{number} * {source} = {result}"
    if relation == "half":
        return f"{source} / 2 = {result}"
    return _sum([amounts[source] for source in sources])


def _sum(terms: list[int]) -> str:
    """One addition at a time: 3 + 4 = 7, 7 + 5 = 12."""
    total, made = terms[0], []
    for term in terms[1:]:
        made.append(f"{total} + {term} = {total + term}")
        total += term
    return ", ".join(made)
