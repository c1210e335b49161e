"""Heads for other tools: kept and replaced ones at a fraction, and what they weigh, read off finished results."""

import json

import numpy as np
import pyarrow as pa
import pytest
from typer.testing import CliRunner

from papa.cli import app
from papa.config.artefacts import ARTEFACTS
from papa.data.head_lists import read_list
from papa.errors import InputError
from papa.files import write_table
from papa.jobs.heads import heads_of
from papa.method.shared_heads import LIST_FORMATS, Heads

LAYERS, HEADS = 2, 3
VALUES = np.array([[0.4, 0.9, 0.5], [0.1, 0.7, 0.2]])


def write(folder, order="lambda-0", model="m", unit_size=1):
    """λ of two epochs, the last of which counts, or weights of one, and the order made from them."""
    about = {"model": model, "task": "t", "constant": "average"}
    weights = order.removesuffix("-2")  # all draws of a list have the same weights
    kind, name = ("lambda", {"seed": "0"}) if order.startswith("lambda") else ("weights", {"weights": weights})
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
    (tmp_path / "heads.tsv").write_text(heads_of(tmp_path).as_list("duo"))
    read = np.loadtxt(tmp_path / "heads.tsv", dtype=float, delimiter="\t")
    np.testing.assert_allclose(read, VALUES)


@pytest.mark.parametrize("name", LIST_FORMATS)
def test_papa_reads_each_list_that_it_writes(name, tmp_path):
    write(tmp_path)
    suffix = {"duo": ".tsv", "qrhead": ".yaml", "csv": ".csv"}.get(name, ".json")
    printed = CliRunner().invoke(app, ["heads", str(tmp_path), "--format", name]).stdout
    (tmp_path / f"list{suffix}").write_text(printed)
    kept = np.zeros((LAYERS, HEADS))
    kept[tuple(zip(*heads_of(tmp_path).kept, strict=True))] = 1
    expected = kept if name in ("qrhead", "kept") else VALUES
    np.testing.assert_array_equal(read_list(tmp_path / f"list{suffix}").on(LAYERS, HEADS, HEADS), expected)


def test_a_list_of_groups_has_a_column_for_each_group(tmp_path):
    values = ((0.5, 0.5, 0.25, 0.25), (1.0, 1.0, 2.0, 2.0))
    about = {"model": "m", "task": "t", "constant": "average", "order": "lambda-0", "fraction": "1/2"}
    heads = Heads(**about, kept=(), replaced=(), values=values, unit_size=2)
    assert heads.as_list("duo") == "0.5\t0.25\n1.0\t2.0"
    assert heads.model_copy(update={"unit_size": 4}).as_list("duo").count("\t") == 6, "units may be layers"


def test_heads_of_a_list_can_be_exported(tmp_path):
    write(tmp_path, "list-duo-2")
    assert np.array_equal(heads_of(tmp_path).values, VALUES) and heads_of(tmp_path).order == "list-duo-2"


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
        CliRunner().invoke(app, ["heads", str(tmp_path), *more]) for more in ([], ["--format", "duo"], ["--json"])
    )
    assert "3 of 6 heads kept" in plain.stdout and "layer 1: · 1 ·" in plain.stdout
    assert tsv.stdout.splitlines()[0] == "0.4\t0.9\t0.5"
    unknown = CliRunner().invoke(app, ["heads", str(tmp_path), "--format", "tsv"])
    assert unknown.exit_code == 2 and "use one of duo, retrieval, qrhead, csv, kept" in unknown.output
    assert json.loads(chosen.stdout)["prune"] == {"0": [0], "1": [0, 2]}
    wrong = CliRunner().invoke(app, ["heads", str(tmp_path), "--fraction", "2"])
    assert wrong.exit_code == 2 and "not a fraction between 0 and 1" in wrong.output
