"""Training of probes: AdamW without decay, constant rate, gradient norm clipped at 1, shuffled batches (Sec. 4).

`fit` is the one training loop; probes on stored features and the head weights of `ranking` both go through it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim.adamw import adamw

from papa import __version__
from papa.artefacts import MEND, SEAL, UNSEALED, PathLike, replacing, write_json
from papa.errors import DamagedArtefact, InputError
from papa.features import kept_heads
from papa.hidden import HiddenStates
from papa.labelled import HiddenOf, Labelled
from papa.progress import progress
from papa.tokens import Tokens

Predicted = TypeVar("Predicted")


class Diverged(InputError):
    """The loss is not finite any more."""


class AdamW:
    """AdamW at a constant rate, without decay.

    Takes the very steps of `torch.optim.AdamW`, which on its first one imports the compiler: a second and 90 MB a job.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], learning_rate: float):
        self.parameters: list[Tensor] = list(parameters)
        self.learning_rate = learning_rate
        self.means = [torch.zeros_like(values) for values in parameters]
        self.squares = [torch.zeros_like(values) for values in parameters]
        self.steps = [torch.zeros((), device=values.device) for values in parameters]

    @torch.no_grad()
    def step(self) -> None:
        """Move the parameters along their gradients, and take the gradients away."""
        gradients = [values.grad for values in self.parameters if values.grad is not None]
        adamw(
            self.parameters,
            gradients,
            self.means,
            self.squares,
            [],
            self.steps,
            fused=True,
            amsgrad=False,
            beta1=0.9,
            beta2=0.999,
            lr=self.learning_rate,
            weight_decay=0.0,
            eps=1e-8,
            maximize=False,
        )
        for values in self.parameters:
            values.grad = None


def fit(
    parameters: Sequence[nn.Parameter],
    loss_of: Callable[[Tensor], Tensor],
    examples: int,
    task: Mapping[str, Any],
    generator: torch.Generator,
    after_epoch: Callable[[int, float], None],
    what: str,
) -> None:
    """Train `parameters` on the mean of `loss_of(example numbers)`; call `after_epoch(epoch, mean loss)` after each.

    `task` gives learning_rate, batch_size and epochs. Raises `Diverged` after an epoch whose loss is not finite.
    """
    optimizer = AdamW(parameters, task["learning_rate"])
    order = chain.from_iterable(
        torch.randperm(examples, generator=generator).split(task["batch_size"]) for _ in range(task["epochs"])
    )
    batches = progress(order, what, examples * task["epochs"])
    for epoch in range(1, task["epochs"] + 1):
        seen, total = 0, torch.zeros((), dtype=torch.float64)
        while seen < examples:
            batch = next(batches)
            loss = loss_of(batch)
            loss.backward()
            nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            total += loss.detach().cpu() * len(batch)
            seen += len(batch)
        mean = float(total) / examples
        if not np.isfinite(mean):
            raise Diverged(
                f"The loss became {mean} in epoch {epoch} of {what} at learning rate {task['learning_rate']}; "
                "lower the learning rate."
            )
        after_epoch(epoch, mean)
    for _ in batches:  # let the bar close
        pass


def train_probe(
    tokens: PathLike,
    labels: PathLike,
    hidden: Sequence[PathLike],
    index: Sequence[PathLike],
    run: PathLike,
    probe: PathLike,
    task: Mapping[str, Any],
    seed: int,
    about: Mapping[str, Any],
) -> str:
    """Stage *probe*: train one probe on stored hidden states and score it on the validation split (Sec. 4).

    Further splits are scored apart, as subsets of their names; the score is that of the validation split alone.
    Writes the run as JSON and the probe as safetensors. Where the loss stops being finite, the state after the last
    good epoch is kept beside the probe and `Diverged` is raised.
    """
    states, features = HiddenStates.opened(hidden, index)
    splits = {split: Labelled(part, labels) for split, part in Tokens.read(tokens).items()}
    stored = {name: count for name, _, _, count in features["splits"]}
    of_texts = {split: len(part.tokens.ids) for split, part in splits.items()}
    if features["corpus"] != splits["train"].tokens.provenance["corpus"] or stored != of_texts:
        raise DamagedArtefact(f"{index[0]} holds hidden states of other texts; {MEND}.")
    expected = {key: about[key] for key in ("model", "constant", "order") if key in about}
    if "fraction" in about:
        expected["kept"] = kept_heads(about["fraction"], features["heads"])
    for key, value in expected.items():
        if features[key] != value:
            raise DamagedArtefact(
                f"{index[0]} holds hidden states with {key} {features[key]} where {value} was expected; {MEND}."
            )

    def read(split: str) -> HiddenOf:
        return lambda examples: states.read(examples, splits[split].tokens)

    hidden_of = {split: read(split) for split in splits}
    return train_labelled(splits, hidden_of, features, run, probe, task, seed, about)


def train_labelled(
    splits: Mapping[str, Labelled],
    hidden_of: Mapping[str, HiddenOf],
    features: Mapping[str, Any],
    run: PathLike,
    probe: PathLike,
    task: Mapping[str, Any],
    seed: int,
    about: Mapping[str, Any],
    beside: nn.Module | None = None,
    device: torch.device | str = "cpu",
) -> str:
    """Train a probe on the hidden states that `hidden_of` gives for each split, score it, write run and probe.

    `features` says what these hidden states are, as the index of stored ones does, `device` where they are. The
    parameters of `beside`, which `hidden_of` may depend on, are trained and written along with the probe.
    """
    torch.manual_seed(seed)
    classifier = splits["train"].probe(features).to(device)
    scored = {split: torch.arange(len(splits[split])) for split in splits if split != "train"}

    def loss_of(examples: Tensor) -> Tensor:
        logits, gold = splits["train"].logits(classifier, examples, hidden_of["train"])
        return cross_entropy(logits, gold.to(logits.device))

    def predict(epoch: int) -> dict[str, Tensor]:
        return {split: splits[split].predictions(classifier, hidden_of[split], rows) for split, rows in scored.items()}

    def evaluate(predicted: Mapping[str, Tensor]) -> Mapping[str, Any]:
        found = {split: splits[split].evaluate(task["metric"], own, scored[split]) for split, own in predicted.items()}
        result = found.pop("validation")
        apart = {split: {"score": own["score"], "examples": len(scored[split])} for split, own in found.items()}
        return {**result, "subsets": result["subsets"] | apart}

    return train_and_score(
        [classifier] if beside is None else [classifier, beside],
        loss_of,
        predict,
        evaluate,
        {split: part.tokens for split, part in splits.items()},
        features,
        run,
        probe,
        task,
        seed,
        about,
    )


def train_and_score(
    modules: Sequence[nn.Module],
    loss_of: Callable[[Tensor], Tensor],
    predict: Callable[[int], Predicted],
    evaluate: Callable[[Predicted], Mapping[str, Any]],
    splits: Mapping[str, Tokens],
    features: Mapping[str, Any],
    run: PathLike,
    probe: PathLike,
    task: Mapping[str, Any],
    seed: int,
    about: Mapping[str, Any],
) -> str:
    """Train `modules`, a probe first, on `loss_of` example numbers, and write them and the run.

    After each epoch `predict(epoch)` says what they make of the validation split, and in the end `evaluate` scores
    that as `metrics.evaluate` does. Where the loss stops being finite, the state after the last good epoch is kept
    beside the probe and `Diverged` is raised.
    """
    good = state_of(modules)
    losses: list[float] = []
    predicted: list[Predicted] = []

    def after_epoch(epoch: int, loss: float) -> None:
        predicted.append(predict(epoch))
        losses.append(loss)
        good.update(state_of(modules))

    parameters = [values for module in modules for values in module.parameters()]
    generator = torch.Generator().manual_seed(seed)
    try:
        fit(parameters, loss_of, len(splits["train"]), task, generator, after_epoch, f"probe, seed {seed}")
    except Diverged as error:
        kept = Path(probe).with_suffix(".last-good.safetensors")
        save_state(good, kept)
        raise Diverged(f"{error} The state after epoch {len(losses)} is kept in {kept}.") from None
    save_state(good, probe)
    # only now that the memory of training is free, for what scores predictions is large itself
    results = [evaluate(own) for own in predicted]
    result = results[-1]
    curve = [
        {"epoch": epoch, "loss": loss, "score": own["score"]}
        for epoch, (loss, own) in enumerate(zip(losses, results, strict=True), start=1)
    ]
    source = splits["train"].provenance
    write_json(
        {
            **about,
            **{key: features[key] for key in ("kept", "heads")},
            **{key: task[key] for key in ("metric", "learning_rate", "batch_size", "epochs")},
            "seed": seed,
            "score": result["score"],
            "scores": result["scores"],
            "subsets": result["subsets"],
            "rows": source["rows"],
            "rows_available": source["rows_available"],
            "cut": {split: part.cut for split, part in splits.items()},
            "curve": curve,
            "provenance": {key: features[key] for key in ("weights", "corpus", "masked") if key in features}
            | {key: source[key] for key in ("slots", "style", "segments")}
            | {"encoder_dropout": features.get("encoder_dropout", False), "papa_version": __version__},
        },
        run,
    )
    return f"{task['metric']} {result['score']:.3f} with {features['kept']} of {features['heads']} heads, seed {seed}"


def state_of(modules: Sequence[nn.Module]) -> dict[str, Tensor]:
    """A copy of what the modules have learned."""
    return {name: value.detach().cpu().clone() for module in modules for name, value in module.state_dict().items()}


def save_state(state: dict[str, Tensor], path: PathLike) -> None:
    """Write what `state_of` gave as safetensors."""
    with replacing(path, seal=True) as temporary:
        temporary.write_bytes(save(state, {SEAL: UNSEALED}))
