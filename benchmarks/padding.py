"""Do scores change if a model computes its unused slots, too? A study of a task in both ways, with a few rows.

    python benchmarks/padding.py config/mpnet-all.yaml ner --work FOLDER [--train 600] [--mirror FOLDER]

Prints the score of the original model, and the seconds of the whole study; files of an earlier run make them fewer.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import yaml

from papa.commands.measure import run_here
from papa.config.reading import config_of
from papa.files import read_table
from papa.model import settling
from papa.model.forms import PADDED, forms_of
from papa.plan.study import Plan

FORMS = {"unused slots left out": forms_of, "all slots computed": lambda *_: iter([PADDED])}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run both studies, and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("config", type=Path)
    parser.add_argument("task")
    parser.add_argument("--work", type=Path, required=True, help="an empty folder for all files")
    parser.add_argument("--train", type=int, default=600)
    parser.add_argument("--validation", type=int, default=300)
    parser.add_argument("--mirror", help="a folder laid out like the hub")
    options = parser.parse_args(arguments)
    settings = yaml.safe_load(options.config.read_text(encoding="utf-8"))
    if options.mirror:
        settings["hub_mirror"] = options.mirror
    corpus = settings["corpora"][settings["tasks"][options.task]["corpus"]]
    corpus["train_limit"] = options.train
    corpus["validation"] = f"validation[:{options.validation}]"
    settings["run"] |= {"tasks": [options.task], "fractions": ["1"], "seeds": [1]}
    settings |= {"floors": [], "resamples": 0}
    print("| slots | score | seconds |")
    print("|---|--:|--:|")
    for name, forms in FORMS.items():
        settling.forms_of = forms
        results = options.work / name.replace(" ", "-") / "results/padding"
        begin = time.perf_counter()
        run_here(Plan(config_of(settings), results))
        took = time.perf_counter() - begin
        [score] = read_table(results / "tables/runs.parquet").to_pandas().query("main").score
        print(f"| {name} | {score:.4f} | {took:.0f} |", flush=True)


if __name__ == "__main__":
    main()
