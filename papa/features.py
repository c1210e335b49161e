"""Hidden states on disk: computed once for a set of replaced heads, read by every seed and epoch.

Two flat files of float16, one of the training split and one of all others, `[token, L+1, hidden]` in the order of the
laid-out tokens, and an index that says what they are. Only real tokens are in them.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from papa import __version__, machine
from papa.artefacts import PathLike, read_json, read_table, replacing, write_json
from papa.attention.replacement import Head, LayerPlan, replaced_in
from papa.constants import ConstantMatrices, constant_matrices
from papa.encoder import Encoder, encoder_of
from papa.errors import DamagedArtefact, InputError
from papa.kinds import kind_of
from papa.progress import progress
from papa.sources.models import weights_digest
from papa.tokens import Tokens


def held_out(splits: Iterable[str]) -> list[str]:
    """The splits that probes are scored on, all but train, in the order in which one file holds them."""
    return sorted(split for split in splits if split != "train")


def kept_heads(fraction: str, heads: int) -> int:
    """How many of `heads` stay input-dependent at a fraction such as "1/8": rounded down."""
    return int(Fraction(fraction) * heads)


def heads_to_replace(order: PathLike, fraction: str) -> list[Head]:
    """The heads that an order of heads gives up first, down to the kept fraction."""
    table = read_table(order)
    ranked = list(zip(table.column("layer").to_pylist(), table.column("head").to_pylist(), strict=True))
    return ranked[: len(ranked) - kept_heads(fraction, len(ranked))]


def extract_features(
    model: Mapping[str, Any],
    tokens: PathLike,
    train: PathLike,
    validation: PathLike,
    index: PathLike,
    constants: PathLike | None = None,
    order: PathLike | None = None,
    fraction: str = "1",
    kind: str = "average",
) -> str:
    """Stage *features*: all hidden states of a corpus, with `fraction` of the heads left input-dependent.

    Below fraction 1 heads get matrices of a `kind`, averages those in the file `constants`; between 0 and 1 an `order`
    of heads is needed. Raises `InputError` where constants belong to another model or layout, the disk is too small,
    or values do not fit float16.
    """
    splits = Tokens.read(tokens)
    about = splits["train"].provenance
    encoder = encoder_of(model)
    weights = weights_digest(model)
    plan = encoder.plan()
    if fraction != "1":
        matrices = matrices_of(kind, constants, encoder, about, weights)
        plan = encoder.plan(matrices, None if order is None else heads_to_replace(order, fraction))
    replaced = replaced_in(plan)
    budget = machine.current().token_budget
    _write_hidden(encoder, [splits["train"]], plan, train, budget)
    _write_hidden(encoder, [splits[split] for split in held_out(splits)], plan, validation, budget)
    total = encoder.layers * encoder.heads
    write_json(
        {
            "dtype": "float16",
            "tokens": {split: len(part.ids) for split, part in splits.items()},
            **probe_sizes(encoder, splits["train"].n),
            "heads": total,
            "kept": total - len(replaced),
            "replaced": replaced,
            "model": model["name"],
            "weights": weights,
            "corpus": about["corpus"],
            "papa_version": __version__,
        },
        index,
    )
    size = sum(os.path.getsize(path) for path in (train, validation)) / 1e9
    return f"hidden states with {total - len(replaced)} of {total} heads input-dependent, {size:.2f} GB"


class HiddenStates:
    """Hidden states of one split on disk; read by example, so that memory holds a batch and never a corpus.

    `shape` is that of the whole file, in which the split begins with token number `first`.
    """

    def __init__(self, path: PathLike, shape: tuple[int, int, int], first: int = 0):
        self.path, self.shape, self.first = path, shape, first
        self.row = shape[1] * shape[2] * 2  # bytes of a token
        expected, found = shape[0] * self.row, os.path.getsize(path) if os.path.exists(path) else 0
        if expected != found:
            raise DamagedArtefact(
                f"{path} has {found:,} bytes and should have {expected:,}; delete it and run the workflow again."
            )
        self._file = open(path, "rb", buffering=0)  # noqa: SIM115 (open for as long as the object lives)

    def read(self, examples: Tensor, tokens: Tokens) -> Tensor:
        """Float32 `[token, L+1, hidden]` of the tokens of `examples`, one example after another."""
        lengths, begins = tokens.lengths[examples].tolist(), tokens.offsets[examples].tolist()
        half = torch.empty(sum(lengths), *self.shape[1:], dtype=torch.float16)
        view, held = half.view(-1).numpy().data.cast("B"), 0
        for length, begin in zip(lengths, begins, strict=True):
            wanted = length * self.row
            if os.preadv(self._file.fileno(), [view[held : held + wanted]], (self.first + begin) * self.row) != wanted:
                raise DamagedArtefact(f"{self.path} ends too early; delete it and run the workflow again.")
            held += wanted
        return half.float()


def read_features(
    train: PathLike, validation: PathLike, index: PathLike
) -> tuple[dict[str, HiddenStates], dict[str, Any]]:
    """The stored hidden states of all splits, and their index."""
    about = read_json(index)
    found = {}
    for path, splits in ((train, ["train"]), (validation, held_out(about["tokens"]))):
        sizes = [about["tokens"][split] for split in splits]
        shape = (sum(sizes), about["layers"], about["hidden"])
        for number, split in enumerate(splits):
            found[split] = HiddenStates(path, shape, sum(sizes[:number]))
    return found, about


def matrices_of(
    kind: str, constants: PathLike | None, encoder: Encoder, about: Mapping[str, Any], weights: str
) -> Tensor:
    """The matrices `[layer, head, query, key]` of a kind of constant for texts laid out as `about` says.

    Averages are in the file `constants`; raises `InputError` where they were averaged with other weights, slots or
    layout, or over other texts than the kind says.
    """
    chosen = kind_of(kind)
    if chosen.data_free:
        return constant_matrices(chosen.start, encoder.layers, encoder.heads, int(about["slots"]))
    if constants is None:
        raise InputError(f"Constants of kind {kind} are read from a file, and none was given.")
    average = ConstantMatrices.load(constants)
    expected = {"weights": weights, "slots": about["slots"], "style": about["style"]}
    if chosen.corpus is None:
        expected["corpus"] = about["corpus"]
    for key, value in expected.items():
        if average.about.get(key) != str(value):
            raise InputError(
                f"{constants} was averaged with {key} {average.about.get(key)}, and {value} is asked for; "
                "average the corpus again for this model and layout."
            )
    return average.mean


def _write_hidden(
    encoder: Encoder, splits: Sequence[Tokens], plan: list[LayerPlan], path: PathLike, budget: int
) -> None:
    """Write the hidden states of one split after another."""
    shape = (sum(len(tokens.ids) for tokens in splits), encoder.layers + 1, encoder.hidden)
    needed = 2 * shape[0] * shape[1] * shape[2]
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(Path(path).parent).free
    if needed > free:
        raise InputError(
            f"The hidden states need {needed / 1e9:.1f} GB and the disk of {path} has {free / 1e9:.1f} GB free; "
            "lower train_limit, delete old features, or put results on a larger disk."
        )
    with replacing(path) as temporary, open(temporary, "wb") as file, torch.inference_mode():
        first = 0
        for tokens in splits:
            batches = progress(tokens.batches(budget), f"encoding {tokens.split}", tokens.lengths, "examples")
            for examples in batches:
                states = encoder.run(encoder.pack(tokens.batch(examples)), plan)
                half = torch.stack([state.half() for state in states], dim=1).cpu()  # [token, L+1, hidden]
                if not torch.isfinite(half).all():
                    raise InputError("A hidden state is not finite in float16; this model cannot be stored so.")
                parts = half.split(tokens.lengths[examples].tolist())
                for part, begin in zip(parts, tokens.offsets[examples].tolist(), strict=True):
                    os.pwrite(file.fileno(), part.numpy().data, (first + begin) * part[0].nbytes)
            first += len(tokens.ids)


def probe_sizes(encoder: Encoder, slots: int) -> dict[str, Any]:
    """What a probe has to know of the encoder it is trained on."""
    return {
        "layers": encoder.layers + 1,
        "hidden": encoder.hidden,
        "slots": slots,
        "initializer_range": encoder.config.initializer_range,
        "probe_dropout": _probe_dropout(encoder.config),
    }


def _probe_dropout(config: Any) -> float:
    """Dropout before the output of a sequence probe: the model's own for BERT and DeBERTa, none for RoBERTa.

    Families that the paper does not have go with the one they descend from; ELECTRA has the model's own.
    """
    if config.model_type in ("roberta", "xlm-roberta", "camembert", "data2vec-text"):
        return 0.0
    own = getattr(config, "classifier_dropout", None)
    return float(config.hidden_dropout_prob if own is None else own)
