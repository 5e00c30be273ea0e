"""Paths in waves: a stopped run is the beginning of the full one, and no company changes it."""

from __future__ import annotations

import pytest

import unmask
from unmask.cli import main
from unmask.decoding import trace as traces
from unmask.decoding.decode import decode, decode_batch
from unmask.decoding.joining import Asked, decode_joining
from unmask.decoding.recipe import Recipe
from unmask.decoding.result import Result
from unmask.decoding.waves import PATIENCE, Attempt, rounds, turns, width
from unmask.errors import InputError, SettingError
from unmask.models.wrap import Counted

ORDERS = ["uniform", "confidence", "eb", "fast-dllm", "p2", "semi-ar"]
TINY = 1e-12  # nothing costs less


@pytest.fixture(scope="module")
def table():
    return unmask.load("table")


def recipe(sampler: str, **more) -> Recipe:
    more = {"block_length": 3, **more} if sampler == "semi-ar" else more
    return Recipe(**{"sampler": sampler, "temperature": 1.0, "search": "auto", "particles": 8, **more})


def test_widths_double():
    done, widths = 0, []
    while done < 20:
        widths.append(width(done, 20))
        done += widths[-1]
    assert widths == [1, 1, 2, 4, 8, 4]


@pytest.mark.parametrize("sampler", ORDERS)
def test_all_waves_are_the_paths_and_the_choice_of_the_whole(table, sampler):
    canvases, seeds = ["[MASK*6]", "s[MASK*4]e", "[MASK*3]te[MASK]"], [1, 2, 3]
    whole = decode_batch(table, canvases=canvases, recipe=recipe(sampler), seeds=seeds)
    waved = decode_batch(table, canvases=canvases, recipe=recipe(sampler, until=TINY), seeds=seeds)
    for one, other in zip(whole, waved, strict=True):
        assert [path.tokens for path in one.particles] == [path.tokens for path in other.particles]
        assert [path.surprise for path in one.particles] == pytest.approx([path.surprise for path in other.particles])
        assert one.chosen == other.chosen and [path.origin for path in other.particles] == list(range(8))
        assert other.evaluations >= one.evaluations  # a wave may look at what a later one passes


@pytest.mark.parametrize("sampler", ORDERS)
@pytest.mark.parametrize("until", [0.02, 0.2, 0.6])
def test_a_stopped_run_is_a_prefix(table, sampler, until):
    canvases, seeds = ["[MASK*6]"] * 5, [11, 12, 13, 14, 15]
    whole = decode_batch(table, canvases=canvases, recipe=recipe(sampler, particles=16), seeds=seeds)
    found = decode_batch(table, canvases=canvases, recipe=recipe(sampler, until=until, most=16), seeds=seeds)
    again = decode_batch(
        table, canvases=canvases, recipe=recipe(sampler, until=until, most=16), seeds=seeds, batch_size=1
    )
    for full, one, other in zip(whole, found, again, strict=True):
        paths = [path.tokens for path in one.particles]
        assert paths == [path.tokens for path in full.particles][: len(paths)]
        assert len(paths) in (1, 2, 4, 8, 16)
        assert (one.tokens, one.chosen, one.evaluations) == (other.tokens, other.chosen, other.evaluations)
        alone = decode(table, canvas="[MASK*6]", recipe=recipe(sampler, until=until, most=16), seed=one.seed)
        assert [path.tokens for path in alone.particles] == paths and alone.chosen == one.chosen
    costs = {one.seed: min(_cost(path) for path in one.particles) for one in found}
    assert all(len(one.particles) == 16 or costs[one.seed] < until for one in found)


def _cost(path) -> float:
    return path.surprise if path.look is None else (path.surprise * max(path.look, 1e-6)) ** 0.5


def test_without_until_nothing_changes(table):
    plain = decode_batch(table, canvases=["[MASK*6]"] * 3, recipe=recipe("confidence"))
    zero = decode_batch(table, canvases=["[MASK*6]"] * 3, recipe=recipe("confidence", until=0.0))
    assert [one.particles for one in plain] == [one.particles for one in zero]


def test_a_batch_refills(table):
    """Rounds are full while prompts are left, and each prompt is done as soon as it may be."""
    ends = {place: (1, 2, 4, 8)[place % 4] for place in range(40)}
    made = [Attempt(place, None, recipe("uniform"), place) for place in range(40)]  # type: ignore[arg-type]
    sizes, order = [], []

    def wave(some: list[Attempt]) -> None:
        each = some[0].width
        assert {one.width for one in some} == {each} and each * len(some) <= 8
        sizes.append(each * len(some))
        for one in some:
            one.particles += [None] * each  # type: ignore[list-item]
            one.right = [len(one.particles) >= ends[one.place]]

    type_done = Attempt.done
    try:
        Attempt.done = property(lambda one: any(one.right))  # type: ignore[assignment,method-assign]
        for ended in rounds(made, 8, wave):
            order += [one.place for one in ended]
    finally:
        Attempt.done = type_done  # type: ignore[method-assign]
    assert sorted(order) == list(range(40)) and sum(sizes) == 10 * (1 + 2 + 4 + 8)
    assert all(len(one.particles) == ends[one.place] for one in made)
    assert all(size == 8 for size in sizes[:14]) and len(sizes) <= 22  # only the last ones are not full


def test_verify_stops_at_the_first_right_path(table):
    whole = decode_batch(table, canvases=["[MASK*6]"], recipe=recipe("uniform", particles=16), seeds=[2])[0]
    texts = [path.text for path in whole.particles]
    wanted = texts[5]
    found = decode_batch(
        table,
        canvases=["[MASK*6]"],
        recipe=recipe("uniform", particles=16),
        seeds=[2],
        verify=lambda text: text == wanted,
    )[0]
    first = texts.index(wanted)
    assert found.text == wanted and len(found.particles) == next(n for n in (1, 2, 4, 8, 16) if n > first)
    never = decode_batch(table, canvases=["[MASK*6]"], recipe=recipe("uniform"), seeds=[2], verify=lambda text: False)[
        0
    ]
    plain = decode_batch(table, canvases=["[MASK*6]"], recipe=recipe("uniform"), seeds=[2])[0]
    assert len(never.particles) == 8 and never.tokens == plain.tokens
    with pytest.raises(InputError, match="verify does not go with search smc"):
        decode(table, canvas="[MASK*6]", search="smc", verify=bool)


def test_events_of_waves_are_those_of_one_walk(table):
    events, per_prompt = [], [[], []]
    parts = traces.Parts()

    def on_event(event):
        events.append(event)
        for own, part in zip(per_prompt, parts(event), strict=True):
            if part is not None:
                own.append(part)

    some = recipe("uniform", until=0.3, most=8)
    found = decode_batch(table, canvases=["[MASK*6]", "s[MASK*5]"], recipe=some, seeds=[4, 6], on_event=on_event)
    assert [event["event"] for event in events[:1] + events[-1:]] == ["start", "end"]
    assert [event["step"] for event in events[1:-1]] == list(range(len(events) - 2))
    *_, last = traces.replay(events)
    for place, one in enumerate(found):
        for slot, path in enumerate(one.particles):
            assert last[place * 8 + slot] == path.tokens
        assert all(table.vocab.mask in row for row in last[place * 8 + len(one.particles) : place * 8 + 8])
        *_, own = traces.replay(per_prompt[place])
        assert own[: len(one.particles)] == [path.tokens for path in one.particles]
        assert events[-1]["evaluations"][place] == one.evaluations
    assert events[-2]["evaluations"] == [
        one.evaluations for one in found
    ]  # without looks nothing comes after the steps


def test_settings_that_do_not_go_together():
    with pytest.raises(SettingError, match="most has no effect without until"):
        Recipe(search="auto", most=16)
    with pytest.raises(SettingError, match="most is 4, below the 8 particles"):
        Recipe(search="auto", particles=8, most=4, until=0.1)
    with pytest.raises(SettingError, match="until does not go with choose vote"):
        Recipe(search="best-of-n", choose="vote", until=0.1)
    with pytest.raises(SettingError, match="until has no effect on sampler confidence with search smc"):
        Recipe(search="smc", until=0.1)


def test_eval_and_generate_in_bulk_are_the_same_in_waves(tmp_path, capsys):
    from unmask.evaluate import rows

    prompts = tmp_path / "prompts.txt"
    prompts.write_text("s\nse\nt\nte\n")
    line = [
        "generate",
        "--model",
        "table",
        "--prompts",
        str(prompts),
        "--length",
        "4",
        "--temperature",
        "1",
        "--search",
        "auto",
    ]
    line += ["--until", "0.4", "--particles", "4", "--most", "8"]
    assert main([*line, "-o", str(tmp_path / "one.jsonl"), "--batch", "1"]) == 0
    assert main([*line, "-o", str(tmp_path / "all.jsonl"), "--batch", "4"]) == 0
    one, every = (
        sorted(rows.read(tmp_path / name).kept, key=lambda row: row["number"]) for name in ("one.jsonl", "all.jsonl")
    )
    keys = ("number", "text", "chosen", "evaluations")
    assert [[row[key] for key in keys] for row in one] == [[row[key] for key in keys] for row in every]
    assert [[path["text"] for path in row["particles"]] for row in one] == [
        [path["text"] for path in row["particles"]] for row in every
    ]
    capsys.readouterr()
    assert main(line) == 0
    shown = capsys.readouterr().out
    assert [text for text in shown.splitlines() if text] == [row["text"] for row in one]


# --- prompts that come while others are decoded -----------------------------------------------------------------------


@pytest.mark.parametrize("sampler", ["uniform", "eb"])
def test_prompts_that_join_are_decoded_as_alone(table, sampler):
    """One more prompt before each wave, then all the others at once; each asks for other log-probabilities."""
    some = recipe(sampler, length=4, until=0.2, most=16, escalate="confidence steps=3" if sampler == "eb" else None)
    prompts, found = ["", "s", "te", "r", "", "se", "n", "a", "t", "re"], dict[int, Result]()
    asked = [
        Asked(prompt, place, lambda one, place=place: found.setdefault(place, one), logprobs=1 + place % 3)
        for place, prompt in enumerate(prompts)
    ]
    waiting, counted, steps = list(asked), Counted(table), [0]

    def more() -> list[Asked]:
        new = waiting[: 1 if len(waiting) > 5 else 5]
        del waiting[: len(new)]
        return new

    decode_joining(counted, more, some, on_step=lambda: steps.append(1))
    alone = Counted(table)
    for place, prompt in enumerate(prompts):
        one = decode(alone, prompt, recipe=some, seed=place, logprobs=1 + place % 3)
        assert [path.tokens for path in found[place].particles] == [path.tokens for path in one.particles]
        assert found[place].chosen == one.chosen
        for own, path in zip(found[place].particles, one.particles, strict=True):
            logs = [token.log_prob for token in path.logprobs or ()]
            assert [token.log_prob for token in own.logprobs or ()] == pytest.approx(logs)
        assert found[place].evaluations == one.evaluations and found[place].rows == one.rows
        assert found[place].seed == place and found[place].prompt == prompt
    assert counted.count.calls < 0.6 * alone.count.calls and sum(steps) > 0


@pytest.mark.parametrize("ends", [[16, 1, 2, 16, 4, 8, 1, 1, 1], [16, *[1] * 300]])
def test_waves_are_full_and_nobody_is_left_behind(ends):
    """Three prompts join before every wave, for ever: those that need many paths wait, but not for long."""
    number, at, waited, sizes, done = 0, 0, list[int](), list[int](), list[int]()

    class One(Attempt):
        due = 0

        @property
        def done(self) -> bool:
            return len(self.particles) >= ends[self.place % len(ends)]

    def renewed(due: list[One]) -> list[One]:
        nonlocal number, at
        at += 1
        new = (
            [] if at > 90 else [One(number + more, None, recipe("uniform", most=16, until=0.1), 0) for more in range(3)]
        )
        number += len(new)
        for one in new:
            one.due = at
        return [*due, *new]

    def wave(some: list[One]) -> None:
        assert len({one.kind for one in some}) == 1
        waited.extend(at - one.due for one in some)
        sizes.append(sum(one.width for one in some))
        for one in some:
            one.particles += [None] * one.width  # type: ignore[list-item]
            one.due = at + 1

    for ended in turns(renewed, 8, wave):
        done += [one.place for one in ended]
    assert sorted(done) == list(range(270))
    assert max(waited) <= PATIENCE + 4  # four other kinds may have waited as long: of 1, 2, 4 and 8 paths
    assert len(sizes) < 100  # 101 for the first of them, if all went in the order of their waiting


def test_a_wave_that_nobody_wants_ends(table):
    """The second prompt is left after the first step of its wave; the first one gets its answer all the same."""
    some, found, left = recipe("uniform", length=5, until=TINY), list[Result](), list[str]()
    counted, calls = Counted(table), list[int]()
    first = Asked("", 1, found.append)

    def leave(event: traces.Event) -> None:
        if event["event"] == "step":
            left.append("gone")
            calls.append(counted.count.calls)

    second = Asked("s", 2, found.append, wanted=lambda: not left, on_event=leave)
    asked = [[first], [], [second]]  # joins after two waves, and is then alone with one path
    decode_joining(counted, lambda: asked.pop(0) if asked else [], some)
    [one] = found
    alone = Counted(table)
    assert [path.tokens for path in one.particles] == [
        path.tokens for path in decode(alone, "", recipe=some, seed=1).particles
    ]
    assert len(calls) == 1 and counted.count.calls == alone.count.calls + 1


# --- escalation -------------------------------------------------------------------------------------------------------

STEPS = "confidence steps=3; uniform"


def test_escalating_goes_on_where_no_path_is_sure(table):
    some = recipe("eb", particles=2, until=0.05, escalate=STEPS)
    found = decode_batch(table, canvases=["[MASK*6]"] * 8, recipe=some, seeds=list(range(8)))
    samplers = [recipe("eb"), recipe("confidence", steps=3), recipe("uniform")]
    whole = [decode_batch(table, canvases=["[MASK*6]"] * 8, recipe=one, seeds=list(range(8))) for one in samplers]
    for place, one in enumerate(found):
        paths = [path.tokens for stage in whole for path in stage[place].particles[:2]]
        assert [path.tokens for path in one.particles] == paths[: len(one.particles)]
        looks = [path.look for path in one.particles]
        assert None not in looks and one.chosen == looks.index(min(looks))
        assert len(one.particles) == 6 or min(looks) < 0.05
    assert {len(one.particles) for one in found} & {3, 4, 5, 6}  # some prompt went on
    [alone] = decode_batch(table, canvases=["[MASK*6]"], recipe=some, seeds=[3])
    assert alone.particles == found[3].particles and alone.chosen == found[3].chosen


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nothing", "escalate to 'nothing': unknown sampler"),
        ("eb bound", "escalate holds 'bound'"),
        ("uniform bound=3", "escalate to 'uniform bound=3': bound has no effect"),
    ],
)
def test_an_escalation_that_cannot_be_read(table, text, message):
    with pytest.raises(SettingError, match=message):
        decode(table, canvas="[MASK*6]", recipe=recipe("eb", until=0.1, escalate=text))
    with pytest.raises(SettingError, match="escalate has no effect without until"):
        recipe("eb", escalate="uniform")


# --- rewards ----------------------------------------------------------------------------------------------------------


def test_a_reward_chooses(table):
    some = {"sampler": "uniform", "temperature": 1.0, "search": "best-of-n", "particles": 12, "choose": "reward"}
    found = decode(table, canvas="[MASK*6]", reward=lambda text: text.count("e"), **some)
    counts = [path.text.count("e") for path in found.particles]
    best = [path.surprise for path, count in zip(found.particles, counts, strict=True) if count == max(counts)]
    assert found.text.count("e") == max(counts) and found.best.surprise == min(best)
    with pytest.raises(InputError, match="give reward="):
        decode(table, canvas="[MASK*6]", **some)
    with pytest.raises(InputError, match="reward has no effect on search auto"):
        decode(table, canvas="[MASK*6]", search="auto", reward=len)
    with pytest.raises(InputError, match="reward gave a str"):
        decode(table, canvas="[MASK*6]", reward=str, **some)


def test_a_reward_in_the_walk_samples_the_tilted_law(table):
    """With one position a step and the reward's growth as log G, the particles are weighed by exp(reward)."""
    seen = []

    def reward(text: str) -> float:
        seen.append(text)
        return 2.0 * (text.count("e") + text.count("s"))

    settings = {"sampler": "uniform", "temperature": 1.0, "search": "smc", "particles": 64, "every": 1}
    tilted = decode_batch(table, canvases=["[MASK*6]"] * 4, potential="reward", strength=1.0, reward=reward, **settings)
    plain = decode_batch(table, canvases=["[MASK*6]"] * 4, potential="reward", strength=0.0, reward=reward, **settings)
    means = [
        sum(path.text.count("e") + path.text.count("s") for one in found for path in one.particles) / 256
        for found in (tilted, plain)
    ]
    assert means[0] > means[1] + 0.5
    assert any("[MASK]" in text for text in seen) and all(text.count("[MASK]") <= 6 for text in seen)


@pytest.mark.parametrize(("given", "why"), [({"verify": 5}, "verify is 5"), ({"reward": 5}, "reward is 5")])
def test_functions_are_functions(given, why):
    with pytest.raises(InputError, match=why):
        decode(unmask.load("table"), "s", length=3, search="auto", temperature=1.0, **given)
