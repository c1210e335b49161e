"""A stage whose numbers change gets a new version, so its old artefacts are not taken for new ones.

`numbers.json` has, for each stage, its version and what its artefacts of the tiny study come to. To write it again
after a version was raised: `PAPA_WRITE_NUMBERS=1 pytest tests/workflow/test_numbers.py`.
"""

import json
import os
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pytest
from tiny import CONFIG, with_keys

from papa.files import digest_of_json, read_facts, read_table
from papa.method.hidden import read_index
from papa.stages import STAGES

NUMBERS = Path(__file__).with_name("numbers.json")
EXAMPLES = {
    "tokenize": "tiny-sentences",
    "average": "tiny-sentences-average",
    "learn_lambda": "tiny-tags-average-lambda-0",
    "hidden_states": "tiny-animals-average-lambda-0-kept-1of2",
    "probe": "tiny-animals-average-all-1",
    "probe_encoder": "tiny-animals-average-trained-all-1",
}
"""A file of each stage that computes numbers, by its name for people."""
TABLES = ("summary", "claims", "scores_by_heads_replaced", "score_and_drop")
"""Tables of a report."""
TRAINED = with_keys(
    CONFIG,
    {
        "run.tasks": ["animals"],
        "grids.trained": {"constants": ["average-trained"], "fractions": ["0"]},
    },
)
"""Has a job of every stage."""


def numbers_in(path):
    """A few numbers that change if any value in a file does."""
    if path.suffix == ".h5":
        with h5py.File(path) as store:
            return projected(np.asarray(store["mean"]))
    if path.suffix == ".hidden":
        index, _ = read_index(path)
        return projected(
            np.fromfile(path, "<f2", index["tokens"] * index["layers"] * index["hidden"])
        )
    table = read_table(path)
    columns = [number for column in table.columns for number in numbers_of(column.combine_chunks())]
    return [*read_facts(path).get("curve", []), *columns]


def numbers_of(values):
    while pa.types.is_list(values.type):
        values = values.flatten()
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if pa.types.is_string(values.type):
        return [int(digest_of_json(values.to_pylist())[:8], 16)]
    return projected(values.cast(pa.float64()).fill_null(-1.0).to_numpy(zero_copy_only=False))


def projected(values):
    flat = values.astype(np.float64).ravel()
    return [float(len(flat)), float(flat @ np.cos(np.arange(len(flat)))), float(np.abs(flat).sum())]


def test_numbers_that_change_get_a_new_version(computed, computed_copy):
    results = {"tiny": computed, "trained": computed_copy}
    computed_copy.compute(TRAINED)
    actual = {}
    for stage, name in EXAMPLES.items():
        folder = results["trained" if stage == "probe_encoder" else "tiny"].folder / "results"
        [path] = folder.glob(
            f"*/{'states' if stage == 'hidden_states' else stage}/{name}-{'?' * 16}.*"
        )
        actual[stage] = numbers_in(path)
    tables = computed.folder / "results/tiny/tables"
    actual["report"] = [
        number for name in TABLES for number in numbers_in(tables / f"{name}.parquet")
    ]
    if os.environ.get("PAPA_WRITE_NUMBERS"):
        written = {
            stage: {"version": STAGES[stage].version, "numbers": values}
            for stage, values in actual.items()
        }
        NUMBERS.write_text(json.dumps(written, indent=1) + "\n")
    recorded = json.loads(NUMBERS.read_text())
    assert recorded.keys() == STAGES.keys()
    for stage, numbers in actual.items():
        if STAGES[stage].version != recorded[stage]["version"]:
            pytest.fail(f"stage {stage} has a new version; write {NUMBERS.name} again (see above)")
        assert numbers == pytest.approx(
            recorded[stage]["numbers"], rel=2e-3, abs=2e-3, nan_ok=True
        ), f"the numbers of stage {stage} changed: raise its version in papa/stages.py"
