"""The paths of all files in a results folder; no other module spells them.

A new artefact is one line in `ARTEFACTS`.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath


@dataclass(frozen=True)
class Artefact:
    """A file in the results."""

    pattern: str  # the path relative to the results, with wildcards in braces

    def path(self, **wildcards: str) -> str:
        """Return the path with its wildcards filled in."""
        return self.pattern.format(**wildcards)

    def folder(self, **wildcards: str) -> str:
        """Return the folder with its wildcards filled in."""
        return str(PurePosixPath(self.pattern).parent).format(**wildcards)

    def parsed(self, path: str | os.PathLike[str]) -> tuple[Path, dict[str, str]] | None:
        """Return the results folder and the wildcards of a path; None if the path is of another artefact."""
        pattern = re.sub(r"\\{(\w+)\\}", r"(?P<\1>.+?)", re.escape(self.pattern))
        match = re.fullmatch(f"(?P<results>.*)/{pattern}", Path(path).absolute().as_posix())
        if match is None:
            return None
        wildcards = match.groupdict()
        return Path(wildcards.pop("results")), wildcards

    @property
    def name(self) -> str:
        """The name of the file."""
        return PurePosixPath(self.pattern).name

    @property
    def suffix(self) -> str:
        """The suffix of the file, which determines its format."""
        return PurePosixPath(self.pattern).suffix

    @property
    def stem(self) -> str:
        """The pattern without its suffix, from which the names of the job's log and benchmark are made."""
        return str(PurePosixPath(self.pattern).with_suffix(""))


LAST_GOOD = ".seed-{seed}.last-good.safetensors"
"""The suffix of the file with the last state before training diverged, next to the file of the probes."""


_MODEL, _LAID_OUT, _TASK = "models/{model}", "models/{model}/corpora/{laid_out}", "models/{model}/tasks/{task}"

ARTEFACTS = {
    "texts": Artefact("corpora/{corpus}/texts.parquet"),
    "labels": Artefact("tasks/{task}/labels.parquet"),
    "subsets": Artefact("tasks/{task}/subsets.parquet"),
    "clusters": Artefact("tasks/{task}/clusters.parquet"),
    "tokens": Artefact(f"{_LAID_OUT}/tokens.parquet"),
    "average": Artefact(f"{_LAID_OUT}/{{averaged}}.h5"),
    "weights": Artefact(f"{_TASK}/{{constant}}/{{weights}}.parquet"),
    "lambda": Artefact(f"{_TASK}/{{constant}}/lambda-{{seed}}.parquet"),
    "order": Artefact(f"{_TASK}/{{constant}}/{{order}}/order.parquet"),
    "heads_in_order": Artefact(f"{_MODEL}/orders/{{order}}.parquet"),
    "index": Artefact(f"{_MODEL}/{{owner}}/features/{{variant}}/states.json"),
    "hidden": Artefact(f"{_MODEL}/{{owner}}/features/{{variant}}/states.hidden"),
    "runs": Artefact(f"{_TASK}/runs/{{variant}}/runs.json"),
    "outcomes": Artefact(f"{_TASK}/runs/{{variant}}/outcomes.parquet"),
    "probes": Artefact(f"{_TASK}/runs/{{variant}}/probes.safetensors"),
    "all_outcomes": Artefact("tables/outcomes.parquet"),
    "curves": Artefact("tables/curves.parquet"),
    "all_runs": Artefact("tables/runs.parquet"),
    "summary": Artefact("tables/summary.parquet"),
    "claims": Artefact("tables/claims.parquet"),
    "claims_json": Artefact("tables/claims.json"),
    "table": Artefact("tables/{analysis}.parquet"),
    "table_md": Artefact("tables/{analysis}.md"),
    "table_tex": Artefact("tables/{analysis}.tex"),
    "figure_svg": Artefact("figures/{analysis}.svg"),
    "figure_png": Artefact("figures/{analysis}.png"),
    "patterns": Artefact(f"{_LAID_OUT}/patterns.parquet"),
    "patterns_md": Artefact(f"{_LAID_OUT}/patterns.md"),
    "patterns_tex": Artefact(f"{_LAID_OUT}/patterns.tex"),
    "patterns_svg": Artefact("figures/patterns/{model}/{laid_out}.svg"),
    "patterns_png": Artefact("figures/patterns/{model}/{laid_out}.png"),
    "page": Artefact("report/index.html"),
}
