"""Caveats of a study's data, shown next to its claims: leaked rows, cut texts, and F1 of the more frequent class."""

from __future__ import annotations

from typing import TYPE_CHECKING

from papa.config.measures import frequent_class
from papa.errors import count
from papa.results.phrases import leaked

if TYPE_CHECKING:
    from papa.results.finished import Finished

CUT_SHARE = 0.01
"""More than this share of cut texts is a caveat."""


def data_caveats(finished: Finished) -> str:
    """Return sentences for the claims of a study; empty if there is no caveat."""
    config, facts = finished.config, finished.facts
    corpora = dict.fromkeys(config.tasks[task].corpus for _, task in config.pairs)
    shared = {name: (facts[name]["shared"].get("validation", 0), facts[name]["rows"]["validation"]) for name in corpora}
    rows = finished.summary
    cut, frequent = dict[str, None](), dict[str, None]()
    for row in rows[rows["main"]].to_dict("records"):
        for split in ("train", "validation"):
            if row[f"cut_{split}"] > CUT_SHARE * row[f"rows_{split}"]:
                rows_of_split = count(row[f"rows_{split}"], f"{'training' if split == 'train' else split} row")
                cut[f"{row[f'cut_{split}']:,} of {rows_of_split} of {row['title']} ({row['model']})"] = None
        task = config.tasks[row["task"]]
        if (labels := facts[task.corpus]["labels"].get(row["task"])) and not task.labels:
            frequent[frequent_class(row["metric"], labels["names"], labels["train_counts"])] = None
    sentences = [leaked(shared)]
    if cut:
        sentences.append(f"Texts cut because they have more tokens than slots: {'; '.join(cut)}.")
    return " ".join(filter(None, [*sentences, *frequent]))
