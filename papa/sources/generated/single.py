"""Single texts: agreement across a distractor, and sentiment under negation and its scope.

agreement — which verb continues the text, "is" or "are"? The text is a preamble that ends where the verb would stand.
    position:  the A P(s) PREP the A P(s)                both nouns of one number: any of them, or the slot, tells
    lookup:    one noun singular, one plural; the subject must be told from the distractor, which follows or precedes it
               OPENING SUBJECT PREP DISTRACTOR           as far as we know , the tall nurse next to the young doctors
               OPENING SUBJECT who saw DISTRACTOR TIME   on monday the nurses who helped the wise doctor in town
               OPENING PREP DISTRACTOR , SUBJECT         today next to the nurses , the doctor
               OPENING after we met DISTRACTOR , SUBJECT

negation — does the writer like the thing? One adjective of praise, one of blame, one negation; the adjective outside
the scope of the negation is what the writer thinks.
    position:  the THING was not Y but X .
    lookup:    the clause with X before or after the one with Y, behind openings of many lengths
"""

from __future__ import annotations

from random import Random

from papa.sources.generated.lexicon import BLAME, PEOPLE, PRAISE, THINGS, TRAITS, Fillers

PREPOSITIONS = ("near", "behind", "next to", "in front of", "with", "without", "beside", "opposite")
OPENINGS = (
    "",
    "yesterday",
    "in the end",
    "to be honest ,",
    "as far as we know ,",
    "on the last day of the year ,",
    "as i said to my friends last night ,",
)


def agreement(random: Random, fillers: Fillers, label: str, kind: str) -> dict[str, str]:
    """One example of the agreement corpus; `label` is "is" or "are"."""
    people, traits = fillers.of(PEOPLE), fillers.of(TRAITS)
    subject, distractor = random.sample(people, 2)
    preposition = random.choice(PREPOSITIONS)
    plural = label == "are"

    if kind == "position":
        ending = "s" if plural else ""
        one, other = random.choice(traits), random.choice(traits)
        return {"first": f"the {one} {subject}{ending} {preposition} the {other} {distractor}{ending}"}

    def phrase(noun: str, plural: bool) -> str:
        return join("the", random.choice(["", random.choice(traits)]), noun + "s" * plural)

    the_subject, the_distractor = phrase(subject, plural), phrase(distractor, not plural)
    opening = random.choice(OPENINGS)
    time = random.choice(["", "yesterday", "last week", "in town"])
    met = random.choice(["saw", "met", "helped", "knew", "liked", "waited for"])
    when = random.choice(["after we", "when we", "because we", "although we", "before we"])
    text = random.choice(
        [
            join(opening, the_subject, preposition, the_distractor),
            join(opening, the_subject, "who", met, the_distractor, time),
            join(opening, preposition, the_distractor, ",", the_subject),
            join(opening, when, met, the_distractor, time, ",", the_subject),
        ]
    )
    return {"first": text}


def negation(random: Random, fillers: Fillers, label: str, kind: str) -> dict[str, str]:
    """One example of the negation corpus; `label` is "positive" or "negative"."""
    praise, blame = random.choice(fillers.of(PRAISE)), random.choice(fillers.of(BLAME))
    meant, denied = (praise, blame) if label == "positive" else (blame, praise)
    thing = random.choice(fillers.of(THINGS))
    if kind == "position":
        return {"first": f"the {thing} was not {denied} but {meant} ."}
    opening = random.choice(OPENINGS)
    degree = random.choice(["", "", "very", "really", "quite", "rather"])
    nobody = random.choice(["nobody said", "nobody thinks", "i do not think", "i would not say", "it is not true"])
    text = random.choice(
        [
            join(opening, "the", thing, "was", degree, meant, "and", nobody, "that it was", denied),
            join(opening, nobody, "that the", thing, "was", degree, denied, "because it was", meant),
            join(opening, nobody, "that the", thing, "was", degree, denied, ", it was", meant),
            join(opening, "the", thing, "that", nobody, "was", denied, "was", degree, meant),
        ]
    )
    return {"first": text + " ."}


def join(*parts: str) -> str:
    """The parts that are not empty, with single spaces between them."""
    return " ".join(part for part in parts if part)
