"""All orders of heads that are made of weights, for an encoder with a probe and a decoder with its own head."""

import copy
import html
import json

import pytest
from test_decoder import write_decoder
from tiny import CONFIG

from papa.files import provenance_of, read_table

ORDERS = ["lambda", "gradient", "leave-one-out", "variance", "output-norm"]


def with_all_orders():
    config = copy.deepcopy(CONFIG)
    config["models"]["decoder"] = {"path": "models/decoder"}
    config["tasks"]["next"] = config["tasks"]["animals"] | {"metric": "log_likelihood"}
    del config["tasks"]["next"]["label"], config["tasks"]["next"]["subset"]
    config["run"] |= {"tasks": ["animals"], "orders": ORDERS, "fractions": ["1", "1/2"]}
    config["grids"] = {"by-own-head": {"models": ["decoder"], "tasks": ["next"]}}
    return config | {"contextless": False}


@pytest.mark.slow
def test_every_order_goes_to_the_page_and_is_compared(fresh_copy):
    workflow, config = fresh_copy, with_all_orders()
    write_decoder(workflow.folder / "models/decoder")
    workflow.run("--cores", "2", "--configfile", workflow.write(config))
    results = workflow.folder / "results/tiny"
    summary = read_table(results / "tables/summary.parquet").to_pandas()
    for task, heads in (("animals", 4), ("next", 6)):
        assert set(summary[summary["task"].eq(task)]["order"].dropna()) == set(ORDERS)
        paths = list(results.glob(f"models/*/tasks/{task}/average/*/order.parquet"))
        assert len(paths) == len(ORDERS)
        for path in paths:
            order, weights = read_table(path), read_table(path.parent.with_suffix(".parquet")).to_pandas()
            assert len(order) == heads and provenance_of(order)["order"] == path.parent.name
            weight = weights.query("epoch == epoch.max()").set_index(["layer", "head"])["value"]
            ranked = zip(order["layer"].to_pylist(), order["head"].to_pylist(), strict=True)
            values = [weight[head] for head in ranked]
            assert values == sorted(values) and len(set(values)) > 1
    stability = read_table(results / "tables/stability.parquet").to_pandas()
    assert set(stability["between"]) == {"orders"} and len(stability) == 2 * 10
    assert stability["tau"].between(-1, 1).all()
    claims = json.loads((results / "tables/claims.json").read_text())
    assert {line["order"] for line in claims["lines"]} == set(ORDERS)
    page = html.unescape((results / "report/index.html").read_text())
    assert "Cost of orders" in page and "leave one out" in page
    # an edit of how probes are trained weighs heads anew where a probe has the loss
    config["tasks"]["animals"]["learning_rate"] = 0.002
    left = workflow.planned(config)
    assert (left["weigh_heads"], left["train_lambda"]) == (2, 1)
