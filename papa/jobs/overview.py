"""`papa inspect` of a results folder: the study in it, how much is finished, what it concluded, and what to open."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from papa.config.artefacts import ARTEFACTS
from papa.config.job import has_trace
from papa.errors import InputError, count
from papa.files import trace_of
from papa.jobs.resources import format_bytes
from papa.results.conclusion import Conclusion
from papa.results.leakage import leakage_note
from papa.results.study_results import study_in

if TYPE_CHECKING:
    from rich.console import Console

TO_OPEN = {
    "page": "the HTML report: claims, curves, every head",
    "claims_json": "the claims, as JSON",
    "summary": "all scores and losses, for pandas",
    "all_outcomes": "the outcome of every example, for `papa compare`",
}
"""The artefacts that a reader may want to open, and what each is."""


class Overview(TypedDict):
    """The return value of `overview`; `jobs` is None if the study has no report yet."""

    path: str
    name: str
    models: list[str]
    tasks: list[str]
    artefacts: int
    bytes: int
    jobs: int | None
    finished: int | None
    sentence: str
    leakage: str
    files: dict[str, str]


def overview(folder: Path) -> Overview:
    """Summarise a results folder in plain values.

    Raises:
        InputError: the folder has no results of papa.
    """
    made = [path for path in sorted(folder.rglob("*")) if path.is_file() and has_trace(str(path)) and trace_of(path)]
    if not made:
        raise InputError(f"{folder} is a folder without results of papa; give a results folder, or a file in it.")
    claims, study = folder / ARTEFACTS["claims_json"].path(), study_in(folder)
    pairs = [match for path in made for name in ("runs", "lambda") if (match := ARTEFACTS[name].parsed(path))]
    conclusion = Conclusion.read(claims) if claims.is_file() else None
    tasks = [task for _, task in study.config.pairs] if study else [names["task"] for _, names in pairs]
    models = [model for model, _ in study.config.pairs] if study else [names["model"] for _, names in pairs]
    corpora = [study.config.tasks[task].corpus for task in tasks] if study else []
    jobs = study.jobs() if study else None
    return {
        "path": str(folder),
        "name": study.config.name if study else folder.resolve().name,
        "models": list(dict.fromkeys(models)),
        "tasks": list(dict.fromkeys(tasks)),
        "artefacts": len(made),
        "bytes": sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()),
        "jobs": None if jobs is None else len(jobs),
        "finished": None if jobs is None else sum((folder / job.main).exists() for job in jobs),
        "sentence": conclusion.sentence if conclusion else "",
        "leakage": leakage_note(folder, corpora),
        "files": {
            str(path): what for name, what in TO_OPEN.items() if (path := folder / ARTEFACTS[name].path()).is_file()
        },
    }


def print_overview(shown: Overview, out: Console) -> None:
    """Print the return value of `overview`."""
    from papa.results.table import printable

    out.print(printable(f"Results of the study {shown['name']} ({format_bytes(shown['bytes'])})"), style="bold")
    models, tasks = (", ".join(names) or "none yet" for names in (shown["models"], shown["tasks"]))
    out.print(printable(f"Models: {models}. Tasks: {tasks}."))
    artefacts = count(shown["artefacts"], "artefact")
    if shown["jobs"] is None:
        out.print(f"{artefacts}; no report yet, so the study is not finished: `papa run CONFIG` resumes it.")
    else:
        out.print(f"{artefacts}; {shown['finished']:,} of {count(shown['jobs'], 'job')} finished.")
    for sentence, style in ((shown["sentence"], ""), (shown["leakage"], "yellow")):
        if sentence:
            out.print(f"\n{printable(sentence)}", style=style)
    if shown["files"]:
        out.print("\nOpen", style="bold")
        for path, what in shown["files"].items():
            out.print(f"  {path}: {what}", soft_wrap=True)
