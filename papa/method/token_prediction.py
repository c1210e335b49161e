"""The common base of objectives that predict tokens."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from papa.data.tokens import Tokens
from papa.errors import InputError
from papa.method.objective import Batch, Objective, outcomes_table

if TYPE_CHECKING:
    import pyarrow as pa

    from papa.config.job import Job
    from papa.config.stages import OfTask
    from papa.method.probes import ProbeSizes
    from papa.model.model import Model

DECODED_AT_ONCE = 256
"""Number of tokens that are decoded at once; each needs a logit for every word of the vocabulary."""


class TokenPrediction(Objective):
    """An objective that predicts tokens; validation texts are scored in batches of about equal numbers of tokens."""

    model: Model

    @classmethod
    def of(
        cls, job: Job[OfTask], splits: Mapping[str, Tokens], sizes: ProbeSizes, model: Model | None, seed: int
    ) -> TokenPrediction:
        """Return the objective of a job; raise `InputError` if hidden states are stored, or the model does not fit."""
        if model is None:
            raise InputError("A task without a probe of labels needs the model; stream the hidden states.")
        return cls.of_model(job, splits, model, seed)

    @classmethod
    @abstractmethod
    def of_model(cls, job: Job[OfTask], splits: Mapping[str, Tokens], model: Model, seed: int) -> TokenPrediction:
        """Return the objective of a job with a model; `seed` determines the masks."""

    @property
    def facts(self) -> dict[str, object]:
        return {"metric": self.target.usual_metric}

    def scored(self) -> Iterator[Batch]:
        yield from (self._batch("validation", examples) for examples in self._scored_batches())

    def in_text_order(self, values: Tensor) -> Tensor:
        """Rearrange values `[example, ...]` from the order of `scored` into the order of the texts."""
        return values[torch.cat(list(self._scored_batches())).argsort()]

    def _scored_batches(self) -> Iterator[Tensor]:
        return self.splits["validation"].batches(self.model.token_budget) if "validation" in self.splits else iter(())


def table_of_texts(tokens: Tokens, chosen: Tensor, word_counts: Tensor, columns: Mapping[str, Tensor]) -> pa.Table:
    """Return outcomes, `columns` `[example]`, with a row for each text of the validation split.

    `chosen` `[token]` marks the tokens that are predicted. The trivial guess follows from `word_counts` `[word]`.
    """
    text = torch.arange(len(tokens)).repeat_interleave(tokens.lengths)[chosen]
    blind = -(word_counts / word_counts.sum()).log()[tokens.ids[chosen].long()]
    values = {
        "example": torch.arange(len(tokens)),
        "tokens": torch.bincount(text, minlength=len(tokens)),
        "trivial": torch.zeros(len(tokens), dtype=torch.float64).index_add(0, text, blind),
        **columns,
    }
    return outcomes_table("validation", values)
