"""Words in a sentence, labelled twice: entities (BIO) and word classes.

Every sentence holds three words each of which could be a family name, a verb or a noun (march, hunt, chase); the
context makes one of them a verb, one a noun and one a name:

    OPENING will VERB-phrase after NOUN-phrase with NAME-phrase ?       none, one or both of the last two in front:
    OPENING after NOUN-phrase , will VERB-phrase with NAME-phrase ?

                the verb                      the noun                        the name
    position    will they hunt                after the march                 with mr chase
    lookup      will the old clerk hunt       after the young nurse march     with the poor dear guard chase

In the lookup kind the same words (the, up to two adjectives, somebody at work) stand before all three, and only the
auxiliary or preposition that opens the phrase, three to five words back, tells. The two splits share openings,
auxiliaries, prepositions, "they", "the", "mr" and "mrs", and none of the ambiguous words, adjectives and workers.
"""

from __future__ import annotations

from random import Random

from papa.sources.generated.lexicon import DESCRIPTIONS, NAME_VERB_NOUN, WORKERS, Fillers

OPENINGS = ("", "", "of course", "in the end", "to be honest ,", "as far as we know ,")
CUES = {
    "VERB": ("will", "did", "can", "must", "should", "may"),
    "NOUN": ("after", "before", "during", "despite"),
    "NAME": ("with", "near", "beside", "behind"),
}
NEXT_TO_CUE = {"VERB": ("they",), "NOUN": ("the",), "NAME": ("mr", "mrs")}

Word = tuple[str, str, str, str]
"""word, entity, word class, kind"""


def reading(random: Random, fillers: Fillers) -> dict[str, list[str]]:
    """One sentence of the reading corpus with its two labellings."""
    words = iter(random.sample(fillers.of(NAME_VERB_NOUN), 3))
    verb, noun, name = (_phrase(random, fillers, label, next(words)) for label in CUES)
    others = [noun, name]
    random.shuffle(others)
    front = random.randrange(3)
    sentence = [
        *_plain(random.choice(OPENINGS)),
        *(word for phrase in others[:front] for word in phrase),
        *_plain("," if front else ""),
        *verb,
        *(word for phrase in others[front:] for word in phrase),
        *_plain("?"),
    ]
    columns = ("words", "entity", "word_class", "kind")
    return {column: list(values) for column, values in zip(columns, zip(*sentence, strict=True), strict=True)}


def _phrase(random: Random, fillers: Fillers, label: str, word: str) -> list[Word]:
    """The cue of `label`, what stands between, and `word`."""
    kind = random.choice(["position", "lookup"])
    cue = random.choice(CUES[label])
    if kind == "position":
        between = random.choice(NEXT_TO_CUE[label])
    else:
        adjectives = random.sample(fillers.of(DESCRIPTIONS), random.randrange(3))
        between = " ".join(["the", *adjectives, random.choice(fillers.of(WORKERS))])
    entity = "B-PER" if label == "NAME" else "O"
    return [*_plain(f"{cue} {between}"), (word, entity, label, kind)]


def _plain(text: str) -> list[Word]:
    """The words of `text`, which carry no entity, the class OTHER and no kind: they are not scored apart."""
    return [(word, "O", "OTHER", "") for word in text.split()]
