"""The measured parts: each is run alone in a process of its own by compare.py, which gives it one JSON object.

A part reports the seconds of its work (from loading the model on, without the start of Python and its imports) and the
peak of the process's resident memory.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Settings = dict[str, Any]
Report = dict[str, Any]


def places(work: Path) -> dict[str, Path]:
    """Where the parts of one comparison leave what the next ones read."""
    names = {
        "texts": "texts.parquet",
        "labels": "labels.parquet",
        "tokens": "tokens.parquet",
        "constants": "average.h5",
        "lambdas": "lambda.parquet",
        "order": "order.parquet",
        "hidden": "1of1.hidden",
        "index": "1of1.json",
        "average": "published-average.safetensors",
    }
    return {name: work / file for name, file in names.items()}


def published_part(settings: Settings) -> Callable[[], Report]:
    """A part of the published procedure; "step" names it: average, lambda or probes."""
    import torch
    from safetensors.torch import load_file, save_file
    from torch import Tensor
    from transformers import AutoTokenizer

    from benchmarks import published
    from papa.data.weights import place_of
    from papa.files import read_table

    files, task, size = places(Path(settings["work"])), settings["task"], settings["task"]["batch_size"]
    folder = place_of(settings["model"])
    texts = read_table(files["texts"]).to_pydict()
    split = {name: torch.tensor([own == name for own in texts["split"]]) for name in ("train", "validation")}
    laid_out = published.lay_out(AutoTokenizer.from_pretrained(folder), texts["first"], None, settings["slots"])
    inputs = {name: {key: values[rows] for key, values in laid_out.items()} for name, rows in split.items()}
    gold = torch.tensor(read_table(files["labels"]).column("label").to_pylist())[split["train"]]
    generator = torch.Generator().manual_seed(0)

    def training_batches() -> Iterator[tuple[published.Inputs, Tensor]]:
        for rows, batch in published.batches_of(inputs["train"], size, generator):
            yield batch, gold[rows]

    def average() -> Report:
        model = published.load_model(folder)
        batches = (batch for _, batch in published.batches_of(inputs["train"], size))
        _, mean, _ = published.average_attention(model, batches)
        save_file({"mean": mean}, files["average"])
        return {}

    def train_one_epoch(mix: bool) -> Report:
        start = time.perf_counter()
        model = published.load_model(folder)
        heads = [] if mix else replaced_heads(settings)
        published.use_constants(model, load_file(files["average"])["mean"], heads, mix)
        probe = published.Probe(model, settings["slots"], labels=2)
        ready = time.perf_counter()
        published.train(model, probe, training_batches(), task["learning_rate"], mix)
        if not mix:
            published.predict(model, probe, (batch for _, batch in published.batches_of(inputs["validation"], size)))
        return {"before": ready - start, "epoch": time.perf_counter() - ready}

    torch.manual_seed(0)
    step: str = settings["step"]
    return average if step == "average" else lambda: train_one_epoch(mix=step == "lambda")


def project_part(settings: Settings) -> Callable[[], Report]:
    """A part of the project: one stage function of the workflow, called as its rule calls it."""
    files, task, model = places(Path(settings["work"])), settings["task"], settings["model"]
    features = {name: files[name] for name in ("hidden", "index")}
    step = settings["step"]
    if step == "tokenize":
        from papa.data.tokenize import tokenize_corpus

        return lambda: said(
            tokenize_corpus(model, files["texts"], files["tokens"], settings["slots"], "paper", "aligned")
        )
    if step == "average":
        from papa.method.averages import average_corpus

        return lambda: said(average_corpus(model, files["tokens"], files["constants"]))
    if step == "lambda":
        from papa.method.ranking import train_lambda

        used = {name: files[name] for name in ("tokens", "labels", "constants", "lambdas")}
        return lambda: said(train_lambda(model, **used, task=task, seed=0))
    if step == "rank":
        from papa.method.ranking import rank_heads

        return lambda: said(rank_heads(files["lambdas"], files["order"], "lambda"))
    if step == "features":
        from papa.method.features import extract_features

        behind = {name: files[name] for name in ("constants", "order")}
        return lambda: said(
            extract_features(model, files["tokens"], **features, **behind, fraction=settings["fraction"])
        )
    from papa.method.training import train_probe

    seed = settings["seed"]
    run, probe = (files["index"].with_name(f"seed-{seed}.{end}") for end in ("json", "safetensors"))
    about = {"model": model["name"], "task": "cola", "constant": "average", "order": "lambda"}
    about["fraction"] = settings["fraction"]
    used = [files["tokens"], files["labels"], [files["hidden"]], [files["index"]]]
    return lambda: said(train_probe(*used, run=run, probe=probe, task=task, seed=seed, about=about))


def prepare(settings: Settings) -> Callable[[], Report]:
    """The texts and labels that both sides read; not timed."""
    from papa.data.prepare import prepare_labels, prepare_texts

    files = places(Path(settings["work"]))
    corpus, task = settings["corpus"], {"label": "label", "metric": settings["task"]["metric"]}

    def both() -> Report:
        prepare_texts(corpus, files["texts"])
        prepare_labels(task, corpus, files["texts"], files["labels"])
        return {}

    return both


def difference(settings: Settings) -> Callable[[], Report]:
    """The largest difference between the two sides' averages: that they did the same work."""
    from safetensors.torch import load_file

    from papa.method.averages import ConstantMatrices

    files = places(Path(settings["work"]))
    return lambda: {
        "difference": float(
            (load_file(files["average"])["mean"] - ConstantMatrices.load(files["constants"]).mean).abs().max()
        )
    }


def replaced_heads(settings: Settings) -> list[tuple[int, int]]:
    """The heads that the project's order replaces at the fraction, for both sides the same."""
    from papa.method.features import heads_to_replace

    return heads_to_replace(places(Path(settings["work"]))["order"], settings["fraction"])


def said(line: object) -> Report:
    """What a stage says of itself when it ends."""
    return {"said": line}


def peak_memory() -> int:
    """The peak of this process's resident memory in bytes."""
    try:
        status = Path("/proc/self/status").read_text()
        return 1024 * int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:")))
    except (OSError, StopIteration):  # not Linux
        unit = 1 if sys.platform == "darwin" else 1024
        return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


SIDES = {"published": published_part, "project": project_part, "prepare": prepare, "difference": difference}

if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    part = SIDES[given["side"]](given)
    begin = time.perf_counter()
    report = part()
    report |= {"work": time.perf_counter() - begin, "peak": peak_memory()}
    Path(given["report"]).write_text(json.dumps(report))
