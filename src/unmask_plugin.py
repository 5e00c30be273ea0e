"""torch's `torch.backends` entry point -> lm-eval knows the model `unmask`, without loading anything of it.

lm-eval looks for no plugins. torch does, as it is imported, and lm-eval imports torch before it looks up a model. This
module stands outside the package, so that whoever imports torch waits for nothing.
"""

from __future__ import annotations

import sys


def register() -> None:
    """Put the name into the list of a harness that is running; never fail, since torch would."""
    if "lm_eval" not in sys.modules:
        return
    try:
        import lm_eval.models  # noqa: F401 - fills the list, which the harness does itself only while it is empty
        from lm_eval.api.registry import model_registry

        if "unmask" not in model_registry:
            model_registry.register("unmask", target="unmask.evaluate.lm_eval.model:Unmask")
    except Exception:  # another version of lm-eval: `unmask lm-eval` says what is wrong
        return
