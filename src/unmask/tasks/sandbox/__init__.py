"""Untrusted Python code -> whether it runs to its end, apart from everything else on the machine."""

from unmask.tasks.sandbox.box import Limits, Outcome, Protections, SandboxError, available, run

__all__ = ["Limits", "Outcome", "Protections", "SandboxError", "available", "run"]
