"""Training of probes: on stored hidden states, or on whatever gives them, and the runs that are written (Sec. 4)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from papa import __version__
from papa.data.tokens import Tokens
from papa.errors import DamagedArtefact
from papa.files import MEND, SEAL, PathLike, replacing, unsealed, write_json
from papa.method.checkpoints import Checkpoint
from papa.method.features import kept_heads
from papa.method.fitting import Diverged, Kept, fit
from papa.method.hidden import HiddenStates
from papa.method.labelled import HiddenOf, Labelled


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
