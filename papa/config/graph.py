"""What a checked config asks for: the runs it consists of, and the paths of all artefacts.

Everything follows from the config alone; no model is loaded and no row is counted.
"""

from __future__ import annotations

import re
from itertools import product
from typing import Any

from papa.config.grids import RUN, Config, analyses, is_masked, pairs
from papa.config.kinds import BY_LAMBDA, RANDOM, kind_of, on_corpus
from papa.config.shards import parts_of

ORIGINAL, ALL_REPLACED = "original", "all"
TABLE, FIGURE = ("parquet", "md", "tex"), ("svg", "png", "html")
"""Forms of every table and every figure of an analysis."""
CONSTANT = "(?:[a-z]+|average-of-[a-z0-9_-]+)"
"""Pattern of constants that are not trained, so that hidden states under them can be stored."""
TRAINED_CONSTANT = "[a-z]+-trained"
NOTHING = "(?!)"
"""Pattern that no name matches."""
ORDER, KEPT = "[a-z0-9-]+", "kept-[0-9]+of[0-9]+"
PART = "[0-9]+of[0-9]+"
"""Pattern of a part of a corpus: "1of1", or "2of4" where it has shards."""
CORPUS_VARIANTS = f"{ORIGINAL}|{CONSTANT}/{ALL_REPLACED}"
"""Pattern of what depends on texts alone: nothing replaced, or every head."""
TASK_VARIANTS = f"{CONSTANT}/{ORDER}/{KEPT}"
"""Pattern of what depends on an order of heads: constant/order/fraction."""
TRAINED_VARIANTS = f"{TRAINED_CONSTANT}/{ALL_REPLACED}|{TRAINED_CONSTANT}/{ORDER}/{KEPT}"
"""Pattern of what is trained along with the probe."""


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
    """The artefacts of one config.

    Paths begin with `<results>`, the workflow's variable for the folder of the config's results.
    """

    def __init__(self, config: Config):
        self.config, self.grids = config, analyses(config)

    def corpus_of(self, task: str) -> str:
        return self.config["tasks"][task]["corpus"]

    def files(self, corpus: str) -> list[str]:
        """Local files that a corpus is read from."""
        return list(self.config["corpora"][corpus].get("files", {}).values())

    def texts(self, task: str) -> str:
        """Path of the texts that a task labels."""
        return f"<results>/corpora/{self.corpus_of(task)}/texts.parquet"

    def labels(self, task: str) -> str | list[str]:
        """Path of the labels of a task; an empty list where it has none."""
        return [] if is_masked(self.config["tasks"][task]) else f"<results>/tasks/{task}/labels.parquet"

    def tokens(self, model: str, task: str) -> str:
        """Path of those texts, laid out for a model."""
        return f"<results>/models/{model}/corpora/{self.corpus_of(task)}/tokens.parquet"

    def laid_out(self, corpus: str, slots: int) -> str:
        """The part of a path that says how a corpus is laid out: its name alone for slots of its own."""
        return corpus if slots == self.config["corpora"][corpus].get("slots") else f"{corpus}/slots-{slots}"

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

    def parts(self, laid_out: str) -> list[str]:
        """The parts that a corpus is averaged and encoded in, a job each: as many as it has shards."""
        return parts_of(self.config["corpora"][laid_out.split("/")[0]]["shards"])

    def in_parts(self, sharded: bool) -> str:
        """Pattern of the corpora, in any layout, that have several shards, or of those that have one."""
        names = [name for name, corpus in self.config["corpora"].items() if (corpus["shards"] > 1) == sharded]
        return f"(?:{'|'.join(names) or NOTHING})(?:/slots-[0-9]+)?"

    def averages(self, model: str, laid_out: str) -> list[str]:
        """Paths of the averages of all parts of a corpus."""
        return [f"<results>/models/{model}/corpora/{laid_out}/average/{part}.h5" for part in self.parts(laid_out)]

    def features(self, model: str, task: str, variant: str) -> dict[str, list[str]]:
        """Paths of the hidden states that a probe reads: the corpus's own where no order of heads is in them."""
        of_corpus = re.fullmatch(CORPUS_VARIANTS, variant)
        owner = f"corpora/{self.corpus_of(task)}" if of_corpus else f"tasks/{task}"
        folder = f"<results>/models/{model}/{owner}/features/{variant}"
        parts = self.parts(self.corpus_of(task))
        return {
            name: [f"{folder}/{part}.{form}" for part in parts]
            for name, form in (("hidden", "hidden"), ("index", "json"))
        }

    def streamed(self, task: str, variant: str) -> bool:
        """Whether a probe takes hidden states from the encoder as it goes: the task says so, its texts are masked or
        dropped from anew in every epoch, or constants are trained along with it."""
        given = self.config["tasks"][task]
        anew = is_masked(given) or self.config["encoder_dropout"]
        return anew or given.get("features") == "stream" or bool(re.fullmatch(TRAINED_VARIANTS, variant))

    def stored(self) -> str:
        """Pattern of the tasks whose hidden states are stored where constants are not trained."""
        return "|".join(task for task in self.config["tasks"] if not self.streamed(task, ORIGINAL)) or NOTHING

    def variants(self, model: str, task: str) -> dict[str, list[int]]:
        """What is replaced in the runs of a task, each variant once, and the seeds of its probes."""
        found: dict[str, list[int]] = {}
        for grid in self.grids.values():
            if model not in grid["models"] or task not in grid["tasks"]:
                continue
            for fraction, constant, order in product(grid["fractions"], grid["constants"], self.orders(grid)):
                name = variant(on_corpus(constant, self.corpus_of(task)), order, fraction)
                found[name] = list(dict.fromkeys([*found.get(name, []), *grid["seeds"]]))
        return found

    def orders(self, grid: dict[str, Any]) -> list[str]:
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
            for model, task in pairs(self.config)
            for variant, seeds in self.variants(model, task).items()
            for seed in seeds
        ]

    def artefacts(self) -> list[str]:
        """Paths of all that the runs are made from, but for the hidden states themselves, which may be deleted.

        The workflow wants them all. If it wanted the tables alone, a job that a change calls for and that then fails
        would leave its artefact missing and the tables in place, and the next start would take those for up to date.
        """
        wanted: dict[str, None] = {}
        for model, task in pairs(self.config):
            given = self.texts(task), self.labels(task), self.tokens(model, task)
            own = [path for path in given if isinstance(path, str)]
            for variant in self.variants(model, task):
                constant, order, _ = setting(variant).values()
                if constant is not None and order in BY_LAMBDA:
                    own.append(f"<results>/models/{model}/tasks/{task}/{kind_of(constant).name}/lambda.parquet")
                own += self.behind(model, task, variant).values()
                if not self.streamed(task, variant):
                    own += self.features(model, task, variant)["index"]
            wanted |= dict.fromkeys(own)
        return [*wanted, *self.runs()]

    def drawn(self) -> list[str]:
        """The grids that have a figure: `run`, and those with fractions between 0 and 1."""
        return [name for name, grid in self.grids.items() if name == RUN or set(grid["fractions"]) - {"0", "1"}]

    def analyses(self) -> list[str]:
        """Paths of the tables and figures: of each grid, and those that further blocks of the config ask for."""
        wanted = [f"<results>/tables/{name}.{form}" for name in self.grids for form in TABLE]
        wanted += [f"<results>/figures/{name}.{form}" for name in self.drawn() for form in FIGURE]
        if {"0", "1"} <= set(self.grids[RUN]["fractions"]):
            wanted += [f"<results>/tables/score_and_drop.{form}" for form in TABLE]
            wanted += [f"<results>/figures/score_and_drop.{form}" for form in FIGURE]
        tasks = self.config.get("patterns", {}).get("tasks", [])
        for model, corpus in dict.fromkeys(
            (model, self.corpus_of(task)) for model, task in pairs(self.config) if task in tasks
        ):
            wanted += [f"<results>/models/{model}/corpora/{corpus}/patterns.{form}" for form in TABLE]
            wanted += [f"<results>/figures/patterns/{model}/{corpus}.{form}" for form in FIGURE]
        if any("published" in self.config["tasks"][task] for _, task in pairs(self.config)):
            wanted += [f"<results>/tables/published.{form}" for form in TABLE]
        return wanted
