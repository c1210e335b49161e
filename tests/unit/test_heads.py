"""Heads for other tools: kept and replaced ones at a fraction, and what they weigh, read off finished results."""

import json

import numpy as np
import pyarrow as pa
import pytest
from typer.testing import CliRunner

from papa.cli import app
from papa.config.artefacts import ARTEFACTS
from papa.errors import InputError
from papa.files import write_table
from papa.jobs.heads import heads_of

LAYERS, HEADS = 2, 3
VALUES = np.array([[0.4, 0.9, 0.5], [0.1, 0.7, 0.2]])


def write(folder, order="lambda-0", model="m", unit_size=1):
    """λ of two epochs, the last of which counts, or weights of one, and the order made from them."""
    about = {"model": model, "task": "t", "constant": "average"}
    kind, name = ("lambda", {"seed": "0"}) if order.startswith("lambda") else ("weights", {"weights": order})
    rows = [
        {"epoch": epoch, "layer": layer, "head": head, "value": VALUES[layer, head] if epoch == 2 else 0.5}
        for epoch in (1, 2)
        for layer in range(LAYERS)
        for head in range(HEADS)
    ]
    write_table(pa.Table.from_pylist(rows), folder / ARTEFACTS[kind].path(**about, **name), {})
    ranked = sorted(np.ndindex(LAYERS, HEADS), key=lambda pair: VALUES[pair])
    columns = {"rank": range(6), "layer": [pair[0] for pair in ranked], "head": [pair[1] for pair in ranked]}
    write_table(pa.table(columns), folder / ARTEFACTS["order"].path(**about, order=order), {"unit_size": unit_size})


@pytest.mark.parametrize(("fraction", "replaced"), [("1", []), ("1/2", [(0, 0), (1, 0), (1, 2)]), ("1/7", None)])
def test_heads_of_small_value_are_replaced_first(tmp_path, fraction, replaced):
    write(tmp_path)
    chosen = heads_of(tmp_path, fraction=fraction)
    every = {(layer, head) for layer in range(LAYERS) for head in range(HEADS)}
    assert list(chosen.replaced) == (sorted(every) if replaced is None else replaced)
    assert set(chosen.kept) == every - set(chosen.replaced)
    assert {(int(layer), head) for layer, heads in chosen.prune.items() for head in heads} == set(chosen.replaced)
    assert np.array_equal(chosen.values, VALUES) and (chosen.model, chosen.order) == ("m", "lambda-0")


def test_the_table_is_one_that_numpy_reads_as_duo_attention_does(tmp_path):
    write(tmp_path, "gradient-1")
    (tmp_path / "heads.tsv").write_text(heads_of(tmp_path).as_tsv())
    read = np.loadtxt(tmp_path / "heads.tsv", dtype=float, delimiter="\t")
    np.testing.assert_allclose(read, VALUES)


def test_units_stay_together(tmp_path):
    write(tmp_path, unit_size=3)
    assert len(heads_of(tmp_path, fraction="1/2").kept) == 3
    assert len(heads_of(tmp_path, fraction="1/3").kept) == 0


def test_one_order_has_to_be_meant(tmp_path):
    with pytest.raises(InputError, match="has no order of heads"):
        heads_of(tmp_path)
    write(tmp_path)
    write(tmp_path, "gradient-0")
    with pytest.raises(InputError, match=r"Several orders match; choose one with --of .*: m/t/average/gradient-0, m/t"):
        heads_of(tmp_path)
    assert heads_of(tmp_path, "m/t/average/gradient-0").order == "gradient-0"
    write(tmp_path, model="n")
    assert heads_of(tmp_path, of="n").model == "n"
    with pytest.raises(InputError, match="No order matches"):
        heads_of(tmp_path, of="m/u")


def test_the_command_prints_three_forms(tmp_path):
    write(tmp_path)
    plain, tsv, chosen = (
        CliRunner().invoke(app, ["heads", str(tmp_path), *more]) for more in ([], ["--tsv"], ["--json"])
    )
    assert "3 of 6 heads kept" in plain.stdout and "layer 1: · 1 ·" in plain.stdout
    assert tsv.stdout.splitlines()[0] == "0.400000\t0.900000\t0.500000"
    assert json.loads(chosen.stdout)["prune"] == {"0": [0], "1": [0, 2]}
    wrong = CliRunner().invoke(app, ["heads", str(tmp_path), "--fraction", "2"])
    assert wrong.exit_code == 2 and "not a fraction between 0 and 1" in wrong.output
