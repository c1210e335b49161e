"""What counts of neighbouring letters predict of held-out names, in nats per letter: no model, and no attention.

    python benchmarks/bigram.py TRAINING HELD_OUT     # files of names: one in a line, or JSON lines with `text`

A letter is predicted from the one before it only, by how often it followed in the training names (plus one half).
"""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

BEGIN = "^"
ADDED = 0.5


def names_in(path: str) -> list[str]:
    """Return the names of a file, each after a mark of its beginning."""
    lines = Path(path).read_text(encoding="utf-8").split("\n")
    names = [
        json.loads(line)["text"] if path.endswith(".jsonl") else line for line in lines if line
    ]
    return [BEGIN + name for name in names]


def score(training: Sequence[str], held_out: Sequence[str]) -> float:
    """Return the mean log-likelihood of the letters of held-out names."""
    follows = Counter(pair for name in training for pair in pairwise(name))
    before = Counter(first for name in training for first in name[:-1])
    letters = len(set("".join(training)))  # the mark counts as the end of a name
    pairs = [pair for name in held_out for pair in pairwise(name)]
    likelihoods = [(follows[pair] + ADDED) / (before[pair[0]] + ADDED * letters) for pair in pairs]
    return sum(map(math.log, likelihoods)) / len(pairs)


def main(training: str, held_out: str) -> None:
    """Print the score."""
    print(f"{score(names_in(training), names_in(held_out)):.3f} nats per letter")


if __name__ == "__main__":
    main(*sys.argv[1:])
