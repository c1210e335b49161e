"""Losses by what may adapt: against outcomes whose losses are known by construction, and the jobs that measure them."""

import json
from pathlib import Path

import numpy as np
import pytest
from builders import labelled, summary_of
from tiny import CONFIG, with_keys

from papa.config.analyses import grid_view
from papa.config.reading import config_of
from papa.config.settings import Plots
from papa.config.study import Study
from papa.config.variant import ADAPTATIONS, Variant
from papa.errors import InputError
from papa.files import read_table, write_table
from papa.results.adaptation import COLUMNS, adaptation_figure, adaptation_of, sentence_of, tables_of
from papa.results.losses import losses_of
from papa.results.outcomes import FLOOR, ORIGINALS, Setting, TaskOutcomes, outcomes_in, table_of
from papa.results.page_runs import analyses_table
from papa.results.summary import series

EXAMPLES = 400
WITH_NORMS = Setting(adapt="norms")
SETTINGS = {
    "none": Setting("average", None, "0", "none"),
    "probe": Setting("average", None, "0"),
    "constants": Setting("average-trained", None, "0"),
    "norms": Setting("average", None, "0", "norms"),
}
RIGHT = {ORIGINALS: 360, FLOOR: 200, WITH_NORMS: 380, SETTINGS["none"]: 240, SETTINGS["probe"]: 300}
RIGHT |= {SETTINGS["constants"]: 330, SETTINGS["norms"]: 355}
"""How many of 400 examples are right: attention contributes 160, and norms also give 20 to the original."""


NEXT = {"corpus": "sentences", "metric": "log_likelihood", "learning_rate": 0.01, "batch_size": 8, "epochs": 1}


def measured(right: dict[Setting, int] = RIGHT, seeds: int = 5, **fields: object) -> TaskOutcomes:
    ease = np.arange(EXAMPLES) * 7 % EXAMPLES
    rows = {setting: [ease < number + seed % 3 - 1 for seed in range(seeds)] for setting, number in right.items()}
    about = {"task": "t", "train_counts": (60, 40)} | fields
    return labelled(rows, gold=np.arange(EXAMPLES) % 5 > 2, **about)


def rows_of(right: dict[Setting, int] = RIGHT, **fields: object):
    return adaptation_of([measured(right, **fields)], {"t": "T"}).set_index("adapt", drop=False)


def test_losses_fall_with_what_may_adapt_and_their_differences_add_up() -> None:
    rows = rows_of()
    assert list(rows.index) == list(ADAPTATIONS) and list(rows.columns) == list(COLUMNS)
    assert rows["loss"].tolist() == pytest.approx([120 / 160, 60 / 160, 30 / 160, 25 / 160], abs=0.01)
    assert rows["original"].tolist() == pytest.approx([0.9, 0.9, 0.9, 0.95], abs=0.01)
    assert np.isnan(rows["recovered"].iloc[0])
    assert rows["recovered"].tolist()[1:] == pytest.approx([60 / 160, 30 / 160, 35 / 160], abs=0.01)
    for adapt, before in {"probe": "none", "constants": "probe", "norms": "probe"}.items():
        recovered = rows.loc[before, "loss"] - rows.loc[adapt, "loss"]
        assert rows.loc[adapt, "recovered"] == pytest.approx(recovered)
        assert rows.loc[adapt, "recovered_low"] < recovered < rows.loc[adapt, "recovered_high"]


def test_intervals_are_paired_over_seeds_and_examples() -> None:
    """By hand: Fieller's interval of ((O_n - S_n) - ...) / (O - F), from the joint spread of all scores."""
    rows, sample = rows_of(), measured().sample("accuracy", np.ones(EXAMPLES, bool))
    spread = sample.spread(ORIGINALS, FLOOR, WITH_NORMS, SETTINGS["probe"], SETTINGS["norms"])
    assert spread is not None
    contribution = [0.0, 1, -1, 0, 0, 0]
    loss = spread.ratio([0, 0, 0, 1, 0, -1], contribution)
    assert rows.loc["norms", ["loss", "low", "high"]].tolist() == pytest.approx(list(loss)[:3])
    step = spread.ratio([0, 1, 0, -1, -1, 1], contribution)
    recovered = ["recovered", "recovered_low", "recovered_high"]
    assert rows.loc["norms", recovered].tolist() == pytest.approx(list(step)[:3])


def test_a_gain_that_the_original_also_has_is_no_recovery() -> None:
    rows = rows_of(RIGHT | {SETTINGS["norms"]: 320})
    assert rows.loc["norms", "score"] > rows.loc["probe", "score"] + 0.04
    assert rows.loc["norms", "recovered"] == pytest.approx(0, abs=0.005)
    assert rows.loc["norms", "loss"] == pytest.approx(rows.loc["probe", "loss"], abs=0.005)


@pytest.mark.parametrize("original", [380, 361, 359, 358])
def test_the_original_has_the_same_adaptation_although_it_may_score_less(original: int) -> None:
    """The ordinary one scores 360. To use the better of both would make losses larger, as outcomes would choose it."""
    right = RIGHT | {WITH_NORMS: original, SETTINGS["norms"]: original - 50}
    rows, summary = rows_of(right), losses_of([measured(right)])
    in_summary = summary[summary["adapt"].eq("norms") & summary["constant"].eq("average")]["loss"].item()
    assert rows.loc["norms", "loss"] == in_summary == pytest.approx(50 / 160, abs=0.01)
    assert rows.loc["norms", "original"] == pytest.approx(original / 400, abs=0.002)


def test_an_adaptation_that_harms_the_original_has_no_loss() -> None:
    """Otherwise, training that fails in both models would recover everything."""
    right = RIGHT | {WITH_NORMS: 310, SETTINGS["norms"]: 310}
    rows, summary = rows_of(right), losses_of([measured(right)])
    assert rows.loc["norms", ["loss", "recovered"]].isna().all()
    assert summary.loc[summary["adapt"].eq("norms"), "loss"].isna().all()
    assert rows["status"].tolist() == ["counts", "counts", "counts", "training made the original worse"]
    sentence = sentence_of(rows)
    assert "; trained norms made the original worse, so they show nothing; 19 % (" in sentence
    assert sentence.endswith(" remains and needs input-dependent attention.")
    assert tables_of(rows)[0].rows[3][-2:] == ["-", "-"]


def test_losses_of_a_summary_have_the_original_of_their_adaptation() -> None:
    """They are those of the analysis, and a relative drop is from the same original."""
    summary = summary_of([measured(model="tiny")])
    rows = summary[summary["subset"].eq("all") & summary["main"]].set_index(["constant", "adapt"])
    of_analysis = rows_of()
    for adapt in ("none", "probe", "norms"):
        assert rows.loc[("average", adapt), "loss"] == pytest.approx(of_analysis.loc[adapt, "loss"])
    assert rows.loc[("average", "norms"), "relative_drop"] == pytest.approx(25 / 380, abs=0.002)
    assert rows.loc[("average", "none"), "relative_drop"] == pytest.approx(120 / 360, abs=0.002)
    assert losses_of([measured()]).set_index("adapt").loc["norms", "loss"].isna().tolist() == [True, False]
    words = [words for words, _ in series(summary)]
    assert "average constants, trained norms" in words and "average constants" in words
    assert len(words) == len(set(words)) == 4


def test_outcomes_are_read_back_with_their_adaptation(tmp_path: Path) -> None:
    table, facts = table_of([measured()])
    assert set(table.column("adapt").to_pylist()) == {"none", "probe", "norms"}
    for name, columns in (("now", table.column_names), ("before", [*table.column_names[:5], *table.column_names[6:]])):
        write_table(table.select(columns), tmp_path / f"{name}.parquet", facts)
    (now,), (before,) = (
        outcomes_in(read_table(tmp_path / f"{name}.parquet"), {"t": "accuracy"}) for name in ("now", "before")
    )
    assert now.settings() == measured().settings()
    assert {setting.adapt for setting in before.settings()} == {"probe"}, "earlier versions had no other"


def test_the_sentence_says_what_each_step_recovers_and_what_remains() -> None:
    sentence = sentence_of(rows_of())
    assert sentence.startswith("T: 75 % (")
    assert " is lost with nothing trained; a retrained probe recovers 3" in sentence
    assert "; trained constants recover 19 % (" in sentence and "; trained norms recover 22 % (" in sentence
    assert sentence.endswith(" remains and needs input-dependent attention.") and "; 16 % (" in sentence
    all_repaired = sentence_of(rows_of(RIGHT | {SETTINGS["norms"]: 380}))
    assert all_repaired.endswith(" remains, which is not significant.") and "input-dependent" not in all_repaired
    nothing = sentence_of(rows_of(RIGHT | {SETTINGS["norms"]: 321}))
    assert "; trained norms recover 1 % (" in nothing and "), which is not significant; 19 % (" in nothing
    worse = sentence_of(rows_of(RIGHT | {SETTINGS["norms"]: 250}))
    assert "; trained norms help the original more, so the loss grows by " in worse and "recover -" not in worse
    silent = sentence_of(rows_of(dict.fromkeys(RIGHT, 300)))
    assert silent == "T: attention contributes nothing measurable, so there is no loss to recover."


def test_a_constant_with_one_adaptation_has_no_row() -> None:
    rows = rows_of({setting: RIGHT[setting] for setting in (ORIGINALS, FLOOR, SETTINGS["probe"])})
    assert rows.empty and sentence_of(rows) == "No constant was run with several adaptations."
    zeros = rows_of(RIGHT | {Setting("zeros", None, "0", "none"): 150})
    assert zeros[zeros["constant"].eq("zeros")].index.tolist() == ["none", "probe"]
    assert "zeros" not in sentence_of(zeros), "they are the floor"


def test_table_and_figure_show_every_adaptation() -> None:
    frame = adaptation_of([measured()], {"t": "T"})
    (table,) = tables_of(frame)
    assert [row[:3] for row in table.rows] == [
        ["T", "average", "nothing trained"],
        ["T", "average", "retrained probe"],
        ["T", "average", "trained constants"],
        ["T", "average", "trained norms"],
    ]
    assert table.rows[0][-1] == "-" and table.rows[3][-1].startswith("22 %")
    drawn = adaptation_figure(frame, Plots()).to_dict()
    dots = drawn["concat"][0]["layer"][2]
    assert dots["mark"]["type"] == "circle"
    assert dots["encoding"]["x"]["sort"] == ["nothing trained", "retrained probe", "trained constants", "trained norms"]
    assert json.dumps(drawn)
    nothing = adaptation_of([measured(dict.fromkeys(RIGHT, 300))], {"t": "T"})
    assert "text" in adaptation_figure(nothing, Plots()).to_dict()["mark"]["type"]


# -- jobs --------------------------------------------------------------------------------------------------------------


def study(**grid: object) -> Study:
    keys = {"models": ["tiny"], "tasks": ["animals"], "fractions": ["1", "0"]} | grid
    return Study(config_of(with_keys(CONFIG, {"grids": {"more": keys}})), "nowhere")


def test_a_grid_runs_every_adaptation_and_the_originals_it_needs() -> None:
    measured = study(adapt=["none", "probe", "constants", "norms"], fractions=["0"], seeds=[3])
    variants = {variant.path: seeds for variant, seeds in measured.variants("tiny", "animals").items()}
    assert {path: seeds for path, seeds in variants.items() if 3 in seeds} == {
        "original": [1, 3],
        "zeros/all": [1, 3],
        "average/all": [1, 3],
        "average/all/adapt-none": [3],
        "average-trained/all": [3],
        "original/adapt-norms": [3],
        "average/all/adapt-norms": [3],
    }
    jobs = {job.settings.variant: job for job in measured.probes_of("tiny", "animals")}
    none, norms = jobs["average/all/adapt-none"], jobs["average/all/adapt-norms"]
    assert none.inputs["probes"] == (jobs["original"].outputs["probes"],)
    assert none.inputs["index"] == jobs["average/all"].inputs["index"], "no states are stored for it"
    assert none.rule == "probe" and norms.rule == jobs["original/adapt-norms"].rule == "stream_probe"
    assert "probes" not in norms.inputs
    assert "recovery" in measured.entries() and "recovery" not in study().entries()


@pytest.mark.parametrize(
    ("where", "keys"), [("run", {"run.adapt": ["none"]}), ("grids.g", {"grids": {"g": {"adapt": ["none"]}}})]
)
def test_a_grid_without_retrained_probes_is_refused(where: str, keys: dict[str, object]) -> None:
    with pytest.raises(InputError, match=f"{where}.adapt lists none, but claims are about retrained probes; add probe"):
        config_of(with_keys(CONFIG, keys))


def test_the_default_leaves_no_trace() -> None:
    """Also written down; so finished results stay fresh."""
    plain, written = study(), study(adapt=["probe"])
    assert [job.settings.recorded() for job in plain.jobs()] == [job.settings.recorded() for job in written.jobs()]
    assert "adapt" not in json.dumps([job.settings.recorded() for job in plain.jobs()])


def grid_of(**keys: object) -> Study:
    """A study whose grid g has a task without a probe."""
    grid = {"tasks": ["next"], "fractions": ["1", "0"]} | keys
    return Study(config_of(with_keys(CONFIG, {"tasks.next": NEXT, "grids": {"g": grid}})), "nowhere")


@pytest.mark.parametrize("adapt", [["none"], ["none", "probe"], ["probe"]])
def test_a_task_without_a_probe_runs_once_whatever_may_adapt(adapt: list[str]) -> None:
    """So its grid has the same view, and the same lines in claims, under all of them."""
    without = grid_of(adapt=adapt)
    assert [variant.path for variant in without.variants("tiny", "next")] == ["original", "average/all", "zeros/all"]
    assert grid_view(without, "g") == grid_view(grid_of(), "g")
    assert "recovery" not in without.entries() and "adapted" not in analyses_table(without).frame


def test_a_grid_of_both_kinds_of_tasks_keeps_its_adaptations() -> None:
    both = grid_of(tasks=["next", "animals"], adapt=["none", "probe"])
    assert grid_view(both, "g").adapt == ("none", "probe")
    assert [variant.adapt for variant in both.variants("tiny", "animals")].count("none") == 1
    with pytest.raises(InputError, match=r"g\.adapt lists none, but claims are about retrained probes"):
        grid_of(tasks=["next", "animals"], adapt=["none"])


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        (
            {"adapt": ["norms"], "constants": ["toeplitz-trained"]},
            "lists none or norms, but grids.g has toeplitz-trained",
        ),
        ({"adapt": ["constants"], "constants": ["zeros"]}, "lists constants. The constant 'zeros' cannot be trained"),
        ({"adapt": ["norms"], "tasks": ["next"]}, "norms, which are trained with a probe, but the model's own head"),
        ({"adapt": ["constants"], "tasks": ["next"]}, "constants, which are trained with a probe of labels, but next"),
        ({"adapt": ["norms"], "tasks": ["stored"]}, "tasks.stored.features is store, but grids.g.adapt changes hidden"),
        ({"adapt": ["norms", "norms"]}, "grids.g.adapt contains 'norms' twice"),
        ({"adapt": ["all"]}, "adapt"),
    ],
)
def test_an_adaptation_that_does_not_fit_is_refused_in_a_sentence(grid: dict[str, object], message: str) -> None:
    stored = CONFIG["tasks"]["animals"] | {"features": "store"}
    config = with_keys(CONFIG, {"tasks.next": NEXT, "tasks.stored": stored, "grids": {"g": grid}})
    with pytest.raises(InputError, match=message):
        config_of(config)


def test_every_path_is_parsed_back() -> None:
    grid = study(adapt=["none", "probe", "constants", "norms"], fractions=["1", "1/2", "0"])
    for variant in grid.variants("tiny", "animals"):
        assert Variant.parse(variant.path) == variant
