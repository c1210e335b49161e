"""papa's conclusions on models with known answers: which orders find the head that needs its input, and the claims.

    python benchmarks/known.py results/known     # what each head costs, and the AUROC of every order of a run
    python benchmarks/known.py --studies 200     # claims of studies of new texts: 9 minutes of CPU time
    python benchmarks/known.py --lists 200       # verdicts on a right and a wrong list, in studies of new texts
    python benchmarks/known.py --long            # a study of texts of 4,096 tokens

The results are those of config/known.yaml or config/known-interactions.yaml, for which the cost of each head is
printed, or of config/known-lookup.yaml.
A study is config/known.yaml with few texts and a new seed for them; its jobs run one after another in this process.
Nine of the ten heads are replaceable: claiming ten is an error, and claiming fewer shows a lack of power. Of lists, it
is an error to reject the one with the induction head, or to let one without it pass. Prints Markdown;
docs/known-answers.md explains it.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import torch
import yaml
from torch.nn.functional import cross_entropy
from transformers import AutoTokenizer

import papa
from papa.config.reading import config_of
from papa.config.study import Study
from papa.data.generated import generate
from papa.data.generated.known import HEADS, INDUCTION, LAYERS, LONG, NEEDED, SLOTS, known_model
from papa.data.local_digests import LocalSourceDigests
from papa.errors import count
from papa.files import PathLike, read_table
from papa.jobs.measure import run_here
from papa.model.replacement import Constants
from papa.results.conclusion import Conclusion

CONFIG = Path(__file__).parents[1] / "config/known.yaml"
FRACTIONS = ["1", "5/10", "2/10", "1/10", "0"]
ROWS = {"train": 48, "validation": 32}
"""The number of texts in a study."""
STEPS = {"batch_size": 8, "epochs": 2}
LONG_ROWS = {"train": 12, "validation": 32}
"""The number of texts in the study of long texts. With 24 for validation, a loss of 0 has an upper bound of 11 %."""
LONG_STEPS = {"batch_size": 2, "epochs": 1}
LONG_CONSTANTS = ["by-distance"]
Claim = tuple[int, dict[str, float]]
"""The number of heads that a study calls replaceable, and the AUROC of each of its orders."""


def auroc(order: PathLike, needed: Collection[tuple[int, int]]) -> float:
    """Return the AUROC of an order: 1 if a head in `needed`, each (layer, head), is replaced after all others.

    It is the share of all other heads that are replaced before the last head in `needed`.
    """
    ranks = ranks_of(order)
    last = max(ranks[head] for head in needed)
    before = [last > rank for head, rank in ranks.items() if head not in needed]
    return sum(before) / len(before)


def ranks_of(order: PathLike) -> dict[tuple[int, int], int]:
    """Return the rank of every head, (layer, head), in an order: 0 for the head that is replaced first."""
    table = read_table(order)
    ranks, layers, heads = (table.column(name).to_pylist() for name in ("rank", "layer", "head"))
    return dict(zip(zip(layers, heads, strict=True), ranks, strict=True))


def orders(results: Path) -> Iterator[tuple[str, float]]:
    """Yield every order of a run of known models: its path, relative to the model, and its AUROC."""
    for name, needed in NEEDED.items():
        folder = results / "models" / name
        for path in sorted([*folder.rglob("order.parquet"), *folder.glob("orders/*.parquet")]):
            yield str(path.relative_to(folder)).removesuffix(".parquet").removesuffix("/order"), auroc(path, needed)


def costs(results: Path, name: str) -> Iterator[tuple[str, float, float]]:
    """Yield the cost of replacing each head of a decoder by averages and by zeros, in nats per repeated word."""
    folder = known_model(name)
    model, tokenizer = papa.load_model(folder, device="cpu"), AutoTokenizer.from_pretrained(folder)
    average = papa.ConstantMatrices.load(
        results
        / Study(config_of(yaml.safe_load(CONFIG.read_text())), "").path(
            "average", model=name, laid_out="repeats", averaged="average"
        )
    )
    zeros = torch.zeros_like(average.mean)
    texts = generate("repeats", "validation", 300, seed=0)["first"].tolist()
    inputs = papa.lay_out(tokenizer, texts, slots=SLOTS, style="contiguous")

    def loss(constants: Constants, heads: list[tuple[int, int]]) -> float:
        logits, ids = model.logits(inputs, constants, heads)[:, :-1], inputs["input_ids"][:, 1:]
        again = (ids[:, :, None] == ids[:, None]).tril(-1).any(-1) & inputs["attention_mask"][:, 1:].bool()
        again[:, 1:] &= again[:, :-1].clone()  # without repeated words that follow a new word
        return cross_entropy(logits[again], ids[again]).item()

    original = loss(average, [])
    for layer, head in product(range(LAYERS), range(HEADS)):
        yield f"{layer}, {head}", *(loss(kept, [(layer, head)]) - original for kept in (average, zeros))


def study(seed: int, folder: Path) -> Claim:
    """Run a study whose texts have this seed; write its results to an empty folder."""
    return claimed_by_order(small(seed), folder)["lambda"], dict(orders(folder))


def claimed_by_order(written: Mapping[str, Any], folder: Path) -> dict[str, int]:
    """Run a config in an empty folder, and return how many heads are replaceable in each order."""
    return {str(line.order): int(line.replaceable or 0) for line in concluded(written, folder).lines}


def concluded(written: Mapping[str, Any], folder: Path) -> Conclusion:
    """Run a config in an empty folder, and return its conclusion."""
    config = config_of(written)
    made = Study(config, folder, LocalSourceDigests(config.machine))
    run_here(made, made.job("claims"))
    return Conclusion.read(folder / made.path("claims_json"))


def small(seed: int, model: str = "induction") -> dict[str, Any]:
    """Return config/known.yaml with a known decoder, few texts, which have this seed, and few fractions."""
    given: dict[str, Any] = yaml.safe_load(CONFIG.read_text(encoding="utf-8"))
    given["run"] |= {"models": [model], "tasks": ["repeats"], "fractions": FRACTIONS}
    given["models"] = {model: {"known": model}}
    given["corpora"]["repeats"] |= {"rows": ROWS, "seed": seed}
    given["tasks"]["repeats"] |= STEPS
    return {key: kept for key, kept in given.items() if key not in ("grids", "patterns")}


def long_texts(slots: int, folder: Path) -> Iterator[str]:
    """Study the known decoder of long texts in an empty folder, and yield the lines of a Markdown table of the losses.

    Args:
        slots: the number of tokens to which texts are truncated, at most 4,096.
        folder: the folder of the study.
    """
    written = small(1, "long")
    written["run"] |= {"tasks": ["cycles"], "constants": LONG_CONSTANTS, "orders": ["lambda", "gradient"]}
    written["run"]["fractions"] = ["1", "1/10", "0"]
    corpus = written["corpora"]["repeats"] | {"generated": "cycles", "rows": LONG_ROWS, "slots": slots}
    task = written["tasks"]["repeats"] | LONG_STEPS | {"title": "Cycles", "corpus": "cycles"}
    conclusion = concluded(written | {"corpora": {"cycles": corpus}, "tasks": {"cycles": task}}, folder)
    yield "| constant | order | place of the induction head | 9 heads replaced | 10 heads replaced | replaceable |"
    yield "|---|---|--:|--:|--:|--:|"
    for line in conclusion.lines:
        [order] = folder.rglob(f"{line.constant}/{line.order}-0/order.parquet")
        losses = []
        for step in line.steps:
            ends = (math.nan if value is None else 100 * value for value in (step.loss, step.low, step.high))
            loss, low, high = (round(end, 1) + 0.0 for end in ends)  # no -0
            losses.append(f"{loss:.1f} % ({low:.1f} to {high:.1f})")
        place = 1 + ranks_of(order)[INDUCTION]
        yield f"| {line.constant} | {line.order} | {place} | {' | '.join(losses)} | {line.replaceable} |"


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("results", nargs="?", type=Path, help="the results of a config of known models")
    asked.add_argument("--studies", type=int, default=0, help="how many studies are made")
    asked.add_argument("--long", type=int, nargs="?", const=LONG.slots, help="the tokens of long texts (default: 4096)")
    given = asked.parse_args()
    torch.set_num_threads(1)
    if given.results is not None:
        decoders = [name for name in NEEDED if name != "lookup"]  # only a decoder's own head has a loss in nats
        for decoder in (name for name in decoders if (given.results / "models" / name).exists()):
            print(f"\n{decoder}\n\n| layer, head | averages | zeros |\n|---|--:|--:|")
            for head, of_average, of_zeros in costs(given.results, decoder):
                print(f"| {head} | {round(of_average, 3) + 0.0:.3f} | {round(of_zeros, 3) + 0.0:.3f} |")  # no -0
        print("\n| order | AUROC |\n|---|--:|")
        for name, aurocs in orders(given.results):
            print(f"| {name} | {aurocs:.2f} |")
    claimed, ranked = Counter[int](), Counter[str]()
    for seed in range(1, given.studies + 1):
        with tempfile.TemporaryDirectory() as folder:
            replaceable, aurocs = study(seed, Path(folder))
        claimed[replaceable] += 1
        ranked.update(name for name, share in aurocs.items() if share == 1)
        if seed % 10 == 0 or seed == given.studies:
            heads = ", ".join(f"{number} heads in {times}" for number, times in sorted(claimed.items()))
            print(f"{count(seed, 'study', 'studies')}: replaceable are {heads}; last in {dict(ranked)}", flush=True)
    if given.long:
        with tempfile.TemporaryDirectory() as folder:
            print("\n" + "\n".join(long_texts(given.long, Path(folder))))


if __name__ == "__main__":
    main()
