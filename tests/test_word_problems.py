"""Word problems: the text alone gives the answer, the steps are true, and reserved ones are never trained on."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from operator import add, mul, sub, truediv
from pathlib import Path
from random import Random

import pytest

from unmask.cli import main
from unmask.errors import InputError
from unmask.tasks import TASKS, Example, problems
from unmask.tasks.grading.steps import equations
from unmask.tasks.puzzles import held_out
from unmask.tasks.puzzles.word_problems import (
    Event,
    Fact,
    Scene,
    WordProblem,
    key,
    plain_scene,
    rich_scene,
    tokens,
    told,
    word_problem,
)

# --- a solver that knows nothing of the generator: it reads the sentences ---------------------------------------------

WHO = r"(the \w+ \w+|\w+)"
WORDS = {"twice": 2, "three times": 3, "four times": 4, "five times": 5}
LIST = rf"(?:{WHO}, )?{WHO} and {WHO}"


def solved(question: str) -> tuple[int, Scene]:
    """The answer, and the structure as the text shows it: owners in an order in which each can be worked out."""
    sentences = re.findall(r"[^.?]+[.?]", question)
    sentences = [sentence.strip()[:1].lower() + sentence.strip()[1:-1] for sentence in sentences]
    thing, kind, asked = _question(sentences[-1])
    goods = thing is None
    defined: dict[str, tuple[str, int, list[str]]] = {}
    events: list[tuple[str, int, str, str]] = []
    for sentence in sentences[:-1]:
        event = _event(sentence, thing)
        fact = None if event else _fact(sentence, thing, goods)
        if event:
            events.append(event)
        elif fact:
            assert fact[0] not in defined and not events, question
            defined[fact[0]] = fact[1:]
    order: list[str] = []
    amounts: dict[str, int] = {}
    while len(order) < len(defined):
        ready = [o for o in defined if o not in amounts and all(s in amounts for s in defined[o][2])]
        assert ready, question
        relation, number, sources = defined[ready[0]]
        amounts[ready[0]] = _amount(relation, number, [amounts[source] for source in sources])
        order.append(ready[0])
    after = dict(amounts)
    for name, number, owner, to in events:
        after[owner] += number if name == "gain" else -number
        if name == "give":
            after[to] += number
    assert all(0 <= amount <= 1500 for amount in (*amounts.values(), *after.values()))
    asked = asked or order
    values = [after[owner] for owner in asked]
    answer = {"one": values[0], "sum": sum(values), "all": sum(values), "difference": values[0] - values[-1]}[kind]
    place = {owner: index for index, owner in enumerate(order)}
    return answer, Scene(
        [Fact(r, n, tuple(place[s] for s in sources)) for r, n, sources in (defined[o] for o in order)],
        [amounts[owner] for owner in order],
        [Event(name, number, place[owner], place[to]) for name, number, owner, to in events],
        kind,
        tuple(place[owner] for owner in asked),
        True,
    )


def _amount(relation: str, number: int, of: list[int]) -> int:
    if relation in ("sum", "sum3"):
        return sum(of)
    if relation == "half":
        assert of[0] % 2 == 0
        return of[0] // 2
    return {"has": 0, "more": 1, "fewer": 1, "times": number}[relation] * sum(of) + (
        {"has": number, "more": number, "fewer": -number, "times": 0}[relation]
    )


def _question(text: str) -> tuple[str | None, str, list[str]]:
    """The thing that is counted (None where the owners are things), what is asked, and of whom."""
    text = re.sub("^in the end, | (now|in the end|left)$", "", text)
    for pattern, kind in (
        (r"how many (?:\w+ )?things are there in all|what is the total number of things", "all"),
        (rf"how many more {WHO} than {WHO} are there", "difference"),
        (r"how many fewer (?P<b>\w+) than (?P<a>\w+) are there", "difference"),
        (rf"how many {LIST} are there (?:together|in all)", "sum"),
        (r"how many (\w+) are(?: there)?|(?:what is|find) the number of (\w+)", "one"),
    ):
        if found := re.fullmatch(pattern, text):
            return None, kind, _names(found)
    for pattern, kind in (
        (r"how many (?P<t>\w+) (?:do they have in all|do they all have together|are there in all)", "all"),
        (rf"how many more (?P<t>\w+) does {WHO} have than {WHO}", "difference"),
        (r"how many fewer (?P<t>\w+) does (?P<b>the \w+ \w+|\w+) have than (?P<a>the \w+ \w+|\w+)", "difference"),
        (r"how many more (?P<t>\w+) does (?P<b>\w+) need to have as many as (?P<a>\w+)", "difference"),
        (rf"how many (?P<t>\w+) do {LIST} have (?:together|in all)", "sum"),
        (rf"how many (?P<t>\w+) are in {LIST} in all", "sum"),
        (rf"what is the total number of (?P<t>\w+) that {LIST} have", "sum"),
        (rf"how many (?P<t>\w+) does {WHO} have", "one"),
        (rf"how many (?P<t>\w+) are (?:left for|left in|in) {WHO}", "one"),
        (rf"(?:what is|find) the number of (?P<t>\w+) (?:that {WHO} has|in {WHO})", "one"),
    ):
        if found := re.fullmatch(pattern, text):
            return found["t"], kind, _names(found)
    raise AssertionError(text)


def _names(found: re.Match[str]) -> list[str]:
    named = found.groupdict()
    if "b" in named:
        return [named["a"].lower(), named["b"].lower()]
    return [name.lower() for name in found.groups() if name and name != named.get("t")]


def _fact(text: str, thing: str | None, goods: bool) -> tuple[str, str, int, list[str]] | None:
    """Whose amount a sentence tells, the relation, its number and whom it compares with; None if it does not matter."""
    times = "|".join(WORDS)
    patterns: tuple[tuple[str, str], ...]
    if goods:
        patterns = (
            (r"there are (?P<n>\d+) (?P<a>\w+)", "has"),
            (r"there are (?P<n>\d+) (?P<r>more|fewer) (?P<a>\w+) than (?P<b>\w+)", ""),
            (rf"there are (?:(?P<m>{times})|(?P<n>\d+) times) as many (?P<a>\w+) as (?P<b>\w+)", "times"),
            (r"there are half as many (?P<a>\w+) as (?P<b>\w+)", "half"),
            (r"there are as many (?P<a>\w+) as (?P<b>\w+), (?P<c>\w+) and (?P<d>\w+) together", "sum3"),
            (r"there are as many (?P<a>\w+) as (?P<b>\w+) and (?P<c>\w+) together", "sum"),
            (r"there are as many (?P<b>\w+) and (?P<c>\w+) together as (?P<a>\w+)", "sum"),
        )
    else:
        a, b, c, d = (rf"(?P<{name}>the \w+ \w+|\w+)" for name in "abcd")
        has = "(?:has|owns|holds)"
        tail = rf"(?:as|that) {b}(?: does| has)?"
        patterns = (
            (rf"{a} {has} (?P<n>\d+) {thing}", "has"),
            (rf"there are (?P<n>\d+) {thing} in (?:the bag of )?{a}", "has"),
            (rf"{a} {has} (?P<n>\d+) (?P<r>more|fewer) {thing} than {b}(?: does)?", ""),
            (rf"{a} {has} (?P<n>\d+) {thing} (?P<r>more|fewer) than {b}", ""),
            (rf"compared with {b}, {a} has (?P<n>\d+) (?P<r>more|fewer) {thing}", ""),
            (rf"{a} {has} (?:(?P<m>{times})|(?P<n>\d+) times) (?:as many|the number of) {thing} {tail}", "times"),
            (rf"{a} {has} half (?:as many|the number of) {thing} {tail}", "half"),
            (rf"{a} has (?:as many|the same number of) {thing} as {b}, {c} and {d} (?:together|combined)", "sum3"),
            (rf"{a} has (?:as many|the same number of) {thing} as {b} and {c} (?:together|combined)", "sum"),
            (rf"{b} and {c} together have as many {thing} as {a}", "sum"),
        )
    for pattern, relation in patterns:
        if found := re.fullmatch(pattern, text):
            part = {**dict.fromkeys(("r", "m", "n", "b", "c", "d")), **found.groupdict()}
            number = WORDS[part["m"]] if part["m"] else int(part["n"] or (2 if relation == "half" else 0))
            sources = [name.lower() for name in (part["b"], part["c"], part["d"]) if name]
            return found["a"].lower(), part["r"] or relation, number, sources
    return None


def _event(text: str, thing: str | None) -> tuple[str, int, str, str] | None:
    """What happens after all that is told: it begins with then, after that or later."""
    found = re.fullmatch("(?:then|after that,|later) (.*)", text)
    if not found:
        return None
    a, b, n = r"(?P<a>the \w+ \w+|\w+)", r"(?P<b>the \w+ \w+|\w+)", r"(?P<n>\d+)"
    some = rf"{n} (?:of the )?{thing}"
    patterns = (
        (rf"{a} (?:gives away|loses|sells) {some}", "lose"),
        (rf"{a} gives {some} to {b}", "give"),
        (rf"{a} gives {b} {some}", "give"),
        (rf"{b} gets {some} from {a}", "give"),
        (rf"{some} (?:in )?(?:are moved )?(?:go )?(?:from )?{a} (?:are put )?(?:to|into) {b}", "give"),
        (rf"{some} (?:are taken out of|from) {a}(?: are sold)?", "lose"),
        (rf"{a} (?:finds|buys|gets) {n} (?:more|new) {thing}", "gain"),
        (rf"{n} more {thing} are put into {a}", "gain"),
        (rf"{n} (?:of the )?{a} are (?:taken away|sold|lost)", "lose"),
        (rf"{n} (?:more )?{a} are (?:bought|added)", "gain"),
    )
    for pattern, kind in patterns:
        if part := re.fullmatch(pattern, found[1]):
            owner = part["a"].lower()
            return kind, int(part["n"]), owner, (part.groupdict().get("b") or owner).lower()
    raise AssertionError(text)


# --- laws ------------------------------------------------------------------------------------------------------------


def some(count: int, seed: int = 0, **how: object) -> list[WordProblem]:
    dice = Random(seed)
    return [word_problem(dice, **how) for _ in range(count)]  # type: ignore[arg-type]


@pytest.mark.parametrize("form", ["plain", "any"])
def test_the_text_alone_gives_answer_and_key(form: str) -> None:
    for problem in some(4000, form=form):
        answer, scene = solved(problem.question)
        assert answer == problem.answer, problem
        assert key(scene) == problem.key, problem
        assert len(scene.facts) == problem.people, problem


@pytest.mark.parametrize("form", ["plain", "any"])
def test_steps_are_true_and_end_in_the_answer(form: str) -> None:
    for problem in some(2000, seed=1, form=form):
        steps = re.findall(r"(\d+) ([-+*/]) (\d+) = (\d+)", problem.solution)
        assert len(steps) == problem.steps > 0
        for a, sign, b, result in steps:
            assert int(result) == {"+": add, "-": sub, "*": mul, "/": truediv}[sign](int(a), int(b)), problem
        assert re.fullmatch(r" .*[^ ] The answer is \d+\.", problem.solution)
        assert problem.solution.endswith(f" The answer is {problem.answer}.")
        assert steps[-1][3] == str(problem.answer) or str(problem.answer) in {step[3] for step in steps} | set(
            re.findall(r"\d+", problem.question)
        )


def test_plain_problems_have_the_published_form() -> None:
    names = "Tom|Mia|Ben|Lily|Sam|Anna|Max|Zoe|Jack|Emma|Leo|Ruby|Finn|Nora|Owen|Ella"
    things = "apples|books|coins|cards|marbles|pens|shells|stamps|stickers|toys"
    for problem in some(2000, seed=2, form="plain"):
        thing = re.search(things, problem.question)[0]  # type: ignore[index]
        *facts, asked = re.split(r"(?<=\.) ", problem.question)
        assert 2 <= len(facts) == problem.people <= 6
        for fact in facts:
            assert re.fullmatch(
                rf"({names}) has (\d+( (more|fewer))? {thing}( than ({names}))?"
                rf"|(twice|three times|four times) as many {thing} as ({names})"
                rf"|as many {thing} as ({names}) and ({names}) together)\.",
                fact,
            ), fact
        assert re.fullmatch(
            rf"How many {thing} (does ({names}) have|do ({names}) and ({names}) have together)\?", asked
        )
        assert re.fullmatch(
            rf"( ({names}) has \d+ [-+*] \d+ = \d+\.)+( Together \d+ \+ \d+ = \d+\.)? The answer is \d+\.",
            problem.solution,
        )


def test_steps_come_in_the_order_that_the_text_allows() -> None:
    """Always the first sentence whose sources are known."""
    for problem in some(500, seed=3, form="plain"):
        needs = {}
        for line in re.split(r"(?<=\.) ", problem.question)[:-1]:
            owner, *others = re.findall("[A-Z][a-z]+", line)
            needs[owner] = others
        known = {owner for owner, others in needs.items() if not others}
        for owner in re.findall(r"([A-Z][a-z]+) has", problem.solution):
            assert owner == next(o for o in needs if o not in known and known.issuperset(needs[o]))
            known.add(owner)
        assert known == set(needs)


def test_reserved_problems_are_never_trained_on() -> None:
    trained = {problem.key for form in ("plain", "any") for problem in some(5000, seed=4, form=form)}
    held = {problem.key for form in ("plain", "any") for problem in some(300, seed=5, form=form, held=True)}
    assert all(number % 64 == 0 for number in held) and not any(number % 64 == 0 for number in trained)
    assert not trained & held and len(held) > 300


def test_other_words_and_orders_have_the_same_key() -> None:
    dice = Random(6)
    for made in [plain_scene(dice) for _ in range(300)] + [rich_scene(dice) for _ in range(300)]:
        if made is None:
            continue
        twice = [told(made, dice), told(made, dice)]
        assert twice[0].key == twice[1].key == key(made)
        assert twice[0].answer == twice[1].answer


def test_another_order_of_creation_has_the_same_key() -> None:
    """Two who both depend on the first: which of them was made first cannot be seen in the text."""
    facts = [Fact("has", 5, ()), Fact("more", 3, (0,)), Fact("times", 2, (0,)), Fact("sum", 0, (1, 2))]
    other = [Fact("has", 5, ()), Fact("times", 2, (0,)), Fact("more", 3, (0,)), Fact("sum", 0, (1, 2))]
    assert key(Scene(facts, [5, 8, 10, 18], [], "sum", (1, 3), False)) == key(
        Scene(other, [5, 10, 8, 18], [], "sum", (3, 2), True)
    )
    assert key(Scene(facts, [5, 8, 10, 18], [], "sum", (1, 3), False)) != key(
        Scene(facts, [5, 8, 10, 18], [], "sum", (2, 3), False)
    )


def test_keys_do_not_depend_on_the_process() -> None:
    assert (
        key(Scene([Fact("has", 5, ()), Fact("more", 3, (0,))], [5, 8], [], "one", (1,), False)) == 18184446946242045460
    )


def test_the_same_dice_give_the_same_problems() -> None:
    assert some(50, seed=7) == some(50, seed=7) != some(50, seed=8)


def test_rich_problems_have_all_there_is() -> None:
    made = some(8000, seed=9)
    words = " ".join(problem.question for problem in made)
    for word in (
        "half as many",
        "five times",
        "gives",
        "fewer",
        "together",
        "in all",
        "left",
        "degrees",
        "James",
        "jar",
    ):
        assert word in words, word
    assert set(Counter(problem.people for problem in made)) == set(range(2, 9))
    assert max(problem.answer for problem in made) <= 999 and min(problem.answer for problem in made) >= 0
    assert max(tokens(problem.question) for problem in made) <= 128
    assert max(tokens(problem.solution) for problem in made) < TASKS["problems"].length
    assert "{" not in words and "  " not in words


@pytest.mark.parametrize("people", [2, 6, 8])
def test_people_can_be_asked_for(people: int) -> None:
    assert {problem.people for problem in some(50, people=people)} == {people}


def test_speed() -> None:
    """Training draws fresh problems all the time; a busy machine is allowed a third of what is aimed at."""
    fastest = 0.0
    for seed in range(3):
        start = time.process_time()
        some(2000, seed=seed, form="plain")
        fastest = max(fastest, 2000 / (time.process_time() - start))
    assert fastest > 5000


# --- the task --------------------------------------------------------------------------------------------------------

TOM = "Tom has 5 apples. Mia has 3 more apples than Tom. How many apples does Mia have?"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (" Mia has 5 + 3 = 8. Together 8 + 5 = 13. The answer is 13.", [True, True]),
        ("3 + 4 = 7, 7 + 5 = 12 and 12 / 2 = 6, 2 * 6 = 13", [True, True, True, False]),
        ("3 + 4 = 7 + 5 = 12", [False, True]),
        ("3 - 5 = -2", [True]),
        ("2.5 * 2 = 5. 4 / 0 = 3", [True, False]),
        ("4*2=<<4*2=8>>8 and $1,000 + 1 = 1001", [True, True]),
        ("5 × 3 = 15", [True]),
        ("1 + 1 = 2.5", [False]),
        ("5 + = 8 and = 8 and 8 = 8 and 5 + 3 =", [False] * 4),
        ("1" * 5000 + "x = 3", [False]),
        ("nothing", []),
    ],
)
def test_worked_steps(text: str, expected: list[bool]) -> None:
    assert [true for _, true in equations(text)] == expected


def test_every_solution_is_right_by_both_verdicts() -> None:
    task = TASKS["problems"]
    for problem in some(500, seed=10):
        example = Example("0", {"question": problem.question}, str(problem.answer))
        assert task.grades(problem.solution, example) == (True, True), problem
        assert problems.asked(problem.question) == problem.question == task.prompt(example)
        assert not any(task.grades(f" The answer is {problem.answer + 1}.", example))


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (8, "8"),
        (8.5, "8.5"),
        (-3, "-3"),
        ("8", "8"),
        (" $1,200. ", "1200"),
        ("4*2=8 apples\n#### 8", "8"),
        ("8 apples", "8"),
        ("3 + 5 = 8. The answer is 8.", "8"),
    ],
)
def test_answers_of_files(answer: object, expected: str) -> None:
    assert problems.gold(answer) == expected


@pytest.mark.parametrize("answer", ["eight", "", "3 or 5", True, [8], {"a": 8, "b": 9}, "#### many", float("nan")])
def test_answers_that_are_not_numbers(answer: object) -> None:
    with pytest.raises(InputError, match=r"^the answer .* is not a number: give a number"):
        problems.gold(answer)


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("", "the question is empty: write it like: Tom has 5 apples"),
        ("  \n", "the question is empty"),
        ("1 + 2 = ?", "the question '1 + 2 = ?' has no words"),
        (7, "the question 7 is not text"),
        ("How many apples does Mia have?", "the question 'How many apples does Mia have?' has no number: write it"),
        ("Tom is happy. How is he?", "has no number"),
        ("Tom hat 5 Äpfel. Mia hat 3 mehr. Wie viele hat Mia?", "is not in English: the bundled model reads English"),
        ("Tom tiene 5 manzanas. ¿Cuántas manzanas tiene Mia?", "is not in English"),
        ("Tom a 5 pommes. Mia a 3 pommes de plus. Combien en a Mia ?", "is not in English"),
        ("У Тома 5 яблок. Сколько яблок у Мии?", "is not in English"),
        ("小明有5个苹果，小红有3个。一共有几个？", "is not in English"),
        ("Tom has 5 apples, 小明有五个苹果小红比小明多三个苹果小红有几个苹果 and how many", "is not in English"),
    ],
)
def test_questions_that_are_refused(question: object, expected: str) -> None:
    with pytest.raises(InputError) as caught:
        problems.asked(question)
    assert expected in str(caught.value) and "\n" not in str(caught.value)


def test_questions_in_other_words() -> None:
    """GSM8K asks in words of its own, some of its numbers spelt out."""
    for question in (
        "Janet's ducks lay sixteen eggs per day. She eats three for breakfast. How many are left?",
        "A robe takes 2 bolts of blue fiber and half that much white fiber.  How many bolts in total does it take?",
    ):
        assert problems.asked(question) == " ".join(question.split())


# --- files and commands ----------------------------------------------------------------------------------------------


def unmask(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """The exit status, and everything that was printed."""
    status = main(list(words))
    found = capsys.readouterr()
    return status, found.out + found.err


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ('{"question": "x"}', "row 1 of 'p.jsonl' has no 'answer': rows need question, answer"),
        ('{"answer": 3}', "row 1 of 'p.jsonl' has no 'question'"),
        ("[]", "row 1 of 'p.jsonl' has no 'question'"),
        ("Tom has 5 apples.", "line 1 of 'p.jsonl' is not JSON"),
        ('{"question": "", "answer": 3}', "row 1 of 'p.jsonl': the question is empty"),
        (
            '{"question": "How many have they?", "answer": 3}',
            "row 1 of 'p.jsonl': the question 'How many have they?' has",
        ),
        (f'{{"question": "{TOM}", "answer": "eight"}}', "row 1 of 'p.jsonl': the answer 'eight' is not a number"),
        ("", "there is no question in 'p.jsonl'"),
    ],
)
def test_files_that_are_refused(capsys, tmp_path, monkeypatch, row: str, expected: str) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.chdir(tmp_path)
    Path("p.jsonl").write_text(f"{row}\n", encoding="utf-8")
    status, said = unmask(capsys, "eval", "problems", "--data", "p.jsonl")
    assert status != 0 and expected in said and said.count("\n") == 1


def test_without_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    status, said = unmask(capsys, "eval", "problems")
    assert status != 0 and "problems needs --data FILE: `unmask puzzles problems -o FILE` makes one" in said


def test_puzzles_are_held_out_and_evaluated(capsys, tmp_path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        words = ["puzzles", "problems", "--count", "12", "--seed", "3", "--form", "plain", "-o", f"{name}.jsonl"]
        assert unmask(capsys, *words)[0] == 0
    assert Path("a.jsonl").read_text() == Path("b.jsonl").read_text()
    lines = [json.loads(line) for line in Path("a.jsonl").read_text().splitlines()]
    for line in lines:
        answer, scene = solved(line["question"])
        assert answer == line["answer"] and key(scene) == int(line["key"], 16) and key(scene) % 64 == 0
    words = "eval problems --data a.jsonl --limit 3 --length 16 --steps 2 --rows r.jsonl --json".split()
    status, said = unmask(capsys, *words)
    found = json.loads(said)
    assert status == 0 and found["n"] == 3 and found["model"] == "text"
    assert sum(one["n"] for one in found["groups"].values()) == 3
    assert set(found["groups"]) == {f"{n} step{'s' * (n > 1)}" for n in (line["steps"] for line in lines[:3])}
    assert "solved by size: " in unmask(capsys, *[word for word in words if word != "--json"])[1]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--form rich", "unknown form 'rich': choose from plain, any"),
        ("--people 9", "people is 9: it must be from 2 to 8"),
        ("--people 7 --form plain", "people is 7: it must be from 2 to 6"),
        ("--numbers 4", "--numbers has no effect on problems"),
        ("--answers", "--answers is for Sudokus to solve"),
    ],
)
def test_puzzles_that_are_refused(capsys, words: str, expected: str) -> None:  # type: ignore[no-untyped-def]
    status, said = unmask(capsys, "puzzles", "problems", *words.split())
    assert status != 0 and expected in said and said.count("\n") == 1


def test_more_problems_than_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_out, "AGAIN", 0)
    with pytest.raises(InputError, match=r"there are hardly more than .* such problems: make fewer, or of more people"):
        list(held_out.word_problems(10**6, 0, "plain", 2))


def test_size_of_questions_whose_steps_are_not_known(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    rows = [{"question": TOM, "answer": 8}, {"question": TOM, "answer": "5 + 3 = 8\n#### 8"}]
    path.write_text("\n".join(map(json.dumps, rows)))
    assert [problems.group(example) for example in problems.read(path)] == ["3 sentences", "1 step"]


@pytest.mark.parametrize(
    ("puzzle", "expected"),
    [
        ("", "the puzzle is empty: give a Sudoku of 81 characters, a countdown like 15,44,79,50, a word problem, or"),
        (" \n", "the puzzle is empty"),
        ("How many apples do Tom and Mia have?", "has no number"),
        ("Tom hat 5 Äpfel und Mia hat 3 mehr.", "is not in English"),
        ("小明有5个苹果", "is not in English"),
        ("my own file.txt", "is neither a file nor a puzzle"),
        (f"{TOM}\n{TOM}", "holds 2 puzzles: `unmask eval problems --data FILE.jsonl` decodes them all"),
        ("Tom has 5 apples. " * 200 + "How many apples does Tom have?", "tokens, and text holds "),
        ('{"question": 5, "answer": 3}', "the question '5' has no words"),
    ],
)
def test_problems_that_are_not_solved(capsys, puzzle: str, expected: str) -> None:  # type: ignore[no-untyped-def]
    status, said = unmask(capsys, "solve", puzzle)
    assert status != 0 and expected in said and said.count("\n") == 1


def test_unquoted_problem(capsys: pytest.CaptureFixture[str]) -> None:
    status, said = unmask(capsys, "solve", *"Tom has 5 apples.".split())
    assert status != 0 and "'Tom has 5 apples.' has blanks: put quotes around the whole problem" in said


def test_solve_prints_steps_and_what_is_false(capsys, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """The model's own text decides the verdict, good or bad."""
    status, said = unmask(capsys, "solve", TOM, "--length", "24", "--steps", "4", "--block-length", "8", "--json")
    found = json.loads(said)
    assert found["puzzle"] == TOM and found["fault"] == problems.fault(found["text"])
    assert status == (0 if found["fault"] is None else 1)
    assert found["worked"] == len(equations(found["text"])) and len(found["false"]) <= found["worked"]
    status, said = unmask(capsys, "solve", TOM, "--length", "24", "--steps", "4", "--block-length", "8")
    assert ("not solved: " in said) == (status == 1)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (" Mia has 5 + 3 = 8. The answer is 8.", None),
        (" Mia has 5 + 3 = 9. Tom has 2 + 2 = 5. The answer is 9.", "5 + 3 = 9 is false, 2 + 2 = 5 is false"),
        (" Mia has 5 + 3 = 8.", "it states no answer"),
        (" The answer is 8.", "it has no worked step"),
        (" How many has Max? Max has 5 + 3 = 8. The answer is 8.", "it asks a question of its own"),
    ],
)
def test_faults_of_worked_steps(text: str, expected: str | None) -> None:
    assert problems.fault(text) == expected
