"""The parts that compare.py measures, each in a separate process with one JSON object as its input.

A part reports the duration of its work in seconds, from loading the model, without the start of Python and its imports,
and the peak resident memory of the process.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from fractions import Fraction
from math import floor
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from papa.stages import AnyJob

Settings = dict[str, Any]
Report = dict[str, Any]
AVERAGE = "published-average.safetensors"
"""The file with the averages of the published procedure."""


def job_of(settings: Settings, stage: str) -> AnyJob:
    """Return the job of a stage at the fraction and with the seed of the settings, from the plan in the work folder."""
    from papa.stages import JOBS, HiddenStates, Job

    fraction = str(settings["fraction"])
    seed = settings.get("seed", 1)

    def wanted(job: AnyJob) -> bool:
        if isinstance(job.settings, HiddenStates):
            return job.settings.fraction == fraction
        return job.stage != "probe" or (job.about["fraction"], job.about["seed"]) == (
            fraction,
            seed,
        )

    files = sorted(Path(settings["work"], JOBS).glob("*.json"))
    batches = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    jobs = [Job.of_content(job) for batch in batches for job in batch.get("jobs", ())]
    return next(job for job in jobs if job.stage == stage and wanted(job))


def published_part(settings: Settings) -> Callable[[], Report]:
    """Return a part of the published procedure; "step" is average, lambda or probes."""
    import torch
    from safetensors.torch import load_file, save_file
    from torch import Tensor
    from transformers import AutoTokenizer

    from benchmarks import published
    from papa.files import read_table

    average_file = Path(settings["work"], AVERAGE)
    task = settings["task"]
    size = settings["task"]["batch_size"]
    folder = settings["model"]
    texts = read_table(settings["files"]["texts"]).to_pydict()
    split = {
        name: torch.tensor([split_name == name for split_name in texts["split"]])
        for name in ("train", "validation")
    }
    laid_out = published.lay_out(
        AutoTokenizer.from_pretrained(folder), texts["first"], settings["slots"]
    )
    inputs = {
        name: {key: values[rows] for key, values in laid_out.items()}
        for name, rows in split.items()
    }
    gold = torch.tensor(texts["label cola"])[split["train"]]
    generator = torch.Generator().manual_seed(0)

    def training_batches() -> Iterator[tuple[published.Inputs, Tensor]]:
        for rows, batch in published.batches_of(inputs["train"], size, generator):
            yield batch, gold[rows]

    def average() -> Report:
        model = published.load_model(folder)
        batches = (batch for _, batch in published.batches_of(inputs["train"], size))
        _, mean, _ = published.average_attention(model, batches)
        save_file({"mean": mean}, average_file)
        return {}

    def train_one_epoch(mix: bool) -> Report:
        start = time.perf_counter()
        model = published.load_model(folder)
        heads = [] if mix else replaced_heads(settings)
        published.use_constants(model, load_file(average_file)["mean"], heads, mix)
        probe = published.Probe(model, settings["slots"], labels=2)
        ready = time.perf_counter()
        published.train(model, probe, training_batches(), task["learning_rate"], mix)
        if not mix:
            published.predict(
                model,
                probe,
                (batch for _, batch in published.batches_of(inputs["validation"], size)),
            )
        return {"before": ready - start, "epoch": time.perf_counter() - ready}

    torch.manual_seed(0)
    step: str = settings["step"]
    return average if step == "average" else lambda: train_one_epoch(mix=step == "lambda")


def project_part(settings: Settings) -> Callable[[], Report]:
    """Return a part of the project: one stage of the workflow, called as its rule calls it; "step" is the stage."""
    from papa.run.execute import function_of

    job = job_of(settings, settings["step"])
    return lambda: {"said": function_of(job.stage)([job])}


def replaced_heads(settings: Settings) -> list[tuple[int, int]]:
    """The heads that the project's order replaces at the fraction, for both sides the same."""
    from papa.method.variants import last_weights, smallest_first

    ranked = smallest_first(last_weights(settings["files"]["learn_lambda"]), "lambda-0")
    return ranked[: len(ranked) - floor(Fraction(settings["fraction"]) * len(ranked))]


def peak_memory(process: str = "self") -> int:
    """The peak of a process's resident memory in bytes; only on Linux."""
    status = Path("/proc", process, "status").read_text()
    return 1024 * int(
        next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:"))
    )


def part_of(settings: Settings) -> Callable[[], Report]:
    """Return the part that the settings name."""
    return published_part(settings) if settings["side"] == "published" else project_part(settings)


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    part = part_of(given)
    begin = time.perf_counter()
    report = part()
    report |= {"work": time.perf_counter() - begin, "peak": peak_memory()}
    Path(given["report"]).write_text(json.dumps(report))
