"""Jobs of analyses, made directly: parameters and paths in, artefacts out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from papa.config.analyses import ANALYSES
from papa.config.job import Job
from papa.config.stages import AnalysisOf

FORMS = {"table": "parquet", "markdown": "md", "latex": "tex"}
DRAWN = FORMS | {"svg": "svg", "png": "png", "html": "html"}
CLASSES = {
    "grid": "papa.results.grids:GridAnalysis",
    "patterns": "papa.results.attention_patterns:AttentionPatterns",
} | {name: entry.made_by for name, entry in ANALYSES.items()}


def job(
    name: str, parameters: Mapping[str, Any], inputs: Mapping[str, Path], stem: Path, drawn: bool = False
) -> Job[AnalysisOf]:
    """The job of an analysis whose outputs are called like `stem`."""
    settings = AnalysisOf(name=name, made_by=CLASSES[name], parameters=dict(parameters))
    outputs = {form: f"{stem}.{ending}" for form, ending in (DRAWN if drawn else FORMS).items()}
    return Job(name, settings, {key: (str(path),) for key, path in inputs.items()}, outputs)
