"""A config from YAML, checked before any job starts. Every error is one sentence that names the key.

The schema says what keys there are and of what kind; the checks here are those that look at several keys at once.
Nothing heavy is imported: the workflow reads this module whenever it is planned.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

from papa.config.grids import RUN, Config, corpora_of_runs, grids, is_masked
from papa.config.kinds import kind_of
from papa.config.schema import filled_in, short
from papa.data.prepare import METRICS, check_metric
from papa.data.sources import splits_of
from papa.errors import InputError

NAME = "[a-z0-9][a-z0-9_-]{0,63}"
"""Names (of configs, models, corpora, tasks, grids) become parts of paths; with these letters they stay in results/."""

TAKEN = (RUN, "runs", "summary", "published", "score_and_drop")
"""Tables of every config, so no names of grids."""

SOURCES = ("hub", "files", "generated")
ONLY_WITH = {
    "config": "hub",
    "revision": "hub",
    "train": "hub",
    "validation": "hub",
    "more_validation": "hub",
    "columns": "files",
    "rows": "generated",
    "seed": "generated",
}
"""Keys of a corpus that mean something for one source alone."""

PUBLISHED_CODE: Config = {
    "layout": {"style": "published_code", "segments": "published_code"},
    "encoder_dropout": True,
    "score_validation": "all",
}
"""What `fidelity: published_code` stands for; the schema's defaults are the paper's."""


def checked(config: Any, schema: str | Path) -> Config:
    """A copy of `config` with the defaults of `schema` (a YAML file) filled in; raises `InputError` where it is wrong.

    Whatever YAML can hold may be given.

    Fractions come back in lowest terms: "2/4" as "1/2". The lines of .txt files come back as the column `text`.
    """
    _check_names(config)
    filled = filled_in(_with_fidelity(config), _rules(schema))
    _check_run("run", filled["run"], filled)
    for name, grid in filled["grids"].items():
        _check_run(f"grids.{name}", grid, filled)
    for task in filled.get("patterns", {}).get("tasks", []):
        known = list(dict.fromkeys(name for grid in grids(filled) for name in grid["tasks"]))
        if task not in known:
            raise InputError(
                f"patterns.tasks names {task!r}, which is not run; those that are run: {', '.join(known)}."
            )
    for name, model in filled["models"].items():
        _check_model(f"models.{name}", model)
    for name, corpus in filled["corpora"].items():
        _check_corpus(f"corpora.{name}", corpus)
    for name, task in filled["tasks"].items():
        _check_task(f"tasks.{name}", task, filled["corpora"])
    _check_features(filled)
    for where, grid in zip(["run", *(f"grids.{name}" for name in filled["grids"])], grids(filled), strict=True):
        _check_trained(where, grid, filled["tasks"])
    return filled


@cache
def _rules(schema: str | Path) -> Config:
    import yaml

    return yaml.safe_load(Path(schema).read_text(encoding="utf-8"))


def _with_fidelity(config: Any) -> Any:
    """`config` with what its fidelity stands for, wherever it does not say otherwise itself."""
    if not isinstance(config, Mapping) or config.get("fidelity") != "published_code":
        return config
    layout = config.get("layout", {})
    chosen = {"layout": PUBLISHED_CODE["layout"] | layout} if isinstance(layout, Mapping) else {}
    return PUBLISHED_CODE | dict(config) | chosen


def fraction(written: Any) -> str:
    """A fraction of heads such as "1/8", "0" or "1" in lowest terms; raises `InputError` for anything else."""
    match = re.fullmatch(r"([0-9]{1,6})(?:/([0-9]{1,6}))?", str(written))
    if not match or isinstance(written, bool) or int(match[2] or 1) == 0 or Fraction(match[0]) > 1:
        raise InputError(
            f'{written!r} is no fraction between 0 and 1; write it as "a/b", for example "1/8", or 0 or 1.'
        )
    return str(Fraction(match[0]))


def check_files(config: Config) -> None:
    """Raise `InputError` where a local file of a task that is run, or of its averages, does not exist."""
    for corpus in corpora_of_runs(config):
        for split, path in config["corpora"][corpus].get("files", {}).items():
            if not os.path.isfile(path):
                raise InputError(
                    f"corpora.{corpus}.files.{split}: there is no file {path} (relative paths start from {Path.cwd()})."
                )


def _check_names(config: Any) -> None:
    """Names become parts of paths; what is no text at all is left to the schema."""
    blocks = config if isinstance(config, Mapping) else {}
    given = [("name", blocks.get("name"))]
    given += [
        (f"a key of {kind}", name)
        for kind in ("models", "corpora", "tasks", "grids")
        if isinstance(blocks.get(kind), Mapping)
        for name in blocks[kind]
    ]
    for where, name in given:
        if isinstance(name, str) and not re.fullmatch(NAME, name):
            raise InputError(
                f"{short(name)} ({where}) cannot be a name: names are 1 to 64 characters out of a-z, 0-9, _ and -, "
                f"and begin with a letter or digit."
            )
        if where == "a key of grids" and name in TAKEN:
            raise InputError(
                f"No grid can be called {name!r}, for papa has another table of that name; rename the grid."
            )


def _check_run(where: str, run: dict[str, Any], config: Config) -> None:
    for kind in ("models", "tasks"):
        for name in run.get(kind, []):
            if name not in config[kind]:
                raise InputError(
                    f"{where}.{kind} names {name!r}, which is not defined; defined are {', '.join(config[kind])}."
                )
    for number, name in enumerate(run.get("constants", [])):
        try:
            corpus = kind_of(name).corpus
        except InputError as error:
            raise InputError(f"{where}.constants[{number}]: {error}") from None
        if corpus is not None and corpus not in config["corpora"]:
            raise InputError(
                f"{where}.constants[{number}] is {name!r}, but no corpus is called {corpus!r}; "
                f"defined are {', '.join(config['corpora'])}."
            )
    for number, written in enumerate(run.get("fractions", [])):
        try:
            run["fractions"][number] = fraction(written)
        except InputError as error:
            raise InputError(f"{where}.fractions[{number}]: {error}") from None
    for key, values in run.items():
        twice = next(_repeated(values), None) if isinstance(values, list) else None
        if twice is not None:
            raise InputError(f"{where}.{key} has {twice!r} twice; give each once.")


def _repeated(values: Sequence[Any]) -> Iterator[Any]:
    return (value for value, number in Counter(values).items() if number > 1)


def _check_model(where: str, model: Mapping[str, Any]) -> None:
    if "path" in model and "package" in model:
        raise InputError(f"{where} has both path and package; a model lies in one place, keep one of them.")
    if "random" in model and len(model) > 1:
        raise InputError(
            f"{where} is random, so it has no other keys; leave out {', '.join(model.keys() - {'random'})}."
        )
    if not {"hub", "path", "package", "random"} & model.keys():
        raise InputError(f"{where} says nowhere what the model is; give it hub, path, package or random.")
    if "revision" in model and "hub" not in model:
        raise InputError(f"{where}.revision is a revision on the hub, but {where} has no hub.")


def _check_corpus(where: str, corpus: dict[str, Any]) -> None:
    given = [source for source in SOURCES if source in corpus]
    if len(given) != 1:
        raise InputError(
            f"{where} must have one source out of {', '.join(SOURCES)}; it has {' and '.join(given) or 'none'}."
        )
    for key, source in ONLY_WITH.items():
        if key in corpus and source not in corpus:
            raise InputError(f"{where}.{key} means something with {source} only, but {where} has {given[0]}.")
    if "generated" in corpus and "rows" not in corpus:
        raise InputError(f"{where} is generated and needs rows: how many examples for train and validation.")
    files = corpus.get("files", {}).values()
    if files and "words" not in corpus and all(Path(path).suffix.lower() == ".txt" for path in files):
        corpus.setdefault("first", "text")
    if ("first" in corpus) == ("words" in corpus):
        raise InputError(f"{where} needs either first (a column of texts) or words (a column of lists of words).")
    if "second" in corpus and "words" in corpus:
        raise InputError(f"{where}.second is for pairs of texts, but {where} has words; leave one of them out.")
    taken = ["train", "validation", "all", corpus.get("train"), corpus.get("validation")]
    for number, split in enumerate(corpus.get("more_validation", [])):
        if split in taken or split in corpus["more_validation"][:number]:
            raise InputError(
                f"{where}.more_validation names {split!r}, which is taken; name each further split once, and none "
                f"that is the training or validation split, or is called train, validation or all."
            )
    if corpus["blocks"] and ("words" in corpus or "second" in corpus):
        raise InputError(f"{where}.blocks is for running text, a column of single texts; leave out words and second.")


def _check_task(where: str, task: Mapping[str, Any], corpora: Mapping[str, Any]) -> None:
    corpus = task["corpus"]
    if corpus not in corpora:
        raise InputError(f"{where}.corpus is {corpus!r}, which is not defined; defined are {', '.join(corpora)}.")
    texts = corpora[corpus]
    there = {"slots": "slots" in texts, "validation split": "validation" in splits_of(texts)}
    if not all(there.values()):
        lacking = " and no ".join(key for key in there if not there[key])
        raise InputError(
            f"{where}.corpus is {corpus!r}, which has no {lacking}; give it one, for only averages "
            f"(average-of-{corpus}) do without."
        )
    twice = next(_repeated(task.get("labels", [])), None)
    if twice is not None:
        raise InputError(f"{where}.labels has {twice!r} twice; give each once.")
    metric = task["metric"]
    if METRICS[metric] == "masked":
        of_labels = next((key for key in ("label", "labels", "subset", "published") if key in task), None)
        if of_labels is not None:
            raise InputError(
                f"{where}.{of_labels} is for tasks with labels, but {metric} is the metric of masked language "
                f"modelling, which has none; leave out {of_labels} or take another metric."
            )
        return
    if is_masked(task):
        raise InputError(
            f"{where} needs a label for its metric {metric}; without labels a task is masked language modelling, "
            "whose metric is negative_log_perplexity."
        )
    if texts["blocks"]:
        raise InputError(
            f"{where} has labels, but its corpus {corpus!r} is cut in blocks, which no label belongs to; "
            "give it a corpus without blocks."
        )
    try:
        check_metric(task["metric"], "token" if "words" in corpora[corpus] else "text")
    except InputError as error:
        raise InputError(f"{where}.metric: {error}") from None


def _check_features(config: Config) -> None:
    """What is to be stored must be the same in every epoch."""
    for grid in grids(config):
        trained = [name for name in grid["constants"] if kind_of(name).trained and set(grid["fractions"]) != {"1"}]
        for task in grid["tasks"]:
            if config["tasks"][task].get("features") != "store":
                continue
            why = "encoder_dropout is on" if config["encoder_dropout"] else ""
            why = why or (f"it is run with {trained[0]}, which is trained along with the probe" if trained else "")
            if why:
                raise InputError(
                    f"tasks.{task}.features is store, but {why}, so that hidden states differ in every epoch; "
                    f"leave features out, or give stream."
                )


def _check_trained(where: str, grid: Mapping[str, Any], tasks: Mapping[str, Any]) -> None:
    masked = [name for name in grid["tasks"] if is_masked(tasks[name])]
    trained = [name for name in grid["constants"] if kind_of(name).trained]
    if masked and trained:
        raise InputError(
            f"{where} runs {masked[0]}, masked language modelling, with {trained[0]}, but constants are trained with "
            "labels only; give such tasks a grid of their own under grids, with other constants."
        )
