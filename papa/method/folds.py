"""The stage that scores inner folds of the training rows, from which learning rates and context-free floors are chosen.

The training rows are split into folds, and some of these are scored: for each learning rate, a probe is trained on all
folds but one and scored on that one. No validation row is read, so a choice by these scores does not bias the outcomes
on validation rows.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from fractions import Fraction

import torch
from torch import Tensor

from papa.config.job import Job
from papa.config.stages import FoldsOf, Training
from papa.data.tokens import Tokens
from papa.errors import InputError, count
from papa.files import write_table
from papa.method.fitting import Diverged, TrainingTask, fit
from papa.method.metrics import score_of_table
from papa.method.objective import held_out_loss, objective_of
from papa.method.training import StateSource, source_of
from papa.method.training_rows import training_rows
from papa.method.tuning import FOLD_COLUMNS, BestRate, FoldRow, mean_scores

log = logging.getLogger(__name__)

UNTRAINED_ROWS = 1000
"""The maximum number of training rows that are scored if a model's own head predicts them, without training."""


def folds_of(units: int, folds: int, seed: int) -> list[Tensor]:
    """Split the indices of `units` texts or questions at random into folds of about equal size.

    Raises:
        InputError: there are fewer units than folds.
    """
    if units < folds:
        raise InputError(f"{count(units, 'training row')} cannot be split into {folds} folds; use more training rows.")
    order = torch.randperm(units, generator=torch.Generator().manual_seed(seed))
    return [part.sort().values for part in order.tensor_split(folds)]


def score_folds(job: Job[FoldsOf]) -> str:
    """Stage *folds*: the score of each learning rate on the scored folds, from probes trained on the others.

    A training that diverges has no score. If nothing is trained, some rows of each fold are scored.

    Raises:
        InputError: there are too few training rows.
    """
    import pyarrow as pa

    settings, splits = job.settings, Tokens.read(job.input("tokens"))
    folds = folds_of(splits["train"].units, settings.folds, settings.seed)
    rows, share = list[FoldRow](), settings.training.rows
    if isinstance(share, int):  # the same share of the rows of a fold
        share = str(Fraction(min(share, splits["train"].units), splits["train"].units))
    with source_of(job, splits) as source:
        for rate in settings.learning_rates:
            training = settings.training.model_copy(update={"learning_rate": rate, "rows": share})
            for number, held_out in enumerate(folds[: settings.scored], start=1):
                trained = torch.cat([fold for fold in folds if fold is not held_out])
                if not training.epochs:
                    held_out = held_out[:: math.ceil(len(held_out) * settings.scored / UNTRAINED_ROWS)]
                chosen = {"train": trained, "validation": held_out}
                inner = {name: splits["train"].select(units, name) for name, units in chosen.items()}
                score = _score(job, inner, source, training)
                rows.append(FoldRow(learning_rate=rate, fold=number, rows=len(held_out), score=score))
        trace = job.trace(**source.digests)
    facts = {"model": settings.model.model.name, "task": settings.task, "variant": settings.variant}
    table = pa.Table.from_pylist(rows, schema=pa.schema(list(FOLD_COLUMNS.items())))
    write_table(table, job.output("folds"), facts | {"table": "folds", "metric": settings.metric}, trace)
    if not mean_scores(rows):
        return f"no {settings.metric} on {settings.scored} inner folds, because training diverged"
    best = BestRate.of(rows)
    chosen_rate = f"; best learning rate {best.learning_rate:g}" if len(settings.learning_rates) > 1 else ""
    return f"{settings.metric} {best.score:.3f} on {settings.scored} inner folds{chosen_rate}"


def _score(job: Job[FoldsOf], splits: Mapping[str, Tokens], source: StateSource, training: Training) -> float | None:
    """Return the score of the validation rows of `splits` after training on the others; None if training diverged."""
    settings = job.settings
    torch.manual_seed(settings.seed)
    objective = objective_of(job, splits, source.sizes, source.model, settings.seed)
    parameters = [
        values for module in (objective.probe, *source.trained_with_probe()) for values in module.parameters()
    ]
    if parameters and training.epochs:
        rows = training_rows(objective.examples, training, settings.seed)
        task = TrainingTask(
            name=f"inner fold, learning rate {training.learning_rate:g}",
            parameters=parameters,
            examples=len(rows.learned),
            loss=objective.loss_on(source.states, rows.learned),
            before_epoch=objective.begin,
            after_epoch=dict[str, Tensor],
            held_out_loss=held_out_loss(objective, source.states, rows, training),
            shares=lambda parts: objective.shares(parts, rows.learned),
        )
        try:
            fit(task, training, settings.seed)
        except Diverged as error:
            log.warning("%s It has no score.", error)
            return None
    outcomes = objective.table([objective.outcomes_on(source.states)])
    return score_of_table(str(settings.metric), outcomes, objective.facts.get("label_names", ()))
