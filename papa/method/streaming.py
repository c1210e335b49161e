"""Probes trained through the encoder: hidden states are computed when they are asked for, and never stored.

For what cannot be stored, because constants are trained along with the probe, texts are masked anew in every epoch or
the encoder's dropout is on, and for what is too large for a disk.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from papa.config.kinds import kind_of
from papa.data.masking import VALIDATION, Masking
from papa.data.tokens import Tokens
from papa.data.weights import tokenizer_of, weights_digest
from papa.errors import InputError
from papa.files import PathLike
from papa.method.checkpoints import Checkpoint
from papa.method.features import heads_to_replace, matrices_of, probe_sizes
from papa.method.fitting import Diverged, Kept
from papa.method.labelled import HiddenOf, Labelled
from papa.method.mlm import MaskedTraining, negative_log_perplexity
from papa.method.training import train_and_score, train_labelled
from papa.model.load import model_of
from papa.model.model import Model
from papa.model.replacement import Replacement, replaced_in


class TrainedConstants(nn.Module):
    """Constants of the replaced heads, learned with the probe (Sec. 5.2): masked and normalised when they are used.

    `matrices` `[replaced, query, key]` is what is learned; `heads` int64 `[replaced, 2]` says whose they are, (layer,
    head). The matrices of heads that are not replaced do not exist.
    """

    heads: Tensor

    def __init__(self, start: Tensor, heads: list[tuple[int, int]]):
        """`start` `[layer, head, query, key]` are the matrices to begin with."""
        super().__init__()
        where = torch.tensor(heads, dtype=torch.long).view(-1, 2)
        self.register_buffer("heads", where)
        self.matrices = nn.Parameter(start[where[:, 0], where[:, 1]].clone())
        self.shape = start.shape

    def forward(self) -> Tensor:
        """All matrices `[layer, head, query, key]`, zero for heads that are not replaced; differentiable."""
        everything = self.matrices.new_zeros(self.shape)
        return everything.index_put((self.heads[:, 0], self.heads[:, 1]), self.matrices)


def train_probe_through_encoder(
    model: Mapping[str, Any],
    tokens: PathLike,
    labels: PathLike | None,
    run: PathLike,
    probe: PathLike,
    task: Mapping[str, Any],
    seed: int,
    about: Mapping[str, Any],
    constants: PathLike | None = None,
    order: PathLike | None = None,
    fraction: str = "1",
    kind: str = "average",
    encoder_dropout: bool = False,
) -> str:
    """Stage *probe*, without stored hidden states: the frozen encoder runs in every epoch (Sec. 4).

    As `train_probe`, to the same numbers: hidden states go through float16, as stored ones do. With a kind of constants
    that is trained, the matrices of replaced heads are learned with the probe and written beside it, and hidden states
    stay float32. Which heads get which matrices is said as for `extract_features`. With `encoder_dropout` the encoder
    drops while the probe trains, as in the published code, and never while it is scored.

    Without `labels` the task is masked language modelling: hidden states stay float32, and the probe is written without
    the embeddings that it is tied to. Raises `InputError` for a tokenizer without a mask token and for constants that
    are trained.
    """
    splits = Tokens.read(tokens)
    source = splits["train"].provenance
    encoder = model_of(model)
    weights = weights_digest(model)
    plan = encoder.replacement()
    trained: TrainedConstants | None = None
    if fraction != "1":
        matrices = matrices_of(kind, constants, encoder, source, weights)
        plan = encoder.replacement(matrices, None if order is None else heads_to_replace(order, fraction))
        if kind_of(kind).trained:
            trained = TrainedConstants(matrices, replaced_in(plan)).to(encoder.device)
    total = encoder.layers * encoder.heads
    features = {
        **probe_sizes(encoder, splits["train"].n),
        "heads": total,
        "kept": total - len(replaced_in(plan)),
        "weights": weights,
        "corpus": source["corpus"],
        "encoder_dropout": encoder_dropout,
    }
    job = {
        "model": model,
        "features": features,
        "task": task,
        "seed": seed,
        "about": about,
        "kind": kind,
        "fraction": fraction,
        "device": encoder.device.type,
    }
    checkpoint = Checkpoint(run, job, (tokens, labels, constants, order))
    if labels is None:
        if trained is not None:
            raise InputError(f"Constants of the kind {kind} are trained, which masked language modelling cannot do.")
        masking = Masking.of(tokenizer_of(model), model["name"])
        return _train_masked(encoder, splits, plan, masking, features, run, probe, task, seed, about, checkpoint)
    labelled = {split: Labelled(part, labels) for split, part in splits.items()}
    hidden_of = {
        split: _through(encoder, part, plan, trained, encoder_dropout and split == "train")
        for split, part in splits.items()
    }
    return train_labelled(
        labelled, hidden_of, features, run, probe, task, seed, about, checkpoint, trained, encoder.device
    )


def _train_masked(
    encoder: Model,
    splits: Mapping[str, Tokens],
    plan: Replacement,
    masking: Masking,
    features: Mapping[str, Any],
    run: PathLike,
    probe: PathLike,
    task: Mapping[str, Any],
    seed: int,
    about: Mapping[str, Any],
    checkpoint: Checkpoint,
) -> str:
    torch.manual_seed(seed)
    validation = splits["validation"]
    held_out = masking.draw(validation.ids, *VALIDATION)
    training = MaskedTraining(encoder, splits["train"], masking, seed, features["encoder_dropout"])

    def predict(epoch: int) -> Kept:
        score = negative_log_perplexity(training.probe, encoder, plan, validation, held_out)
        if not math.isfinite(score):
            raise Diverged(f"The {task['metric']} became {score} in epoch {epoch}; lower the learning rate.")
        return {"score": torch.tensor(score, dtype=torch.float64)}

    def evaluate(predicted: Kept) -> dict[str, Any]:
        score = float(predicted["score"])
        return {"score": score, "scores": {task["metric"]: score}, "subsets": {}}

    features = {**features, "masked": int(held_out.chosen.count_nonzero())}
    return train_and_score(
        [training.probe],
        lambda examples: training.loss(examples, plan),
        predict,
        evaluate,
        splits,
        features,
        run,
        probe,
        task,
        seed,
        about,
        checkpoint,
        training.begin,
    )


def _through(
    encoder: Model, tokens: Tokens, plan: Replacement, trained: TrainedConstants | None, dropout: bool
) -> HiddenOf:
    def hidden_of(examples: Tensor) -> Tensor:
        batch = encoder.pack(tokens.batch(examples))
        if trained is None:
            with torch.no_grad():
                return torch.stack(encoder.run(batch, plan, dropout), dim=1).half().float()
        return torch.stack(encoder.run(batch, encoder.replacement(trained(), replaced_in(plan)), dropout), dim=1)

    return hidden_of
