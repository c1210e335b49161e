"""The config of the known encoder, really run from start to page with few texts: its probes find what is known."""

import json

import pytest

from benchmarks.known import auroc
from papa.data.generated.looking import LOOKUP
from papa.files import read_table

pytestmark = pytest.mark.slow
ROWS = {"train": 1000, "validation": 200}


@pytest.fixture(scope="module")
def results(results_of):
    def shorten(config):
        config["run"] |= {"fractions": ["1", "1/10", "0"], "seeds": [1, 2]}
        config["corpora"]["twice"]["rows"] = ROWS
        del config["grids"]

    return results_of("known-lookup", shorten)


def test_without_attention_that_depends_on_the_input_one_half_is_lost_and_the_other_is_not(results):
    rows = read_table(results / "tables/summary.parquet").to_pandas().query("main").set_index(["kept", "subset"])
    original, last, none = (rows.loc[kept] for kept in (10, 1, 0))
    assert original["mean"].min() > 0.98 and last["mean"].min() > 0.98  # the lookup head alone is enough
    assert original.loc[["lookup", "position"], "contextless"].between(0.4, 0.6).all()  # zeros destroy both halves
    averages = none[none["constant"] == "average"]
    assert averages.loc["lookup", "mean"] < 0.6 and averages.loc["position", "mean"] > 0.95
    assert averages.loc["lookup", "loss"] > 0.85 and abs(averages.loc["position", "loss"]) < 0.1


def test_all_heads_but_the_lookup_head_are_claimed(results):
    assert auroc(results / "models/lookup/tasks/twice/average/lambda-0/order.parquet", [LOOKUP]) == 1
    (line,) = json.loads((results / "tables/claims.json").read_text())["lines"]
    assert line["replaceable"] == 9
    assert "lookup" in (results / "report/index.html").read_text()
