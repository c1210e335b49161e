"""What the workflow costs before it computes: planning the paper's grid, a run with nothing to do, a probe's start.

    python benchmarks/overhead.py            # runs the demo first where it has not been run: some minutes

Each is measured three times, on a machine that should be otherwise idle; the median is printed beside what is allowed.
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
from pathlib import Path
from papa.method import fitting, training

class Reached(BaseException):
    pass

def step(self):
    raise Reached(time.perf_counter() - begin)

fitting.AdamW.step = step
results = Path("results/demo")
task = results / "models/minilm/tasks/agreement"
corpus = results / "models/minilm/corpora/agreement"
settings = {"metric": "accuracy", "learning_rate": 1e-3, "batch_size": 16, "epochs": 1}
try:
    training.train_probe(
        corpus / "tokens.parquet", results / "tasks/agreement/labels.parquet",
        [corpus / "features/original/1of1.hidden"], [corpus / "features/original/1of1.json"],
        Path("none.json"), Path("none.safetensors"), settings, 1, {},
    )
except Reached as reached:
    print(reached)
"""


def command(*arguments: str) -> float:
    """Seconds until a run of snakemake has ended."""
    begin = time.perf_counter()
    subprocess.run([*SNAKEMAKE, *arguments], cwd=ROOT, check=True, capture_output=True)
    return time.perf_counter() - begin


def first_step() -> float:
    """Seconds from the start of a probe's job to its first step, Python's own start included."""
    begin = time.perf_counter()
    found = subprocess.run([sys.executable, "-c", "pass"], check=True)
    start = time.perf_counter() - begin
    found = subprocess.run(
        [sys.executable, "-c", PROBE],
        cwd=ROOT,
        check=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    return start + float(found.stdout)


def main() -> None:
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
