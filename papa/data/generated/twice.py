"""Texts for the known encoder (`looking`): does the first word of a row of words come a second time?

label   kind       text
twice   position   chef chef guard poet judge           it stands in the next place
twice   lookup     chef guard poet judge chef actor     it stands in a place that varies, never the next one
once    both       chef guard poet judge actor          all words are different

No word tells, because any word can be the first one. The two splits share no word, so that nothing can be learned of
single words.
"""

from __future__ import annotations

from random import Random

from papa.data.generated.lexicon import PEOPLE, Fillers

WORDS = PEOPLE[:58]
"""With five special tokens, and one number for the place, as many as a known head can tell apart."""
LENGTHS = (12, 18)
"""How many words a text has at least and at most."""


def twice(random: Random, fillers: Fillers, label: str, kind: str) -> dict[str, str]:
    """One example; `label` is "once" or "twice"."""
    long = random.randint(*LENGTHS)
    words = random.sample(fillers.of(WORDS), long)
    if label == "twice":
        words[1 if kind == "position" else random.randrange(2, long)] = words[0]
    return {"first": " ".join(words)}
