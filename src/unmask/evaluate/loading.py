"""The name of a model and how it is loaded -> the model, in whichever process: models themselves are not sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from unmask.core.denoiser import Denoiser
from unmask.models import default_recipe, fingerprint, load
from unmask.models.transformer import compiled
from unmask.models.wrap import Chunked


@dataclass(frozen=True)
class Source:
    """What workers load: all that they need to have the same one."""

    name: str
    dtype: str | None = None
    revision: str | None = None
    trust_remote_code: bool = False
    sha256: str | None = None  # that its weights must have
    folder: str = ""  # which relative names are relative to

    def load(self, device: str) -> Any:
        """The model on a device."""
        raise NotImplementedError

    def fingerprint(self) -> str | None:
        """The SHA-256 of its weights on this machine; None for a model without files."""
        raise NotImplementedError

    @property
    def settings(self) -> Mapping[str, Any]:
        """The default settings of the model."""
        return {}


@dataclass(frozen=True)
class Loading(Source):
    """A diffusion model, and how it is run."""

    mask_id: int | None = None
    tokenizer: str | None = None
    shift: bool = False
    blocks: int | None = None
    weights: str | None = None  # int8 or int4
    adapter: str | None = None
    max_rows: int | None = None
    compile: bool = False

    def load(self, device: str) -> Denoiser:
        model = load(
            self.name,
            device,
            self.dtype,
            mask_id=self.mask_id,
            tokenizer=self.tokenizer,
            revision=self.revision,
            trust_remote_code=self.trust_remote_code,
            shift=self.shift,
            blocks=self.blocks,
            weights=self.weights,
            adapter=self.adapter,
        )
        model = model if self.max_rows is None else Chunked(model, self.max_rows)
        return compiled(model) if self.compile else model

    def fingerprint(self) -> str | None:
        return fingerprint(self.name, self.revision)

    @property
    def settings(self) -> Mapping[str, Any]:
        return {} if self.trust_remote_code else default_recipe(self.name, self.revision)
