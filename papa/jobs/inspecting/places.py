"""Where below a results folder which kind of file lies, and what the place says it is of."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from papa.config.graph import CONSTANT, CORPUS_VARIANTS, ORDER, PART, TASK_VARIANTS, TRAINED_VARIANTS, setting
from papa.config.settings import NAME

WILDCARDS = {
    "corpus": NAME,
    "laid_out": f"{NAME}(?:/slots-[0-9]+)?",
    "model": NAME,
    "task": NAME,
    "constant": CONSTANT,
    "order": ORDER,
    "variant": f"{CORPUS_VARIANTS}|{TASK_VARIANTS}|{TRAINED_VARIANTS}",
    "part": PART,
    "seed": "[0-9]+",
    "grid": NAME,
    "table": NAME,
    "figure": NAME,
}


@dataclass(frozen=True)
class Kind:
    """A kind of file: its name, what it is in words, its place below a results folder with wildcards in braces, and
    whether a seal in it says that it is whole."""

    name: str
    words: str
    place: str
    sealed: bool = True

    def match(self, place: str) -> dict[str, str] | None:
        """What a file at `place` is of, by wildcard; None where it is of another kind."""
        pattern = re.sub(r"\{(\w+)\}", lambda found: f"(?P<{found[1]}>{WILDCARDS[found[1]]})", self.place)
        found = re.fullmatch(pattern, place)
        return {name: value for name, value in found.groupdict().items() if value} if found else None


_OF_MODEL = r"models/{model}/"
_FEATURES = rf"{_OF_MODEL}(?:corpora/{{corpus}}|tasks/{{task}})/features/{{variant}}/{{part}}\."
_RUN = rf"{_OF_MODEL}tasks/{{task}}/runs/{{variant}}/seed-{{seed}}"

KINDS = (
    Kind("texts", "Texts of a corpus", r"corpora/{corpus}/texts\.parquet"),
    Kind("labels", "Labels of a task", r"tasks/{task}/labels\.parquet"),
    Kind("tokens", "Texts laid out in slots for a model", rf"{_OF_MODEL}corpora/{{laid_out}}/tokens\.parquet"),
    Kind("averages", "Average attention over a corpus", rf"{_OF_MODEL}corpora/{{laid_out}}/average\.h5"),
    Kind(
        "averages",
        "Average attention over a part of a corpus",
        rf"{_OF_MODEL}corpora/{{laid_out}}/average/{{part}}\.h5",
    ),
    Kind("patterns", "Patterns of averaged attention", rf"{_OF_MODEL}corpora/{{corpus}}/patterns\.parquet"),
    Kind("lambda", "Learned weights λ of heads", rf"{_OF_MODEL}tasks/{{task}}/{{constant}}/lambda\.parquet"),
    Kind("order", "Order of heads by λ", rf"{_OF_MODEL}tasks/{{task}}/{{constant}}/{{order}}/order\.parquet"),
    Kind("order", "Order of heads that needs no data", rf"{_OF_MODEL}orders/{{order}}\.parquet"),
    Kind("hidden", "Hidden states", rf"{_FEATURES}hidden", sealed=False),
    Kind("index", "Index of hidden states", rf"{_FEATURES}json"),
    Kind("run", "Run of a probe, with its score", rf"{_RUN}\.json"),
    Kind("tensors", "What a run has trained", rf"{_RUN}\.safetensors"),
    Kind("tensors", "What a run had trained before it diverged", rf"{_RUN}\.last-good\.safetensors"),
    Kind("runs", "Table of all runs", r"tables/runs\.parquet"),
    Kind("summary", "Summary of all runs", r"tables/summary\.parquet"),
    Kind("score_and_drop", "Table of original scores and drops", r"tables/score_and_drop\.parquet"),
    Kind("published", "Table of our values beside published ones", r"tables/published\.parquet"),
    Kind("grid", "Table of a grid of runs", r"tables/{grid}\.parquet"),
    Kind(
        "page", "Table for people to read", rf"(?:tables/{{table}}|{_OF_MODEL}corpora/{{corpus}}/patterns)\.md", False
    ),
    Kind("page", "Table for a paper", rf"(?:tables/{{table}}|{_OF_MODEL}corpora/{{corpus}}/patterns)\.tex", False),
    Kind("figure", "Pictures of averaged attention", r"figures/patterns/{model}/{corpus}\.(?:svg|png|html)", False),
    Kind("figure", "Figure of a grid of runs", r"figures/{figure}\.(?:svg|png|html)", False),
    Kind("report", "Report: all results on one page", r"report/index\.html", False),
    Kind("benchmark", "Time and memory of a job", r".+\.benchmark\.tsv", False),
    Kind("log", "Log of a job", r"logs/.+\.log", False),
    Kind("tensors", "Where a job that was killed goes on from", r".+/\.[^/]+\.checkpoint"),
    Kind("partial", "What a job that was killed left half-written", r".+/\.[^/]+\.partial", False),
)
"""All kinds of files that a workflow leaves; the first that fits a place counts."""

ELSEWHERE = {
    ".h5": Kind("averages", "Average attention", ""),
    ".parquet": Kind("table", "Table", ""),
    ".json": Kind("json", "Values", ""),
    ".safetensors": Kind("tensors", "Trained tensors", ""),
    ".hidden": Kind("hidden", "Hidden states", "", sealed=False),
}
"""What a file of papa can be of which nothing says where it belongs."""


def kind_at(place: str) -> tuple[Kind, dict[str, str]] | None:
    """The kind of the files at a place below a results folder, and what the one there is of."""
    return next(((kind, of) for kind in KINDS if (of := kind.match(place)) is not None), None)


def said(of: dict[str, str]) -> dict[str, Any]:
    """What a file is of, with a variant taken apart and what is not said left out."""
    said: dict[str, Any] = {name: value for name, value in of.items() if name not in ("variant", "laid_out")}
    if "laid_out" in of:
        said["corpus"], _, slots = of["laid_out"].partition("/slots-")
        said |= {"slots": int(slots)} if slots else {}
    if "variant" in of:
        said |= {name: value for name, value in setting(of["variant"]).items() if value is not None}
    return said
