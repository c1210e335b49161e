"""A copy of the workflow, a tiny random BERT, and a few rows of text to run it on."""

import copy
import inspect
import json
import os
import pty
import random
import re
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import forked
import yaml
from pydantic import TypeAdapter

from papa.config.settings import Corpus

REPOSITORY = Path(__file__).parents[1]
WORDS = "the a cat dog bird sees hears finds old small red runs sleeps here now".split()
ROWS = {"train": 24, "validation": 12}
TRAINING = {"learning_rate": 0.001, "batch_size": 8, "epochs": 1}
ONE_CORE = ("--cores", "1", "--configfile", "config.yaml")

CONFIG = {
    "name": "tiny",
    "floors": ["zeros"],
    "resamples": 0,
    "run": {
        "models": ["tiny"],
        "tasks": ["animals", "tags"],
        "fractions": ["1", "1/2", "0"],
        "seeds": [1],
    },
    "models": {"tiny": {"path": "models/tiny"}},
    "corpora": {
        "sentences": {
            "files": {split: f"data/sentences.{split}.csv" for split in ROWS},
            "first": "sentence",
            "slots": 13,
        },
        "words": {
            "files": {split: f"data/words.{split}.jsonl" for split in ROWS},
            "words": "words",
            "slots": 11,
        },
    },
    "tasks": {
        "animals": {
            "corpus": "sentences",
            "label": "animal",
            "subset": "long",
            "metric": "accuracy",
        }
        | TRAINING,
        "tags": {"corpus": "words", "label": "tags", "metric": "token_accuracy"} | TRAINING,
    },
}
"""Two tasks on two corpora, three fractions, one seed: enough for every rule, and to see what an edit keeps."""

ABSENT = object()
"""Stands for a key that an edit of a config removes."""

JOBS = {"tokenize": 2, "average": 2, "learn_lambda": 2, "hidden_states": 4, "probe": 8, "report": 1}
"""How many jobs of each rule `CONFIG` needs."""


def with_keys(config, changes):
    """A copy of a config with new values at paths of keys, joined by dots or in a tuple; ABSENT removes a key."""
    config = copy.deepcopy(config)
    for path, value in changes.items():
        *blocks, key = path.split(".") if isinstance(path, str) else path
        block = config
        for name in blocks:
            block = block.setdefault(name, {})
        block[key] = copy.deepcopy(value)
        if value is ABSENT:
            del block[key]
    return config


def without_labels(task, metric):
    """A copy of a task that predicts tokens."""
    kept = {key: value for key, value in task.items() if key not in ("label", "subset")}
    return kept | {"metric": metric}


def with_a_flipped_bit(content, place):
    """The content of a file in which one bit of the byte at a place is another."""
    return content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :]


def corpus_of(**keys):
    """The corpus with these keys, which choose its kind."""
    return TypeAdapter(Corpus).validate_python(keys)


def empty_figure(chart, svg, png):
    """Stands in for `draw` in `papa.results.section`."""
    for path in (svg, png):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return ""


def python_process(code, *arguments, **environment):
    """How `subprocess` starts a process that runs code, in which papa is that of these tests."""
    return {
        "args": [sys.executable, "-c", code, *map(str, arguments)],
        "env": os.environ | {"PYTHONPATH": str(REPOSITORY)} | environment,
        "text": True,
    }


def in_python(code, *arguments, folder=None, **environment):
    """Run code in a new process; returns the process with its output."""
    process = python_process(code, *arguments, **environment)
    return subprocess.run(**process, cwd=folder, capture_output=True, timeout=120)


def succeeded(process):
    """A finished process, after an assertion that it succeeded."""
    assert process.returncode == 0, process.stdout + process.stderr
    return process


def on_a_terminal(command, **settings):
    """Run a command on a terminal; returns all that the terminal receives, and the exit code."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, **settings)
    os.close(theirs)
    received = b""
    with suppress(OSError):  # Linux raises it once nobody has the terminal open any more
        while part := os.read(ours, 65536):
            received += part
    os.close(ours)
    return received.decode(), process.wait(timeout=60)


def workflow_of(is_main_process=True):
    """Stands in for what a Snakefile knows of its workflow."""
    modifier = SimpleNamespace(
        path_modifier=SimpleNamespace(prefix=None), modify_rulename=lambda name: name
    )
    return SimpleNamespace(
        modifier=modifier, rules=[], is_main_process=is_main_process, configfiles=[]
    )


class Copy:
    """A copy of the repository's workflow in another folder."""

    def __init__(self, folder):
        self.folder = folder

    def copied(self, folder):
        shutil.copytree(self.folder, folder, symlinks=True)
        return Copy(folder)

    def draw_nothing(self):
        """Make figures empty files from now on, also in jobs of snakemake."""
        source = inspect.getsource(empty_figure).replace("empty_figure", "draw")
        with open(self.folder / "papa/results/section.py", "a") as section:
            section.write(f"\n\n{source}")
        return self

    def write(self, config, name="config.yaml"):
        (self.folder / name).write_text(yaml.safe_dump(config, sort_keys=False))
        return name

    def snakemake(self, *arguments, before=(), **settings):
        """Run snakemake, with the words of a command `before` it, and return the finished process with its output."""
        if not before and not settings:
            return forked.run(arguments, self.folder, self.settings()["env"])
        command = [*before, *self.command(arguments)]
        return subprocess.run(
            command, **self.settings(), capture_output=True, timeout=1800, **settings
        )

    def run(self, *arguments):
        return succeeded(self.snakemake(*arguments))

    def compute(self, config):
        """Compute all results of a config in this process, and return the results folder.

        A run of the workflow loads the libraries again for each of its jobs. Figures are empty files, and nothing is
        cached from earlier tests.
        """
        import pytest

        from papa.commands.measure import run_here
        from papa.config.reading import config_of
        from papa.plan.study import Plan

        self.write(config)
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(self.folder)
            patch.setenv("XDG_CACHE_HOME", f"{self.folder}/cache")
            patch.setattr("papa.results.section.draw", empty_figure)
            run_here(Plan(config_of(config), f"results/{config['name']}"))
        return self.folder / "results" / config["name"]

    def started(self, *arguments):
        """Start snakemake in a new group of processes, and return the running process."""
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(
            self.command(arguments), **self.settings(), **pipes, start_new_session=True
        )

    def command(self, arguments):
        return [sys.executable, "-m", "snakemake", *arguments]

    def settings(self):
        environment = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("PAPA_", "SNAKEMAKE_"))
        }
        return {"cwd": self.folder, "env": environment, "text": True}

    def planned(self, config=CONFIG, *arguments):
        """Return how many jobs of each rule a dry run of `config` plans, without the total and the target rule."""
        if config is not None:
            arguments = ("--configfile", self.write(config, "edited.yaml"), *arguments)
        process = self.run("-n", "--quiet", "rules", *arguments)
        output = process.stdout + process.stderr
        if "Job stats:" not in output:
            return {}
        table = output.split("Job stats:")[1].split("\n\n")[0]
        counts = re.findall(r"^([a-z_]+) +(\d+)$", table, re.MULTILINE)
        return {rule: int(number) for rule, number in counts if rule not in ("total", "all")}


def copy_of_repository(folder):
    for part in ("papa", "workflow", "config"):
        shutil.copytree(
            REPOSITORY / part, folder / part, ignore=shutil.ignore_patterns("__pycache__")
        )
    shutil.copy2(REPOSITORY / "Snakefile", folder)
    (folder / "profiles").symlink_to("workflow/profiles")
    (folder / "data").mkdir()
    (folder / "data/demo").symlink_to(REPOSITORY / "data/demo")
    return Copy(folder)


def first_rows(folder, name, train=60, validation=30):
    """Write the first rows of a corpus of the demo to a folder; returns the corpus of a config."""
    files = {}
    for split, rows in (("train", train), ("validation", validation)):
        [path] = (REPOSITORY / "data/demo" / name).glob(f"{split}.*")
        text = path.read_text()
        end = "\n\n" if path.suffix == ".conll" else "\n"
        target = folder / name / path.name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(end.join([*text.split(end)[: rows + (path.suffix == ".csv")], ""]))
        files[split] = str(target)
    demo = yaml.safe_load((REPOSITORY / "config/config.yaml").read_text())
    return demo["corpora"][name] | {"files": files}


def tokenizer_of(words, **options):
    """A tokenizer to which these words or parts of words are the tokens."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    special = {
        "pad_token": "[PAD]",
        "unk_token": "[UNK]",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
    }
    vocabulary = {word: number for number, word in enumerate([*special.values(), *words])}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(token, vocabulary[token]) for token in ("[CLS]", "[SEP]")],
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special, **options)


def write_model(folder, seed=0):
    """A BERT of 2 layers and 2 heads with random weights, and a tokenizer that knows `WORDS`."""
    import torch
    from transformers import BertConfig, BertModel

    tokenizer = tokenizer_of(WORDS, model_max_length=32)
    tokenizer.save_pretrained(folder)
    torch.manual_seed(seed)
    sizes = {
        "hidden_size": 8,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 16,
    }
    config = BertConfig(vocab_size=len(tokenizer), max_position_embeddings=32, **sizes)
    BertModel(config, add_pooling_layer=False).save_pretrained(folder)


def write_inputs(folder):
    """The model and the data of `CONFIG`, below a folder."""
    write_model(folder / "models/tiny")
    write_data(folder / "data")


def write_data(folder):
    """Sentences with two labellings, as CSV; words with tags, as JSON lines."""
    chance = random.Random(0)
    folder.mkdir(exist_ok=True)
    for split, rows in ROWS.items():
        sentences = [chance.choices(WORDS, k=chance.randint(3, 9)) for _ in range(rows)]
        lines = [
            f"{' '.join(words)},{row % 2},{'long' if row % 3 else 'short'}"
            for row, words in enumerate(sentences)
        ]
        (folder / f"sentences.{split}.csv").write_text(
            "\n".join(["sentence,animal,long", *lines, ""])
        )
        if split == "train":  # every tag is in the training split
            sentences[:2] = [WORDS[:8], WORDS[8:]]
        lines = [
            json.dumps({"words": words, "tags": [word[0] for word in words]}) for words in sentences
        ]
        (folder / f"words.{split}.jsonl").write_text("\n".join([*lines, ""]))
