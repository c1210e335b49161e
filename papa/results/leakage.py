"""Validation rows that are also in training, which a probe may have memorised."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from papa.config.artefacts import ARTEFACTS
from papa.files import read_provenance
from papa.results.phrases import leaked


def leakage_note(results: Path, corpora: Iterable[str]) -> str:
    """Return a sentence for the claims of a study; empty if no validation row of these corpora is also in training."""
    shared = {}
    for corpus in dict.fromkeys(corpora):
        provenance = read_provenance(results / ARTEFACTS["texts"].path(corpus=corpus))
        facts = provenance.facts if provenance else {}
        shared[corpus] = facts.get("shared", {}).get("validation", 0), facts.get("rows", {}).get("validation", 0)
    return leaked(shared)
