"""Smoke test with the paper's smallest model and data from the hub: BERT base on three batches of MRPC.

    python benchmarks/smoke_hub.py

Averages attention over three batches and checks the result. The first run downloads 440 MB and takes a minute.
"""

import sys

import torch
from huggingface_hub.utils import logging

import papa
from papa.config.settings import Corpus, Machine
from papa.config.stages import ModelId
from papa.data.sources import load_rows
from papa.data.tokenize import tokenizer_of
from papa.errors import InputError

MODEL = "google-bert/bert-base-uncased"
CORPUS = Corpus(hub="nyu-mll/glue", config="mrpc", first="sentence1", second="sentence2")
SLOTS, BATCHES, BATCH_SIZE = 128, 3, 16


def main() -> None:
    """Load rows and model, average, and check shape and sums."""
    logging.set_verbosity_error()  # otherwise every attempt to reach the hub prints a line
    rows = load_rows(CORPUS, "train").table.slice(0, BATCHES * BATCH_SIZE)
    first, second = (rows.column(name).to_pylist() for name in ("sentence1", "sentence2"))
    tokenizer = tokenizer_of(ModelId(name="bert", hub=MODEL), Machine())
    model = papa.load_model(MODEL)
    batches = [
        papa.lay_out(tokenizer, first[begin : begin + BATCH_SIZE], second[begin : begin + BATCH_SIZE], slots=SLOTS)
        for begin in range(0, BATCHES * BATCH_SIZE, BATCH_SIZE)
    ]
    constants = papa.average_attention(model, batches)
    used = constants.count.diagonal() > 0
    row_sums = constants.mean[:, :, used].sum(-1)
    if constants.mean.shape != (model.layers, model.heads, SLOTS, SLOTS) or not torch.isfinite(constants.mean).all():
        raise SystemExit(f"The averages have the shape {list(constants.mean.shape)} or values that are not finite.")
    print(
        f"{MODEL} on {BATCHES} batches of {BATCH_SIZE} pairs of MRPC: averages {list(constants.mean.shape)}, "
        f"{int(used.sum())} slots used, rows sum to between {row_sums.min():.3f} and {row_sums.max():.3f}"
    )


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        sys.exit(str(error))
