"""Unmask: the model `unmask` of lm-evaluation-harness; its requests -> texts and likelihoods, and a row for each.

Importing this module makes the name known to the harness; `main` runs the harness's own command line.
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from unmask._version import __version__
from unmask.core.denoiser import Chats
from unmask.decoding.decode import Result, decode_batch
from unmask.decoding.likelihood import Bound, Piece, Question, greedy, score, windows
from unmask.errors import InputError, ModelError, many
from unmask.evaluate.batch import parts
from unmask.evaluate.lm_eval import arguments
from unmask.evaluate.lm_eval.arguments import TextRequest
from unmask.evaluate.lm_eval.origins import Origin, RequestRows, origins
from unmask.models import load
from unmask.models.wrap import Chunked, Guided

try:
    import lm_eval.models  # fills the harness's list of models, which it does itself only while the list is empty
    from lm_eval.api.model import LM
    from lm_eval.api.registry import model_registry
    from lm_eval.utils import simple_parse_args_string
    from tqdm import tqdm
except ImportError as missing:
    raise ModelError(f"lm-eval is not there ({missing})", "pip install 'unmask[lm-eval]'") from None

log = logging.getLogger("lm_eval.unmask")  # under the harness's own, which writes it as it writes all else


@dataclass(frozen=True)
class _Job:
    """One text that is requested."""

    place: int
    ids: list[int]
    dropped: int  # tokens of the prompt, at its left, that have no room
    ask: TextRequest
    origin: Origin


class Unmask(LM):
    """A masked diffusion model behind the harness's three kinds of requests."""

    def __init__(self, **model_args: Any) -> None:
        super().__init__()
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise InputError("unmask runs in one process", "start lm_eval without accelerate or torchrun")
        self.options = given = arguments.options(model_args)
        self.rows = RequestRows(None if given.rows is None else Path(given.rows).expanduser())
        model = load(
            given.pretrained,
            given.device or ("cuda" if torch.cuda.is_available() else "cpu"),
            given.dtype,
            mask_id=given.mask_id,
            tokenizer=given.tokenizer,
            revision=given.revision,
            trust_remote_code=given.trust_remote_code,
            shift=given.shift,
            blocks=given.blocks,
        )
        self.model = model if given.max_rows is None else Chunked(model, given.max_rows)
        self._device = self.model.device
        limits = [limit for limit in (self.model.limit, given.max_length) if limit is not None]
        self.limit = min(limits, default=None)
        self._said: set[str] = set()

    @classmethod
    def create_from_arg_obj(cls, arg_dict: Mapping[str, Any], additional_config: Any = None) -> Unmask:
        """--model_args take precedence over --batch_size and --device, which the harness always fills in."""
        defaults = dict(additional_config or {})
        if str(defaults.get("device")).startswith("cuda") and not torch.cuda.is_available():
            del defaults["device"]  # it says cuda:0 on any machine, and takes what is there
        return cls(**{**defaults, **arg_dict})

    @classmethod
    def create_from_arg_string(cls, arg_string: str, additional_config: Any = None) -> Unmask:
        return cls.create_from_arg_obj(simple_parse_args_string(arg_string), additional_config)

    # --- texts ---

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        """A text for each request, up to its stop strings: equal settings together, the longest prompts first."""
        jobs = [self._job(place, *one) for place, one in enumerate(zip(requests, origins(requests), strict=True))]
        dropped = [job.dropped for job in jobs if job.dropped]
        if dropped:
            what = many(len(dropped), "prompt is", "prompts are")
            self._say(f"{what} cut from the left, by up to {many(max(dropped), 'token')}: {self._room()}")
        groups: dict[TextRequest, list[_Job]] = {}
        for job in sorted(jobs, key=lambda job: -len(job.ids)):
            groups.setdefault(job.ask, []).append(job)
        texts = [""] * len(jobs)
        with tqdm(total=len(jobs), disable=disable_tqdm, desc="unmask: generate_until") as bar:
            for batch in (part for group in groups.values() for part in parts(group, self.options.batch_size)):
                for job, result in zip(batch, self._decode(batch), strict=True):
                    texts[job.place] = text = job.ask.cut(result.text)
                    self.rows.keep(job.origin, "generate_until", _text_row(job, result, text))
                    self.cache_hook.add_partial("generate_until", requests[job.place].args, text)
                    bar.update()
        return texts

    def _job(self, place: int, request: Any, origin: Origin) -> _Job:
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
        return _Job(place, kept, len(ids) - len(kept), ask, origin)

    def _decode(self, batch: Sequence[_Job]) -> list[Result]:
        ask, seed = batch[0].ask, batch[0].ask.recipe.seed
        votes = ask.recipe.build_search().choose.needs_answers
        return decode_batch(
            self.model,
            [job.ids for job in batch],
            recipe=ask.recipe,
            stop=ask.until,
            seeds=[job.origin.key(seed) for job in batch],
            answer=ask.cut if votes else None,
        )

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
        for place, bound in self._score("loglikelihood", requests, asked, checked, disable_tqdm):
            found[place] = (bound.value, False if checked is None else checked[place][0])
            self.cache_hook.add_partial("loglikelihood", requests[place].args, found[place])
        return found

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        """The bound of each whole text: in windows, where it is longer than the model's context."""
        asked = [windows([], self._encode(request.args[0]), self.limit) for request in requests]
        found = [0.0] * len(asked)
        for place, bound in self._score("loglikelihood_rolling", requests, asked, None, disable_tqdm):
            found[place] = bound.value
            self.cache_hook.add_partial("loglikelihood_rolling", requests[place].args, bound.value)
        return found

    def _score(
        self,
        kind: str,
        requests: Sequence[Any],
        asked: Sequence[list[Piece]],
        checked: Sequence[tuple[bool, int]] | None,  # greedy or not, and what it took to know
        quiet: bool,
    ) -> Iterator[tuple[int, Bound]]:
        """The bound of each request, kept as a row, as they are done."""
        seed, scale = self.options.settings.get("seed", 0), self.options.settings.get("guidance", 0)
        come_from = origins(requests)
        # Answers to one question share their masks: what chance does to one, it does to all.
        questions = [Question(p, o.key(seed, alike=True)) for p, o in zip(asked, come_from, strict=True)]
        denoiser = Guided(self.model, scale) if scale > 0 else self.model
        done = score(denoiser, questions, self.options.mc_num, self.options.batch_size)
        for place, bound in tqdm(done, total=len(asked), disable=quiet, desc=f"unmask: {kind}"):
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
            yield place, bound

    def _greedy(self, asked: Sequence[list[Piece]], quiet: bool) -> list[tuple[bool, int]]:
        """Whether all pieces of each answer are greedy, with the evaluations; an empty answer is."""
        flags, scale = [(True, 0)] * len(asked), self.options.settings.get("guidance", 0.0)
        rows = [(place, piece) for place, pieces in enumerate(asked) for piece in pieces]
        rows.sort(key=lambda row: (not row[1].given, -len(row[1].given) - len(row[1].target)))
        with tqdm(total=len(rows), disable=quiet, desc="unmask: greedy or not") as bar:
            for given in (True, False):  # without a context there is nothing to be guided by
                for part in parts([row for row in rows if bool(row[1].given) is given], self.options.batch_size):
                    found = greedy(self.model, [piece for _, piece in part], scale if given else 0.0)
                    for (place, _), (flag, more) in zip(part, found, strict=True):
                        flags[place] = (flags[place][0] and flag, flags[place][1] + more)
                    bar.update(len(part))
        return flags

    # --- tokens ---

    def _encode(self, text: str) -> list[int]:
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
        about = {"version": __version__, "model": self.model.name, "device": str(self.model.device)}
        return {"unmask": {**about, "settings": self.options.settings, **self.rows.summary()}}

    def _say(self, note: str) -> None:
        """A warning, once."""
        if note not in self._said:
            self._said.add(note)
            log.warning(note)

    def _room(self) -> str:
        return f"{self.model.name} takes {self.limit} tokens in all"


def _text_row(job: _Job, result: Result, text: str) -> dict[str, Any]:
    return {
        "text": text,
        "path_entropy": result.path_entropy,
        "steps": result.steps,
        "calls": result.calls,
        "evaluations": result.evaluations,
        "lineages": result.lineages,
        "seed": result.seed,
        "prompt_tokens": len(job.ids),
        "dropped_tokens": job.dropped,
        "recipe": result.recipe.to_dict(),
    }


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
