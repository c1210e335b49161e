"""Write the texts of the demo (config/config.yaml) and of the tutorial on decoders, next to this script.

| folder    | columns                    | labels                             | asks                      |
|-----------|----------------------------|------------------------------------|---------------------------|
| agreement | first, label, kind         | is, are                            | which noun is the subject |
| inference | first, second, label, kind | entailment, neutral, contradiction | what follows              |
| reading   | words, kind, entity        | O, B-PER, B-EVENT                  | what a word is in context |
| repeats   | text                       | none                               | which word comes again    |

`kind` is "position" or "lookup". In the position kind, the words that decide are always in the same slots, or next to
the word in question. In the lookup kind, the label depends on how words relate, and a bag-of-words model is at chance.
In reading, every word has a kind; it is empty for words that are not ambiguous. Text is in lower case, with spaces
around punctuation.

Labels are balanced. Each kind makes up half of a split (about half in reading). No example occurs twice, and train and
validation share no fillers, the words in the lists below. Only the texts of repeats use one vocabulary in both splits,
that of the decoder, which induction.py writes.

    python data/demo/write.py
"""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Callable
from functools import partial
from itertools import cycle, product
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

PEOPLE = """doctor nurse lawyer teacher student farmer driver pilot painter singer dancer writer actor banker soldier
sailor hunter miner builder guard clerk judge poet chef scientist engineer designer manager artist musician player
runner swimmer guest visitor tourist neighbor friend cousin uncle brother sister girl boy king queen prince priest
monk reporter editor author critic scholar professor officer captain duke baron knight mayor senator governor minister
ambassador director producer composer guitarist comedian wizard pirate agent surgeon bishop rabbi nun servant cook
tenant client customer rider cyclist wrestler referee keeper ranger merchant trader accountant assistant translator
historian architect mechanic technician sculptor photographer""".split()

TRAITS = """tired happy busy famous rich poor young old tall angry quiet polite proud brave kind lazy clever calm sad
hungry nervous honest lonely bored friendly careful strong weak wise shy""".split()

FIRST_NAMES = """anna ben carla david emma frank george helen ivan julia kevin laura martin nora oscar peter rachel
simon tina victor wendy adam beth chris diana eric fiona gary hannah jack kate leo mary nick olivia paul ruth sam tom
ursula alice brian claire daniel ellen felix henry irene james karen louis maria nathan pamela robert sarah thomas
vera walter amy bruce cindy derek edith fred gloria harry isabel jason kelly larry monica neil patricia ralph sandra
terry valerie william andrew barbara carl dorothy edward frances gerald heather jeremy kathleen leonard margaret
norman philip rebecca stephen teresa vincent abigail albert bridget charles deborah ernest eva howard janet joseph
linda michael nancy patrick roger susan timothy zoe""".split()

COMPARISONS = """older/younger taller/shorter richer/poorer faster/slower stronger/weaker happier/sadder
smarter/duller heavier/lighter kinder/crueler bigger/smaller louder/quieter braver/shyer warmer/colder neater/messier
healthier/sicker""".split()

# Each is a family name, a verb and a noun for an action: mr march, they march, the march.
NAME_VERB_NOUN = """march hunt chase rush ride race camp dance gamble sail walk fall strike stroll turn watch start
harvest sweep rest work wake wash wave cheer charge speed dash dive draw feast fish game guard guide help judge land
laugh look move pass pause pitch play reason rise roll rock search shout show skip sleep slide smile stand stay step
stock swing toast trade train travel trip trick wait whistle wink wish wonder cook drill fight hope flight visit talk
swim climb jump drive bath hop skate sprint parade""".split()

# Workers, who can do or own something or precede a name: the farmer march.
WORKERS = """student staff guest doctor farmer soldier guard worker teacher driver miner sailor nurse pilot lawyer
artist player singer neighbor prisoner waiter painter baker tourist visitor clerk citizen pupil actor
writer""".split()

DESCRIPTIONS = """dear old poor little lovely great famous rich busy proud quiet sleepy beautiful noisy good funny
strange wild young modern""".split()

KINDS = ("position", "lookup")


def of(words: list[str], split: str) -> list[str]:
    """Select the words that a split may use: every third word for validation, the others for train."""
    return [word for index, word in enumerate(words) if (index % 3 == 2) == (split == "validation")]


def join(*parts: str) -> str:
    """Join the non-empty parts with single spaces."""
    return " ".join(part for part in parts if part)


# -- single texts -----------------------------------------------------------------------------------------------------

# agreement: which verb follows, "is" or "are"? The text stops before the verb.
#     position   the young nurses near the tall doctors      both nouns have the same number: either slot decides
#     lookup     one noun is singular and one plural; the distractor follows or precedes the subject:
#                OPENING the nurses near the tall doctor     are
#                OPENING near the tall doctor , the nurses   are
#
# OPENING and the prepositions are phrases of different lengths, so no slot decides. The splits share these phrases and
# "the", but no people or traits.

OPENINGS = (
    "",
    "today",
    "in the end",
    "to be honest ,",
    "as far as we know ,",
    "on the last day of the year ,",
    "as i said to my friends last night ,",
)
PREPOSITIONS = ("near", "behind", "next to", "in front of", "with", "without", "beside", "opposite")


def agreement(random: Random, split: str, label: str, kind: str) -> dict[str, str]:
    """Write an example of the agreement corpus; `label` is "is" or "are"."""
    people, traits = of(PEOPLE, split), of(TRAITS, split)
    plural = label == "are"
    subject, distractor = (
        noun + "s" * is_plural
        for noun, is_plural in zip(
            random.sample(people, 2), (plural, plural == (kind == "position")), strict=True
        )
    )
    preposition = random.choice(PREPOSITIONS)
    if kind == "position":
        return {
            "first": f"the {random.choice(traits)} {subject} {preposition} the {random.choice(traits)} {distractor}"
        }
    subject, distractor = (
        join("the", random.choice(["", random.choice(traits)]), noun)
        for noun in (subject, distractor)
    )
    after = join(subject, preposition, distractor)
    before = join(preposition, distractor, ",", subject)
    return {"first": join(random.choice(OPENINGS), random.choice([after, before]))}


# -- pairs of texts ---------------------------------------------------------------------------------------------------

# inference — the premise is "A is older than B ."
#     position:  someone is younger than A .  entailment   nobody is younger than A .  contradiction
#                everyone is younger than A . neutral
#     lookup:    B is younger than A .        entailment   A is younger than B .       contradiction
#                with a third person C in the place of A or B: neutral

QUANTIFIERS = {"entailment": "someone", "neutral": "everyone", "contradiction": "nobody"}


def inference(random: Random, split: str, label: str, kind: str) -> dict[str, str]:
    """Write an example of the inference corpus; `label` is "entailment", "neutral" or "contradiction"."""
    more, less, third = random.sample(of(FIRST_NAMES, split), 3)
    adjectives = random.choice(of(COMPARISONS, split)).split("/")
    random.shuffle(adjectives)
    adjective, opposite = adjectives
    verb = random.choice(["is", "was"])
    first = f"{more} {verb} {adjective} than {less} ."
    if kind == "position":
        return {"first": first, "second": f"{QUANTIFIERS[label]} {verb} {opposite} than {more} ."}
    left, right = {
        "entailment": (less, more),
        "contradiction": (more, less),
        "neutral": random.choice([(third, more), (third, less), (more, third), (less, third)]),
    }[label]
    return {"first": first, "second": f"{left} {verb} {opposite} than {right} ."}


# -- words ------------------------------------------------------------------------------------------------------------

# The corpus reading: words with entities (BIO).
#
# Every sentence has three words that could each be a family name, a verb or a noun (march, hunt, chase). The context
# makes the first a verb, the second a noun and the third a name:
#
#     OPENING will VERB-phrase after NOUN-phrase with NAME-phrase ?       none, one or both of the last two in front:
#     OPENING after NOUN-phrase , will VERB-phrase with NAME-phrase ?
#
#                 the verb                      the noun                        the name
#     entity      O                             B-EVENT                         B-PER
#     position    will they hunt                after the march                 with mr chase
#     lookup      will the old clerk hunt       after the young nurse march     with the poor dear guard chase
#
# In the lookup kind, the same words (the, up to two adjectives, a worker) precede all three. Only the auxiliary or
# preposition that opens the phrase, three to five words back, decides. The two splits share openings, auxiliaries,
# prepositions, "they", "the", "mr" and "mrs", but no ambiguous words, adjectives or workers.

QUESTION_OPENINGS = (
    "",
    "",
    "of course",
    "in the end",
    "to be honest ,",
    "as far as we know ,",
)


class Word(NamedTuple):
    """A word of a sentence, its kind (empty if it is not ambiguous), and its label."""

    words: str
    kind: str
    entity: str


class Phrase(NamedTuple):
    """The phrase that makes an ambiguous word a verb, a noun or a name.

    `cues` open the phrase, and `joints` follow them in the position kind; `entity` is the label.
    """

    cues: tuple[str, ...]
    joints: tuple[str, ...]
    entity: str


VERB = Phrase(
    cues=("will", "did", "can", "must", "should", "may"),
    joints=("they",),
    entity="O",
)
NOUN = Phrase(
    cues=("after", "before", "during", "despite"),
    joints=("the",),
    entity="B-EVENT",
)
NAME = Phrase(
    cues=("with", "near", "beside", "behind"),
    joints=("mr", "mrs"),
    entity="B-PER",
)


def reading(random: Random, split: str) -> list[Word]:
    """Write a sentence of the corpus reading."""
    words = random.sample(of(NAME_VERB_NOUN, split), 3)
    verb, *after = (
        _phrase(random, split, *pair) for pair in zip((VERB, NOUN, NAME), words, strict=True)
    )
    random.shuffle(after)
    front = random.randrange(3)
    return [
        *_plain(random.choice(QUESTION_OPENINGS)),
        *(word for phrase in after[:front] for word in phrase),
        *_plain("," if front else ""),
        *verb,
        *(word for phrase in after[front:] for word in phrase),
        *_plain("?"),
    ]


def _phrase(random: Random, split: str, phrase: Phrase, word: str) -> list[Word]:
    """Write a cue, the words after it, and the ambiguous word."""
    kind = random.choice(["position", "lookup"])
    if kind == "position":
        between = random.choice(phrase.joints)
    else:
        adjectives = random.sample(of(DESCRIPTIONS, split), random.randrange(3))
        worker = random.choice(of(WORKERS, split))
        between = " ".join(["the", *adjectives, worker])
    return [*_plain(f"{random.choice(phrase.cues)} {between}"), Word(word, kind, phrase.entity)]


def _plain(words: str) -> list[Word]:
    """Split words that are neither entities nor ambiguous."""
    return [Word(word, "", "O") for word in words.split()]


# -- running text -----------------------------------------------------------------------------------------------------

# repeats      a series of different words, followed by some of these words again, in the same order:
#              guard judge poet chef scientist actor poet chef scientist
#              The distance varies between texts, so no fixed position predicts the next word.
# no-repeats   a series of different words: no earlier word predicts the next. No file has these texts.

VOCABULARY = PEOPLE[:63]
MAXIMUM_WORDS = 47
"""Number of words in the longest text; with the token that begins it, it fills 48 slots."""
NEW_WORDS = (24, 31)
"""Minimum and maximum number of different words in a text with repeats."""
REPEATED_WORDS = (8, 16)
"""Minimum and maximum number of words that repeat."""


def repeats(random: Random) -> dict[str, str]:
    """Write a text in which some words repeat."""
    words = random.sample(VOCABULARY, random.randint(*NEW_WORDS))
    length = random.randint(*REPEATED_WORDS)
    begin = random.randint(0, len(words) - length)
    return {"text": " ".join(words + words[begin : begin + length])}


def no_repeats(random: Random) -> dict[str, str]:
    """Write a text of similar length in which no word repeats."""
    words = random.randint(NEW_WORDS[0] + REPEATED_WORDS[0], MAXIMUM_WORDS)
    return {"text": " ".join(random.sample(VOCABULARY, words))}


# -- files ------------------------------------------------------------------------------------------------------------

LABELLED: dict[str, tuple[Callable[[Random, str, str, str], dict[str, str]], tuple[str, ...]]] = {
    "agreement": (agreement, ("is", "are")),
    "inference": (inference, ("entailment", "neutral", "contradiction")),
}
RUNNING = {"repeats": repeats, "no-repeats": no_repeats}
ROWS = {name: {"train": 1800, "validation": 500} for name in LABELLED}
ROWS |= {"reading": {"train": 500, "validation": 300}, "repeats": {"train": 600, "validation": 200}}
"""The files: the number of rows of each split."""


def generate(name: str, split: str, rows: int, seed: int = 0) -> list[Any]:
    """Return the first `rows` examples of a corpus; they are determined by name, split and seed.

    An example is a dictionary of columns, or in reading a list of words.
    """
    random = Random(int.from_bytes(hashlib.sha256(f"{name}/{split}/{seed}".encode()).digest()))
    draws: list[Callable[[], Any]]
    if name == "reading":
        draws = [partial(reading, random, split)]
    elif name in RUNNING:
        draws = [partial(RUNNING[name], random)]
    else:
        write, labels = LABELLED[name]
        draws = [
            partial(_labelled, write, random, split, label, kind)
            for kind, label in product(KINDS, labels)
        ]
    examples: dict[str, Any] = {}
    for draw in cycle(draws):
        if len(examples) == rows:
            break
        while (text := _text(example := draw())) in examples:
            pass
        examples[text] = example
    return list(examples.values())


def _labelled(
    write: Callable[[Random, str, str, str], dict[str, str]],
    random: Random,
    split: str,
    label: str,
    kind: str,
) -> dict[str, str]:
    return {**write(random, split, label, kind), "label": label, "kind": kind}


def _text(example: Any) -> str:
    """Return an example without its labels, as a text that must not occur twice."""
    if isinstance(example, list):
        return " ".join(word.words for word in example)
    return " | ".join(
        example[column] for column in ("first", "second", "text") if column in example
    )


def write_texts(folder: Path) -> None:
    """Write all files: CSV, CoNLL for reading, and a text on each line for repeats."""
    for name, splits in ROWS.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        for split, number in splits.items():
            rows, path = generate(name, split, number), folder / name / split
            if name == "reading":
                sentences = ["".join("\t".join(word) + "\n" for word in words) for words in rows]
                path.with_suffix(".conll").write_text("\n".join(sentences), encoding="utf-8")
            elif name in RUNNING:
                path.with_suffix(".txt").write_text(
                    "".join(row["text"] + "\n" for row in rows), encoding="utf-8"
                )
            else:
                with open(path.with_suffix(".csv"), "w", encoding="utf-8", newline="") as file:
                    table = csv.DictWriter(file, rows[0].keys(), lineterminator="\n")
                    table.writeheader()
                    table.writerows(rows)


if __name__ == "__main__":
    write_texts(Path(__file__).parent)
