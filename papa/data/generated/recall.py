"""Texts for the known decoder (`known`): random words, some or none of them repeated.

repeats      a series of different words, followed by some of these words again, in the same order:
             guard judge poet chef scientist actor poet chef scientist
             The distance varies between texts, so no fixed position predicts the next word.
no-repeats   a series of different words: no earlier word predicts the next.
cycles       a long text: a series of different words, again and again. The number of different words varies between
             texts, so no fixed distance predicts the next word; truncate the texts to get shorter ones.
"""

from __future__ import annotations

from itertools import cycle, islice
from random import Random

from papa.data.generated.lexicon import PEOPLE

WORDS = PEOPLE[:63]
"""The vocabulary of the known decoder, apart from the token that begins a text."""
MAXIMUM_WORDS = 47
"""Number of words in the longest text; with the token that begins it, it fills 48 slots."""
NEW_WORDS = (24, 31)
"""Minimum and maximum number of different words in a text with repeats."""
REPEATED_WORDS = (8, 16)
"""Minimum and maximum number of words that repeat."""
LONG_WORDS = 4095
"""Number of words in a text of cycles; with the token that begins it, it fills 4,096 slots."""
CYCLE_WORDS = (24, len(WORDS))
"""Minimum and maximum number of different words in a text of cycles."""


def repeats(random: Random) -> dict[str, str]:
    """Write a text in which some words repeat."""
    words = random.sample(WORDS, random.randint(*NEW_WORDS))
    length = random.randint(*REPEATED_WORDS)
    begin = random.randint(0, len(words) - length)
    return {"first": " ".join(words + words[begin : begin + length])}


def no_repeats(random: Random) -> dict[str, str]:
    """Write a text of similar length in which no word repeats."""
    words = random.randint(NEW_WORDS[0] + REPEATED_WORDS[0], MAXIMUM_WORDS)
    return {"first": " ".join(random.sample(WORDS, words))}


def cycles(random: Random) -> dict[str, str]:
    """Write a long text that repeats all its words, in the same order."""
    words = random.sample(WORDS, random.randint(*CYCLE_WORDS))
    return {"first": " ".join(islice(cycle(words), LONG_WORDS))}
