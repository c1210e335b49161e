"""What files there are below the results of a config: the one place where their paths are written.

Rules, jobs, inspection, tables and the page take paths from here. Adding an artefact is adding a line.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath


@dataclass(frozen=True)
class Artefact:
    """A file of the results.

    Args:
        pattern: its path below the results, with the names of wildcards in braces.
        stage: the stage that makes it.
    """

    pattern: str
    stage: str

    def path(self, **wildcards: str) -> str:
        """The path with the wildcards filled in."""
        return self.pattern.format(**wildcards)

    @property
    def stem(self) -> str:
        """The pattern without its ending; the log and the benchmark of the job are called like this."""
        return str(PurePosixPath(self.pattern).with_suffix(""))


_MODEL, _LAID_OUT, _TASK = "models/{model}", "models/{model}/corpora/{laid_out}", "models/{model}/tasks/{task}"

ARTEFACTS = {
    "texts": Artefact("corpora/{corpus}/texts.parquet", "texts"),
    "labels": Artefact("tasks/{task}/labels.parquet", "labels"),
    "subsets": Artefact("tasks/{task}/subsets.parquet", "subsets"),
    "tokens": Artefact(f"{_LAID_OUT}/tokens.parquet", "tokens"),
    "average": Artefact(f"{_LAID_OUT}/{{averaged}}.h5", "average"),
    "average_part": Artefact(f"{_LAID_OUT}/{{averaged}}/{{part}}.h5", "average"),
    "resample": Artefact(f"{_LAID_OUT}/resample.h5", "resample"),
    "weights": Artefact(f"{_TASK}/{{constant}}/{{weights}}.parquet", "weights"),
    "lambda": Artefact(f"{_TASK}/{{constant}}/lambda-{{seed}}.parquet", "lambda"),
    "lambda_half": Artefact(f"{_TASK}/{{constant}}/lambda-{{seed}}/{{part}}.parquet", "lambda"),
    "order": Artefact(f"{_TASK}/{{constant}}/{{order}}/order.parquet", "rank"),
    "heads_in_order": Artefact(f"{_MODEL}/orders/{{order}}.parquet", "order"),
    "index": Artefact(f"{_MODEL}/{{owner}}/features/{{variant}}/{{part}}.json", "hidden"),
    "hidden": Artefact(f"{_MODEL}/{{owner}}/features/{{variant}}/{{part}}.hidden", "hidden"),
    "runs": Artefact(f"{_TASK}/runs/{{variant}}/runs.json", "probe"),
    "outcomes": Artefact(f"{_TASK}/runs/{{variant}}/outcomes.parquet", "probe"),
    "probes": Artefact(f"{_TASK}/runs/{{variant}}/probes.safetensors", "probe"),
    "all_outcomes": Artefact("tables/outcomes.parquet", "summary"),
    "curves": Artefact("tables/curves.parquet", "summary"),
    "all_runs": Artefact("tables/runs.parquet", "summary"),
    "summary": Artefact("tables/summary.parquet", "summary"),
    "claims": Artefact("tables/claims.parquet", "claims"),
    "claims_json": Artefact("tables/claims.json", "claims"),
    "table": Artefact("tables/{analysis}.parquet", "analysis"),
    "table_md": Artefact("tables/{analysis}.md", "analysis"),
    "table_tex": Artefact("tables/{analysis}.tex", "analysis"),
    "figure_svg": Artefact("figures/{analysis}.svg", "analysis"),
    "figure_png": Artefact("figures/{analysis}.png", "analysis"),
    "figure_html": Artefact("figures/{analysis}.html", "analysis"),
    "patterns": Artefact(f"{_LAID_OUT}/patterns.parquet", "patterns"),
    "patterns_md": Artefact(f"{_LAID_OUT}/patterns.md", "patterns"),
    "patterns_tex": Artefact(f"{_LAID_OUT}/patterns.tex", "patterns"),
    "patterns_svg": Artefact("figures/patterns/{model}/{laid_out}.svg", "patterns"),
    "patterns_png": Artefact("figures/patterns/{model}/{laid_out}.png", "patterns"),
    "patterns_html": Artefact("figures/patterns/{model}/{laid_out}.html", "patterns"),
    "page": Artefact("report/index.html", "page"),
}
