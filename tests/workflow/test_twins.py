"""The configs of decoders and of newer encoders, with small random models of the same types: everything really runs."""

import pytest
import yaml
from tiny import REPOSITORY, copy_of_repository

from papa.files import read_json, read_table

pytestmark = pytest.mark.slow
TYPES = {"gpt2": "gpt2", "pythia": "gpt_neox", "smollm2": "llama", "llama": "llama", "qwen2": "qwen2"}
TYPES |= {"ettin-decoder": "modernbert-decoder", "ettin-encoder": "modernbert", "modernbert": "modernbert"}
TYPES |= {"bert": "bert", "deberta": "deberta-v2", "distilbert": "distilbert", "albert": "albert"}
TYPES |= {"xlm": "xlm-roberta", "multibert": "bert"}
DIRECT = ("wikitext",)


def kind_of(model):
    return next(kind for name, kind in TYPES.items() if model.startswith(name))


def twin(name):
    """The config with one random model of each type, a task of each kind, generated texts and little training."""
    config = yaml.safe_load((REPOSITORY / f"config/{name}.yaml").read_text())
    config |= {"name": "twin", "ranking": {"seeds": [0]}, "threads": {"encoder": 1, "probe": 1}}
    config["models"] = {model: {"random": kind_of(model)} for model in config["models"]}
    for grid in (config["run"], *config["grids"].values()):
        grid["models"] = list({kind_of(model): model for model in grid["models"]}.values())
        grid["tasks"] = [task for task in grid["tasks"] if task in (*DIRECT, "mnli", "ner")]
    config["run"] |= {"fractions": ["1", "1/2", "0"], "seeds": [1, 2]}
    for corpus, given in config["corpora"].items():
        text = {name: given[name] for name in ("blocks", "words", "first", "second") if name in given}
        form = "reading" if "words" in text else "roles" if "second" in text else "agreement"
        columns = {"words": "words", "first": "first", "second": "second", "blocks": True}
        text = {name: columns[name] for name in text}
        config["corpora"][corpus] = text | {"generated": form, "rows": {"train": 60, "validation": 30}, "slots": 64}
    for task in config["tasks"].values():
        task |= {"epochs": 1, "learning_rate": 1e-3}
        if "label" in task:
            task["label"] = "entity" if task["metric"] == "entity_f1" else "label"
    return config


@pytest.mark.parametrize("name", ["decoders", "encoders"])
def test_the_twin_of_a_config_goes_through_every_rule(name, tmp_path):
    workflow, config = copy_of_repository(tmp_path / "papa"), twin(name)
    results = workflow.compute(config)
    summary = read_table(results / "tables/summary.parquet").to_pandas()
    main = summary[summary["main"] & summary["subset"].eq("all")]
    assert set(main["model"]) == {
        model for grid in (config["run"], *config["grids"].values()) for model in grid["models"]
    }
    # nothing replaced, averages at 1/2 and 0, the contextless floor
    assert (main.groupby(["model", "task"]).size() == 4).all() and main["mean"].notna().all()
    for task in DIRECT if name == "decoders" else ():
        assert set(main.loc[main["task"].eq(task), "model"]) == set(config["run"]["models"])
    assert read_json(results / "tables/claims.json")["sentence"]
