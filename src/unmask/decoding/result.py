"""Particles of a walk -> Result: the outcome of one prompt or canvas, as values and as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unmask.decoding.ends import END, LENGTH, STOP
from unmask.decoding.recipe import Recipe
from unmask.errors import many

CHOICES = {"auto": "surprise and a second look", "look": "a second look"}  # in words
ENDINGS = {END: "ended by an end token", STOP: "ended by a stop string"}


@dataclass(frozen=True)
class Token:
    """One position that was decided, with the model's own distribution at that moment."""

    position: int  # in the canvas
    token: int  # its id
    text: str  # the token as text
    log_prob: float | None  # nats; None for a token outside the distribution
    entropy: float | None  # bits, of the position
    step: int  # from 0
    alternatives: list[tuple[int, str, float]]  # the most probable tokens: id, text and log-probability

    def to_dict(self) -> dict[str, Any]:
        """The token as JSON values."""
        return {**vars(self), "alternatives": [list(one) for one in self.alternatives]}


@dataclass(frozen=True)
class Particle:
    """One finished path. Entropies are bits."""

    tokens: list[int]  # the whole canvas
    text: str  # the generated text after a prompt, or the filled canvas
    path_entropy: float  # the mean of its state entropies
    state_entropy: list[float | None]  # along its own ancestry, step by step; None where nothing was masked
    steps: int  # that it took
    origin: int  # the particle in which its lineage began
    log_prob: float  # nats: of the written tokens, under the model's own distribution
    surprise: float  # nats per position; see `State.surprise`
    finish: str = LENGTH  # what ended its text: "end" (an end token), "stop" (a stop string) or "length"
    look: float | None = None  # nats per position, at a second look; None where there was none
    logprobs: list[Token] | None = None  # of every position that was open; None unless `logprobs` was given

    def __repr__(self) -> str:
        numbers = f"path_entropy={self.path_entropy:.3f}, surprise={self.surprise:.3f}, steps={self.steps}"
        return f"Particle({_beginning(self.text)}, {numbers}, finish={self.finish!r})"


@dataclass(frozen=True)
class Result:
    """The outcome of one prompt or canvas."""

    particles: list[Particle]  # all paths
    chosen: int  # the number of the returned one
    recipe: Recipe  # with which it was decoded
    seed: int  # of this prompt
    calls: int  # network calls
    evaluations: int  # rows that the paths asked the network for, equal ones too
    log_evidence: float  # nats; 0 without resampling
    seconds: float  # of the whole batch
    number: int = 0  # of the prompt, among those that were given together
    share: float | None = None  # its part of the seconds, where prompts came and went in a batch
    rows: int = 0  # of the evaluations, those that the network computed: of equal canvases of a prompt one
    prompt: Any = None  # the prompt or canvas as it was given: a text, ids or messages
    given: int = 0  # tokens of the canvas that are the prompt
    slice_size: int | None = None  # particles that were decoded together, where not all of them were

    @property
    def best(self) -> Particle:
        """The returned particle."""
        return self.particles[self.chosen]

    @property
    def text(self) -> str:
        """The generated text after a prompt, or the filled canvas."""
        return self.best.text

    @property
    def finish(self) -> str:
        """What ended the text: "end" (an end token), "stop" (a stop string) or "length" (the canvas was full)."""
        return self.best.finish

    @property
    def tokens(self) -> list[int]:
        """Ids of the whole canvas, prompt included."""
        return self.best.tokens

    @property
    def new_tokens(self) -> list[int]:
        """Ids of the positions after the prompt, those after an end token too; of a canvas all."""
        return self.best.tokens[self.given :]

    @property
    def logprobs(self) -> list[Token] | None:
        """Each token when it was written; None unless `logprobs` was given."""
        return self.best.logprobs

    @property
    def path_entropy(self) -> float:
        """Of the returned particle, in bits."""
        return self.best.path_entropy

    @property
    def steps(self) -> int:
        """Steps of the longest path."""
        return max(particle.steps for particle in self.particles)

    @property
    def lineages(self) -> int:
        """How many of the first particles have descendants."""
        return len({particle.origin for particle in self.particles})

    @property
    def alike(self) -> bool:
        """Whether there are several particles that nothing random made differ at any step."""
        first, *others = self.particles
        same = [one.tokens == first.tokens and one.state_entropy == first.state_entropy for one in others]
        return self.recipe.temperature == 0 and bool(others) and all(same)  # above 0 they are copies of one path

    @property
    def choice(self) -> str:
        """What the returned particle was chosen by."""
        return self.recipe.build_search().chosen_by(self.recipe.build_sampler())

    def __repr__(self) -> str:
        numbers = f"path_entropy={self.path_entropy:.3f}, seed={self.seed}, finish={self.finish!r}"
        return f"Result({_beginning(self.text)}, {numbers}, {many(len(self.particles), 'particle')})"

    def cost(self) -> str:
        """One line: path entropy, the three counters, the particles and how one was chosen, and what ended the text."""
        parts = [
            f"path entropy {self.path_entropy:.3f} bits",
            many(self.steps, "step"),
            many(self.calls, "call"),
            many(self.evaluations, "evaluation")
            + (f" ({many(self.rows, 'row')})" if self.rows != self.evaluations else ""),
        ]
        if len(self.particles) > 1:
            parts.append(f"{many(len(self.particles), 'particle')} of {many(self.lineages, 'lineage')}")
            choice = CHOICES.get(self.choice, self.choice)
            parts += [] if choice == "entropy" else [f"chosen by {choice}"]
        if self.slice_size is not None:
            parts.append(f"in slices of {self.slice_size}")
        if self.recipe.caches:
            parts.append("approximate cache")
        if self.recipe.attention == "block":
            parts.append("attention in blocks")
        if self.finish != LENGTH:
            parts.append(ENDINGS[self.finish])
        return " · ".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """The result as JSON values."""
        return {
            "text": self.text,
            "finish": self.finish,
            "path_entropy": self.path_entropy,
            "state_entropy": self.best.state_entropy,
            "chosen": self.chosen,
            "steps": self.steps,
            "calls": self.calls,
            "evaluations": self.evaluations,
            "rows": self.rows,
            "log_evidence": self.log_evidence,
            "lineages": self.lineages,
            **({} if self.slice_size is None else {"slice_size": self.slice_size}),
            "seconds": self.seconds,
            "seed": self.seed,
            "recipe": self.recipe.to_dict(),
            "choose": self.choice,
            "tokens": self.tokens,
            **({} if self.logprobs is None else {"logprobs": [token.to_dict() for token in self.logprobs]}),
            "particles": [
                {
                    "text": p.text,
                    "finish": p.finish,
                    "path_entropy": p.path_entropy,
                    "log_prob": p.log_prob,
                    "surprise": p.surprise,
                    "look": p.look,
                    "steps": p.steps,
                    "origin": p.origin,
                }
                for p in self.particles
            ],
        }

    # --- for notebooks: the HTML is made in `report`, loaded when it is asked for ---

    def show(self, trace: str | Path | None = None) -> None:
        """Show the result below a notebook cell, or print it elsewhere; with its trace file, also the replay."""
        from unmask.report import notebook

        notebook.show(self, trace)

    def _repr_html_(self) -> str:
        from unmask.report import notebook

        return notebook.html(self)


def _beginning(text: str, most: int = 60) -> str:
    """The first letters of a text, in quotes."""
    return repr(text if len(text) <= most else text[: most - 1] + "…")
