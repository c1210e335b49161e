"""Texts for the known encoder (`looking`): does the first word of a text occur again?

label   kind       text
twice   position   chef chef guard poet judge           as the next word
twice   lookup     chef guard poet judge chef actor     as a later word, at a varying position
once    both       chef guard poet judge actor          all words are different

No single word decides, because any word can be the first. The splits share no words, so nothing can be learned about
single words.
"""

from __future__ import annotations

from random import Random

from papa.data.generated.lexicon import PEOPLE, Fillers

WORDS = PEOPLE[:58]
"""With five special tokens and a channel for the position, these words fill the 64 channels of a known head."""
LENGTHS = (12, 18)
"""Minimum and maximum number of words in a text."""


def twice(random: Random, fillers: Fillers, label: str, kind: str) -> dict[str, str]:
    """Write an example; `label` is "once" or "twice"."""
    length = random.randint(*LENGTHS)
    words = random.sample(fillers.of(WORDS), length)
    if label == "twice":
        words[1 if kind == "position" else random.randrange(2, length)] = words[0]
    return {"first": " ".join(words)}
