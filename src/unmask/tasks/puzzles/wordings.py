"""The names, things and sentences of word problems: a relation -> the ways to put it into English.

The first names and things, and the first sentence of every kind in PEOPLE, are those of the plain form. Fields of a
sentence: `t` the thing that is counted, `n` a number, `a` whom it is about, `b`, `c`, `d` whom it is compared with,
`l` a list of those asked about; in sentences that do not matter, `x` is somebody else and `u` another thing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

PLAIN_NAMES = "Tom Mia Ben Lily Sam Anna Max Zoe Jack Emma Leo Ruby Finn Nora Owen Ella".split()
NAMES = [
    *PLAIN_NAMES,
    *"James Chris Lucas Thomas Iris Agnes Jonas Alice Kate Peter Sara Paul Rosa Hugo Clara David".split(),
    *"Grace Henry Ivy Oscar Lucy Daniel Julia Noah".split(),
]
PLAIN_THINGS = "apples books coins cards marbles pens shells stamps stickers toys".split()
# None is a kind of another one (a ball is a toy), so that an amount of one never counts as an amount of another.
THINGS = [
    *PLAIN_THINGS,
    *"pears plums lemons nuts eggs carrots cookies cups spoons bottles hats buttons stones leaves".split(),
    *"keys flowers candles ribbons tickets".split(),
]
COLOURS = "red blue green yellow black white brown pink".split()
BOXES = "box bag jar basket crate drawer".split()
TIMES = ["", "", "twice", "three times", "four times", "five times"]


@dataclass(frozen=True)
class Wordings:
    """How problems about one kind of owner are told, asked and worked out."""

    facts: dict[str, tuple[str, ...]]  # by relation
    moves: dict[str, tuple[str, ...]]  # "give": from a to b; "lose": from a; "gain": to a
    asked: dict[str, tuple[str, ...]]  # by question, without events
    now: dict[str, tuple[str, ...]]  # by question, after events
    beside: tuple[str, ...]  # sentences that do not matter
    step: str  # a worked step about `a`, whose equation is `e`
    alone: tuple[str, ...] = field(default=())  # sentences that do not matter and name nobody else


PEOPLE = Wordings(
    facts={
        "has": ("{a} has {n} {t}.", "{a} owns {n} {t}.", "There are {n} {t} in the bag of {a}."),
        "more": (
            "{a} has {n} more {t} than {b}.",
            "{a} has {n} {t} more than {b}.",
            "{a} owns {n} more {t} than {b} does.",
            "Compared with {b}, {a} has {n} more {t}.",
        ),
        "fewer": (
            "{a} has {n} fewer {t} than {b}.",
            "{a} has {n} {t} fewer than {b}.",
            "{a} owns {n} fewer {t} than {b} does.",
            "Compared with {b}, {a} has {n} fewer {t}.",
        ),
        "times": (
            "{a} has {m} as many {t} as {b}.",
            "{a} has {n} times as many {t} as {b}.",
            "{a} has {n} times the number of {t} that {b} has.",
            "{a} owns {m} as many {t} as {b} does.",
        ),
        "half": (
            "{a} has half as many {t} as {b}.",
            "{a} has half the number of {t} that {b} has.",
            "{a} owns half as many {t} as {b} does.",
        ),
        "sum": (
            "{a} has as many {t} as {b} and {c} together.",
            "{a} has the same number of {t} as {b} and {c} combined.",
            "{b} and {c} together have as many {t} as {a}.",
        ),
        "sum3": (
            "{a} has as many {t} as {b}, {c} and {d} together.",
            "{a} has the same number of {t} as {b}, {c} and {d} combined.",
        ),
    },
    moves={
        "give": (
            "Then {a} gives {n} {t} to {b}.",
            "Then {a} gives {b} {n} {t}.",
            "After that, {a} gives {n} of the {t} to {b}.",
            "Later {b} gets {n} {t} from {a}.",
        ),
        "lose": ("Then {a} gives away {n} {t}.", "Then {a} loses {n} {t}.", "After that, {a} sells {n} of the {t}."),
        "gain": ("Then {a} finds {n} more {t}.", "Then {a} buys {n} more {t}.", "Later {a} gets {n} new {t}."),
    },
    asked={
        "one": (
            "How many {t} does {a} have?",
            "What is the number of {t} that {a} has?",
            "Find the number of {t} that {a} has.",
        ),
        "sum": (
            "How many {t} do {l} have together?",
            "How many {t} do {l} have in all?",
            "What is the total number of {t} that {l} have?",
        ),
        "all": ("How many {t} do they have in all?", "How many {t} do they all have together?"),
        "difference": (
            "How many more {t} does {a} have than {b}?",
            "How many fewer {t} does {b} have than {a}?",
            "How many more {t} does {b} need to have as many as {a}?",
        ),
    },
    now={
        "one": (
            "How many {t} does {a} have now?",
            "How many {t} does {a} have in the end?",
            "What is the number of {t} that {a} has now?",
        ),
        "left": ("How many {t} does {a} have left?", "How many {t} are left for {a}?"),
        "sum": ("How many {t} do {l} have together now?", "In the end, how many {t} do {l} have in all?"),
        "all": ("How many {t} do they have in all now?", "How many {t} do they all have together in the end?"),
        "difference": (
            "How many more {t} does {a} have than {b} now?",
            "In the end, how many fewer {t} does {b} have than {a}?",
        ),
    },
    beside=(
        "{x} has {n} {u}.",
        "{x} has {n} more {u} than {a}.",
        "{a} gets {n} {u} from {x}.",
        "{x} is {n} years old.",
    ),
    alone=(
        "{a} has {n} {u}.",
        "{a} has {n} {u}.",
        "{a} has {n} more {u} than {b}.",
        "{a} has {n} fewer {u} than {b}.",
        "{a} has twice as many {u} as {b}.",
        "{a} gives {n} {u} to {b}.",
        "{a} is {n} years old.",
        "{a} lives at number {n}.",
        "{a} walks {n} minutes to school.",
        "{a} and {b} are friends.",
        "{a} likes {u}.",
        "It is {n} degrees outside.",
    ),
    step="{a} has {e}.",
)

_BOX_FACTS = {
    kind: tuple(line.replace("owns", "holds") for line in lines)
    for kind, lines in PEOPLE.facts.items()
    if kind != "has"
}
CONTAINERS = Wordings(
    facts={"has": ("{a} has {n} {t}.", "{a} holds {n} {t}.", "There are {n} {t} in {a}."), **_BOX_FACTS},
    moves={
        "give": (
            "Then {n} {t} are moved from {a} to {b}.",
            "After that, {n} of the {t} in {a} are put into {b}.",
            "Later {n} {t} go from {a} into {b}.",
        ),
        "lose": ("Then {n} {t} are taken out of {a}.", "Later {n} {t} from {a} are sold."),
        "gain": ("Then {n} more {t} are put into {a}.", "Later {a} gets {n} new {t}."),
    },
    asked={
        "one": ("How many {t} does {a} have?", "How many {t} are in {a}?", "Find the number of {t} in {a}."),
        "sum": ("How many {t} do {l} have together?", "How many {t} are in {l} in all?"),
        "all": ("How many {t} do they have in all?", "How many {t} are there in all?"),
        "difference": ("How many more {t} does {a} have than {b}?", "How many fewer {t} does {b} have than {a}?"),
    },
    now={
        "one": ("How many {t} does {a} have now?", "How many {t} are in {a} in the end?"),
        "left": ("How many {t} does {a} have left?", "How many {t} are left in {a}?"),
        "sum": ("How many {t} do {l} have together now?", "In the end, how many {t} are in {l} in all?"),
        "all": ("How many {t} do they have in all now?", "How many {t} are there in all in the end?"),
        "difference": (
            "How many more {t} does {a} have than {b} now?",
            "In the end, how many fewer {t} does {b} have than {a}?",
        ),
    },
    beside=("{x} has {n} {u}.", "{x} is {n} years old.", "{x} likes {u}."),
    alone=("{a} has {n} {u}.", "{a} has {n} more {u} than {b}.", "{a} weighs {n} pounds.", "{a} is {n} inches wide."),
    step="{a} has {e}.",
)

GOODS = Wordings(
    facts={
        "has": ("There are {n} {a}.",),
        "more": ("There are {n} more {a} than {b}.",),
        "fewer": ("There are {n} fewer {a} than {b}.",),
        "times": ("There are {m} as many {a} as {b}.", "There are {n} times as many {a} as {b}."),
        "half": ("There are half as many {a} as {b}.",),
        "sum": ("There are as many {a} as {b} and {c} together.", "There are as many {b} and {c} together as {a}."),
        "sum3": ("There are as many {a} as {b}, {c} and {d} together.",),
    },
    moves={
        "lose": ("Then {n} {a} are taken away.", "Then {n} of the {a} are sold.", "Later {n} {a} are lost."),
        "gain": ("Then {n} more {a} are bought.", "Later {n} {a} are added."),
    },
    asked={
        "one": ("How many {a} are there?", "What is the number of {a}?", "Find the number of {a}."),
        "sum": ("How many {l} are there together?", "How many {l} are there in all?"),
        "all": ("How many things are there in all?", "What is the total number of things?"),
        "difference": ("How many more {a} than {b} are there?", "How many fewer {b} than {a} are there?"),
    },
    now={
        "one": ("How many {a} are there now?", "How many {a} are there in the end?"),
        "left": ("How many {a} are left?", "How many {a} are there now?"),
        "sum": ("How many {l} are there together now?", "In the end, how many {l} are there in all?"),
        "all": ("How many things are there in all now?", "In the end, how many things are there in all?"),
        "difference": (
            "How many more {a} than {b} are there now?",
            "How many fewer {b} than {a} are there in the end?",
        ),
    },
    beside=("{x} is {n} years old.", "{x} lives at number {n}.", "{x} likes {u}.", "{x} likes {a}."),
    alone=("It is {n} degrees outside.", "The shop is {n} years old."),
    step="There are {e} {a}.",
)
