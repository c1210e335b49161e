"""The memory and walltime that a job requests, and numbers as people read them."""

from __future__ import annotations

from pathlib import Path

from papa.config.job import AnyJob
from papa.config.stages import ModelId, OfEncoding
from papa.config.study import Plan
from papa.errors import InputError

MB = 10**6
JOB_MB, MODEL_MB = 2000, 3000
"""Megabytes that a job requests: for tables and probes, and for Python with transformers and a batch of texts."""
WEIGHT_COPIES = 4
"""A job that runs a model requests this multiple of its files of weights."""
JOB_MINUTES, MODEL_MINUTES = 60, 240
"""Walltime of a job without and with a model; a job that is stopped resumes at its last checkpoint."""
TOKENS_PER_WORD, SPECIAL_TOKENS_PER_TEXT = 1.3, 3
"""Mean number of tokens per English word, and number of tokens that a model adds to a text."""


def memory(study: Plan, job: AnyJob) -> int:
    """Return the megabytes that a job requests at its first attempt."""
    if not (job.settings.runs_encoder and isinstance(job.settings, OfEncoding)):
        return JOB_MB
    return MODEL_MB + WEIGHT_COPIES * _weight_bytes(study, job.settings.model.model) // MB


def walltime(study: Plan, job: AnyJob) -> int:
    """Return the minutes that a job requests at its first attempt."""
    return MODEL_MINUTES if job.settings.runs_encoder else JOB_MINUTES


def _weight_bytes(study: Plan, model: ModelId) -> int:
    """Return the size of a model's files of weights; 0 if they are not on this machine."""
    from papa.data.weights import location_of

    try:
        folder = Path(location_of(model, study.config.machine))
    except InputError:
        return 0
    files = list(folder.glob("*.safetensors")) or list(folder.glob("*.bin"))
    return sum(file.stat().st_size for file in files)


def format_duration(seconds: float) -> str:
    """Format a duration: "40 s", "5 min", "1.2 hours", "3.4 days"."""
    if 0 < seconds < 1:
        return "< 1 s"
    for limit, unit, name, digits in ((120, 1, "s", 0), (7200, 60, "min", 0), (172800, 3600, "hours", 1)):
        if seconds < limit:
            return f"{seconds / unit:.{digits}f} {name}"
    return f"{seconds / 86400:.1f} days"
