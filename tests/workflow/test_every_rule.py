"""Several families through every rule: small random models on some texts of the demo."""

import pytest
from random_models import random_model
from tiny import CONFIG, copy_of_repository, first_rows, with_keys

from papa.files import read_json, read_table
from papa.plan.study import read_plan
from papa.stages import STAGES, HiddenStates, Report

pytestmark = pytest.mark.slow
FAMILIES = ("roberta", "deberta", "electra")
LADDER = ["mean-output", "uniform", "sink", "by-distance", "average", "toeplitz-trained"]
TRAINING = {"learning_rate": 1.0e-3, "batch_size": 16, "epochs": 1}


def config_of_families(folder):
    pairs = first_rows(folder, "inference") | {"slots": 64}
    running = first_rows(folder, "agreement") | {"blocks": True}
    by_word = {"label": "entity", "metric": "entity_f1"}
    return {
        "name": "families",
        "run": {
            "models": [*FAMILIES],
            "tasks": ["inference"],
            "fractions": ["1", "1/2", "0"],
            "seeds": [1],
        },
        "grids": {
            "kinds": {
                "models": ["electra"],
                "constants": ["average", "toeplitz-trained"],
                "fractions": ["1", "0"],
            },
            "rungs": {"models": ["roberta"], "constants": LADDER, "fractions": ["1", "0"]},
            "orders": {
                "title": "Orders of heads",
                "models": ["roberta"],
                "orders": ["lambda", "random"],
            },
            "words": {"tasks": ["entities"], "models": ["deberta"], "fractions": ["1", "0"]},
            "masked": {"tasks": ["masked"], "models": ["electra"]},
        },
        "models": {family: {"path": random_model(family)} for family in FAMILIES},
        "corpora": {
            "inference": pairs,
            "reading": first_rows(folder, "reading") | {"slots": 64},
            "running": running,
        },
        "tasks": {
            "inference": {
                "corpus": "inference",
                "label": "label",
                "subset": "kind",
                "metric": "accuracy",
            }
            | TRAINING,
            "entities": {"corpus": "reading", "subset": "kind"} | by_word | TRAINING,
            "masked": {"corpus": "running", "metric": "negative_log_perplexity"}
            | TRAINING
            | {"batch_size": 8},
        },
        "ranking": {"draws": 1},
        "patterns": {"tasks": ["inference"], "heads": [[0, 1], [1, 3]]},
        "threads": 1,
    }


@pytest.fixture(scope="module")
def families(tmp_path_factory):
    workflow = copy_of_repository(tmp_path_factory.mktemp("families"))
    workflow.compute(config_of_families(workflow.folder / "texts"))
    return workflow


def test_every_rule_ran(families):
    made = {
        artefact["stage"]
        for artefact in read_plan(families.folder / "results/families")["artefacts"]
    }
    assert made >= STAGES.keys() - {HiddenStates.stage, Report.stage}
    assert families.planned(None, "--configfile", "config.yaml") == {}


def test_every_family_has_every_score(families):
    rows = read_table(families.folder / "results/families/tables/summary.parquet").to_pandas()
    main = rows[rows.main & (rows.subset == "all")]
    settings = main.groupby(["task", "model"]).size()
    # nothing replaced, averages at 1/2 and 0, three floors; trained matrices at 0; one order more; a ladder
    assert dict(settings["inference"]) == {"deberta": 6, "electra": 7, "roberta": 11}
    assert dict(settings["entities"]) == {"deberta": 5}
    assert dict(settings["masked"]) == {"electra": 6}
    assert main.context_free.notna().all()
    assert main.trivial.notna().all()
    assert main.reliance.isna().all()
    assert set(main.status) == {"one seed, so no interval"}
    masked = main.task == "masked"
    assert main["mean"][~masked].between(0, 1).all()
    assert main["mean"][masked].between(-9, -5).all()
    assert main.relative_drop[masked].isna().all()
    assert set(main.order.dropna()) == {"lambda", "random"}


def test_every_grid_and_pattern_has_its_table_and_figure(families):
    results = families.folder / "results/families"
    for model in FAMILIES:
        assert read_table(results / f"tables/patterns-{model}-inference.parquet").num_rows == 8
        assert (results / f"figures/patterns-{model}-inference.png").exists()
    kinds = read_table(results / "tables/kinds.parquet").to_pandas()
    assert set(kinds.model) == {"electra"}
    assert set(kinds.fraction) == {"1", "0"}
    assert "| Toeplitz, trained |" in (results / "tables/kinds.md").read_text()
    assert not (results / "figures/kinds.png").exists()
    orders = read_table(results / "tables/orders.parquet").to_pandas()
    assert list(orders[orders.fraction == "0"].line.unique()) == ["λ", "random"]
    for name in ("scores_by_heads_replaced", "orders", "score_and_drop"):
        assert (results / f"figures/{name}.png").exists() == (name != "score_and_drop"), (
            "one drop is not compared"
        )
        assert r"\toprule" in (results / f"tables/{name}.tex").read_text()


def test_orders_of_other_seeds(computed_copy):
    changes = {"ranking": {"seeds": [0, 1]}, "run.tasks": ["animals"], "run.seeds": [1, 2]}
    config = with_keys(CONFIG, changes)
    tables = computed_copy.compute(config) / "tables"
    stability = read_table(tables / "stability.parquet").to_pandas()
    assert set(zip(stability.a, stability.b, strict=True)) == {("0", "1")}
    assert stability.tau.between(-1, 1).all()
    runs = read_table(tables / "runs.parquet").to_pandas()
    assert set(runs.order.dropna()) == {"lambda-0", "lambda-1"}
    claims = read_json(tables / "claims.json")["claims"]
    assert {claim["orders"] for claim in claims} == {2}
