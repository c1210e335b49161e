"""Scores by the fraction of heads that keep their attention, of a loaded model and an order, without files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from papa.config.measures import METRICS
from papa.config.variant import CONTEXTLESS, ORIGINAL, Constant, Order, Variant
from papa.data.tokens import Tokens
from papa.errors import InputError
from papa.method.constants import constants_for
from papa.method.labelled import GoldLabels
from papa.method.notebook import LabelValues, Recipe, examples_of, metric_of, objective_on
from papa.method.objective import IGNORED, States
from papa.method.orders import check_ranked, heads_replaced, smallest_first
from papa.method.states import CachedStates, StreamedStates
from papa.method.training import probe_trained
from papa.method.variants import names_of
from papa.model.model import Batches, Model, check_model
from papa.model.replacement import Constants, Head, Replacement, check_slots, replaced_in
from papa.results.outcomes import TaskOutcomes
from papa.results.runs import Origin, RunFile, Split, collect_runs
from papa.results.summary import FLOORS, is_main, with_losses

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ["fraction", "kept", "heads", "mean", "low", "high", *FLOORS]
COLUMNS += ["status", "loss", "loss_low", "loss_high", "loss_bound"]
CONSTANT, ORDER = Constant("average"), Order("lambda", 0)
"""What tables call the constant and the order, whatever they are."""
NAME = "given"
"""What they call the model and the task."""


def sweep(
    model: Model,
    constants: Constants,
    order: Tensor | Sequence[Head],
    train: Batches | tuple[Batches, LabelValues],
    validation: Batches | tuple[Batches, LabelValues],
    recipe: Recipe | None = None,
) -> pd.DataFrame:
    """Score a model while heads are replaced, one after another in an order: what a study does at one of its lines.

    With labels, a probe is trained for each fraction and seed on hidden states, which are computed once and stay in
    memory. Without labels, the model's own head guesses next tokens, and nothing is trained.

    Args:
        model: a model that `load_model` gave.
        constants: what replaces attention, such as `average_attention` gives.
        order: heads (layer, head), those that are replaced first in front; or weights `[layer, head]`, such as
            `learn_lambda` gives, of which the smallest are replaced first.
        train: batches and their labels, (batches, labels); or batches alone if there are no labels.
        validation: the same of the examples that are scored.
        recipe: fractions, seeds, metric and training; `Recipe()` if not given.

    Returns:
        A row for each fraction, with the columns that `TaskOutcomes.curve` has: `mean`, and `low` to `high`, its 95 %
        interval; the floors `trivial` and `contextless`; the `loss` with its interval and one-sided bound, or the
        `status` that says why there is none.

    Raises:
        InputError: model, constants, order, batches and labels do not go together.

    >>> papa.sweep(model, constants, weights, (train, labels), (validation, others))  # doctest: +SKIP
    """
    recipe, both = recipe or Recipe(), {"train": _pair(train), "validation": _pair(validation)}
    splits, labels = examples_of(check_model(model), both, "sweep")
    ranked = _ranked(order, model)
    check_slots(model.replacement(constants), splits["train"].n)
    asked = _Asked(model, splits, labels, recipe)
    zeros = constants_for(Constant("zeros"), None, model, {"slots": splits["train"].n})
    steps = {ORIGINAL: model.replacement(), CONTEXTLESS: model.replacement(zeros)}
    for fraction in recipe.fractions:
        variant = Variant.of(CONSTANT, ORDER, fraction)
        if variant.constant is not None:
            steps[variant.path] = model.replacement(constants, heads_replaced(ranked, variant))
    found = [point for path, replaced in steps.items() for point in asked.points(Variant.parse(path), replaced)]
    runs = collect_runs([(run, "this sweep") for run, _ in found], [measured := asked.measured(found)], {})
    summary, shown = with_losses(runs, [measured]), {str(Fraction(fraction)) for fraction in recipe.fractions}
    rows = summary[is_main(summary) & summary["constant"].ne("zeros").fillna(True) & summary["fraction"].isin(shown)]
    return rows[COLUMNS].reset_index(drop=True)


@dataclass(frozen=True)
class _Asked:
    """What is measured at each point: a model on examples and their labels."""

    model: Model
    splits: Mapping[str, Tokens]
    labels: GoldLabels | None
    recipe: Recipe

    @cached_property
    def metric(self) -> str:
        return metric_of(self.recipe, objective_on(self.model, self.splits, self.labels))

    def points(self, variant: Variant, replacement: Replacement) -> Iterator[tuple[RunFile, pd.DataFrame]]:
        """What was run with some heads replaced, and its outcomes: once for each seed, if something is trained."""
        total, direct = self.model.layers * self.model.heads, not METRICS[self.metric].target.probed
        if direct:
            states: States = StreamedStates(self.model, lambda: replacement, direct=True)
        else:
            states = CachedStates(self.model, replacement, self.splits)
        rows = Split(**{split: len(tokens) for split, tokens in self.splits.items()})
        for seed in self.recipe.seeds[:1] if direct else self.recipe.seeds:
            torch.manual_seed(seed)
            objective = objective_on(self.model, self.splits, self.labels)
            named = names_of(variant)
            epochs = probe_trained(objective, states, [objective.probe], self.recipe.training, seed)
            run = RunFile(
                model=NAME,
                task=NAME,
                constant=named["constant"],
                order=named["order"],
                fraction=str(variant.fraction),
                kept=total - len(replaced_in(replacement)),
                heads=total,
                seed=seed,
                curve=[],
                rows=rows,
                rows_available=rows,
                cut=Split(train=0, validation=0),
                **self.recipe.training.model_dump(),
                provenance=Origin(),
            )
            yield run, objective.table([epoch.kept for epoch in epochs]).to_pandas().astype({"split": str})

    def measured(self, found: Sequence[tuple[RunFile, pd.DataFrame]]) -> TaskOutcomes:
        """All outcomes, with what is known of the labels."""
        names, counts = list[str](), list[int]()
        if self.labels is not None:
            names, taught = list(self.labels.names), self.labels.values["train"]
            counts = torch.bincount(taught[taught != IGNORED], minlength=len(names)).tolist()
        return TaskOutcomes.of([(run.model_dump(), outcomes) for run, outcomes in found], self.metric, names, counts)


def _pair(given: Batches | tuple[Batches, LabelValues]) -> tuple[Batches, LabelValues | None]:
    """Batches and their labels, which are None if batches were given alone."""
    if isinstance(given, tuple) and len(given) == 2 and not isinstance(given[1], Mapping):
        return cast("tuple[Batches, LabelValues]", given)
    return cast(Batches, given), None


def _ranked(order: Tensor | Sequence[Head], model: Model) -> list[Head]:
    """The heads in the order in which they are replaced."""
    if isinstance(order, Tensor):
        if tuple(order.shape) != (model.layers, model.heads):
            raise InputError(
                f"The weights of heads are {list(order.shape)}; this model needs [layer, head] = "
                f"{[model.layers, model.heads]}."
            )
        values = order.tolist()
        return smallest_first({(n, head): value for n, layer in enumerate(values) for head, value in enumerate(layer)})
    try:
        ranked = [(int(layer), int(head)) for layer, head in order]
    except (TypeError, ValueError):
        raise InputError("An order lists all heads as (layer, head), or has a weight [layer, head] of each.") from None
    check_ranked(ranked, model, "This order")
    return ranked
