"""Texts for the known models (`known`): words in no order of their own, of which some come again, or none.

repeats      a row of different words, and then some words of it once more, in the order in which they stood:
             guard judge poet chef scientist actor poet chef scientist
             How far back the words stood varies from text to text, so that no fixed place tells the next word.
no-repeats   a row of different words: nothing that came before tells the next one.
"""

from __future__ import annotations

from random import Random

from papa.data.generated.lexicon import PEOPLE

WORDS = PEOPLE[:63]
"""With the mark that begins a text, as many as the known decoder has tokens."""
LONGEST = 47
"""Words of the longest text; with the mark that begins it, it fills 48 slots."""
FIRST_TIME = (24, 31)
"""How many words of a text with repeats stand there for the first time."""
AGAIN = (8, 16)
"""How many of them come again."""


def repeats(random: Random) -> dict[str, str]:
    """A text some words of which come again."""
    words = random.sample(WORDS, random.randint(*FIRST_TIME))
    long = random.randint(*AGAIN)
    begin = random.randint(0, len(words) - long)
    return {"first": " ".join(words + words[begin : begin + long])}


def no_repeats(random: Random) -> dict[str, str]:
    """A text as long as those with repeats, in which every word stands once."""
    return {"first": " ".join(random.sample(WORDS, random.randint(FIRST_TIME[0] + AGAIN[0], LONGEST)))}
