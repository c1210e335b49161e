"""Hidden states: computed once for a set of replaced heads, read by every seed and epoch; and what is replaced."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from papa import __version__
from papa.config import machine
from papa.config.kinds import kind_of
from papa.config.shards import WHOLE, rows_of
from papa.data.packed import Packed
from papa.data.tokens import Tokens, TokensFile
from papa.data.weights import weights_digest
from papa.errors import InputError
from papa.files import PathLike, provenance_of, read_table, write_json
from papa.method.averages import ConstantMatrices, constant_matrices
from papa.method.hidden import HiddenWriter, writing_hidden
from papa.method.progress import progress
from papa.model.budget import TokenBudget
from papa.model.load import model_of
from papa.model.model import Model
from papa.model.replacement import Head, Replacement, replaced_in


def kept_heads(fraction: str, heads: int) -> int:
    """How many of `heads` stay input-dependent at a fraction such as "1/8": rounded down."""
    return int(Fraction(fraction) * heads)


def order_in(order: PathLike) -> str:
    """The name of the order that a file holds."""
    return str(provenance_of(read_table(order))["order"])


def heads_to_replace(order: PathLike, fraction: str) -> list[Head]:
    """The heads that an order of heads gives up first, down to the kept fraction."""
    table = read_table(order)
    ranked = list(zip(table.column("layer").to_pylist(), table.column("head").to_pylist(), strict=True))
    return ranked[: len(ranked) - kept_heads(fraction, len(ranked))]


def extract_features(
    model: Mapping[str, Any],
    tokens: PathLike,
    hidden: PathLike,
    index: PathLike,
    constants: PathLike | None = None,
    order: PathLike | None = None,
    fraction: str = "1",
    kind: str = "average",
    part: str = WHOLE,
) -> str:
    """Stage *features*: all hidden states of a corpus or a part of it, with `fraction` of the heads input-dependent.

    Below fraction 1 heads get matrices of a `kind`, averages those in the file `constants`; between 0 and 1 an `order`
    of heads is needed. Raises `InputError` where constants belong to another model or layout, the disk is too small,
    or values do not fit float16.
    """
    encoder = model_of(model)
    weights = weights_digest(model)
    budget = TokenBudget(machine.current().token_budget)
    with TokensFile.opened(tokens) as file:
        about = file.provenance
        plan = encoder.replacement()
        if fraction != "1":
            matrices = matrices_of(kind, constants, encoder, about, weights)
            plan = encoder.replacement(matrices, None if order is None else heads_to_replace(order, fraction))
        begin, end = rows_of(part, file.rows)
        first, count = file.tokens_before(begin), file.tokens_before(end) - file.tokens_before(begin)
        row = (encoder.layers + 1) * encoder.hidden * 2
        with writing_hidden(hidden, begin, first, end - begin, count, row) as writer, torch.inference_mode():
            batches = _encoded(encoder, plan, file, budget, writer, begin, end)
            for _ in progress(batches, "encoding", end - begin):
                pass
            checksums = writer.close()
        replaced, total = replaced_in(plan), encoder.layers * encoder.heads
        write_json(
            {
                "dtype": "float16",
                "part": part,
                "rows": [begin, end],
                "first_token": first,
                "tokens": count,
                "checksums": checksums,
                "splits": [[own.split, own.first, own.rows, own.tokens] for own in file.splits.values()],
                **probe_sizes(encoder, int(about["slots"])),
                "heads": total,
                "kept": total - len(replaced),
                "replaced": replaced,
                "constant": None if fraction == "1" else kind,
                "order": None if order is None else order_in(order),
                "model": model["name"],
                "weights": weights,
                "corpus": about["corpus"],
                "papa_version": __version__,
            },
            index,
        )
    size = os.path.getsize(hidden) / 1e9
    return f"hidden states with {total - len(replaced)} of {total} heads input-dependent, {size:.3g} GB"


def _encoded(
    encoder: Model,
    plan: Replacement,
    file: TokensFile,
    budget: TokenBudget,
    writer: HiddenWriter,
    begin: int,
    end: int,
) -> Iterator[Tensor]:
    """Write the hidden states of some rows, and yield the numbers of examples that are done."""
    for _, group in file.between(begin, end):
        first = file.tokens_before(group.rows[0])

        def store(examples: Tensor, batch: Packed, _: int, group: Tokens = group, first: int = first) -> None:
            states = encoder.run(batch, plan)
            half = torch.stack([state.half() for state in states], dim=1).cpu()  # [token, L+1, hidden]
            if not torch.isfinite(half).all():
                raise InputError("A hidden state is not finite in float16; this model cannot be stored so.")
            writer.write(group, first, examples, half)

        yield from budget.run(encoder, group, store)


def matrices_of(
    kind: str, constants: PathLike | None, encoder: Model, about: Mapping[str, Any], weights: str
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
    if "part" in average.about:
        raise InputError(
            f"{constants} is the average over a part of a corpus, {average.about['part']}; give that of all parts."
        )
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


def probe_sizes(encoder: Model, slots: int) -> dict[str, Any]:
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
