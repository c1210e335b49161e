"""Choices on inner folds of the training rows: context-free floors and learning rates, with their scores."""

from __future__ import annotations

import pandas as pd

from papa.config.job import Job
from papa.config.stages import AnalysisOf, TaskOf
from papa.config.variant import ORIGINAL, RETRAINED, Variant
from papa.method.tuning import BestRate, best_floors, mean_scores, read_folds
from papa.results.analysis import Analysis, Computed
from papa.results.phrases import adaptation_name, constant_name, order_name
from papa.results.table import Table, metric_name, score_text, texts

KEYS = ["model", "task", "variant"]
COLUMNS = dict.fromkeys(("model", "task", "title", "metric", "variant"), "string")
COLUMNS |= {"learning_rate": "float64", "score": "float64", "best_rate": "bool", "at_end": "bool", "floor": "bool"}
NOTE = (
    "Scores: mean over inner folds of the training rows. A probe that was trained on the other folds scores each fold, "
    "so no choice depends on a validation row. No score (-): training diverged, so a floor without any score is left "
    "out. Chosen: the best learning rate of a setting, or the best context-free "
    "floor of a task. At the end: the best learning rate is the smallest or the largest that was tried, so a better "
    "one may lie beyond."
)


class InnerFolds(Analysis):
    """List the scores on inner folds, and the choices that follow from them.

    Args:
        tasks: title and metric of each task.
        floors: the constants of the context-free floors.
    """

    columns = COLUMNS
    title_text = "Choices on inner folds of the training rows"
    note_text = NOTE

    tasks: dict[str, TaskOf]
    floors: tuple[str, ...]

    def compute(self, job: Job[AnalysisOf]) -> Computed:
        """Read the scores of all `folds`."""
        paths = job.inputs["folds"]
        floors = best_floors(paths, self.floors) if len(self.floors) > 1 else {}
        rows: list[dict[str, object]] = []
        for facts, folds in map(read_folds, paths):
            scores = mean_scores(folds)
            best = BestRate.of(folds) if scores else None
            used = floors.get((facts["model"], facts["task"]), ())[:1]
            is_floor = facts["variant"] in (Variant.floor(name).path for name in used)
            rates = sorted({fold["learning_rate"] for fold in folds})
            for rate in rates:
                chosen = best is not None and rate == best.learning_rate
                row: dict[str, object] = {**facts, "title": self.tasks[facts["task"]].title, "learning_rate": rate}
                row |= {"score": scores.get(rate), "best_rate": chosen and len(rates) > 1}
                at_end = chosen and best is not None and best.at_end
                rows.append(row | {"at_end": at_end, "floor": chosen and is_floor})
        return Computed(pd.DataFrame(rows, columns=list(COLUMNS)), {"table": "inner_folds"})

    def tables(self, rows: pd.DataFrame) -> list[Table]:
        """Return a table for each model, with a row for each learning rate of each setting."""
        tables = []
        for model, group in rows.groupby("model", sort=False):
            text = pd.DataFrame(
                {
                    "task": group["title"],
                    "setting": group["variant"].map(setting_text),
                    "metric": group["metric"].map(metric_name),
                    "learning rate": group["learning_rate"].map("{:g}".format),
                    "score on folds": [score_text(score, float("nan")) for score in group["score"]],
                    "chosen": texts(_chosen, group, "floor", "best_rate", "at_end"),
                }
            )
            first = group["task"].ne(group["task"].shift())
            tables.append(Table(str(model), text, 3, rules=tuple(first.to_numpy().nonzero()[0].tolist())))
        return tables

    def sentence(self, rows: pd.DataFrame) -> str:
        return sentence_of(rows)


def _chosen(floor: bool, best_rate: bool, at_end: bool) -> str:
    rate = "learning rate, at the end" if at_end else "learning rate" if best_rate else ""
    return ", ".join(filter(None, ["floor" if floor else "", rate]))


def setting_text(variant: str) -> str:
    """Describe a variant: "original", "zeros, all heads replaced, trained norms", "average, λ order, 1/2 kept"."""
    parsed = Variant.parse(variant)
    words = [ORIGINAL if parsed.constant is None else constant_name(parsed.constant.name)]
    if parsed.order is not None:
        words += [f"{order_name(parsed.order.name)} order", f"{parsed.fraction} kept"]
    elif parsed.constant is not None:
        words.append("all heads replaced")
    return ", ".join([*words, *[adaptation_name(parsed.adapt)] * (parsed.adapt != RETRAINED)])


def sentence_of(rows: pd.DataFrame) -> str:
    """Name the chosen floor of each task, and the settings whose best learning rate is at the end of the list."""
    floors = [
        f"{Variant.parse(variant).constant.name} on {title}"  # type: ignore[union-attr]
        for title, variant in rows.loc[rows["floor"], ["title", "variant"]].itertuples(index=False)
    ]
    ends = [
        f"{title}, {setting_text(variant)}"
        for title, variant in rows.loc[rows["at_end"], ["title", "variant"]].itertuples(index=False)
    ]
    without_score = rows[rows["score"].isna().groupby([rows[name] for name in KEYS]).transform("all")]
    diverged = [
        f"{title}, {setting_text(variant)}"
        for title, variant in without_score[["title", "variant"]].drop_duplicates().itertuples(index=False)
    ]
    sentences = [f"context-free floor: {', '.join(floors)}"] * bool(floors)
    sentences += [f"best learning rate at the end of the list, try more: {'; '.join(ends)}"] * bool(ends)
    sentences += [f"no score, because training diverged: {'; '.join(diverged)}"] * bool(diverged)
    return "; ".join(sentences) or f"best learning rates of {rows['variant'].nunique()} settings"
