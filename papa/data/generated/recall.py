"""Texts for the known decoder (`known`): random words, some or none of them repeated.

repeats      a row of different words, and then some of these words again, in the same order:
             guard judge poet chef scientist actor poet chef scientist
             The distance varies from text to text, so no fixed position predicts the next word.
no-repeats   a row of different words: no earlier word predicts the next.
"""

from __future__ import annotations

from random import Random

from papa.data.generated.lexicon import PEOPLE

WORDS = PEOPLE[:63]
"""These and the mark that begins a text are all tokens of the known decoder."""
LONGEST = 47
"""Words of the longest text, which fills 48 slots with the mark that begins it."""
NEW_WORDS = (24, 31)
"""Bounds on the number of different words of a text with repeats."""
REPEATED_WORDS = (8, 16)
"""Bounds on the number of words that repeat."""


def repeats(random: Random) -> dict[str, str]:
    """Write a text in which some words repeat."""
    words = random.sample(WORDS, random.randint(*NEW_WORDS))
    length = random.randint(*REPEATED_WORDS)
    begin = random.randint(0, len(words) - length)
    return {"first": " ".join(words + words[begin : begin + length])}


def no_repeats(random: Random) -> dict[str, str]:
    """Write a text of the same length in which no word repeats."""
    return {"first": " ".join(random.sample(WORDS, random.randint(NEW_WORDS[0] + REPEATED_WORDS[0], LONGEST)))}
