"""A stage whose numbers change gets a new version, so its old artefacts are rebuilt.

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

from papa.config.analyses import ANALYSES
from papa.config.stages import STAGES, AnalysisOf
from papa.files import digest_of_json, read_json, read_table, trace_of

NUMBERS = Path(__file__).with_name("numbers.json")
EXAMPLES = {
    "texts": "corpora/words/texts.parquet",
    "labels": "tasks/tags/labels.parquet",
    "subsets": "tasks/animals/subsets.parquet",
    "tokens": "models/tiny/corpora/sentences/tokens.parquet",
    "average": "models/tiny/corpora/sentences/average.h5",
    "lambda": "models/tiny/tasks/tags/average/lambda-0.parquet",
    "rank": "models/tiny/tasks/tags/average/lambda-0/order.parquet",
    "hidden": "models/tiny/tasks/animals/features/average/lambda-0/kept-1of2/states.json",
    "probe": "models/tiny/tasks/animals/runs/average/all/runs.json",
    "summary": "tables/summary.parquet",
    "claims": "tables/claims.parquet",
    "grid": "tables/score_by_fraction.parquet",
    "drops": "tables/score_and_drop.parquet",
}
"""An artefact of each stage that computes numbers for the tiny study."""


def numbers_in(path: Path) -> list[float]:
    """A few numbers that change if any value in an artefact does."""
    match path.suffix:
        case ".parquet":
            return [number for column in read_table(path).columns for number in numbers_of(column.combine_chunks())]
        case ".h5":
            with h5py.File(path) as store:
                return projected(np.asarray(store["mean"]))
        case _ if (hidden := path.with_suffix(".hidden")).exists():
            about = read_json(path)
            return projected(np.fromfile(hidden, "<f2", about["tokens"] * about["layers"] * about["hidden"]))
        case _:
            losses = [epoch["loss"] for run in read_json(path)["runs"] for epoch in run["curve"]]
            return [*losses, *numbers_in(path.with_name("outcomes.parquet"))]


def numbers_of(values: pa.Array | pa.ChunkedArray) -> list[float]:
    while pa.types.is_list(values.type):
        values = values.flatten()
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if pa.types.is_string(values.type):
        return [int(digest_of_json(values.to_pylist())[:8], 16)]
    return projected(values.cast(pa.float64()).fill_null(-1.0).to_numpy(zero_copy_only=False))


def projected(values: np.ndarray) -> list[float]:
    flat = values.astype(np.float64).ravel()
    return [float(len(flat)), float(flat @ np.cos(np.arange(len(flat)))), float(np.abs(flat).sum())]


def test_numbers_that_change_get_a_new_version(computed) -> None:
    results = computed.folder / "results/tiny"
    actual = {}
    for stage, path in EXAMPLES.items():
        trace = trace_of(results / path)
        assert trace is not None and trace.stage == stage
        actual[stage] = {"version": trace.version, "numbers": numbers_in(results / path)}
    if os.environ.get("PAPA_WRITE_NUMBERS"):
        NUMBERS.write_text(json.dumps(actual, indent=1) + "\n", encoding="utf-8")
    recorded = json.loads(NUMBERS.read_text(encoding="utf-8"))
    for stage, numbers in actual.items():
        before = recorded[stage]
        if numbers["version"] != before["version"]:
            pytest.fail(f"stage {stage} has a new version; write {NUMBERS.name} again (see above)")
        assert numbers["numbers"] == pytest.approx(before["numbers"], rel=2e-3, abs=2e-3), (
            f"the numbers of stage {stage} changed: raise its version in papa/config/stages.py"
        )


def test_every_stage_that_computes_has_an_example() -> None:
    # pages and pictures, what is tested against the paper or elsewhere, and what depends on no text or weight
    without = {"analysis", "page", "published", "patterns", "order", "stability"}
    without |= {"weights", "clusters", "recovery", "losses"}
    analyses = {entry.stage or name for name, entry in ANALYSES.items()} | {"grid", "patterns"}
    stages = {kind.stage for kind in STAGES.values()} - {AnalysisOf.stage}
    assert (analyses | stages) - without == EXAMPLES.keys()
