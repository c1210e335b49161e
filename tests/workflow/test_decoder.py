"""The workflow with a decoder: texts without gaps, averages, λ, probes and losses, as for encoders."""

import copy
import html
import json
import shutil

import pytest
import torch
import transformers
from tiny import CONFIG, Copy
from tokenizers import pre_tokenizers

from papa.files import provenance_of, read_table
from papa.method.averages import ConstantMatrices


def write_decoder(folder):
    """A tiny random GPT-2, and a tokenizer to which every byte is a token."""
    marks = ["<|endoftext|>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = transformers.GPT2Tokenizer(vocab={mark: number for number, mark in enumerate(marks)}, merges=[])
    tokenizer.save_pretrained(folder)
    sizes = {"n_embd": 12, "n_layer": 2, "n_head": 3, "n_positions": 64, "vocab_size": len(tokenizer)}
    torch.manual_seed(0)
    made = transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0, initializer_range=0.4)
    transformers.GPT2LMHeadModel(made).save_pretrained(folder)


@pytest.mark.slow
def test_a_decoder_goes_through_the_workflow(fresh, tmp_path):
    shutil.copytree(fresh.folder, tmp_path / "papa", symlinks=True)
    workflow = Copy(tmp_path / "papa")
    shutil.rmtree(workflow.folder / "models/tiny")
    write_decoder(workflow.folder / "models/tiny")
    config = copy.deepcopy(CONFIG)
    config["run"] |= {"tasks": ["animals", "next"], "seeds": [1, 2]}
    config["tasks"]["next"] = config["tasks"]["animals"] | {"metric": "log_likelihood"}
    del config["tasks"]["next"]["label"], config["tasks"]["next"]["subset"]
    process = workflow.snakemake("--cores", "2", "--configfile", workflow.write(config))
    assert process.returncode == 0, process.stdout + process.stderr
    results = workflow.folder / "results/tiny"
    (path,) = results.glob("models/tiny/corpora/*/average.h5")
    assert not ConstantMatrices.load(path).sum.triu(1).any()  # no token looks ahead
    (path,) = results.glob("models/tiny/corpora/*/tokens.parquet")
    tokens = read_table(path)
    assert provenance_of(tokens)["style"] == "contiguous"
    assert all(row == list(range(len(row))) for row in tokens["slots"].to_pylist())
    summary = read_table(results / "tables/summary.parquet").to_pandas()
    assert set(summary.fraction) == {"1", "1/2", "0"} and summary["mean"].notna().all()
    direct = summary[summary["task"] == "next"]
    assert set(direct["metric"]) == {"log_likelihood", "perplexity", "kl_to_original"}
    own = direct[direct["metric"] == "log_likelihood"].set_index(["constant", "fraction"])
    assert (own["seeds"] == 1).all() and own["half_width"].notna().all()
    probed = read_table(results / "tables/curves.parquet").to_pandas().query("task == 'next'")
    assert (probed["epoch"] == 0).all() and set(probed["seed"]) == {0}
    # of its own head nothing is made twice: a seed more trains probes alone
    config["run"]["seeds"] = [1, 2, 3]
    process = workflow.snakemake("-n", "--configfile", workflow.write(config))
    assert process.returncode == 0 and "stream_probe" not in process.stdout + process.stderr
    claims = json.loads((results / "tables/claims.json").read_text())
    assert "next" in claims["sentence"] and "From 2 seeds" in claims["sentence"]
    page = (results / "report/index.html").read_text()
    assert "by the model's own head" in html.unescape(page)
