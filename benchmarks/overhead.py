"""The overhead of the workflow: planning the paper's grid, a run with nothing to do, the start of a probe.

    python benchmarks/overhead.py            # first runs the demo if it has not been run, which takes minutes

Each is measured three times; the median is printed with its limit. The machine should be otherwise idle.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[1]
TIMES = 3
SNAKEMAKE = [sys.executable, "-m", "snakemake"]
PROBE = """
import time
begin = time.perf_counter()
import os
os.environ["OMP_NUM_THREADS"] = "1"
from dataclasses import replace
from pathlib import Path
from papa.config.reading import read_config
from papa.config.study import Study
from papa.method import fitting, training

class Reached(BaseException):
    pass

def step(*given, **named):
    raise Reached(time.perf_counter() - begin)

fitting.adamw = step
config = read_config("CONFIG")
study = Study(config, f"results/{config.name}")
model, task = config.pairs[0]
job = study.job("probe", model=model, task=task, variant="original")
inputs = {name: tuple(str(study.results / path) for path in paths) for name, paths in job.inputs.items()}
outputs = {"runs": "none.json", "outcomes": "none.outcomes.parquet", "probes": "none.safetensors"}
try:
    training.train_probe(replace(job, inputs=inputs, outputs=outputs))
except Reached as reached:
    print(reached)
"""


def command(*arguments: str) -> float:
    """Run snakemake and return its wall-clock seconds."""
    begin = time.perf_counter()
    subprocess.run([*SNAKEMAKE, *arguments], cwd=ROOT, check=True, capture_output=True)
    return time.perf_counter() - begin


def first_step(folder: Path = ROOT, config: str = "config/config.yaml") -> float:
    """Return the seconds from the start of a probe's job to its first step, including the start of Python."""
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-c", "pass"], check=True)
    start = time.perf_counter() - begin
    done = subprocess.run(
        [sys.executable, "-c", PROBE.replace("CONFIG", config)],
        cwd=folder,
        check=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    return start + float(done.stdout)


def main() -> None:
    """Run the demo if it has not been run, measure, and print the table."""
    subprocess.run([*SNAKEMAKE, "--cores", "all", "--quiet", "all"], cwd=ROOT, check=True)
    measured: dict[str, tuple[Callable[[], float], float]] = {
        "snakemake -n on config/paper.yaml": (
            lambda: command("-n", "--quiet", "--configfile", "config/paper.yaml"),
            15,
        ),
        "the demo with nothing to do": (lambda: command("--cores", "2", "--quiet"), 5),
        "a probe until its first step": (first_step, 3),
    }
    print("| what | seconds | allowed |\n|---|--:|--:|")
    for what, (measure, allowed) in measured.items():
        print(f"| {what} | {median(measure() for _ in range(TIMES)):.1f} | {allowed} |", flush=True)


if __name__ == "__main__":
    main()
