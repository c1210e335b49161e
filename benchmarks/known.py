"""papa's conclusions on a decoder with a known answer: which orders find the head that needs its input, and the claims.

    python benchmarks/known.py results/known     # run a study, print what each head costs, and the AUROC of every order
    python benchmarks/known.py --studies 200     # claims of studies of new texts: 9 minutes of CPU time

The decoder is data/demo/induction. Nine of its ten heads are replaceable: claiming ten is an error, and claiming fewer
shows a lack of power. A study of `--studies` has few texts, with a new seed for them. Prints Markdown;
docs/known-answers.md explains it.
"""

from __future__ import annotations

import argparse
import runpy
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from transformers import AutoTokenizer

import papa
from papa.commands.measure import run_here
from papa.config.reading import config_of
from papa.errors import count
from papa.files import read_table
from papa.model.replacement import AnyConstants
from papa.plan.study import Plan
from papa.results.reliance import replaceable

DEMO = Path(__file__).parents[1] / "data/demo"
FOLDER = DEMO / "induction"
generate = runpy.run_path(str(DEMO / "write.py"))["generate"]
LAYERS = 2
HEADS = 5
SLOTS = 48
INDUCTION = (1, 2)
"""The head, (layer, head), that needs its input."""
TASK = {"metric": "log_likelihood", "learning_rate": 1.0e-2, "batch_size": 16, "epochs": 1}
ROWS = {"train": 1000, "validation": 300}
FEW_ROWS = {"train": 48, "validation": 32}
"""The number of texts in a study of `--studies`."""


def config(folder: Path, rows: Mapping[str, int] = ROWS, seed: int = 0) -> dict[str, Any]:
    """Write texts with and without repeats to a folder, and return the config of a study of them."""
    corpora = {}
    for name in ("repeats", "no-repeats"):
        files = {split: folder / f"{name}.{split}.txt" for split in rows}
        for split, path in files.items():
            texts = [row["text"] for row in generate(name, split, rows[split], seed)]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("\n".join([*texts, ""]), encoding="utf-8")
        corpora[name] = {
            "files": {split: str(path) for split, path in files.items()},
            "slots": SLOTS,
        }
    by_layer = {
        "tasks": ["repeats"],
        "constants": ["average", "zeros"],
        "orders": ["first-layer-first"],
    }
    orders = {
        "tasks": ["repeats"],
        "orders": ["lambda", "gradient"],
        "fractions": ["1", "5/10", "1/10", "0"],
    }
    return {
        "name": "known",
        "run": {
            "models": ["induction"],
            "tasks": ["repeats", "no-repeats"],
            "fractions": ["1", *(f"{kept}/10" for kept in range(9, 0, -1)), "0"],
        },
        "grids": {
            "averages-and-zeros": {"title": "Averages and zeros, from the first layer on"}
            | by_layer,
            "orders": {"title": "Orders of heads"} | orders,
        },
        "models": {"induction": {"path": str(FOLDER)}},
        "corpora": corpora,
        "tasks": {name: {"title": name.capitalize(), "corpus": name} | TASK for name in corpora},
        "threads": 1,
    }


def orders(results: Path) -> Iterator[tuple[str, float]]:
    """Yield every order of a run: its task, constant and name, and its AUROC.

    The AUROC is the share of all other heads that are replaced before the induction head.
    """
    heads = read_table(results / "tables/heads.parquet").to_pandas()
    for names, rows in heads.groupby(["task", "constant", "order", "seed"], sort=False):
        [last] = rows[(rows["layer"] == INDUCTION[0]) & (rows["head"] == INDUCTION[1])]["rank"]
        yield "/".join(map(str, names)), float((rows["rank"] < last).sum() / (len(rows) - 1))


def costs(results: Path) -> Iterator[tuple[str, float, float]]:
    """Yield the cost of replacing each head by averages and by zeros, in nats per repeated word."""
    model = papa.load_model(FOLDER, device="cpu")
    tokenizer = AutoTokenizer.from_pretrained(FOLDER)
    average = papa.load(results).constants("repeats", constant="average")
    zeros = torch.zeros_like(average.mean)
    texts = [row["text"] for row in generate("repeats", "validation", 300)]
    inputs = papa.lay_out(tokenizer, texts, slots=SLOTS, style="contiguous")

    def loss(constants: AnyConstants, heads: list[tuple[int, int]]) -> float:
        logits = model.logits(inputs, constants, heads)[:, :-1]
        ids = inputs["input_ids"][:, 1:]
        again = (ids[:, :, None] == ids[:, None]).tril(-1).any(-1) & inputs["attention_mask"][
            :, 1:
        ].bool()
        again[:, 1:] &= again[:, :-1].clone()  # without repeated words that follow a new word
        return cross_entropy(logits[again], ids[again]).item()

    original = loss(average, [])
    for layer, head in product(range(LAYERS), range(HEADS)):
        yield (
            f"{layer}, {head}",
            *(loss(kept, [(layer, head)]) - original for kept in (average, zeros)),
        )


def study(seed: int, folder: Path) -> tuple[int, dict[str, float]]:
    """Run a study of few texts with this seed in an empty folder.

    Returns:
        The number of heads that are replaceable in the order of λ, and the AUROC of each order.
    """
    written = config(folder / "data", FEW_ROWS, seed)
    written["run"] |= {"tasks": ["repeats"], "fractions": ["1", "5/10", "2/10", "1/10", "0"]}
    written["tasks"]["repeats"] |= {"batch_size": 8, "epochs": 2}
    checked = config_of({key: value for key, value in written.items() if key != "grids"})
    run_here(Plan(checked, folder, cache=folder / "cache"))
    claims = read_table(folder / "tables/claims.parquet").to_pandas()
    return replaceable(claims[claims["task"].isna()]), dict(orders(folder))


def main() -> None:
    asked = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    asked.add_argument(
        "results", nargs="?", type=Path, help="the folder for the results of a study"
    )
    asked.add_argument("--studies", type=int, default=0, help="how many studies are made")
    given = asked.parse_args()
    torch.set_num_threads(1)
    if given.results is not None:
        checked = config_of(config(given.results / "data"))
        run_here(Plan(checked, given.results, cache=given.results / "cache"))
        print("\n| layer, head | averages | zeros |\n|---|--:|--:|")
        for head, of_average, of_zeros in costs(given.results):
            print(
                f"| {head} | {round(of_average, 3) + 0.0:.3f} | {round(of_zeros, 3) + 0.0:.3f} |"
            )  # no -0
        print("\n| order | AUROC |\n|---|--:|")
        for name, area in orders(given.results):
            print(f"| {name} | {area:.2f} |")
    claimed = Counter[int]()
    ranked = Counter[str]()
    for seed in range(1, given.studies + 1):
        with tempfile.TemporaryDirectory() as folder:
            replaceable, areas = study(seed, Path(folder))
        claimed[replaceable] += 1
        ranked.update(name for name, area in areas.items() if area == 1)
        if seed % 10 == 0 or seed == given.studies:
            heads = ", ".join(
                f"{number} heads in {times}" for number, times in sorted(claimed.items())
            )
            print(
                f"{count(seed, 'study', 'studies')}: replaceable are {heads}; last in {dict(ranked)}",
                flush=True,
            )


if __name__ == "__main__":
    main()
