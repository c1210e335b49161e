"""The tables of runs in the HTML report: analyses, data, models, time and memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd

from papa.config.analyses import grid_view, weights_row
from papa.config.artefacts import BENCHMARK
from papa.config.stages import ModelId
from papa.config.study import Study
from papa.config.variant import SEEDED, Constant
from papa.errors import count
from papa.files import opened_table
from papa.method.runs import read_runs
from papa.results.grids import has_between
from papa.results.phrases import constant_name, order_name
from papa.results.summary import is_main
from papa.results.table import Table

UNKNOWN_CELL = "–"


def run_in_words(study: Study) -> str:
    """Return a line with the numbers of probes, models, tasks and seeds."""
    pairs = study.config.pairs
    jobs = [job.settings for model, task in pairs for job in study.probes_of(model, task)]
    probes = [seed for job in jobs if job.training.epochs for seed in job.seeds]
    seeds, direct = list(dict.fromkeys(probes)), sum(not job.training.epochs for job in jobs)
    models, tasks = (len(set(names)) for names in zip(*pairs, strict=True))
    runs = [count(len(probes), "probe")] * bool(probes)
    runs += [f"{count(direct, 'measurement')} by the model's own head"] * bool(direct)
    words = f"{' and '.join(runs)} of {count(models, 'model')} on {count(tasks, 'task')}"
    seed_words = f"{'seed' if len(seeds) == 1 else 'seeds'} {', '.join(map(str, seeds))}"
    return f"{words}, {seed_words}" if seeds else words


def analyses_table(study: Study) -> Table:
    """Return a table with the models, constants, fractions and seeds of each grid."""
    rows, views = [], {name: grid_view(study, name) for name in study.grids}
    for name, grid in study.grids.items():
        orders = study.orders(grid) if has_between(grid.fractions) else []
        columns = {
            "analysis": [views[name].title],
            "models": grid.models,
            "tasks": [study.config.tasks[task].title or task for task in grid.tasks],
            "constants": [constant_name(Constant.parse(constant).name) for constant in grid.constants],
            "fractions": grid.fractions,
            "orders": dict.fromkeys(order_name(order.base) for order in orders),
            "seeds of orders": dict.fromkeys(str(order.draw) for order in orders if order.base in SEEDED),
            "seeds of probes": map(str, grid.seeds),
        }
        rows.append({column: ", ".join(values) or UNKNOWN_CELL for column, values in columns.items()})
    return Table("", pd.DataFrame(rows), len(rows[0]))


def data_table(study: Study, summary: pd.DataFrame) -> Table:
    """Return a table with the numbers of rows used, of validation rows also in training, and of examples cut."""
    rows = summary[is_main(summary)]
    corpora = rows["task"].map(lambda task: study.config.tasks[task].corpus)
    shared = {corpus: _shared(study, corpus) for corpus in corpora.unique()}

    counts = rows[[name for name in rows if str(name).startswith(("rows_", "cut_"))]].map("{:,}".format)
    columns = {
        "task": rows["title"],
        "model": rows["model"],
        "training rows used / available": counts["rows_train"] + " / " + counts["rows_available_train"],
        "validation rows used / available": counts["rows_validation"] + " / " + counts["rows_available_validation"],
        "validation rows also in training": corpora.map(shared),
        "training examples cut": counts["cut_train"],
        "validation examples cut": counts["cut_validation"],
    }
    return Table("", pd.DataFrame(columns).drop_duplicates(), 2)


def _shared(study: Study, corpus: str) -> str:
    """Count the validation rows of a corpus that are also in its training split."""
    with opened_table(study.results / study.path("texts", corpus=corpus)) as texts:
        shared = texts.facts.get("shared", {}).get("validation")
    return UNKNOWN_CELL if shared is None else f"{shared:,}"


def models_table(study: Study) -> Table:
    """Return a table with every model's origin, the digest of its weights, and the versions of libraries."""
    first_runs = {model: study.probes_of(model, task)[0].main for model, task in reversed(study.config.pairs)}
    rows = []
    for name in dict.fromkeys(model for model, _ in study.config.pairs):
        model = study.config.models[name]
        origin = read_runs(study.results / first_runs[name])[0].provenance.model_dump(exclude_none=True)
        row = {"model": name, "hub id": model.hub or ModelId.of(name, model).origin, "revision": model.revision or ""}
        row |= {"SHA-256 of the weights": origin.get("weights", "")}
        row |= {key.removesuffix("_version"): origin[key] for key in sorted(origin) if key.endswith("_version")}
        rows.append(row)
    return Table("", pd.DataFrame(rows), len(rows[0]))


def jobs_table(study: Study) -> Table:
    """Return a table with the time and memory of the jobs of each stage, and the date of the newest file."""
    jobs = pd.DataFrame([{"rule": job.rule, "path": job.main} for job in study.jobs() if job.stage != "page"])
    files = [study.results / path for path in jobs["path"]]
    ended = [path.stat().st_mtime if path.exists() else float("nan") for path in files]
    jobs = pd.concat([jobs, _benchmarks(files)], axis=1).assign(ended=ended)
    by_rule = pd.concat([jobs, jobs.assign(rule="all")]).groupby("rule", sort=False)
    numbers = pd.DataFrame(
        {
            "jobs": by_rule.size(),
            "measured": by_rule["s"].count(),
            "seconds": by_rule["s"].sum(min_count=1),
            "peak memory, MB": by_rule["max_rss"].max(),
        }
    )
    text = numbers.map(_number).assign(**{"last ended, UTC": by_rule["ended"].max().map(_date)})
    return Table("", text.reset_index(names="stage").replace({"stage": {"_": " "}}, regex=True), 1)


def _benchmarks(files: Sequence[Path]) -> pd.DataFrame:
    """Return the seconds `s` and peak memory `max_rss` of the jobs that wrote these files; NaN if not recorded."""
    paths = [path.with_suffix(BENCHMARK) for path in files]
    rows = [
        pd.read_csv(path, sep="\t", na_values="-").iloc[:1] if path.exists() else pd.DataFrame([{}]) for path in paths
    ]
    benchmarks = pd.concat(rows, ignore_index=True).reindex(columns=["s", "max_rss"])
    return pd.DataFrame({name: pd.to_numeric(benchmarks[name], errors="coerce") for name in benchmarks})


def weights_table(study: Study) -> Table | None:
    """Return a table with the seconds of the jobs that weigh heads; None unless there are several kinds of weights."""
    weights = [weights_row(job) | {"path": job.main} for job in study.weights() if "part" not in job.wildcards]
    if len({row["order"] for row in weights}) < 2:
        return None
    frame = pd.DataFrame(weights).assign(s=_benchmarks([study.results / row["path"] for row in weights])["s"])
    groups = frame.groupby(["task", "model", "constant", "order"], sort=False)["s"].agg(["size", "mean", "min", "max"])
    rows = groups.reset_index()
    columns = {
        "task": [study.config.tasks[task].title or task for task in rows["task"]],
        "model": rows["model"],
        "constants": rows["constant"].map(constant_name),
        "order": rows["order"].map(order_name),
        "jobs": rows["size"].map(str),
    }
    columns |= {f"seconds, {name}": rows[name].map(_number) for name in ("mean", "min", "max")}
    return Table("", pd.DataFrame(columns), 4)


def _number(number: float) -> str:
    return UNKNOWN_CELL if pd.isna(number) else f"{number:,.0f}"


def _date(seconds: float) -> str:
    return UNKNOWN_CELL if pd.isna(seconds) else f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M}"


def config_text(config: Mapping[str, object]) -> str:
    import yaml

    return yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True, width=100)
