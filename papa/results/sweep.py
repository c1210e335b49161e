"""Score a loaded model while more and more heads are replaced, without files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from papa.config.measures import METRICS
from papa.config.variant import CONTEXT_FREE, ORIGINAL, Constant, Order, Variant
from papa.data.tokens import Tokens
from papa.errors import InputError
from papa.method.constants import constants_for
from papa.method.labelled import GoldLabels
from papa.method.notebook import LabelValues, Recipe, examples_of, metric_of, objective_on
from papa.method.objective import IGNORED, States, fit_objective
from papa.method.orders import check_ranked, heads_replaced, smallest_first
from papa.method.runs import TRAINING_FIELDS, Origin, Run, SplitCounts
from papa.method.states import CachedStates, StreamedStates
from papa.method.variants import names_of
from papa.model.model import Batches, Model, check_model
from papa.model.replacement import Constants, Head, Replacement, check_slots, replaced_in
from papa.results.outcomes import TaskOutcomes
from papa.results.scores import collect_runs
from papa.results.summary import FLOORS, is_main, with_losses

if TYPE_CHECKING:
    import pandas as pd

SWEEP_COLUMNS = ["fraction", "kept", "heads", "mean", "low", "high", *FLOORS]
SWEEP_COLUMNS += ["status", "loss", "loss_low", "loss_high", "loss_bound"]
CONSTANT, ORDER = Constant("average"), Order("lambda", 0)
"""Placeholders for the caller's constant and order in the names of variants."""
PLACEHOLDER = "given"
"""A placeholder for the names of the model and the task in runs."""


def sweep(
    model: Model,
    constants: Constants,
    order: Tensor | Sequence[Head],
    train: Batches | tuple[Batches, LabelValues],
    validation: Batches | tuple[Batches, LabelValues],
    recipe: Recipe | None = None,
) -> pd.DataFrame:
    """Score a model while more and more heads are replaced, as a study does for one constant and one order.

    With labels, a probe is trained for each fraction and seed on hidden states, which are computed once and kept in
    memory. Without labels, the language-modelling head predicts next tokens, and nothing is trained.

    Args:
        model: a model returned by `load_model`.
        constants: the constants that replace attention, such as those returned by `average_attention`.
        order: heads (layer, head) in the order in which they are replaced; or weights `[layer, head]`, smallest
            replaced first, such as those returned by `learn_lambda`.
        train: batches and their labels, (batches, labels); or only batches if there are no labels.
        validation: the examples to score, in the same form.
        recipe: fractions, seeds, metric and training; by default `Recipe()`.

    Returns:
        A row for each fraction: the `mean` score, and its 95 % interval from `low` to `high`; the floors `trivial` and
        `contextless` (context-free); the `loss` with its interval and one-sided bound; and the `status`, which is the
        reason if there is no loss.

    Raises:
        InputError: model, constants, order, batches and labels do not match.

    >>> papa.sweep(model, constants, weights, (train, labels), (validation, others))  # doctest: +SKIP
    """
    recipe, both = recipe or Recipe(), {"train": _pair(train), "validation": _pair(validation)}
    splits, labels = examples_of(check_model(model), both, "sweep")
    ranked = _ranked(order, model)
    check_slots(model.replacement(constants), splits["train"].n)
    sweeping = _Sweep(model, splits, labels, recipe)
    floor = Variant.floor(CONTEXT_FREE[0])
    zeros = constants_for(Constant(CONTEXT_FREE[0]), None, model, {"slots": splits["train"].n})
    steps = {ORIGINAL: model.replacement(), floor.path: model.replacement(zeros)}
    for fraction in recipe.fractions:
        variant = Variant.of(CONSTANT, ORDER, fraction)
        if variant.constant is not None:
            steps[variant.path] = model.replacement(constants, heads_replaced(ranked, variant))
    results = [result for path, replaced in steps.items() for result in sweeping.points(Variant.parse(path), replaced)]
    runs = collect_runs([(run, "this sweep") for run, _ in results], [measured := sweeping.measured(results)], {})
    summary, shown = with_losses(runs, [measured]), {str(Fraction(fraction)) for fraction in recipe.fractions}
    rows = summary[is_main(summary) & summary["constant"].ne("zeros").fillna(True) & summary["fraction"].isin(shown)]
    return rows[SWEEP_COLUMNS].reset_index(drop=True)


@dataclass(frozen=True)
class _Sweep:
    """A model, its examples and labels, and the recipe to score it."""

    model: Model
    splits: Mapping[str, Tokens]
    labels: GoldLabels | None
    recipe: Recipe

    @cached_property
    def metric(self) -> str:
        return metric_of(self.recipe, objective_on(self.model, self.splits, self.labels))

    def points(self, variant: Variant, replacement: Replacement) -> Iterator[tuple[Run, pd.DataFrame]]:
        """Yield each run of a variant with its outcomes: a run per seed if probes are trained, otherwise one."""
        total, seeds = self.model.layers * self.model.heads, self.recipe.seeds
        if METRICS[self.metric].target.probed:
            states: States = CachedStates(self.model, replacement, self.splits)
        else:
            states, seeds = StreamedStates(self.model, lambda: replacement, probed=False), seeds[:1]
        names, rows = names_of(variant), SplitCounts(**{split: len(tokens) for split, tokens in self.splits.items()})
        for seed in seeds:
            torch.manual_seed(seed)
            objective = objective_on(self.model, self.splits, self.labels)
            epochs = fit_objective(objective, states, [objective.probe], self.recipe.training, seed)
            run = Run(
                model=PLACEHOLDER,
                task=PLACEHOLDER,
                constant=names["constant"],
                order=names["order"],
                fraction=str(variant.fraction),
                kept=total - len(replaced_in(replacement)),
                heads=total,
                **self.recipe.training.model_dump(include={*TRAINING_FIELDS}),
                seed=seed,
                rows=rows,
                rows_available=rows,
                cut=SplitCounts(train=0, validation=0),
                curve=[],
                provenance=Origin(),
            )
            yield run, objective.table([epoch.recorded for epoch in epochs]).to_pandas().astype({"split": str})

    def measured(self, points: Sequence[tuple[Run, pd.DataFrame]]) -> TaskOutcomes:
        """Join all outcomes, with the names of labels and their counts in training."""
        names, counts = list[str](), list[int]()
        if self.labels is not None:
            names, train = list(self.labels.names), self.labels.values["train"]
            counts = torch.bincount(train[train != IGNORED], minlength=len(names)).tolist()
        return TaskOutcomes.of([(run.model_dump(), outcomes) for run, outcomes in points], self.metric, names, counts)


def _pair(data: Batches | tuple[Batches, LabelValues]) -> tuple[Batches, LabelValues | None]:
    """Return batches and their labels; the labels are None if only batches were passed."""
    if isinstance(data, tuple) and len(data) == 2 and not isinstance(data[1], Mapping):
        return cast("tuple[Batches, LabelValues]", data)
    return cast(Batches, data), None


def _ranked(order: Tensor | Sequence[Head], model: Model) -> list[Head]:
    """Return the heads in the order in which they are replaced."""
    if isinstance(order, Tensor):
        if tuple(order.shape) != (model.layers, model.heads):
            raise InputError(
                f"The weights of heads have the shape {list(order.shape)}; this model needs [layer, head] = "
                f"{[model.layers, model.heads]}."
            )
        values = order.tolist()
        weights = {(n, head): value for n, layer in enumerate(values) for head, value in enumerate(layer)}
        return smallest_first(weights, ORDER.name)
    try:
        ranked = [(int(layer), int(head)) for layer, head in order]
    except (TypeError, ValueError):
        raise InputError(
            "An order must be a list of all heads (layer, head), or a tensor of weights [layer, head]."
        ) from None
    check_ranked(ranked, model, "This order")
    return ranked
