"""What is replaced at once: a head, heads that share their keys, or a layer."""

import jobs
import pytest
from jobs import training

import papa
from papa.config.settings import Machine
from papa.config.variant import Variant
from papa.files import provenance_of, read_table, write_table
from papa.method.orders import heads_to_replace
from papa.model.load import model_of

UNITS = pytest.mark.parametrize(("unit", "size"), [("head", 1), ("group", 2), ("layer", 4)])


@pytest.fixture
def loaded(tiny_decoder):
    return model_of(jobs.encoding(tiny_decoder), Machine.current())


@UNITS
def test_heads_of_a_unit_are_kept_together(unit, size, tiny_decoder, loaded, tmp_path):
    path, total = tmp_path / "order.parquet", loaded.layers * loaded.heads
    jobs.put_in_order(tiny_decoder, path, "random-1", unit=unit)
    for kept in ("1of2", "1of3", "7of8"):
        variant = Variant.parse(f"zeros/random-1/kept-{kept}")
        replaced = heads_to_replace(path, variant, loaded)
        assert (total - len(replaced)) == size * int(variant.fraction * (total // size))
        units = {(layer, head // size) for layer, head in replaced}
        assert len(units) * size == len(replaced), "no unit is cut in two"


@UNITS
def test_one_lambda_for_a_unit_is_learned_from_all_its_heads(unit, size, tiny_decoder, tmp_path):
    jobs.write_tokens(tmp_path, train=12, validation=3)
    path, tokens = tmp_path / "lambda.parquet", tmp_path / "tokens.parquet"
    settings = {"metric": "log_likelihood", "unit": unit}
    jobs.learn(tiny_decoder, path, training(batch_size=12, epochs=2), 0, "toeplitz", told=settings, tokens=tokens)
    table = read_table(path)
    assert provenance_of(table)["unit_size"] == size
    last = table.to_pandas().query("epoch == 2").sort_values(["layer", "head"])["value"].to_numpy().reshape(-1, size)
    assert (last == last[:, :1]).all() and len(set(last[:, 0].tolist())) == len(last)


def test_an_order_of_other_units_than_the_model_has_is_refused(tiny_decoder, loaded, tmp_path):
    path = tmp_path / "order.parquet"
    jobs.put_in_order(tiny_decoder, path, "random-1")
    table = read_table(path)
    write_table(table, path, provenance_of(table) | {"unit_size": 3})
    with pytest.raises(papa.InputError, match=r"has units of 3 heads, but in this model groups of 2 of the 4 heads"):
        heads_to_replace(path, Variant.parse("zeros/random-1/kept-1of2"), loaded)
