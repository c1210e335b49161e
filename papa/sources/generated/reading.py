"""Words with two labellings: names whose type the context decides, and words whose class the context decides.

A sentence is a clause ("we walk") with phrases around it, in any order:
    for / with / without / like NAMES       the names are people
    in / near / around / through NAMES      the names are places
    after / before / during the WORDS       the words are nouns
    we / they / you / i WORDS               the words are verbs
NAMES are one or two names that can be a person's and a place's, a family name or a landmark at times after them; WORDS
are one or two words that are verb and noun in one form. Labels: `entities` (BIO; PER, LOC) and `classes` (NAME, NOUN,
VERB, X).
    position:  a name or word right behind the word that decides
    lookup:    one farther away: behind "and" or adjectives, so that the deciding word must be looked up
"""

from __future__ import annotations

from random import Random

from papa.sources.generated.lexicon import FAMILY_OR_LAND, NAME_TRAITS, PERSON_OR_PLACE, VERB_OR_NOUN, Fillers

BEFORE = {
    "PER": ("with", "for", "without", "like"),
    "LOC": ("in", "near", "around", "through"),
    "NOUN": ("after the", "before the", "during the"),
    "VERB": ("we", "they", "you", "i"),
}
# word, entity, class, entity kind, class kind
Token = tuple[str, str, str, str, str]
COLUMNS = ("words", "entities", "classes", "entity_kind", "class_kind")


def reading(random: Random, fillers: Fillers) -> dict[str, list[str]]:
    """One example of the reading corpus: its words, two labels each, and which of them must be looked up."""
    names = random.sample(fillers.of(PERSON_OR_PLACE), 4)
    words = random.sample(fillers.of(VERB_OR_NOUN), 4)

    def plain(text: str) -> list[Token]:
        return [(word, "O", "X", "", "") for word in text.split()]

    def some_names(entity: str) -> list[Token]:
        tokens = plain(random.choice(BEFORE[entity]))
        for number in range(random.choice((1, 2))):
            kind = "lookup" if number else "position"
            tokens += plain("and") if number else []
            if random.random() < 0.35:
                kind = "lookup"
                tokens += plain(" ".join(random.sample(fillers.of(NAME_TRAITS), random.choice((1, 2)))))
            tokens.append((names.pop(), f"B-{entity}", "NAME", kind, ""))
            if random.random() < 0.1:
                tokens.append((random.choice(fillers.of(FAMILY_OR_LAND)), f"I-{entity}", "NAME", kind, ""))
        return tokens

    def some_words(kind: str) -> list[Token]:
        tokens = plain(random.choice(BEFORE[kind]))
        for number in range(2 if random.random() < 0.7 else 1):
            tokens += plain("and") if number else []
            tokens.append((words.pop(), "O", kind, "", "lookup" if number else "position"))
        return tokens

    phrases = [some_names("PER"), some_names("LOC"), some_words("NOUN")]
    random.shuffle(phrases)
    cut = random.randrange(len(phrases) + 1)
    sentence = [token for phrase in phrases[:cut] for token in phrase]
    sentence += plain(",") if cut else []
    sentence += some_words("VERB") + [token for phrase in phrases[cut:] for token in phrase] + plain(".")
    return {column: list(values) for column, values in zip(COLUMNS, zip(*sentence, strict=True), strict=True)}
