"""Texts or a file -> a tokenizer of ours: byte-level BPE whose first two tokens are the end of text and the mask."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from unmask.errors import InputError, first_line

END, MASK = 0, 1
SPECIAL = ("<|endoftext|>", "<|mask|>")


def made_words(texts: Iterable[str], size: int, single_digits: bool = False) -> Tokenizer:
    """A tokenizer of at most `size` tokens, made of these texts."""
    level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    digits = pre_tokenizers.Digits(individual_digits=True)
    words = Tokenizer(models.BPE())
    words.pre_tokenizer = pre_tokenizers.Sequence([digits, level]) if single_digits else level
    words.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    words.train_from_iterator(texts, trainer)
    return words


def read_words(path: str | Path, most: int) -> Tokenizer:
    """The tokenizer in a file; refused if it is not of ours or has more than `most` tokens."""
    try:
        words = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing more special
        raise InputError(f"{str(path)!r} is not a tokenizer", first_line(error)) from None
    special = tuple(map(words.token_to_id, SPECIAL))
    if special != (END, MASK) or sorted(words.get_vocab().values()) != list(range(words.get_vocab_size())):
        raise InputError(f"{str(path)!r} is not a tokenizer of ours", "leave --tokenizer out, and one is made")
    if words.get_vocab_size() > most:
        raise InputError(f"{str(path)!r} has {words.get_vocab_size()} tokens", f"at most {most} fit")
    return words
