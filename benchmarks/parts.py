"""The parts that compare.py measures, each in a separate process with one JSON object as its input.

A part reports the duration of its work in seconds, from loading the model, without the start of Python and its imports,
and the peak resident memory of the process.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from fractions import Fraction
from math import floor
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from papa.plan.jobs import AnyJob

Settings = dict[str, Any]
Report = dict[str, Any]


def places(work: Path) -> dict[str, Path]:
    """Return the paths of files that one part writes and later parts read."""
    names = {
        "texts": "texts.parquet",
        "tokens": "tokens.parquet",
        "constants": "average.h5",
        "lambdas": "lambda-0.parquet",
        "states": "states.hidden",
        "average": "published-average.safetensors",
    }
    return {"work": work} | {name: work / file for name, file in names.items()}


def published_part(settings: Settings) -> Callable[[], Report]:
    """Return a part of the published procedure; "step" is average, lambda or probes."""
    import torch
    from safetensors.torch import load_file, save_file
    from torch import Tensor
    from transformers import AutoTokenizer

    from benchmarks import published
    from papa.files import read_table

    files, task, size = places(Path(settings["work"])), settings["task"], settings["task"]["batch_size"]
    folder = settings["model"]
    texts = read_table(files["texts"]).to_pydict()
    split = {
        name: torch.tensor([split_name == name for split_name in texts["split"]]) for name in ("train", "validation")
    }
    laid_out = published.lay_out(AutoTokenizer.from_pretrained(folder), texts["first"], None, settings["slots"])
    inputs = {name: {key: values[rows] for key, values in laid_out.items()} for name, rows in split.items()}
    gold = torch.tensor(texts["label cola"])[split["train"]]
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
    """Return a part of the project: one stage of the workflow, called as its rule calls it."""
    from papa.plan.study import function_of

    job = project_job(settings)
    return lambda: {"said": function_of(job.stage)([job])}


def project_job(settings: Settings) -> AnyJob:
    """Return the job of a stage on the outputs of earlier parts; "step" is the stage."""
    from papa.config.settings import Machine
    from papa.config.variant import Constant, Order, Variant
    from papa.data.weights import digest_of_model, weights_digest
    from papa.plan.jobs import Average, HiddenStates, Job, LearnLambda, Probe, Tokenize, Training

    files, step, model = places(Path(settings["work"])), settings["step"], settings["model"]
    task, seed = settings["task"], settings.get("seed", 0)
    training = Training(**{name: value for name, value in task.items() if name != "metric"})
    variant = Variant.of(Constant("average"), Order("lambda", 0), settings["fraction"])
    kinds = {
        "tokenize": Tokenize(slots=settings["slots"], layout="paper"),
        "average": Average(precision="float32"),
        "lambda": LearnLambda(kind="text", training=training, seed=0, constant="average", precision="float32"),
        "features": HiddenStates(
            constant=variant.constant.start if variant.constant else None,
            order=variant.order.name if variant.order else None,
            fraction=str(variant.fraction),
            precision="float32",
        ),
        "probe": Probe(kind="text", training=training, seed=seed, precision="float32"),
    }
    reads = {
        "tokenize": {"texts": "texts"},
        "average": {"tokens": "tokens"},
        "lambda": {"tokens": "tokens", "labels": "texts", "constants": "constants"},
        "features": {"tokens": "tokens", "constants": "constants", "weights": "lambdas"},
        "probe": {"tokens": "tokens", "labels": "texts", "states": "states"},
    }[step]
    writes = {"tokenize": "tokens", "average": "constants", "lambda": "lambdas", "features": "states"}
    output = files[writes[step]] if step in writes else files["work"] / f"seed-{seed}.parquet"
    paths = {name: str(files[file]) for name, file in reads.items()} | {"model": model, "checks": str(output.parent)}
    digest = digest_of_model(model, weights_digest(model, "model"))
    about = {"model": "model", "task": "cola", "corpus": "cola"}
    job: AnyJob = Job(kinds[step], {"model": digest}, paths, step, str(output.parent), about, Machine(device="cpu"))
    job.__dict__["output"] = str(output)  # later parts read it under this name
    return job


def prepare(settings: Settings) -> Callable[[], Report]:
    """Prepare the texts and labels that both sides read; not timed."""
    from papa.config.settings import Config, Machine
    from papa.data.prepare import prepared

    task = {"corpus": "cola", "label": "label", **settings["task"]}
    runs = {"models": ["m"], "tasks": ["cola"], "fractions": ["1"]}
    corpus = settings["corpus"] | {"slots": settings["slots"]}
    blocks = {"models": {"m": {"path": settings["model"]}}, "corpora": {"cola": corpus}, "tasks": {"cola": task}}
    config = Config.model_validate({"name": "both", "run": runs} | blocks)
    files, machine = places(Path(settings["work"])), Machine(hub_mirror=settings.get("mirror"))

    def both() -> Report:
        table = prepared(config.corpora["cola"], config.tasks, machine, files["work"] / "data", "cola")
        shutil.copyfile(table.path, files["texts"])
        return {}

    return both


def difference(settings: Settings) -> Callable[[], Report]:
    """The largest difference between the two sides' averages: that they did the same work."""
    from safetensors.torch import load_file

    from papa.method.averages import Constants

    files = places(Path(settings["work"]))
    return lambda: {
        "difference": float((load_file(files["average"])["mean"] - Constants.load(files["constants"]).mean).abs().max())
    }


def replaced_heads(settings: Settings) -> list[tuple[int, int]]:
    """The heads that the project's order replaces at the fraction, for both sides the same."""
    from papa.method.variants import last_weights, smallest_first

    ranked = smallest_first(last_weights(places(Path(settings["work"]))["lambdas"]), "lambda-0")
    return ranked[: len(ranked) - floor(Fraction(settings["fraction"]) * len(ranked))]


def peak_memory(process: str = "self") -> int:
    """The peak of a process's resident memory in bytes; only on Linux."""
    status = Path("/proc", process, "status").read_text()
    return 1024 * int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:")))


SIDES = {"published": published_part, "project": project_part, "prepare": prepare, "difference": difference}


def part_of(settings: Settings) -> Callable[[], Report]:
    """Return the part that the settings name."""
    return SIDES[settings["side"]](settings)


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    part = part_of(given)
    begin = time.perf_counter()
    report = part()
    report |= {"work": time.perf_counter() - begin, "peak": peak_memory()}
    Path(given["report"]).write_text(json.dumps(report))
