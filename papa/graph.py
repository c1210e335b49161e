"""What a checked config asks for: the runs it consists of, the paths of artefacts, and what each job depends on.

Everything follows from the config alone; no model is loaded and no row is counted. Each method that gives the
parameters of a job gives one plain dict with what that job depends on and nothing else, so that an edit reruns only
what it touches. Places (mirror, folders of models, device, threads) are in none of them.
"""

from __future__ import annotations

import json
import re
from itertools import product
from typing import Any

from papa.config import Config, grids
from papa.kinds import BY_LAMBDA, OF, RANDOM, kind_of, order_of

ORIGINAL, ALL_REPLACED = "original", "all"
CONSTANT = "(?:[a-z]+|average-of-[a-z0-9_-]+)"
"""Pattern of constants that are not trained, so that hidden states under them can be stored."""
TRAINED_CONSTANT = "[a-z]+-trained"
ORDER, KEPT = "[a-z0-9-]+", "kept-[0-9]+of[0-9]+"
CORPUS_VARIANTS = f"{ORIGINAL}|{CONSTANT}/{ALL_REPLACED}"
"""Pattern of what depends on texts alone: nothing replaced, or every head."""
TASK_VARIANTS = f"{CONSTANT}/{ORDER}/{KEPT}"
"""Pattern of what depends on an order of heads: constant/order/fraction."""
TRAINED_VARIANTS = f"{TRAINED_CONSTANT}/{ALL_REPLACED}|{TRAINED_CONSTANT}/{ORDER}/{KEPT}"
"""Pattern of what is trained along with the probe."""

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
        self.config, self.grids = config, grids(config)

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

    def laid_out(self, corpus: str, slots: int) -> str:
        """The part of a path that says how a corpus is laid out: its name alone for its own slots."""
        return corpus if slots == self.config["corpora"][corpus]["slots"] else f"{corpus}/slots-{slots}"

    def texts_behind(self, laid_out: str) -> str:
        """Path of the texts behind a corpus in some layout."""
        return f"<results>/corpora/{laid_out.split('/')[0]}/texts.parquet"

    def constants(self, model: str, corpus: str, constant: str | None) -> str | list[str]:
        """Path of the averages that stand in for a model's attention on a corpus; an empty list where none are read."""
        if constant is None or kind_of(constant).data_free:
            return []
        slots = self.config["corpora"][corpus]["slots"]
        source = self.laid_out(kind_of(constant).corpus or corpus, slots)
        return f"<results>/models/{model}/corpora/{source}/average.h5"

    def order(self, model: str, task: str, constant: str, order: str) -> str:
        """Path of an order of heads: under the λ of a task and a constant, or of the model alone."""
        if order not in BY_LAMBDA:
            return f"<results>/models/{model}/orders/{order}.parquet"
        return f"<results>/models/{model}/tasks/{task}/{kind_of(constant).name}/{order}/order.parquet"

    def behind(self, model: str, task: str, variant: str) -> dict[str, str]:
        """Paths of the averages and the order that a variant needs, where it needs them."""
        constant, order, _ = setting(variant).values()
        found = {"constants": self.constants(model, self.corpus_of(task), constant)}
        if constant is not None and order is not None:
            found["order"] = self.order(model, task, constant, order)
        return {name: path for name, path in found.items() if isinstance(path, str)}

    def features(self, model: str, task: str, variant: str) -> dict[str, str]:
        """Paths of the hidden states that a probe reads: the corpus's own where no order of heads is in them."""
        of_corpus = re.fullmatch(CORPUS_VARIANTS, variant)
        owner = f"corpora/{self.corpus_of(task)}" if of_corpus else f"tasks/{task}"
        folder = f"<results>/models/{model}/{owner}/features/{variant}"
        files = {"train": "train.hidden", "validation": "validation.hidden", "index": "index.json"}
        return {name: f"{folder}/{file}" for name, file in files.items()}

    def variants(self, model: str, task: str) -> dict[str, list[int]]:
        """What is replaced in the runs of a task, each variant once, and the seeds of its probes."""
        own = f"{OF}{self.corpus_of(task)}"  # an average of the task's own texts is its average
        found: dict[str, list[int]] = {}
        for grid in self.grids:
            if model not in grid["models"] or task not in grid["tasks"]:
                continue
            for fraction, constant, order in product(grid["fractions"], grid["constants"], self.orders(grid)):
                name = variant("average" if constant == own else constant, order, fraction)
                found[name] = list(dict.fromkeys([*found.get(name, []), *grid["seeds"]]))
        return found

    def orders(self, grid: Params) -> list[str]:
        """The orders of heads of a grid, each draw of a random one by itself."""
        draws = range(1, self.config["ranking"]["draws"] + 1)
        return [
            name
            for order in grid["orders"]
            for name in ([f"{RANDOM}-{draw}" for draw in draws] if order == RANDOM else [order])
        ]

    def runs(self) -> list[str]:
        """Paths of all runs of the config."""
        return [
            f"<results>/models/{model}/tasks/{task}/runs/{variant}/seed-{seed}.json"
            for model, task in self._pairs()
            for variant, seeds in self.variants(model, task).items()
            for seed in seeds
        ]

    def artefacts(self) -> list[str]:
        """Paths of all that the runs are made from, but for the hidden states themselves, which may be deleted.

        The workflow wants them all. If it wanted the tables alone, a job that a change calls for and that then fails
        would leave its artefact missing and the tables in place, and the next start would take those for up to date.
        """
        wanted: dict[str, None] = {}
        for model, task in self._pairs():
            own = [self.texts(task), f"<results>/tasks/{task}/labels.parquet", self.tokens(model, task)]
            for variant in self.variants(model, task):
                constant, order, _ = setting(variant).values()
                if constant is not None and order in BY_LAMBDA:
                    own.append(f"<results>/models/{model}/tasks/{task}/{kind_of(constant).name}/lambda.parquet")
                own += self.behind(model, task, variant).values()
                if not re.fullmatch(TRAINED_VARIANTS, variant):
                    own.append(self.features(model, task, variant)["index"])
            wanted |= dict.fromkeys(own)
        return [*wanted, *self.runs()]

    def analyses(self) -> list[str]:
        """Paths of the tables and figures that blocks of the config ask for, beside those of every config."""
        wanted = []
        tasks = self.config.get("patterns", {}).get("tasks", [])
        for model, corpus in dict.fromkeys(
            (model, self.corpus_of(task)) for model, task in self._pairs() if task in tasks
        ):
            wanted.append(f"<results>/models/{model}/corpora/{corpus}/patterns.parquet")
            wanted += [f"<results>/figures/patterns/{model}/{corpus}.{form}" for form in ("svg", "png", "html")]
        if self.published()["tasks"]:
            wanted += [f"<results>/tables/published.{form}" for form in ("parquet", "md")]
        return wanted

    def _pairs(self) -> list[tuple[str, str]]:
        pairs = ((model, task) for grid in self.grids for model in grid["models"] for task in grid["tasks"])
        return list(dict.fromkeys(pairs))

    # Parameters

    def model(self, name: str) -> Params:
        """The identity of a model, which does not say where it lies."""
        given = self.config["models"][name]
        if "random" in given:
            return {"name": name, "random": given["random"]}
        return {"name": name} | {key: given.get(key) for key in ("hub", "revision", "sha256")}

    def corpus(self, name: str) -> Params:
        """A corpus without the slots that its texts are laid out in."""
        return {key: value for key, value in self.config["corpora"][name].items() if key != "slots"}

    def labels(self, task: str) -> Params:
        given = self.config["tasks"][task]
        own = {key: given.get(key) for key in ("label", "labels", "subset", "metric")}
        return {"task": own, "corpus": self.corpus(given["corpus"])}

    def layout(self, model: str, laid_out: str) -> Params:
        corpus, _, slots = laid_out.partition("/slots-")
        own = int(slots or self.config["corpora"][corpus]["slots"])
        return {"model": self.model(model), "slots": own, **self.config["layout"]}

    def hidden(self, model: str, variant: str) -> Params:
        """Which hidden states: of a model, with a fraction of heads kept and the others replaced by a kind."""
        constant, _, fraction = setting(variant).values()
        return {"model": self.model(model), "fraction": fraction} | ({"kind": constant} if constant else {})

    def training(self, task: str) -> Params:
        given = self.config["tasks"][task]
        return {key: given[key] for key in ("metric", "learning_rate", "batch_size", "epochs")}

    def ranking(self, model: str, task: str, constant: str) -> Params:
        ranking = self.config["ranking"]
        training = self.training(task) | {key: ranking[key] for key in ("epochs",) if key in ranking}
        return {"model": self.model(model), "task": training, "seed": ranking["seed"], "kind": constant}

    def ordering(self, model: str, order: str) -> Params:
        """An order without λ; only a random one depends on a seed."""
        seed = {"seed": self.config["ranking"]["seed"]} if order_of(order)[0] == RANDOM else {}
        return {"model": self.model(model), "kind": order} | seed

    def probe(self, model: str, task: str, variant: str, seed: str) -> Params:
        about = {"model": model, "task": task, **setting(variant)}
        return {"task": self.training(task), "seed": int(seed), "about": about}

    def probe_through_encoder(self, model: str, task: str, variant: str, seed: str) -> Params:
        return self.probe(model, task, variant, seed) | self.hidden(model, variant)

    def heads_drawn(self) -> Params:
        """Which heads are drawn, and how; the paper's where the config names none."""
        heads = self.config.get("patterns", {}).get("heads")
        return {"style": self.config["plots"]} | ({"heads": heads} if heads else {})

    def published(self) -> Params:
        """What stands beside the published numbers: hub ids of models, tasks of the paper, and settings of averages
        that were made of another corpus."""
        tasks, pairs = self.config["tasks"], self._pairs()
        ours = {name: tasks[name]["published"] for _, name in pairs if "published" in tasks[name]}
        mnli = {task["corpus"] for task in tasks.values() if task.get("published") == "mnli_mismatched"}
        return {
            "models": {name: self.config["models"][name].get("hub") for name, _ in pairs},
            "tasks": ours,
            "more_settings": {f"{OF}{corpus}": "mnli" for corpus in sorted(mnli)},
        }

    def titles(self) -> Params:
        """What the tasks that are run are called in tables and figures."""
        return {"titles": {task: self.config["tasks"][task].get("title", task) for _, task in self._pairs()}}

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
