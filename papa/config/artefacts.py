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
    def log(self) -> str:
        """Pattern of the log of the job that makes the file."""
        return f"logs/{PurePosixPath(self.pattern).with_suffix('.log')}"

    @property
    def benchmark(self) -> str:
        """Pattern of the file with seconds and memory of that job."""
        return str(PurePosixPath(self.pattern).with_suffix(".benchmark.tsv"))


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
    "summary_md": Artefact("tables/summary.md", "summary"),
    "summary_tex": Artefact("tables/summary.tex", "summary"),
    "claims": Artefact("tables/claims.parquet", "claims"),
    "claims_json": Artefact("tables/claims.json", "claims"),
    "claims_md": Artefact("tables/claims.md", "claims"),
    "claims_tex": Artefact("tables/claims.tex", "claims"),
    "stability": Artefact("tables/stability.parquet", "stability"),
    "stability_md": Artefact("tables/stability.md", "stability"),
    "stability_tex": Artefact("tables/stability.tex", "stability"),
    "grid": Artefact("tables/{grid}.parquet", "grid"),
    "grid_md": Artefact("tables/{grid}.md", "grid"),
    "grid_tex": Artefact("tables/{grid}.tex", "grid"),
    "grid_svg": Artefact("figures/{grid}.svg", "grid"),
    "grid_png": Artefact("figures/{grid}.png", "grid"),
    "grid_html": Artefact("figures/{grid}.html", "grid"),
    "drops": Artefact("tables/score_and_drop.parquet", "drops"),
    "drops_md": Artefact("tables/score_and_drop.md", "drops"),
    "drops_tex": Artefact("tables/score_and_drop.tex", "drops"),
    "drops_svg": Artefact("figures/score_and_drop.svg", "drops"),
    "drops_png": Artefact("figures/score_and_drop.png", "drops"),
    "drops_html": Artefact("figures/score_and_drop.html", "drops"),
    "ladder": Artefact("tables/ladder.parquet", "ladder"),
    "ladder_md": Artefact("tables/ladder.md", "ladder"),
    "ladder_tex": Artefact("tables/ladder.tex", "ladder"),
    "ladder_svg": Artefact("figures/ladder.svg", "ladder"),
    "ladder_png": Artefact("figures/ladder.png", "ladder"),
    "ladder_html": Artefact("figures/ladder.html", "ladder"),
    "published": Artefact("tables/published.parquet", "published"),
    "published_md": Artefact("tables/published.md", "published"),
    "published_tex": Artefact("tables/published.tex", "published"),
    "patterns": Artefact(f"{_LAID_OUT}/patterns.parquet", "patterns"),
    "patterns_md": Artefact(f"{_LAID_OUT}/patterns.md", "patterns"),
    "patterns_tex": Artefact(f"{_LAID_OUT}/patterns.tex", "patterns"),
    "patterns_svg": Artefact("figures/patterns/{model}/{laid_out}.svg", "patterns"),
    "patterns_png": Artefact("figures/patterns/{model}/{laid_out}.png", "patterns"),
    "patterns_html": Artefact("figures/patterns/{model}/{laid_out}.html", "patterns"),
    "page": Artefact("report/index.html", "page"),
}
