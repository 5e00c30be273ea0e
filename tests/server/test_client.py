"""The official client against a running server: what it asks is what `decode` gives, at once and as a stream."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from openai import OpenAI
from serving import running

from unmask import Recipe, decode, load
from unmask.decoding import trace
from unmask.decoding.prompt import encode
from unmask.tasks.puzzles import countdown

TEXT = "Once upon a time"
EVEN = {"sampler": "uniform", "steps": 6, "ban": ["eos"]}
SMC = {"sampler": "uniform", "search": "smc", "particles": 4, "every": 2, "ban": ["eos"]}


def completion(client: OpenAI, **given: Any) -> Any:
    extra = {name: given.pop(name) for name in list(given) if name in (*EVEN, *SMC, "canvas", "length", "gen_length")}
    return client.completions.create(**{"model": "text", "prompt": TEXT, "max_tokens": 10, **given}, extra_body=extra)


def test_models_are_listed(client):
    assert [model.id for model in client.models.list()] == ["text", "sudoku", "countdown", "table", "random", "chatty"]
    assert client.models.retrieve("text").unmask["limit"] == 256
    with pytest.raises(openai.NotFoundError, match="unknown model 'txt': did you mean 'text'"):
        client.models.retrieve("txt")


def test_a_completion_is_what_decode_gives(client):
    found = completion(client, seed=7, temperature=0.8, top_p=0.9, **SMC)
    result = decode(load("text"), TEXT, length=10, seed=7, temperature=0.8, top_p=0.9, **SMC)
    choice = found.choices[0]
    assert (found.object, found.model, choice.index) == ("text_completion", "text", 0)
    assert choice.text == result.text
    assert choice.unmask["path_entropy"] == pytest.approx(result.path_entropy)
    assert choice.unmask["surprise"] == pytest.approx(result.best.surprise)
    surprises = [particle.surprise for particle in result.particles]
    assert [one["surprise"] for one in choice.unmask["particles"]] == pytest.approx(surprises)
    assert choice.unmask["state_entropy"] == pytest.approx(result.best.state_entropy)
    assert found.unmask["path_entropy"] == choice.unmask["path_entropy"]
    for name in ("steps", "calls", "evaluations", "seed", "chosen", "lineages"):
        assert choice.unmask[name] == getattr(result, name)
    assert [one["text"] for one in choice.unmask["particles"]] == [one.text for one in result.particles]
    assert found.usage.prompt_tokens == len(encode(load("text"), TEXT))
    assert found.usage.completion_tokens == 10 and found.usage.total_tokens == found.usage.prompt_tokens + 10


def test_choices_have_seeds_of_their_own_and_seeds_repeat(client):
    many = completion(client, n=3, seed=5, **EVEN)
    assert [choice.unmask["seed"] for choice in many.choices] == [5, 6, 7]
    for place in range(3):
        alone = completion(client, seed=5 + place, **EVEN)
        assert alone.choices[0].text == many.choices[place].text
    assert len({choice.text for choice in many.choices}) == 3
    free = completion(client, **EVEN)
    again = completion(client, seed=free.choices[0].unmask["seed"], **EVEN)
    assert again.choices[0].text == free.choices[0].text


def test_prompts_may_be_many_or_ids(client):
    ids = encode(load("text"), TEXT)
    found = completion(client, prompt=[TEXT, "One day"], n=2, seed=0, **EVEN)
    assert [choice.index for choice in found.choices] == [0, 1, 2, 3]
    assert completion(client, prompt=ids, seed=1, **EVEN).choices[0].text == found.choices[1].text
    assert completion(client, prompt="One day", seed=3, **EVEN).choices[0].text == found.choices[3].text
    both = completion(client, prompt=[ids, ids[:2]], seed=0, **EVEN)
    assert both.choices[0].text == found.choices[0].text
    assert both.usage.prompt_tokens == len(ids) + 2


def test_temperature_is_one_unless_given_and_zero_is_greedy(client):
    assert (
        completion(client, seed=1, **EVEN).choices[0].text
        == completion(client, seed=1, temperature=1, **EVEN).choices[0].text
    )
    text = decode(load("text"), TEXT, length=10, sampler="entropy", temperature=0.0).text
    found = client.completions.create(
        model="text", prompt=TEXT, max_tokens=10, temperature=0, top_p=0.5, extra_body={"sampler": "entropy"}
    )
    assert found.choices[0].text == text


def test_length_has_other_names_and_a_default(client):
    plain = client.completions.create(model="table", prompt="se", seed=1)
    assert len(plain.choices[0].text) == 4 and plain.choices[0].finish_reason == "length"
    short = client.completions.create(model="table", prompt="se", seed=1, extra_body={"gen_length": 2})
    assert len(short.choices[0].text) == 2
    with pytest.raises(openai.BadRequestError, match="length and max_tokens mean the same: leave one out"):
        client.completions.create(model="table", prompt="se", max_tokens=2, extra_body={"length": 2})


def test_the_curve_ends_with_the_path(client):
    given = {"model": "table", "prompt": "se", "max_tokens": 4, "seed": 1}
    whole = client.completions.create(**given, extra_body={"sampler": "uniform", "steps": 9})
    assert len(whole.choices[0].unmask["state_entropy"]) <= 9 and None not in whole.choices[0].unmask["state_entropy"]
    assert whole.choices[0].unmask["state_entropy"] == whole.unmask["state_entropy"] != []


def test_stop_cuts_the_text(client):
    whole = completion(client, seed=2, **EVEN).choices[0].text
    word = whole[5:8]
    cut = completion(client, seed=2, stop=["never there", word], **EVEN)
    assert cut.choices[0].text == whole[: whole.index(word)]
    assert cut.choices[0].finish_reason == "stop"
    assert 0 < cut.usage.completion_tokens < 10


def test_canvas_and_suffix_fill_holes(client):
    found = client.completions.create(model="table", prompt="", seed=1, extra_body={"canvas": "t[MASK*4]t"})
    result = decode(load("table"), canvas="t[MASK*4]t", recipe=Recipe(temperature=1.0, seed=1))
    assert (found.choices[0].text, found.choices[0].finish_reason) == (result.text, "stop")
    assert (found.usage.prompt_tokens, found.usage.completion_tokens) == (2, 4)
    middle = client.completions.create(model="table", prompt="t", suffix="t", max_tokens=4, seed=1)
    assert middle.choices[0].text == result.text[1:-1]
    puzzle = "53..7....6..195....98....6.8...6...34..8.3..17...2...6.6....28....419..5....8..79"
    solved = client.completions.create(
        model="sudoku", prompt="", temperature=0, extra_body={"canvas": puzzle.replace(".", "[MASK]"), "steps": 8}
    )
    assert len(solved.choices[0].text) == 81 and solved.choices[0].text.startswith("53")


def test_a_puzzle_is_a_prompt(client):
    """What a model of puzzles is prompted with is a puzzle; its answer is the text, and is judged."""
    model, problems, few = load("countdown"), ["15,44,79,50", "3,7,25,50,96"], {"sampler": "uniform", "steps": 3}
    given = {"model": "countdown", "prompt": problems, "seed": 1, "temperature": 0.5, "extra_body": few}
    whole = client.completions.create(**given, logprobs=0)
    for place, (text, choice) in enumerate(zip(problems, whole.choices, strict=True)):
        problem = countdown.parse(text)
        recipe = Recipe(seed=1 + place, temperature=0.5, **few)
        answer = countdown.answer(decode(model, canvas=countdown.canvas(problem), recipe=recipe).tokens)
        assert choice.unmask["answer"] == answer and choice.text == "".join(choice.logprobs.tokens)
        assert choice.text.replace(" ", "") == answer.replace("_", "")
        assert choice.unmask["fault"] == countdown.fault(answer, problem) and choice.unmask["strange"] is None
    text, chunks = joined(client.completions.create(**{**given, "prompt": problems[0]}, stream=True))
    assert text == whole.choices[0].text
    assert chunks[-1].choices[0].unmask["answer"] == whole.choices[0].unmask["answer"]
    for wrong, words in (
        ({"prompt": "1,2"}, "there are 1 number and a target: give 3 to 5"),
        ({"model": "sudoku", "prompt": ""}, "this one has 0"),
        ({"max_tokens": 9}, "max_tokens has no effect on a puzzle: leave it out"),
        ({"extra_body": {"canvas": "[MASK]"}}, "exclude each other"),
    ):
        with pytest.raises(openai.BadRequestError, match=words) as caught:
            client.completions.create(**{**given, **wrong})
        assert caught.value.param in ("prompt", "max_tokens")


def test_logprobs_of_completions(client):
    found = completion(client, seed=3, logprobs=2, **EVEN)
    logs, text = found.choices[0].logprobs, found.choices[0].text
    assert "".join(logs.tokens) == text and len(logs.tokens) == 10
    assert [text[at:].startswith(token) for at, token in zip(logs.text_offset, logs.tokens, strict=True)] == [True] * 10
    for log, most in zip(logs.token_logprobs, logs.top_logprobs, strict=True):
        assert log < 0 and len(most) <= 2 and log <= max(most.values()) + 1e-6
    assert completion(client, seed=3, **EVEN).choices[0].text == text
    assert completion(client, seed=3, **EVEN).choices[0].logprobs is None


def test_logprobs_follow_the_lineage_that_is_chosen(client):
    model, seed = load("table"), 4
    settings = {"sampler": "uniform", "search": "smc", "particles": 6, "every": 1}
    found = client.completions.create(
        model="table", prompt="", max_tokens=6, seed=seed, logprobs=0, extra_body=settings
    )
    logs = found.choices[0].logprobs.token_logprobs
    joint = model.joint / model.joint.sum()
    exact = float(joint[tuple(encode(model, found.choices[0].text))].log())
    assert sum(logs) == pytest.approx(exact, abs=1e-4)  # one token a step: the chain rule along the lineage


# --- streams ---------------------------------------------------------------------------------------------------------


def joined(stream: Any) -> tuple[str, list[Any]]:
    chunks = list(stream)
    return "".join(choice.text for chunk in chunks for choice in chunk.choices), chunks


@pytest.mark.parametrize(
    "settings",
    [
        {"sampler": "semi-ar", "block_length": 2},
        {"sampler": "uniform"},
        {"sampler": "p2", "steps": 8},
        {"sampler": "uniform", "search": "smc", "particles": 4, "every": 2},
    ],
    ids=lambda settings: settings.get("search", settings["sampler"]),
)
@pytest.mark.parametrize("stop", [None, ["e", " the"]])
def test_the_joined_stream_is_the_blocking_text(client, settings, stop):
    given = {"model": "text", "prompt": TEXT, "max_tokens": 8, "seed": 11, "stop": stop, "extra_body": settings}
    whole = client.completions.create(**given)
    text, chunks = joined(client.completions.create(**given, stream=True))
    assert text == whole.choices[0].text
    last = chunks[-1]
    assert last.choices[0].finish_reason == whole.choices[0].finish_reason
    assert last.choices[0].unmask["path_entropy"] == whole.choices[0].unmask["path_entropy"]
    assert last.unmask["evaluations"] == whole.unmask["evaluations"]
    texts = [chunk for chunk in chunks if chunk.choices[0].text]
    events = [chunk.choices[0].unmask["event"] for chunk in chunks[:-1] if "unmask" in chunk.choices[0].model_extra]
    if settings["sampler"] == "semi-ar" and stop is None:
        assert len(texts) > 3 and not events  # from left to right: piece by piece
    if settings["sampler"] == "p2" or "search" in settings:
        assert len(texts) == (1 if text else 0)
        assert [event["event"] for event in events] == ["start", *["step"] * (len(events) - 2), "end"]
        assert trace.lineages(events)[whole.choices[0].unmask["chosen"]] == pytest.approx(
            whole.choices[0].unmask["state_entropy"]
        )


def test_a_stream_of_several_choices_with_usage_and_logprobs(client):
    given = {"model": "text", "prompt": [TEXT, "One day"], "n": 2, "seed": 1, "max_tokens": 8, "logprobs": 1}
    settings = {"sampler": "semi-ar", "block_length": 1}
    whole = client.completions.create(**given, extra_body=settings)
    stream = client.completions.create(
        **given, extra_body=settings, stream=True, stream_options={"include_usage": True}
    )
    texts, logs, usage = [""] * 4, [[] for _ in range(4)], None
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            logs[choice.index] += choice.logprobs.tokens if choice.logprobs else []
    assert texts == [choice.text for choice in whole.choices]
    assert ["".join(tokens) for tokens in logs] == texts
    assert usage == whole.usage


def test_halves_of_characters_are_not_sent(client):
    """Greek in a vocabulary of English: every letter is two tokens."""
    given = {"model": "text", "prompt": "αβγ", "suffix": "δε", "max_tokens": 8, "temperature": 1.5}
    model = load("text")
    bytes_only = list(range(258, model.head.width))
    (half, _) = model.tokenizer.encode("α")
    halves_only = [token for token in range(model.head.width) if token != half]
    for seed, ban in enumerate([bytes_only, bytes_only, halves_only]):
        settings = {"sampler": "semi-ar", "block_length": 1, "ban": ban}
        whole = client.completions.create(**given, seed=seed, logprobs=0, extra_body=settings).choices[0]
        stream = client.completions.create(**given, seed=seed, logprobs=0, extra_body=settings, stream=True)
        text, chunks = joined(stream)
        assert text == whole.text
        logs = [chunk.choices[0].logprobs for chunk in chunks if chunk.choices[0].logprobs is not None]
        assert [log for one in logs for log in one.token_logprobs] == whole.logprobs.token_logprobs
        assert [token for one in logs for token in one.tokens] == whole.logprobs.tokens


# --- chat ------------------------------------------------------------------------------------------------------------

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "How many legs have six spiders?"}]


def test_a_chat_is_what_decode_gives(client, tiny_llada):
    recipe = Recipe(length=8, seed=2, temperature=1.0, **SMC)
    given = {"model": "chatty", "messages": MESSAGES, "max_completion_tokens": 8, "seed": 2, "extra_body": SMC}
    whole = client.chat.completions.create(**given)
    assert whole.object == "chat.completion" and whole.choices[0].message.role == "assistant"
    assert whole.choices[0].message.content == decode(tiny_llada, MESSAGES, recipe=recipe).text
    chunks = list(client.chat.completions.create(**given, stream=True))
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    again = [*MESSAGES, whole.choices[0].message, {"role": "user", "content": [{"type": "text", "text": "Why?"}]}]
    assert client.chat.completions.create(model="chatty", messages=again, max_tokens=4).choices


def test_logprobs_of_chats(client):
    given = {"model": "chatty", "messages": MESSAGES, "max_tokens": 6, "seed": 2, "logprobs": True, "top_logprobs": 3}
    whole = client.chat.completions.create(**given)
    content = whole.choices[0].logprobs.content
    assert "".join(one.token for one in content) == whole.choices[0].message.content
    assert all(one.logprob <= one.top_logprobs[0].logprob + 1e-6 and len(one.top_logprobs) == 3 for one in content)


def test_a_model_without_a_template_says_so(client):
    with pytest.raises(openai.BadRequestError, match="text has no chat template: use /v1/completions") as caught:
        client.chat.completions.create(model="text", messages=MESSAGES)
    assert (caught.value.type, caught.value.param) == ("invalid_request_error", "messages")


def test_messages_may_go_as_plain_text():
    with running({"text": load("text")}, plain_chat=True) as here:
        given = {"model": "text", "max_tokens": 6, "seed": 1, "extra_body": EVEN}
        turns = [{"role": "user", "content": "Once upon"}, {"role": "assistant", "content": "a time"}]
        found = here.client().chat.completions.create(messages=turns, **given)
        result = decode(load("text"), "Once upon\n\na time", length=6, seed=1, temperature=1.0, **EVEN)
        assert found.choices[0].message.content == result.text


# --- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"extra_body": {"samplr": "eb"}}, "unknown field 'samplr': did you mean 'sampler'"),
        ({"extra_body": {"sampler": "eb", "steps": 3}}, "steps has no effect on sampler eb"),
        ({"extra_body": {"background": "/etc/passwd", "sampler": "pc"}}, "a file only the server"),
        ({"extra_body": {"canvas": "[MASK]"}}, "prompt, messages and canvas exclude each other"),
        ({"temperature": -1}, "temperature is -1: it must be at least 0"),
        ({"temperature": "hot"}, 'temperature is "hot": it must be a number'),
        ({"max_tokens": 0}, "max_tokens is 0: it must be at least 1"),
        ({"max_tokens": 600}, "longer than text allows (256): shorten the prompt or max_tokens"),
        ({"extra_body": {"gen_length": 0}}, "gen_length is 0: it must be at least 1"),
        ({"extra_body": {"sampler": "ebb"}}, "unknown sampler 'ebb'"),
        ({"frequency_penalty": 0.5}, "frequency_penalty is not supported"),
        ({"logit_bias": {"5": 1}}, "logit_bias is not supported: use `ban`"),
        ({"echo": True}, "echo is not supported"),
        ({"best_of": 3}, "best_of is not supported: use search best-of-n"),
        ({"stop": ["a"] * 5}, "it must be text, or a list of at most 4"),
        ({"stop": ""}, "a stop sequence is empty"),
        ({"stream_options": {"include_usage": True}}, "stream_options has no effect without stream"),
        ({"n": 0}, "n is 0"),
        ({"logprobs": 9}, "logprobs is 9: it must be a whole number from 0 to 5"),
        ({"seed": 2**63}, "seed is 9223372036854775808"),
        (
            {"seed": 2**63 - 1, "n": 2},
            "seed is 9223372036854775807: for 2 choices it must be at most 9223372036854775806",
        ),
        ({"prompt": [99999]}, "token id 99999 is outside the vocabulary"),
        ({"prompt": []}, "prompt is []: it must be text, token ids, or a list of either that is not empty"),
        ({"extra_body": {"tools": []}}, "tools is not supported: leave it out"),
        (
            {"extra_body": {"top_logprobs": 1}},
            "top_logprobs is not a field of /v1/completions: /v1/chat/completions takes",
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_cannot_be_done_is_a_bad_request(client, given, words):
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(**{"model": "text", "prompt": TEXT, **given})
    assert words in str(caught.value)
    assert caught.value.type == "invalid_request_error"
    assert caught.value.param in {*given.get("extra_body", given), "prompt"}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"canvas": "[MASK]"}, "canvas is not a field of /v1/chat/completions: /v1/completions and /v1/paths take it"),
        ({"tools": [{"type": "function"}]}, "tools is not supported: leave it out"),
        ({"reasoning_effort": "low"}, "reasoning_effort is not supported: leave it out"),
        ({"max_completion_tokens": 0}, "max_completion_tokens is 0: it must be at least 1"),
        ({"messages": []}, "messages is []: it must be a list of messages that is not empty"),
        ({"messages": [{"role": "user"}]}, "messages[0].content is missing"),
        ({"messages": [{"role": "tool", "content": "a"}]}, "messages[0].role is \"tool\": it must be 'system', "),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content is 3: it must be text, or a list of"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "a"}}]}]},
         'messages[0].content has a part of type "image_url": only text is supported'),
        ({"messages": [{"role": "user", "content": "a", "tool_calls": [1]}]}, "messages[0].tool_calls is not supp"),
        ({"messages": [{"role": "user", "content": "a", "mood": 1}]}, "unknown field 'mood' in messages[0]"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)  # fmt: skip
def test_a_chat_is_refused_in_the_words_of_the_api(client, given, words):
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**{"model": "chatty", "messages": MESSAGES}, extra_body=given)
    assert words in str(caught.value.body["message"]) and caught.value.param == next(iter(given))


def test_neutral_values_are_taken(client):
    client.completions.create(
        model="table",
        prompt="s",
        frequency_penalty=0,
        presence_penalty=0,
        logit_bias={},
        echo=False,
        best_of=1,
        user="me",
        extra_body={"store": True, "metadata": {"a": "b"}, "max_completion_tokens": 2},
    )
    client.chat.completions.create(
        model="chatty",
        messages=MESSAGES,
        max_tokens=2,
        response_format={"type": "text"},
        tools=[],
        tool_choice="none",
        store=True,
        metadata={"a": "b"},
        service_tier="flex",
        parallel_tool_calls=True,
        user="me",
    )


def test_a_choice_says_what_ended_it():
    """An end token and a stop sequence are both OpenAI's `stop`; the field of unmask tells them apart."""
    model = load("random")
    eos = model.vocab.eos[0]
    only = [token for token in range(model.head.width) if token not in (eos, model.vocab.mask)]
    with running({"random": model}) as here:
        create = here.client().completions.create
        given: dict[str, Any] = {"model": "random", "prompt": "ab", "max_tokens": 6, "seed": 1}
        for more, reason, finish in (
            ({"extra_body": {"ban": only}}, "stop", "end"),
            ({"extra_body": {"ban": [eos]}}, "length", "length"),
        ):
            whole = create(**given, **more).choices[0]
            assert (whole.finish_reason, whole.unmask["finish"]) == (reason, finish)
            assert whole.unmask["particles"][0]["finish"] == finish
            *_, last = create(**given, **more, stream=True)
            assert (last.choices[0].finish_reason, last.choices[0].unmask["finish"]) == (reason, finish)
        letter = create(**given, extra_body={"ban": [eos]}).choices[0].text[2]
        cut = create(**given, extra_body={"ban": [eos]}, stop=letter).choices[0]
        assert (cut.finish_reason, cut.unmask["finish"]) == ("stop", "stop")
