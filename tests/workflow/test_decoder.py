"""The workflow with a decoder: texts without gaps, averages, λ, probes, reliance and all orders, as for encoders."""

import shutil

import pytest
import torch
import transformers
from tiny import CONFIG, with_keys, without_labels
from tokenizers import pre_tokenizers

from papa.files import read_facts, read_json, read_table
from papa.method.averages import Constants

pytestmark = pytest.mark.slow


def write_decoder(folder):
    """A tiny random GPT-2, and a tokenizer to which every byte is a token."""
    marks = ["<|endoftext|>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = transformers.GPT2Tokenizer(
        vocab={mark: number for number, mark in enumerate(marks)}, merges=[]
    )
    tokenizer.save_pretrained(folder)
    sizes = {
        "n_embd": 12,
        "n_layer": 2,
        "n_head": 3,
        "n_positions": 64,
        "vocab_size": len(tokenizer),
    }
    torch.manual_seed(0)
    made = transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0, initializer_range=0.4)
    transformers.GPT2LMHeadModel(made).save_pretrained(folder)


@pytest.fixture
def workflow(fresh_copy):
    """The workflow with a decoder as the model `tiny`."""
    shutil.rmtree(fresh_copy.folder / "models/tiny")
    write_decoder(fresh_copy.folder / "models/tiny")
    return fresh_copy


def test_a_decoder_goes_through_the_workflow(workflow):
    """With probes on texts, and by its own head on texts."""
    config = with_keys(NEXT, {"run.tasks": ["animals", "next"], "run.seeds": [1, 2]})
    results = workflow.compute(config)
    (path,) = results.glob("../cache/average/tiny-sentences-average-*.h5")
    assert not Constants.load(path).sum.triu(1).any()  # no token looks ahead
    (path,) = results.glob("../cache/tokenize/tiny-sentences-*.parquet")
    tokens = read_table(path)
    assert read_facts(path)["style"] == "contiguous"
    assert all(row == list(range(len(row))) for row in tokens["slots"].to_pylist())
    summary = read_table(results / "tables/summary.parquet").to_pandas()
    assert set(summary["fraction"]) == {"1", "1/2", "0"}
    assert summary["mean"].notna().all()
    direct = summary[summary["task"].ne("animals")]
    assert (direct["seeds"] == 1).all()
    assert direct.query("metric == 'log_likelihood'")["half_width"].notna().all()
    assert set(direct["metric"]) == {"log_likelihood", "perplexity"}
    assert set(
        read_table(results / "tables/runs.parquet").to_pandas().query("task == 'next'")["seed"]
    ) == {0}
    claims = read_json(results / "tables/claims.json")
    assert "next" in str(claims["sentences"])
    assert "based on 2 seeds" in claims["notes"][0]
    assert workflow.planned(config) == {}
    # its own head has no seed, so a further seed trains only probes
    assert "probe_encoder" not in workflow.planned(with_keys(config, {"run.seeds": [1, 2, 3]}))


NEXT = with_keys(
    CONFIG, {"tasks.next": without_labels(CONFIG["tasks"]["animals"], "log_likelihood")}
)
"""Has a task that a model's own head predicts."""
ORDERS = ["lambda", "gradient"]


def test_every_order_is_in_the_report_and_is_compared(fresh_copy):
    """An encoder with a probe, and a decoder with its own head."""
    workflow = fresh_copy
    changes = {
        "floors": [],
        "models.decoder": {"path": "models/decoder"},
        "run.tasks": ["animals"],
        "run.orders": ORDERS,
        "run.fractions": ["1", "1/2"],
        "grids": {"by-own-head": {"models": ["decoder"], "tasks": ["next"]}},
    }
    config = with_keys(NEXT, changes)
    write_decoder(workflow.folder / "models/decoder")
    results = workflow.compute(config)
    summary = read_table(results / "tables/summary.parquet").to_pandas()
    ranked = read_table(results / "tables/heads.parquet").to_pandas()
    for task, heads in (("animals", 4), ("next", 6)):
        assert set(summary[summary["task"].eq(task)]["order"].dropna()) == set(ORDERS)
        of_task = ranked[ranked["task"].eq(task)]
        assert len(of_task) == heads * len(ORDERS)
        for _, order in of_task.groupby("order"):
            values = order.sort_values("rank")["value"].tolist()
            assert values == sorted(values)
            assert len(set(values)) > 1
    claims = read_json(results / "tables/claims.json")
    assert {claim["order"] for claim in claims["claims"]} == set(ORDERS)
    assert "gradient" in (results / "report/index.html").read_text()
    # an edit of how probes are trained weighs heads again where a probe has the loss
    left = workflow.planned(with_keys(config, {"tasks.animals.learning_rate": 0.002}))
    assert left["learn_lambda"] == 2
