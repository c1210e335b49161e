"""Show what each layer alone loses on which tokens, in nats, from the outcomes of the layers in config/gemma.yaml.

    python benchmarks/layer_tokens.py results/NAME ID

The heads of one layer, or of one kind of layers, are replaced by averages (`benchmarks/layers.py`). Prints a Markdown
table with a row for each: what is lost on all tokens, and then without those of this ID, such as that of <unk>.
Brackets: 95% intervals over texts.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.tokens import kinds, tokens_of
from papa.files import read_facts, read_table
from papa.results.outcomes import outcomes_in
from papa.results.reliance import effect_of


def table(results: Path, left_out: int) -> Iterator[str]:
    """Yield the lines of the table."""
    path = results / "tables/outcomes.parquet"
    [outcomes] = outcomes_in(read_table(path), read_facts(path))
    tokens = tokens_of(results, outcomes)
    [every, *_] = (mask for _, mask in kinds(outcomes, tokens, None))
    masks = {"all tokens": every}
    masks |= {
        "without <unk>" if name == "all" else name: mask
        for name, mask in kinds(outcomes, tokens, left_out)
        if "slots" not in name
    }
    samples = {name: outcomes.sample(outcomes.metric, mask) for name, mask in masks.items()}
    yield f"| averages in | {' | '.join(f'{name} ({masks[name].sum():,})' for name in masks)} |"
    yield "|--:" * (1 + len(masks)) + "|"
    for setting in outcomes.settings():
        if setting.constant != "average":
            continue
        cells = []
        for sample in samples.values():
            effect = effect_of(sample, setting)
            assert effect is not None
            value, low, high, _ = effect.lost()
            cells.append(f"{value:.2f} ({low:.2f} to {high:.2f})")
        name = (setting.order or "all layers").removeprefix("list-")
        yield f"| {name} | {' | '.join(cells)} |"


if __name__ == "__main__":
    print(*table(Path(sys.argv[1]), int(sys.argv[2])), sep="\n")
