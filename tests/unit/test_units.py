"""What is replaced at once: a head, heads that share their keys, or a layer."""

import json

import jobs
import pyarrow as pa
import pytest
import torch
from jobs import training
from test_decoders import stock

import papa
from papa.config.settings import Machine
from papa.config.stages import ModelId
from papa.config.variant import Variant
from papa.data.tokenize import _schema, write_groups
from papa.files import provenance_of, read_table, write_table
from papa.method.orders import heads_to_replace
from papa.model.load import load_model, model_of


@pytest.fixture
def grouped(tmp_path, monkeypatch):
    """A decoder in which two heads share their keys."""
    stock("llama").save_pretrained(tmp_path / "grouped")
    monkeypatch.setenv(
        "PAPA_MACHINE", json.dumps({"models": {"grouped": {"path": str(tmp_path / "grouped")}}, "device": "cpu"})
    )
    return ModelId(name="grouped")


@pytest.mark.parametrize(("unit", "size"), [("head", 1), ("group", 2), ("layer", 4)])
def test_heads_of_a_unit_stand_together_and_are_kept_together(unit, size, grouped, tmp_path):
    model, path = load_model(tmp_path / "grouped", device="cpu"), tmp_path / "order.parquet"
    total = model.layers * model.heads
    jobs.put_in_order(grouped, path, "random-1", unit=unit)
    for kept in ("1of2", "1of3", "7of8"):
        variant = Variant.parse(f"zeros/random-1/kept-{kept}")
        replaced = heads_to_replace(path, variant, model_of(jobs.encoding(grouped), Machine.current()))
        assert (total - len(replaced)) == size * int(variant.fraction * (total // size))
        units = {(layer, head // size) for layer, head in replaced}
        assert len(units) * size == len(replaced), "no unit is cut in two"


def test_one_lambda_for_a_unit_is_learned_from_all_its_heads(grouped, tmp_path):
    generator, sizes = torch.Generator().manual_seed(1), {"train": 12, "validation": 3}
    parts, schema = [], _schema(words=False)
    for split, rows in sizes.items():
        ids = torch.randint(4, 50, (rows, 7), generator=generator).tolist()
        columns = {"split": [split] * rows, "row": list(range(rows)), "ids": ids, "slots": [list(range(7))] * rows}
        parts.append(pa.Table.from_pydict(columns | {"segments": [[0] * 7] * rows, "cut": [0] * rows}, schema))
    facts = {"model": "grouped", "corpus": "f", "slots": 7, "style": "contiguous", "segments": "aligned"}
    facts |= {"rows": sizes, "rows_available": sizes}
    write_groups(parts, schema, tmp_path / "tokens.parquet", facts)
    for unit, size in (("head", 1), ("group", 2), ("layer", 4)):
        path = tmp_path / f"{unit}.parquet"
        how = training(batch_size=12, epochs=2)
        jobs.learn(
            grouped,
            path,
            how,
            constant="toeplitz",
            told={"direct": True, "unit": unit},
            tokens=tmp_path / "tokens.parquet",
        )
        table = read_table(path)
        assert provenance_of(table)["unit_size"] == size
        last = (
            table.to_pandas().query("epoch == 2").sort_values(["layer", "head"])["value"].to_numpy().reshape(-1, size)
        )
        assert (last == last[:, :1]).all() and len(set(last[:, 0].tolist())) == len(last)


def test_an_order_of_other_units_than_the_model_has_is_refused(grouped, tmp_path):
    path = tmp_path / "order.parquet"
    jobs.put_in_order(grouped, path, "random-1")
    table = read_table(path)
    write_table(table, path, provenance_of(table) | {"unit_size": 3})
    with pytest.raises(papa.InputError, match=r"takes 3 heads at once, but in this model 2 of the 4 heads"):
        heads_to_replace(
            path, Variant.parse("zeros/random-1/kept-1of2"), model_of(jobs.encoding(grouped), Machine.current())
        )
