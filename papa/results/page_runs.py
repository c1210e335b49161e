"""The run of a study, for the HTML report: analyses, data, models, time and memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from papa.config.analyses import about_weights, grid_view
from papa.config.artefacts import BENCHMARK
from papa.config.stages import ModelId
from papa.config.study import Study
from papa.config.variant import SEEDED, Constant
from papa.errors import count
from papa.files import JSON, opened_table
from papa.method.runs import read_runs
from papa.results.phrases import constant_name, order_name
from papa.results.summary import is_main
from papa.results.table import Table

if TYPE_CHECKING:
    pass


ENDS = {"0", "1"}


def run_in_words(study: Study) -> str:
    """The numbers of probes, models, tasks and seeds, in a line."""
    pairs = study.config.pairs
    jobs = [job.settings for model, task in pairs for job in study.runs(model, task)]
    probes = [seed for job in jobs if not job.direct for seed in job.seeds]
    seeds, direct = list(dict.fromkeys(probes)), sum(bool(job.direct) for job in jobs)
    models, tasks = (len(set(names)) for names in zip(*pairs, strict=True))
    runs = [count(len(probes), "probe")] * bool(probes)
    runs += [f"{count(direct, 'measurement')} by the model's own head"] * bool(direct)
    of = f"{' and '.join(runs)} of {count(models, 'model')} on {count(tasks, 'task')}"
    named = f"{'seed' if len(seeds) == 1 else 'seeds'} {', '.join(map(str, seeds))}"
    return f"{of}, {named}" if seeds else of


def analyses_table(study: Study) -> Table:
    """The models, constants, fractions and seeds of each grid."""
    lines = []
    for name, grid in study.grids.items():
        between = bool(set(grid.fractions) - ENDS)
        orders = study.orders(grid) if between else []
        titles = [study.config.tasks[task].title or task for task in grid.tasks]
        lines.append(
            {
                "analysis": grid_view(study, name).title,
                "models": ", ".join(grid.models),
                "tasks": ", ".join(titles),
                "constants": ", ".join(constant_name(Constant.parse(name).name) for name in grid.constants),
                "fractions": ", ".join(grid.fractions),
                "orders": ", ".join(dict.fromkeys(order_name(order.base) for order in orders)) or "–",
                "seeds of orders": ", ".join(dict.fromkeys(str(order.draw) for order in orders if order.base in SEEDED))
                or "–",
                "seeds of probes": ", ".join(map(str, grid.seeds)),
            }
        )
    return Table("", pd.DataFrame(lines), len(lines[0]))


def data_table(study: Study, summary: pd.DataFrame) -> Table:
    """The rows of each task that were used, that were cut, and that are also in training."""
    rows = summary[is_main(summary)]
    corpora = rows["task"].map(lambda task: study.config.tasks[task].corpus)
    shared = {corpus: _shared(study, corpus) for corpus in corpora.unique()}

    def used(split: str) -> pd.Series[str]:
        return rows[f"rows_{split}"].map("{:,}".format) + " / " + rows[f"rows_available_{split}"].map("{:,}".format)

    columns = {
        "task": rows["title"],
        "model": rows["model"],
        "training rows used / available": used("train"),
        "validation rows used / available": used("validation"),
        "validation rows also in training": corpora.map(shared),
        "training examples cut": rows["cut_train"].map("{:,}".format),
        "validation examples cut": rows["cut_validation"].map("{:,}".format),
    }
    return Table("", pd.DataFrame(columns).drop_duplicates(), 2)


def _shared(study: Study, corpus: str) -> str:
    """The number of validation rows of a corpus that are also in its training split, if its texts record it."""
    with opened_table(study.results / study.path("texts", corpus=corpus)) as texts:
        number = texts.facts.get("shared", {}).get("validation")
    return "–" if number is None else f"{number:,}"


def models_table(study: Study) -> Table:
    """The origin of every model, the digest of the weights that were read, and the versions of the libraries."""
    first = {model: study.runs(model, task)[0].main for model, task in reversed(study.config.pairs)}
    lines = []
    for name in dict.fromkeys(model for model, _ in study.config.pairs):
        given, run = study.config.models[name], read_runs(study.results / first[name])[0]
        made = run.provenance.model_dump(exclude_none=True)
        origin = given.hub or ModelId.of(name, given).origin
        line = {"model": name, "hub id": origin, "revision": given.revision or ""}
        line |= {"SHA-256 of the weights": made.get("weights", "")}
        line |= {key.removesuffix("_version"): made[key] for key in sorted(made) if key.endswith("_version")}
        lines.append(line)
    return Table("", pd.DataFrame(lines), len(lines[0]))


def jobs_table(study: Study) -> Table:
    """Time and memory of the jobs of each rule and when they ended; – if it was not recorded."""
    jobs = pd.DataFrame([{"rule": job.rule, "path": job.main} for job in study.jobs() if job.stage != "page"])
    there = [study.results / path for path in jobs["path"]]
    took = _took(there)
    took["ended"] = [path.stat().st_mtime if path.exists() else float("nan") for path in there]
    jobs = pd.concat([jobs, took], axis=1)
    every = pd.concat([jobs, jobs.assign(rule="all")])
    frame = every.groupby("rule", sort=False).agg(
        jobs=("path", "size"),
        measured=("s", "count"),
        seconds=("s", "sum"),
        memory=("max_rss", "max"),
        ended=("ended", "max"),
    )
    frame["seconds"] = frame["seconds"].where(frame["measured"] > 0)
    ended = frame.pop("ended").map(_date)
    printed = frame.map(lambda number: "–" if pd.isna(number) else f"{number:,.0f}").assign(ended=ended)
    printed = printed.reset_index(names="stage")
    printed["stage"] = printed["stage"].str.replace("_", " ")
    return Table("", printed.rename(columns={"memory": "most memory, MB", "ended": "last ended, UTC"}), 1)


def _took(there: Sequence[Path]) -> pd.DataFrame:
    """Seconds `s` and peak memory `max_rss` of the jobs that made these files; missing where nothing was recorded."""
    left = [path.with_suffix(BENCHMARK) for path in there]
    took = [
        pd.read_csv(path, sep="\t", na_values="-").iloc[:1] if path.exists() else pd.DataFrame([{}]) for path in left
    ]
    every = pd.concat(took, ignore_index=True).reindex(columns=["s", "max_rss"])
    return pd.DataFrame({name: pd.to_numeric(values, errors="coerce") for name, values in every.items()})


def weights_table(study: Study) -> Table | None:
    """Seconds of the jobs that weigh heads, if orders are made of several kinds of weights."""
    weights = [about_weights(job) | {"path": job.main} for job in study.weights() if "part" not in job.wildcards]
    if len({row["order"] for row in weights}) < 2:
        return None
    frame = pd.DataFrame(weights).assign(s=_took([study.results / row["path"] for row in weights])["s"])
    titles = {task: study.config.tasks[task].title or task for task in frame["task"]}
    groups = frame.groupby(["task", "model", "constant", "order"], sort=False)["s"].agg(["size", "mean", "min", "max"])
    shown = groups.reset_index()
    columns = {
        "task": shown["task"].map(titles),
        "model": shown["model"],
        "constants": shown["constant"].map(constant_name),
        "order": shown["order"].map(order_name),
        "jobs": shown["size"].map(str),
    }
    for what in ("mean", "min", "max"):
        columns[f"seconds, {what}"] = shown[what].map(lambda number: "–" if pd.isna(number) else f"{number:,.0f}")
    return Table("", pd.DataFrame(columns), 4)


def _date(seconds: float) -> str:
    return "–" if pd.isna(seconds) else f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M}"


def config_text(config: Mapping[str, JSON]) -> str:
    import yaml

    return yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True, width=100)
