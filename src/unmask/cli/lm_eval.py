"""`unmask lm-eval`: the words of a command line -> lm-evaluation-harness, which knows the model `unmask`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace


def run_lm_eval(args: Namespace) -> int:
    """Run lm-evaluation-harness with the words that follow."""
    from unmask.evaluate.lm_eval import model  # lm-eval is optional

    return model.main(args.words)


def add_lm_eval(parser: ArgumentParser) -> None:
    """No flags: the harness parses all words."""
    parser.usage = "unmask lm-eval WORDS"
    parser.set_defaults(words=[])
