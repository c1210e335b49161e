"""Training of probes: AdamW without decay, constant rate, gradient norm clipped at 1, shuffled batches (Sec. 4).

`fit` is the one training loop; probes on stored features and the head weights of `ranking` both go through it. Where it
is given a checkpoint, a training that was killed goes on where it was, to the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim.adamw import adamw

from papa import __version__
from papa.artefacts import MEND, SEAL, PathLike, replacing, unsealed, write_json
from papa.checkpoints import Checkpoint, State
from papa.errors import DamagedArtefact, InputError
from papa.features import kept_heads
from papa.hidden import HiddenStates
from papa.labelled import HiddenOf, Labelled
from papa.progress import progress
from papa.tokens import Tokens

Kept = Mapping[str, Tensor]


@dataclass(frozen=True)
class Epoch:
    """A finished epoch: its mean loss, and what was kept of it."""

    loss: float
    kept: Kept


class Diverged(InputError):
    """The loss is not finite any more; the epochs before, `good` of them, were."""

    good = 0


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


class _Course:
    """How far a training is: all that its rest follows from, beside what it was begun with.

    Batches are no part of it: their order follows from the seed and is drawn again.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], learning_rate: float):
        self.optimizer = AdamW(parameters, learning_rate)
        self.epochs: list[Epoch] = []
        self.good = [values.detach().cpu().clone() for values in parameters]
        """The parameters after the last finished epoch."""
        self.steps, self.total = 0, torch.zeros((), dtype=torch.float64)
        """Steps taken, and the summed loss of the epoch that is under way."""

    def end_epoch(self, epoch: Epoch) -> None:
        self.epochs.append(epoch)
        self.good = [values.detach().cpu().clone() for values in self.optimizer.parameters]
        self.total.zero_()

    @torch.no_grad()
    def back_to_good(self) -> None:
        for values, good in zip(self.optimizer.parameters, self.good, strict=True):
            values.copy_(good)

    def state(self) -> State:
        kept = {
            f"kept/{number}/{name}": own for number, epoch in enumerate(self.epochs) for name, own in epoch.kept.items()
        }
        values = {"steps": self.steps, "losses": [epoch.loss for epoch in self.epochs]}
        return State(self._tensors() | kept | self._draws(), values)

    @torch.no_grad()
    def go_on(self, state: State) -> None:
        self.steps = state.values["steps"]
        kept: list[dict[str, Tensor]] = [{} for _ in state.values["losses"]]
        for path, values in state.tensors.items():
            if path.startswith("kept/"):
                _, number, name = path.split("/", 2)
                kept[int(number)][name] = values
        self.epochs = list(map(Epoch, state.values["losses"], kept))
        for name, values in self._tensors().items():
            values.copy_(state.tensors[name])
        torch.set_rng_state(state.tensors["draws/cpu"])
        if self._device.type == "cuda":
            torch.cuda.set_rng_state(state.tensors["draws/cuda"], self._device)

    def _tensors(self) -> dict[str, Tensor]:
        own = self.optimizer
        lists = {
            "parameters": own.parameters,
            "means": own.means,
            "squares": own.squares,
            "steps": own.steps,
            "good": self.good,
            "total": [self.total],
        }
        return {f"{name}/{number}": values for name, several in lists.items() for number, values in enumerate(several)}

    def _draws(self) -> dict[str, Tensor]:
        """The generators that dropout draws from."""
        draws = {"draws/cpu": torch.get_rng_state()}
        if self._device.type == "cuda":
            draws["draws/cuda"] = torch.cuda.get_rng_state(self._device)
        return draws

    @property
    def _device(self) -> torch.device:
        return self.optimizer.parameters[0].device


def fit(
    parameters: Sequence[nn.Parameter],
    loss_of: Callable[[Tensor], Tensor],
    examples: int,
    task: Mapping[str, Any],
    generator: torch.Generator,
    after_epoch: Callable[[int], Kept],
    what: str,
    before_epoch: Callable[[int], None] = lambda epoch: None,
    checkpoint: Checkpoint | None = None,
) -> list[Epoch]:
    """Train `parameters` on the mean of `loss_of(example numbers)`; return what `after_epoch(epoch)` gave after each.

    `task` gives learning_rate, batch_size and epochs; epochs count from 1. With a `checkpoint` the training goes on
    from where it was; whoever gave it discards it when the result is written. Raises `Diverged` after an epoch whose
    loss is not finite, and where `after_epoch` does; the parameters are then those of the last good epoch.
    """
    course = _Course(parameters, task["learning_rate"])
    in_epoch = -(-examples // task["batch_size"])
    if checkpoint is not None and (state := checkpoint.restore()) is not None:
        course.go_on(state)
        checkpoint.resumed = f", resumed in epoch {min(len(course.epochs) + 1, task['epochs'])}"
    order = chain.from_iterable(
        torch.randperm(examples, generator=generator).split(task["batch_size"]) for _ in range(task["epochs"])
    )
    whole, rest = divmod(course.steps, in_epoch)
    begun = whole * examples + rest * task["batch_size"]
    batches = progress(islice(order, course.steps, None), what, examples * task["epochs"], begun)

    def keep() -> None:
        if checkpoint is not None:
            checkpoint.save(course.state)

    try:
        for epoch in range(len(course.epochs) + 1, task["epochs"] + 1):
            before_epoch(epoch)
            while course.steps < epoch * in_epoch:
                batch = next(batches)
                loss = loss_of(batch)
                loss.backward()
                nn.utils.clip_grad_norm_(parameters, 1.0)
                course.optimizer.step()
                course.total += loss.detach().cpu() * len(batch)
                course.steps += 1
                keep()
            mean = float(course.total) / examples
            if not np.isfinite(mean):
                raise Diverged(
                    f"The loss became {mean} in epoch {epoch} of {what} at learning rate {task['learning_rate']}; "
                    "lower the learning rate."
                )
            course.end_epoch(Epoch(mean, after_epoch(epoch)))
            keep()
    except Diverged as error:
        course.back_to_good()
        error.good = len(course.epochs)
        if checkpoint is not None:
            checkpoint.discard()
        raise
    for _ in batches:  # let the bar close
        pass
    return course.epochs


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
    job = {"features": features, "task": task, "seed": seed, "about": about}
    checkpoint = Checkpoint(run, job, (tokens, labels, *hidden, *index))
    return train_labelled(splits, hidden_of, features, run, probe, task, seed, about, checkpoint)


def train_labelled(
    splits: Mapping[str, Labelled],
    hidden_of: Mapping[str, HiddenOf],
    features: Mapping[str, Any],
    run: PathLike,
    probe: PathLike,
    task: Mapping[str, Any],
    seed: int,
    about: Mapping[str, Any],
    checkpoint: Checkpoint,
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

    def evaluate(predicted: Kept) -> Mapping[str, Any]:
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
        checkpoint,
    )


def train_and_score(
    modules: Sequence[nn.Module],
    loss_of: Callable[[Tensor], Tensor],
    predict: Callable[[int], Kept],
    evaluate: Callable[[Kept], Mapping[str, Any]],
    splits: Mapping[str, Tokens],
    features: Mapping[str, Any],
    run: PathLike,
    probe: PathLike,
    task: Mapping[str, Any],
    seed: int,
    about: Mapping[str, Any],
    checkpoint: Checkpoint,
    before_epoch: Callable[[int], None] = lambda epoch: None,
) -> str:
    """Train `modules`, a probe first, on `loss_of` example numbers, and write them and the run.

    After each epoch `predict(epoch)` says what they make of the validation split, and in the end `evaluate` scores
    that as `metrics.evaluate` does. Where the loss stops being finite, the state after the last good epoch is kept
    beside the probe and `Diverged` is raised. The `checkpoint` is gone when all is written.
    """
    parameters = [values for module in modules for values in module.parameters()]
    generator = torch.Generator().manual_seed(seed)
    try:
        epochs = fit(
            parameters,
            loss_of,
            len(splits["train"]),
            task,
            generator,
            predict,
            f"probe, seed {seed}",
            before_epoch,
            checkpoint,
        )
    except Diverged as error:
        kept = Path(probe).with_suffix(".last-good.safetensors")
        save_state(state_of(modules), kept)
        raise Diverged(f"{error} The state after epoch {error.good} is kept in {kept}.") from None
    save_state(state_of(modules), probe)
    # only now that the memory of training is free, for what scores predictions is large itself
    results = [evaluate(epoch.kept) for epoch in epochs]
    result = results[-1]
    curve = [
        {"epoch": number, "loss": epoch.loss, "score": own["score"]}
        for number, (epoch, own) in enumerate(zip(epochs, results, strict=True), start=1)
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
    checkpoint.discard()
    return (
        f"{task['metric']} {result['score']:.3f} with {features['kept']} of {features['heads']} heads, seed {seed}"
        f"{checkpoint.resumed}"
    )


def state_of(modules: Sequence[nn.Module]) -> dict[str, Tensor]:
    """A copy of what the modules have learned."""
    return {name: value.detach().cpu().clone() for module in modules for name, value in module.state_dict().items()}


def save_state(state: dict[str, Tensor], path: PathLike) -> None:
    """Write what `state_of` gave as safetensors."""
    with replacing(path, seal=True) as temporary:
        temporary.write_bytes(save(state, {SEAL: unsealed(path)}))
