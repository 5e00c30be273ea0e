"""Unmask: the model `unmask` of lm-evaluation-harness; its requests -> texts and likelihoods, and a row for each.

Importing this module makes the name known to the harness; `main` runs the harness's own command line.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from unmask._version import __version__
from unmask.core.denoiser import Chats
from unmask.decoding.likelihood import Bound, Piece, Question, windows
from unmask.errors import InputError, ModelError, many
from unmask.evaluate.crew import Crew, Here, Store, Work, run
from unmask.evaluate.fleet import Fleet, to_workers
from unmask.evaluate.lm_eval import arguments
from unmask.evaluate.lm_eval.arguments import ModelArgs, TextRequest
from unmask.evaluate.lm_eval.jobs import (
    QUESTIONS,
    About,
    Answer,
    Bounds,
    Greedy,
    Prompt,
    Scored,
    Texts,
    longest_first,
)
from unmask.evaluate.lm_eval.origins import Origin, RequestRows, origins
from unmask.evaluate.loading import Loading
from unmask.evaluate.rows import Line

try:
    import lm_eval.models  # fills the harness's list of models, which it does itself only while the list is empty
    from lm_eval.api.model import LM
    from lm_eval.api.registry import model_registry
    from lm_eval.utils import simple_parse_args_string
    from tqdm import tqdm
except ImportError as missing:
    raise ModelError(f"lm-eval is not there ({missing})", "pip install 'unmask[lm-eval]'") from None

LOADING = (
    "dtype",
    "weights",
    "adapter",
    "mask_id",
    "tokenizer",
    "revision",
    "blocks",
    "trust_remote_code",
    "shift",
    "max_rows",
)
log = logging.getLogger("lm_eval.unmask")  # under the harness's own, which writes it as it writes all else


class Unmask(LM):
    """A masked diffusion model behind the harness's three kinds of requests."""

    def __init__(self, **model_args: Any) -> None:
        super().__init__()
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise InputError("unmask runs in one process", "start lm_eval without accelerate or torchrun")
        self.options = given = arguments.options(model_args)
        self.rows = RequestRows(None if given.rows is None else Path(given.rows).expanduser())
        self.crew = _crew(given)
        (about,) = self.crew.prepare([(About(), ())])
        assert isinstance(about, About)
        self.model = about
        self._device = torch.device(about.device)
        limits = [limit for limit in (self.model.limit, given.max_length) if limit is not None]
        self.limit = min(limits, default=None)
        self._said: set[str] = set()

    @classmethod
    def create_from_arg_obj(cls, arg_dict: Mapping[str, Any], additional_config: Any = None) -> Unmask:
        """--model_args take precedence over --batch_size and --device, which the harness always fills in."""
        defaults = dict(additional_config or {})
        absent = str(defaults.get("device")).startswith("cuda") and not torch.cuda.is_available()
        if absent or "ray" in arg_dict:
            defaults.pop("device", None)  # it says cuda:0 on any machine, and takes what is there
        return cls(**{**defaults, **arg_dict})

    @classmethod
    def create_from_arg_string(cls, arg_string: str, additional_config: Any = None) -> Unmask:
        return cls.create_from_arg_obj(simple_parse_args_string(arg_string), additional_config)

    # --- texts ---

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        """A text for each request, up to its stop strings: equal settings together, the longest prompts first."""
        come_from = origins(requests)
        asked = [self._asked(place, *one) for place, one in enumerate(zip(requests, come_from, strict=True))]
        dropped = [one.dropped for _, one in asked if one.dropped]
        if dropped:
            what = many(len(dropped), "prompt is", "prompts are")
            self._say(f"{what} cut from the left, by up to {many(max(dropped), 'token')}: {self._room()}")
        groups: dict[TextRequest, list[Prompt]] = {}
        for ask, prompt in sorted(asked, key=lambda pair: -len(pair[1].ids)):
            groups.setdefault(ask, []).append(prompt)
        texts = [""] * len(asked)

        def store(lines: list[Line]) -> None:
            for line in lines:
                place, row = _unnumbered(line)
                texts[place] = row["text"]
                self.rows.keep(come_from[place], "generate_until", row)
                self.cache_hook.add_partial("generate_until", requests[place].args, row["text"])

        jobs = [Work(Texts(self.options.batch_size, ask), some, store) for ask, some in groups.items()]
        self._run(jobs, "generate_until", disable_tqdm)
        return texts

    def _asked(self, place: int, request: Any, origin: Origin) -> tuple[TextRequest, Prompt]:
        context, generation_kwargs = request.args[:2]
        ask = arguments.ask(self.options, generation_kwargs, self.limit)
        for note in ask.notes:
            self._say(f"{origin.task}: {note}" if origin.task else note)
        ids = self._encode(context)
        assert ask.recipe.length is not None  # `ask` always gives one
        room = len(ids) if self.limit is None else self.limit - ask.recipe.length
        kept = ids[max(0, len(ids) - room) :]
        if not kept and ask.recipe.guidance > 0:  # there is nothing to be guided by
            ask = TextRequest(ask.recipe.replace(guidance=0.0), ask.until)
        return ask, Prompt(place, kept, len(ids) - len(kept), origin.key(ask.recipe.seed))

    # --- likelihoods ---

    def loglikelihood(self, requests: list[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """The bound of each continuation given its context, and whether it is what greedy decoding gives."""
        pairs = [self._pair(*request.args[:2]) for request in requests]
        asked = [windows(context, target, self.limit) for context, target in pairs]
        cut = [len(c) - len(pieces[0].given) for (c, _), pieces in zip(pairs, asked, strict=True) if pieces]
        if any(cut):
            what = many(sum(lost > 0 for lost in cut), "context is", "contexts are")
            self._say(f"{what} cut from the left, by up to {many(max(cut), 'token')}: {self._room()}")
        checked = self._greedy(asked, disable_tqdm) if self.options.is_check_greedy else None
        found = [(0.0, False)] * len(asked)

        def on_bound(place: int, bound: Bound) -> None:
            found[place] = (bound.value, False if checked is None else checked[place][0])
            self.cache_hook.add_partial("loglikelihood", requests[place].args, found[place])

        self._score("loglikelihood", requests, asked, checked, disable_tqdm, on_bound)
        return found

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        """The bound of each whole text: in windows, where it is longer than the model's context."""
        asked = [windows([], self._encode(request.args[0]), self.limit) for request in requests]
        found = [0.0] * len(asked)

        def on_bound(place: int, bound: Bound) -> None:
            found[place] = bound.value
            self.cache_hook.add_partial("loglikelihood_rolling", requests[place].args, bound.value)

        self._score("loglikelihood_rolling", requests, asked, None, disable_tqdm, on_bound)
        return found

    def _score(
        self,
        kind: str,
        requests: Sequence[Any],
        asked: Sequence[list[Piece]],
        checked: Sequence[tuple[bool, int]] | None,  # greedy or not, and what it took to know
        quiet: bool,
        on_bound: Callable[[int, Bound], None],
    ) -> None:
        """The bound of each request, kept as a row, as they are done."""
        seed, scale = self.options.settings.get("seed", 0), self.options.settings.get("guidance", 0)
        come_from = origins(requests)
        # Answers to one question share their masks: what chance does to one, it does to all.
        questions = [Question(p, o.key(seed, alike=True)) for p, o in zip(asked, come_from, strict=True)]

        def keep(place: int, bound: Bound) -> None:
            flag, more = (None, 0) if checked is None else checked[place]
            row = {
                "value": bound.value,
                "greedy": flag,
                "path_entropy": bound.path_entropy,
                "tokens": sum(len(piece.target) for piece in asked[place]),
                "windows": len(asked[place]),
                "exact": bound.exact,
                "seed": questions[place].key,
                "evaluations": bound.evaluations + more,
            }
            self.rows.keep(come_from[place], kind, row)
            on_bound(place, bound)

        def store(lines: list[Line]) -> None:
            for line in lines:
                keep(line["number"], line["bound"])

        job = Bounds(QUESTIONS, self.options.mc_num, self.options.batch_size, scale)
        items = longest_first([Scored(place, question) for place, question in enumerate(questions)])
        self._run([Work(job, items, store)], kind, quiet)

    def _greedy(self, asked: Sequence[list[Piece]], quiet: bool) -> list[tuple[bool, int]]:
        """Whether all pieces of each answer are greedy, with the evaluations; an empty answer is."""
        flags, scale = [(True, 0)] * len(asked), self.options.settings.get("guidance", 0.0)
        rows = [(place, piece) for place, pieces in enumerate(asked) for piece in pieces]
        rows.sort(key=lambda row: (not row[1].given, -len(row[1].given) - len(row[1].target)))

        def store(lines: list[Line]) -> None:
            for line in lines:
                place = rows[line["number"]][0]
                flags[place] = (flags[place][0] and line["greedy"], flags[place][1] + line["evaluations"])

        works = []
        for given in (True, False):  # without a context there is nothing to be guided by
            items = [Answer(number, piece) for number, (_, piece) in enumerate(rows) if bool(piece.given) is given]
            works.append(Work(Greedy(self.options.batch_size, scale if given else 0.0), items, store))
        self._run(works, "greedy or not", quiet)
        return flags

    # --- the work ---

    def _run(self, works: Sequence[Work], what: str, quiet: bool) -> None:
        """Have the crew do it, with a bar."""
        with tqdm(total=sum(len(work.items) for work in works), disable=quiet, desc=f"unmask: {what}") as bar:

            def counted(store: Store, lines: list[Line]) -> None:
                store(lines)
                bar.update(len(lines))

            if isinstance(self.crew, Fleet):
                self.crew.on_progress = lambda now: bar.set_postfix_str(str(now))
            run(self.crew, [replace(work, store=partial(counted, work.store)) for work in works])

    # --- tokens ---

    def _encode(self, text: str) -> list[int]:
        assert self.model.tokenizer is not None
        return self.model.tokenizer.encode(text)

    def _pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """Ids of both, as the harness cuts them: blanks between the two belong to the continuation."""
        bare = context.rstrip()
        context, continuation = bare, context[len(bare) :] + continuation
        given = self._encode(context)
        target = self._encode(context + continuation)[len(given) :]
        # Where one token reaches over the border nothing may be left, and nothing is always certain.
        return given, target or self._encode(continuation)

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """The dialogue as the model's template writes it; without the prompt, the last message is continued."""
        words = self.model.tokenizer
        if not isinstance(words, Chats) or words.template is None:
            raise InputError(f"{self.model.name} has no chat template", "leave --apply_chat_template out")
        if add_generation_prompt:
            return words.chat(chat_history)
        return words.chat(chat_history[:-1]) + chat_history[-1]["content"]

    def chat_template(self, chat_template: bool | str = False) -> str:
        """The template itself, for the harness's records."""
        if isinstance(chat_template, str) and chat_template != "default":
            raise InputError(f"there is no chat template {chat_template!r}", "leave the name out: models have one")
        words = self.model.tokenizer
        return (words.template or "") if isinstance(words, Chats) else ""

    @property
    def tokenizer_name(self) -> str:
        return self.model.name.replace("/", "__")

    # --- records and warnings ---

    def get_model_info(self) -> dict[str, Any]:
        """For the `config` of the harness's results: what was decoded how, and what it cost."""
        about = {"version": __version__, "model": self.model.name, "device": self.model.device}
        about |= self.crew.origin
        return {"unmask": {**about, "settings": self.options.settings, **self.rows.summary()}}

    def _say(self, note: str) -> None:
        """A warning, once."""
        if note not in self._said:
            self._said.add(note)
            log.warning(note)

    def _room(self) -> str:
        return f"{self.model.name} takes {self.limit} tokens in all"


def _crew(given: ModelArgs) -> Crew:
    """This process, or workers, who end with it."""
    plain = {name: getattr(given, name) for name in LOADING}
    loading = Loading(given.pretrained, **plain)
    if given.ray is None:
        return Here(loading.load(given.device or ("cuda" if torch.cuda.is_available() else "cpu")))
    if given.trust_remote_code:
        raise InputError("ray and trust_remote_code exclude each other", "code of a checkpoint makes its tokenizer")
    fleet = Fleet(given.ray, loading, to_workers(given.workers), given.gpus, given.cpus)
    atexit.register(fleet.__exit__)
    return fleet


def _unnumbered(line: Line) -> tuple[int, Line]:
    return line["number"], {name: value for name, value in line.items() if name != "number"}


# --- the harness -----------------------------------------------------------------------------------------------------


def main(words: list[str]) -> int:
    """Run the harness's own command line, with the model `unmask` registered."""
    from lm_eval.__main__ import cli_evaluate

    sys.argv = ["lm_eval", *words]
    try:
        cli_evaluate()
    except (ValueError, OSError) as error:  # what its own checks of a command line raise
        place = traceback.extract_tb(error.__traceback__)[-1].filename
        if not Path(place).is_relative_to(Path(lm_eval.models.__file__).parents[1]):
            raise
        raise InputError(" ".join(str(error).split()), "`unmask lm-eval run --help` lists what lm-eval takes") from None
    return 0


if "unmask" not in model_registry:
    model_registry.register("unmask", target="unmask.evaluate.lm_eval.model:Unmask")
