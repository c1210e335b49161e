"""Single texts: agreement across a distractor, and sentiment under negation.

agreement: which verb follows, "is" or "are"? The text stops before the verb.
    position   the young nurses near the tall doctors      both nouns have the same number: either slot decides
    lookup     one noun is singular and one plural; the distractor follows or precedes the subject:
               OPENING the nurses near the tall doctor     are
               OPENING near the tall doctor , the nurses   are

negation: does the writer like the thing? One adjective praises, one blames. One of them is negated, the other is meant.
    position   the soup was not bad but good .
    lookup     OPENING the soup was NOT DEGREE bad but YES DEGREE good .
               OPENING the soup was YES DEGREE good and NOT DEGREE bad .
               OPENING the soup , which was NOT DEGREE bad , was YES DEGREE good .
               OPENING the soup , which was YES DEGREE good , was NOT DEGREE bad .

OPENING, NOT, DEGREE, YES and the prepositions are phrases of different lengths, so no slot decides. Nor does the word
before an adjective show whether it is negated. The splits share these phrases and "the", "was", "which", "but" and
"and", but no people, traits, things or adjectives.
"""

from __future__ import annotations

from random import Random

from papa.data.generated.lexicon import BLAME, PEOPLE, PRAISE, THINGS, TRAITS, Fillers, join

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
NOT = ("not", "never", "hardly", "by no means", "in no way", "not at all")
YES = ("", "always", "in every way", "in my opinion")
DEGREE = ("very", "truly", "so", "that", "really very", "so very", "quite so")


def agreement(random: Random, fillers: Fillers, label: str, kind: str) -> dict[str, str]:
    """Write an example of the agreement corpus; `label` is "is" or "are"."""
    people, traits = fillers.of(PEOPLE), fillers.of(TRAITS)
    plural = label == "are"
    subject, distractor = (
        noun + "s" * is_plural
        for noun, is_plural in zip(random.sample(people, 2), (plural, plural == (kind == "position")), strict=True)
    )
    preposition = random.choice(PREPOSITIONS)
    if kind == "position":
        return {
            "first": f"the {random.choice(traits)} {subject} {preposition} the {random.choice(traits)} {distractor}"
        }
    subject, distractor = (
        join("the", random.choice(["", random.choice(traits)]), noun) for noun in (subject, distractor)
    )
    after = join(subject, preposition, distractor)
    before = join(preposition, distractor, ",", subject)
    return {"first": join(random.choice(OPENINGS), random.choice([after, before]))}


def negation(random: Random, fillers: Fillers, label: str, kind: str) -> dict[str, str]:
    """Write an example of the negation corpus; `label` is "positive" or "negative"."""
    praise, blame = random.choice(fillers.of(PRAISE)), random.choice(fillers.of(BLAME))
    meant, denied = (praise, blame) if label == "positive" else (blame, praise)
    thing = random.choice(fillers.of(THINGS))
    if kind == "position":
        return {"first": f"the {thing} was not {denied} but {meant} ."}
    denied = join(random.choice(NOT), random.choice(DEGREE), denied)
    meant = join(random.choice(YES), random.choice(DEGREE), meant)
    text = random.choice(
        [
            f"the {thing} was {denied} but {meant} .",
            f"the {thing} was {meant} and {denied} .",
            f"the {thing} , which was {denied} , was {meant} .",
            f"the {thing} , which was {meant} , was {denied} .",
        ]
    )
    return {"first": join(random.choice(OPENINGS), text)}
