"""Memory and time of the stages by the size of a corpus: 1, 2, 4 and 8 times the same number of short sentences.

    python benchmarks/stress.py --model FOLDER                  # up to a million sentences; some 20 GB of scratch
    python benchmarks/stress.py --model FOLDER --sentences 10000

Each stage runs in a fresh process, like its job. Peak memory is the largest resident set of that process,
time is CPU time, which other programs on the machine do not disturb. Writes a table to standard output and, with
`--figure FILE`, the same as a picture (.svg or .png).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from papa.config.job import AnyJob
    from papa.config.settings import Machine

ROOT = Path(__file__).parents[1]
TIMES = (1, 2, 4, 8)
STAGES = ("prepare", "tokenize", "average", "features")
FILES = {
    "texts": "texts.parquet",
    "tokens": "tokens.parquet",
    "constants": "average.h5",
    "index": "1of1.json",
    "hidden": "1of1.hidden",
}
SLOTS = 32
HELD_OUT = 1000


def write_sentences(folder: Path, sentences: int, seed: int = 0) -> None:
    """Write random sentences of 3 to 17 words from the vocabulary of a BERT tokenizer, one on each line."""
    words = (
        "the a one two this that man woman child dog house day night water city way time word work year good new old "
        "small large first last own other says sees makes takes knows gives finds thinks of in to for with on at from"
    ).split()
    chance = random.Random(seed)
    for split, rows in (("train", sentences), ("validation", HELD_OUT)):
        with open(folder / f"{split}.txt", "w", encoding="utf-8") as lines:
            for _ in range(rows):
                lines.write(" ".join(chance.choices(words, k=chance.randint(3, 17))) + "\n")


def run_stage(stage: str, folder: Path, model: str) -> dict[str, Any]:
    """Run a stage in this process, and print its time and memory."""
    from papa.config.settings import Machine

    job = job_of_stage(stage, folder, Machine(models={"model": {"path": model}}, device="cpu"))
    module, _, name = job.settings.function.partition(":")
    return {
        "said": getattr(import_module(module), name)(job),
        "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000,
        "seconds": time.process_time(),
    }


def job_of_stage(stage: str, folder: Path, machine: Machine) -> AnyJob:
    """Return the job of a stage on the outputs of earlier stages in `folder`."""
    from papa.config import stages
    from papa.config.job import Job
    from papa.config.settings import Corpus, Files

    identity = stages.ModelId(name="model")
    encoding = stages.Encoding(model=identity)
    files = Files(train=str(folder / "train.txt"), validation=str(folder / "validation.txt"))
    settings_of: dict[str, tuple[stages.Settings, list[str], list[str]]] = {
        "prepare": (stages.TextsOf(corpus=Corpus(files=files, first="text"), source={}), [], ["texts"]),
        "tokenize": (
            stages.TokensOf(model=identity, slots=SLOTS, style="paper", segments="aligned", blocks=False),
            ["texts"],
            ["tokens"],
        ),
        "average": (stages.AverageOf(model=encoding, part="1of1"), ["tokens"], ["constants"]),
        "features": (
            stages.HiddenOf(model=encoding, variant="average/all", part="1of1"),
            ["tokens", "constants"],
            ["index", "hidden"],
        ),
    }
    settings, reads, writes = settings_of[stage]
    paths = {name: str(folder / file) for name, file in FILES.items()}
    inputs, outputs = {name: (paths[name],) for name in reads}, {name: paths[name] for name in writes}
    return Job(settings.stage, settings, inputs, outputs, machine=machine)


def measured(sentences: int, model: str, scratch: Path | None) -> list[dict[str, Any]]:
    """Measure each stage for this many sentences."""
    rows = []
    with TemporaryDirectory(prefix="papa-stress-", dir=scratch) as folder:
        write_sentences(Path(folder), sentences)
        for stage in STAGES:
            command = [sys.executable, __file__, "--model", model, "--stage", stage, "--folder", folder]
            environment = os.environ | {"OMP_NUM_THREADS": "1", "ARROW_DEFAULT_MEMORY_POOL": "system"}
            environment["PYTHONPATH"] = str(ROOT)
            done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
            measured = json.loads(done.stdout)
            print(f"{sentences:,} {stage}: {measured['said']}", file=sys.stderr, flush=True)
            rows.append({"sentences": sentences, "stage": stage, **measured})
    return rows


def draw(rows: list[dict[str, Any]], figure: Path) -> None:
    """Plot memory and time against the number of sentences, a line for each stage."""
    import altair as alt

    short = "datum.value < 1e6 ? datum.value / 1e3 + 'k' : datum.value / 1e6 + 'M'"
    sizes = sorted({row["sentences"] for row in rows})
    data = alt.Data(values=[{key: row[key] for key in ("sentences", "stage", "megabytes", "seconds")} for row in rows])
    panels = [
        alt.Chart(data, title=title, width=300, height=220)
        .mark_line(point=True)
        .encode(
            alt.X("sentences:Q", title="sentences", axis=alt.Axis(values=sizes, labelExpr=short)),
            alt.Y(f"{name}:Q", title=title),
            alt.Color("stage:N", sort=list(STAGES)),
            alt.StrokeDash("stage:N", sort=list(STAGES), legend=None),
        )
        for name, title in (("megabytes", "peak memory (MB)"), ("seconds", "CPU time (s)"))
    ]
    alt.hconcat(*panels).save(figure)


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the arguments, measure each stage on each corpus, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", required=True, help="folder of a transformers model")
    parser.add_argument("--sentences", type=int, default=1_000_000, help="number of sentences in the largest corpus")
    parser.add_argument("--scratch", type=Path, help="folder for the corpora")
    parser.add_argument("--figure", type=Path, help="file for a figure of the table, .svg or .png")
    parser.add_argument("--stage", choices=STAGES, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.stage:
        print(json.dumps(run_stage(given.stage, given.folder, given.model)))
        return
    sizes = [given.sentences * times // TIMES[-1] for times in TIMES]
    rows = [row for sentences in sizes for row in measured(sentences, given.model, given.scratch)]
    print("| stage | " + " | ".join(f"{sentences:,}" for sentences in sizes) + " |")
    print("|---|" + "--:|" * len(sizes))
    for stage in STAGES:
        of_stage = [row for row in rows if row["stage"] == stage]
        print(
            f"| {stage} | "
            + " | ".join(f"{row['megabytes']:.0f} MB, {row['seconds']:.0f} s" for row in of_stage)
            + " |"
        )
    if given.figure:
        draw(rows, given.figure)


if __name__ == "__main__":
    main()
