"""Text pairs: paraphrases in active and passive voice, and entailment, neutral, contradiction.

roles — do the two sentences mean the same? A and B are people, the first sentence is "A thanked B ."
    position:  the second sentence has them in the opposite order:
               B was thanked by A .  paraphrase          B thanked A .         different
               The voice of the second sentence, always in the same slots, decides.
    lookup:    the second sentence may keep the order, so the label depends on voice and order: who is who?
               A thanked B .         paraphrase          A was thanked by B .  different

inference — the premise is "A is older than B ."
    position:  someone is younger than A .  entailment   nobody is younger than A .  contradiction
               everyone is younger than A . neutral
    lookup:    B is younger than A .        entailment   A is younger than B .       contradiction
               with a third person C in the place of A or B: neutral
"""

from __future__ import annotations

from random import Random

from papa.data.generated.lexicon import COMPARISONS, DEEDS, FIRST_NAMES, Fillers

QUANTIFIERS = {"entailment": "someone", "neutral": "everyone", "contradiction": "nobody"}


def roles(random: Random, fillers: Fillers, label: str, kind: str) -> dict[str, str]:
    """Write an example of the roles corpus; `label` is "paraphrase" or "different"."""
    doer, receiver = random.sample(fillers.of(FIRST_NAMES), 2)
    deed = random.choice(fillers.of(DEEDS))
    first = f"{doer} {deed} {receiver} ."
    same = {"active": f"{doer} {deed} {receiver} .", "passive": f"{receiver} was {deed} by {doer} ."}
    swapped = {"active": f"{receiver} {deed} {doer} .", "passive": f"{doer} was {deed} by {receiver} ."}
    if kind == "position":
        second = same["passive"] if label == "paraphrase" else swapped["active"]
    else:
        voice = random.choice(["active", "passive"])
        second = same[voice] if label == "paraphrase" else swapped[voice]
    return {"first": first, "second": second}


def inference(random: Random, fillers: Fillers, label: str, kind: str) -> dict[str, str]:
    """Write an example of the inference corpus; `label` is "entailment", "neutral" or "contradiction"."""
    more, less, third = random.sample(fillers.of(FIRST_NAMES), 3)
    adjectives = random.choice(fillers.of(COMPARISONS)).split("/")
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
