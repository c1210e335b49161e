"""The corpus reading: words with two labellings, entities (BIO) and word classes (universal part-of-speech tags).

Every sentence has three words that could each be a family name, a verb or a noun (march, hunt, chase). The context
makes the first a verb, the second a noun and the third a name:

    OPENING will VERB-phrase after NOUN-phrase with NAME-phrase ?       none, one or both of the last two in front:
    OPENING after NOUN-phrase , will VERB-phrase with NAME-phrase ?

                the verb                      the noun                        the name
    entity      O                             B-EVENT                         B-PER
    word class  VERB                          NOUN                            PROPN
    position    will they hunt                after the march                 with mr chase
    lookup      will the old clerk hunt       after the young nurse march     with the poor dear guard chase

In the lookup kind, the same words (the, up to two adjectives, a worker) precede all three. Only the auxiliary or
preposition that opens the phrase, three to five words back, decides. The two splits share openings, auxiliaries,
prepositions, "they", "the", "mr" and "mrs", but no ambiguous words, adjectives or workers.
"""

from __future__ import annotations

from random import Random
from typing import NamedTuple

from papa.data.generated.lexicon import DESCRIPTIONS, NAME_VERB_NOUN, WORKERS, Fillers

OPENINGS = (
    "",
    "",
    "of/ADP course/NOUN",
    "in/ADP the/DET end/NOUN",
    "to/PART be/AUX honest/ADJ ,/PUNCT",
    "as/ADV far/ADV as/SCONJ we/PRON know/VERB ,/PUNCT",
)


class Word(NamedTuple):
    """A word of a sentence, its label in each labelling, and its kind ("" for a word that is not ambiguous)."""

    words: str
    entity: str
    word_class: str
    kind: str


class Phrase(NamedTuple):
    """The phrase that makes an ambiguous word a verb, a noun or a name.

    `cues` open the phrase, and `joints` follow them in the position kind; `entity` and `word_class` are the labels.
    """

    cues: tuple[str, ...]
    joints: tuple[str, ...]
    entity: str
    word_class: str


VERB = Phrase(
    cues=("will/AUX", "did/AUX", "can/AUX", "must/AUX", "should/AUX", "may/AUX"),
    joints=("they/PRON",),
    entity="O",
    word_class="VERB",
)
NOUN = Phrase(
    cues=("after/ADP", "before/ADP", "during/ADP", "despite/ADP"),
    joints=("the/DET",),
    entity="B-EVENT",
    word_class="NOUN",
)
NAME = Phrase(
    cues=("with/ADP", "near/ADP", "beside/ADP", "behind/ADP"),
    joints=("mr/PROPN", "mrs/PROPN"),
    entity="B-PER",
    word_class="PROPN",
)


def reading(random: Random, fillers: Fillers) -> dict[str, list[str]]:
    """Write a sentence of the corpus reading: words, both labellings and kinds, each as a list over the words."""
    words = random.sample(fillers.of(NAME_VERB_NOUN), 3)
    verb, *after = (_phrase(random, fillers, *pair) for pair in zip((VERB, NOUN, NAME), words, strict=True))
    random.shuffle(after)
    front = random.randrange(3)
    sentence = [
        *_plain(random.choice(OPENINGS)),
        *(word for phrase in after[:front] for word in phrase),
        *_plain(",/PUNCT" if front else ""),
        *verb,
        *(word for phrase in after[front:] for word in phrase),
        *_plain("?/PUNCT"),
    ]
    return {column: list(values) for column, values in zip(Word._fields, zip(*sentence, strict=True), strict=True)}


def _phrase(random: Random, fillers: Fillers, phrase: Phrase, word: str) -> list[Word]:
    """Write a cue, the words after it, and the ambiguous word."""
    kind = random.choice(["position", "lookup"])
    if kind == "position":
        between = random.choice(phrase.joints)
    else:
        adjectives = random.sample(fillers.of(DESCRIPTIONS), random.randrange(3))
        worker = random.choice(fillers.of(WORKERS))
        between = " ".join(["the/DET", *(f"{adjective}/ADJ" for adjective in adjectives), f"{worker}/NOUN"])
    return [*_plain(f"{random.choice(phrase.cues)} {between}"), Word(word, phrase.entity, phrase.word_class, kind)]


def _plain(tagged: str) -> list[Word]:
    """Parse "word/TAG word/TAG" into words that are neither entities nor ambiguous."""
    return [Word(word, "O", tag, "") for word, tag in (pair.split("/") for pair in tagged.split())]
