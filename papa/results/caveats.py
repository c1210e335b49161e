"""Caveats of a study's data, shown next to its claims: leaked rows, cut texts, and F1 of the more frequent class."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from papa.config.artefacts import ARTEFACTS
from papa.config.measures import frequent_class
from papa.errors import count
from papa.files import read_provenance, read_table
from papa.results.phrases import leaked

CUT_SHARE = 0.01
"""More than this share of cut texts is a caveat."""


def data_caveats(results: Path, tasks: Mapping[str, str]) -> str:
    """Return sentences for the claims of a study about `tasks` (the corpus of each); empty if there is no caveat."""
    shared = {}
    for corpus in dict.fromkeys(tasks.values()):
        provenance = read_provenance(results / ARTEFACTS["texts"].path(corpus=corpus))
        facts = provenance.facts if provenance else {}
        shared[corpus] = facts.get("shared", {}).get("validation", 0), facts.get("rows", {}).get("validation", 0)
    sentences = [leaked(shared)]
    summary = results / ARTEFACTS["summary"].path()
    frame = read_table(summary).to_pandas() if summary.is_file() and tasks else None
    rows = [] if frame is None else frame[frame["main"] & frame["task"].isin(list(tasks))].to_dict("records")
    cut, frequent = dict[str, None](), dict[str, None]()
    for row in rows:
        for split in ("train", "validation"):
            if row[f"cut_{split}"] > CUT_SHARE * row[f"rows_{split}"]:
                rows_of_split = count(row[f"rows_{split}"], f"{'training' if split == 'train' else split} row")
                cut[f"{row[f'cut_{split}']:,} of {rows_of_split} of {row['title']} ({row['model']})"] = None
        labels = read_provenance(results / ARTEFACTS["labels"].path(task=row["task"]))
        if labels and labels.trace and not labels.trace.settings.get("labels"):
            facts = labels.facts
            frequent[frequent_class(row["metric"], facts["label_names"], facts["train_counts"])] = None
    if cut:
        sentences.append(f"Texts cut because they have more tokens than slots: {'; '.join(cut)}.")
    return " ".join(filter(None, [*sentences, *frequent]))
