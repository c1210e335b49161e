"""What each job of a checked config depends on, beside its input files.

Each method gives one plain dict with what a job depends on and nothing else, so that an edit reruns only what it
touches. Places (mirror, folders of models, device, threads) are in none of them; `machine` has those.
"""

from __future__ import annotations

import json
import re
from typing import Any

from papa.config.graph import setting
from papa.config.grids import Config, analyses, corpora_of_runs, pairs
from papa.config.kinds import OF, RANDOM, kind_of, order_of

Params = dict[str, Any]

PLACES = ("path", "package")
"""Where a model lies on this machine."""
MACHINE = ("hub_mirror", "device", "threads", "token_budget", "checkpoint_minutes")
"""What else may differ from machine to machine."""


class Parameters:
    """The parameters of the jobs of one config."""

    def __init__(self, config: Config):
        self.config = config

    def model(self, name: str) -> Params:
        """The identity of a model, which does not say where it lies."""
        given = self.config["models"][name]
        if "random" in given:
            return {"name": name, "random": given["random"]}
        return {"name": name} | {key: given.get(key) for key in ("hub", "revision", "sha256")}

    def encoder(self, name: str, learning: bool = False) -> Params:
        """A model as an encoder that computes in the config's precision; float32 where gradients would not survive
        float16, which is where something is `learning` through it."""
        precision = self.config["precision"]
        usual = precision == "float32" or (learning and precision == "float16")
        return self.model(name) | ({} if usual else {"precision": precision})

    def corpus(self, name: str) -> Params:
        """A corpus without the slots that its texts are laid out in, its shards, and splits that are not scored."""
        left_out = {"slots", "shards"} | ({"more_validation"} if self.config["score_validation"] != "all" else set())
        return {key: value for key, value in self.config["corpora"][name].items() if key not in left_out}

    def from_hub(self) -> Params:
        """The models and corpora that are run and have no other place than the hub."""
        models = dict.fromkeys(name for name, _ in pairs(self.config))
        elsewhere = {"path", "package"}
        return {
            "models": [
                self.model(name)
                for name in models
                if "hub" in self.config["models"][name] and not elsewhere & self.config["models"][name].keys()
            ],
            "corpora": [
                self.corpus(name) for name in corpora_of_runs(self.config) if "hub" in self.config["corpora"][name]
            ],
        }

    def labels(self, task: str) -> Params:
        given = self.config["tasks"][task]
        own = {key: given.get(key) for key in ("label", "labels", "subset", "metric")}
        return {"task": own, "corpus": self.corpus(given["corpus"])}

    def layout(self, model: str, laid_out: str) -> Params:
        name, _, slots = laid_out.partition("/slots-")
        corpus = self.config["corpora"][name]
        return {
            "model": self.model(model),
            "slots": int(slots or corpus["slots"]),
            "blocks": corpus["blocks"],
            **self.config["layout"],
        }

    def hidden(self, model: str, variant: str) -> Params:
        """Which hidden states: of a model, with a fraction of heads kept and the others replaced by a kind."""
        constant, _, fraction = setting(variant).values()
        learning = constant is not None and kind_of(constant).trained
        return {"model": self.encoder(model, learning), "fraction": fraction} | ({"kind": constant} if constant else {})

    def training(self, task: str) -> Params:
        given = self.config["tasks"][task]
        return {key: given[key] for key in ("metric", "learning_rate", "batch_size", "epochs")}

    def dropout(self) -> Params:
        """The encoder's dropout, of what trains through it; nothing where it is off."""
        return {"encoder_dropout": True} if self.config["encoder_dropout"] else {}

    def ranking(self, model: str, task: str, constant: str) -> Params:
        ranking = self.config["ranking"]
        training = self.training(task) | {key: ranking[key] for key in ("epochs",) if key in ranking}
        own = {"model": self.encoder(model, learning=True), "task": training, "seed": ranking["seed"], "kind": constant}
        return own | self.dropout()

    def ordering(self, model: str, order: str) -> Params:
        """An order without λ; only a random one depends on a seed."""
        seed = {"seed": self.config["ranking"]["seed"]} if order_of(order)[0] == RANDOM else {}
        return {"model": self.model(model), "kind": order} | seed

    def probe(self, model: str, task: str, variant: str, seed: str) -> Params:
        about = {"model": model, "task": task, **setting(variant)}
        return {"task": self.training(task), "seed": int(seed), "about": about}

    def probe_through_encoder(self, model: str, task: str, variant: str, seed: str) -> Params:
        return self.probe(model, task, variant, seed) | self.hidden(model, variant) | self.dropout()

    def heads_drawn(self) -> Params:
        """Which heads are drawn, and how; the paper's where the config names none."""
        heads = self.config.get("patterns", {}).get("heads")
        return {"style": self.config["plots"]} | ({"heads": heads} if heads else {})

    def grid(self, name: str) -> Params:
        """What the table of a grid shows, in this order, and what it is called; the tasks with their corpora."""
        grid = analyses(self.config)[name]
        tasks = {task: self.config["tasks"][task]["corpus"] for task in grid["tasks"]}
        shown = {key: grid[key] for key in ("models", "constants", "orders", "fractions")} | {"tasks": tasks}
        return {"title": grid.get("title", re.sub("[-_]", " ", name).capitalize()), "grid": shown}

    def published(self) -> Params:
        """What stands beside the published numbers: hub ids of models, tasks of the paper, and settings of averages
        that were made of another corpus."""
        tasks, run = self.config["tasks"], pairs(self.config)
        ours = {name: tasks[name]["published"] for _, name in run if "published" in tasks[name]}
        mnli = {task["corpus"] for task in tasks.values() if task.get("published") == "mnli_mismatched"}
        return {
            "models": {name: self.config["models"][name].get("hub") for name, _ in run},
            "tasks": ours,
            "more_settings": {f"{OF}{corpus}": "mnli" for corpus in sorted(mnli)},
        }

    def titles(self) -> Params:
        """What the tasks that are run are called in tables and figures."""
        return {"titles": {task: self.config["tasks"][task].get("title", task) for _, task in pairs(self.config)}}

    def told(self) -> Params:
        """What the report tells of the config, which is what the results depend on: what is run, and no places."""
        config = self.config
        run = pairs(config)
        named = {
            "models": {name: _without(config["models"][name], PLACES) for name, _ in run},
            "corpora": {name: config["corpora"][name] for name in corpora_of_runs(config)},
            "tasks": {name: config["tasks"][name] for _, name in run},
        }
        return _without(config, MACHINE) | named

    def machine(self) -> str:
        """Places and sizes of this machine as JSON, the value of PAPA_MACHINE; see `papa.config.machine`."""
        config = self.config
        places = {name: {key: model[key] for key in PLACES if key in model} for name, model in config["models"].items()}
        return json.dumps(
            {
                "hub_mirror": config["hub_mirror"],
                "device": config["device"],
                "encoder_threads": config["threads"]["encoder"],
                "probe_threads": config["threads"]["probe"],
                "token_budget": config["token_budget"],
                "checkpoint_minutes": config["checkpoint_minutes"],
                "models": {name: place for name, place in places.items() if place},
            }
        )


def _without(mapping: Params, keys: tuple[str, ...]) -> Params:
    return {key: value for key, value in mapping.items() if key not in keys}
