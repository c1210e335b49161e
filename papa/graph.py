"""What a checked config asks for: the runs it consists of, the paths of artefacts, and what each job depends on.

Everything follows from the config alone; no model is loaded and no row is counted. Each method that gives the
parameters of a job gives one plain dict with what that job depends on and nothing else, so that an edit reruns only
what it touches. Places (mirror, folders of models, device, threads) are in none of them.
"""

from __future__ import annotations

import json
import re
from typing import Any

from papa.config import Config

ORIGINAL, ALL_REPLACED = "original", "all"
CORPUS_VARIANTS = "original|[a-z]+/all"
"""Pattern of what depends on texts alone: nothing replaced, or every head."""
TASK_VARIANTS = "[a-z]+/[a-z]+/kept-[0-9]+of[0-9]+"
"""Pattern of what depends on a task's order of heads: constant/order/fraction."""

Params = dict[str, Any]


def variant(constant: str, order: str, fraction: str) -> str:
    """The part of a path that says what is replaced: with nothing replaced no constant or order, with all no order."""
    if fraction == "1":
        return ORIGINAL
    if fraction == "0":
        return f"{constant}/{ALL_REPLACED}"
    return f"{constant}/{order}/kept-{fraction.replace('/', 'of')}"


def setting(variant: str) -> dict[str, str | None]:
    """Constant, order and fraction of a variant: the inverse of `variant`."""
    if variant == ORIGINAL:
        return {"constant": None, "order": None, "fraction": "1"}
    constant, *rest = variant.split("/")
    if rest == [ALL_REPLACED]:
        return {"constant": constant, "order": None, "fraction": "0"}
    order, kept = rest
    return {"constant": constant, "order": order, "fraction": kept.removeprefix("kept-").replace("of", "/")}


class Graph:
    """The artefacts of one config, and the parameters of the jobs that make them.

    Paths begin with `<results>`, the workflow's variable for the folder of the config's results.
    """

    def __init__(self, config: Config):
        self.config = config

    # Paths

    def corpus_of(self, task: str) -> str:
        return self.config["tasks"][task]["corpus"]

    def files(self, corpus: str) -> list[str]:
        """Local files that a corpus is read from."""
        return list(self.config["corpora"][corpus].get("files", {}).values())

    def texts(self, task: str) -> str:
        """Path of the texts that a task labels."""
        return f"<results>/corpora/{self.corpus_of(task)}/texts.parquet"

    def tokens(self, model: str, task: str) -> str:
        """Path of those texts, laid out for a model."""
        return f"<results>/models/{model}/corpora/{self.corpus_of(task)}/tokens.parquet"

    def constants(self, model: str, task: str, constant: str) -> str:
        """Path of the matrices that stand in for a model's attention in a task."""
        return f"<results>/models/{model}/corpora/{self.corpus_of(task)}/{constant}.h5"

    def constants_of_corpus(self, model: str, corpus: str, variant: str) -> str | list[str]:
        """Path of the matrices behind a variant that depends on texts alone; an empty list where there are none."""
        constant = setting(variant)["constant"]
        return [] if constant is None else f"<results>/models/{model}/corpora/{corpus}/{constant}.h5"

    def features(self, model: str, task: str, variant: str) -> dict[str, str]:
        """Paths of the hidden states that a probe reads: the corpus's own where no order of heads is in them."""
        of_corpus = re.fullmatch(CORPUS_VARIANTS, variant)
        owner = f"corpora/{self.corpus_of(task)}" if of_corpus else f"tasks/{task}"
        folder = f"<results>/models/{model}/{owner}/features/{variant}"
        files = {"train": "train.hidden", "validation": "validation.hidden", "index": "index.json"}
        return {name: f"{folder}/{file}" for name, file in files.items()}

    def variants(self) -> list[str]:
        """What is replaced in the runs of the config, each variant once."""
        run = self.config["run"]
        return list(
            dict.fromkeys(
                variant(constant, order, fraction)
                for fraction in run["fractions"]
                for constant in run["constants"]
                for order in run["orders"]
            )
        )

    def runs(self) -> list[str]:
        """Paths of all runs of the config."""
        return [
            f"<results>/models/{model}/tasks/{task}/runs/{variant}/seed-{seed}.json"
            for model, task in self._pairs()
            for variant in self.variants()
            for seed in self.config["run"]["seeds"]
        ]

    def artefacts(self) -> list[str]:
        """Paths of all that the runs are made from, but for the hidden states themselves, which may be deleted.

        The workflow wants them all. If it wanted the tables alone, a job that a change calls for and that then fails
        would leave its artefact missing and the tables in place, and the next start would take those for up to date.
        """
        wanted: dict[str, None] = {}
        for model, task in self._pairs():
            own = [self.texts(task), f"<results>/tasks/{task}/labels.parquet", self.tokens(model, task)]
            for variant in self.variants():
                constant, order, _ = setting(variant).values()
                if constant is not None:
                    own.append(self.constants(model, task, constant))
                if order is not None:
                    folder = f"<results>/models/{model}/tasks/{task}/{constant}"
                    own += [f"{folder}/lambda.parquet", f"{folder}/{order}/order.parquet"]
                own.append(self.features(model, task, variant)["index"])
            wanted |= dict.fromkeys(own)
        return [*wanted, *self.runs()]

    def _pairs(self) -> list[tuple[str, str]]:
        run = self.config["run"]
        return [(model, task) for model in run["models"] for task in run["tasks"]]

    # Parameters

    def model(self, name: str) -> Params:
        """The identity of a model, which does not say where it lies."""
        given = self.config["models"][name]
        return {"name": name} | {key: given.get(key) for key in ("hub", "revision", "sha256")}

    def corpus(self, name: str) -> Params:
        """A corpus without the slots that its texts are laid out in."""
        return {key: value for key, value in self.config["corpora"][name].items() if key != "slots"}

    def labels(self, task: str) -> Params:
        given = self.config["tasks"][task]
        own = {key: given.get(key) for key in ("label", "labels", "subset", "metric")}
        return {"task": own, "corpus": self.corpus(given["corpus"])}

    def layout(self, model: str, corpus: str) -> Params:
        return {"model": self.model(model), "slots": self.config["corpora"][corpus]["slots"], **self.config["layout"]}

    def hidden(self, model: str, variant: str) -> Params:
        return {"model": self.model(model), "fraction": setting(variant)["fraction"]}

    def training(self, task: str) -> Params:
        given = self.config["tasks"][task]
        return {key: given[key] for key in ("metric", "learning_rate", "batch_size", "epochs")}

    def ranking(self, model: str, task: str) -> Params:
        ranking = self.config["ranking"]
        training = self.training(task) | {key: ranking[key] for key in ("epochs",) if key in ranking}
        return {"model": self.model(model), "task": training, "seed": ranking["seed"]}

    def probe(self, model: str, task: str, variant: str, seed: str) -> Params:
        about = {"model": model, "task": task, **setting(variant)}
        return {"task": self.training(task), "seed": int(seed), "about": about}

    def titles(self) -> Params:
        """What the tasks that are run are called in tables and figures."""
        tasks = self.config["run"]["tasks"]
        return {"titles": {task: self.config["tasks"][task].get("title", task) for task in tasks}}

    # The machine

    def machine(self) -> str:
        """Places and sizes of this machine as JSON, the value of PAPA_MACHINE; see `papa.machine`."""
        config = self.config
        places = {
            name: {key: model[key] for key in ("path", "package") if key in model}
            for name, model in config["models"].items()
        }
        return json.dumps(
            {
                "hub_mirror": config["hub_mirror"],
                "device": config["device"],
                "encoder_threads": config["threads"]["encoder"],
                "probe_threads": config["threads"]["probe"],
                "token_budget": config["token_budget"],
                "models": {name: place for name, place in places.items() if place},
            }
        )
