"""Inner folds: how training rows are split, what is trained and scored on them, and what is chosen."""

import logging

import jobs
import pyarrow as pa
import pytest
import torch
from jobs import training
from sizes import CORPUS_SLOTS, LAYERS, TRAIN
from test_hidden import stored

from papa.config import stages
from papa.data.tokens import Tokens
from papa.errors import DamagedArtefact, InputError
from papa.files import provenance_of, read_table, write_table
from papa.method.folds import folds_of, score_folds
from papa.method.labelled import GoldLabels, Labelled
from papa.method.metrics import score_of_table
from papa.method.objective import fit_objective
from papa.method.probes import ProbeSizes
from papa.method.states import StreamedStates
from papa.method.training import train_probe
from papa.method.tuning import BestRate, best_floors, read_folds

RATES = (3e-5, 3e-2)
HOW = training(epochs=7)


def folds_job(model, path, metric, rates=RATES, variant="original", folds=2, **inputs):
    settings = stages.FoldsOf(
        model=jobs.encoding(model),
        task="t",
        metric=metric,
        training=HOW,
        variant=variant,
        encoder_dropout=False,
        streamed="index" not in inputs,
        learning_rates=rates,
        folds=folds,
    )
    return jobs.job("folds", settings, inputs, folds=path)


def rows(*scores):
    """Rows of a table of folds: pairs of a learning rate and a score."""
    return [{"learning_rate": rate, "fold": 1, "rows": 5, "score": score} for rate, score in scores]


def test_folds_have_every_row_once():
    folds = folds_of(23, 3, 7)
    assert sorted(map(len, folds)) == [7, 8, 8]
    assert torch.cat(folds).sort().values.tolist() == list(range(23))
    assert [fold.tolist() for fold in folds] == [fold.tolist() for fold in folds_of(23, 3, 7)]
    assert folds[0].tolist() != folds_of(23, 3, 8)[0].tolist()
    with pytest.raises(InputError, match="1 training row cannot be split into 2 folds"):
        folds_of(1, 2, 0)


@pytest.mark.parametrize("folds", [2, 5])
def test_two_folds_are_scored_by_probes_of_the_others(tiny, corpus, data, metric, loaded, folds):
    """Against probes that are trained here, on the rows of the other folds, with states that the model computes."""
    path = corpus / "folds.parquet"
    line = score_folds(folds_job(tiny, path, metric, folds=folds, index=stored(tiny, corpus), **data))
    facts, scored = read_folds(path)
    assert facts == {"model": "tiny", "task": "t", "variant": "original", "metric": metric}
    train = Tokens.read(data["tokens"])["train"]
    parts = folds_of(TRAIN, folds, 0)
    states = StreamedStates(loaded, loaded.replacement, rounded=True)
    expected = []
    for rate in RATES:
        for number, held_out in enumerate(parts[:2]):
            trained = torch.cat([*parts[:number], *parts[number + 1 :]])
            splits = {"train": train.select(trained, "train"), "validation": train.select(held_out, "validation")}
            torch.manual_seed(0)
            sizes = ProbeSizes.of(loaded, CORPUS_SLOTS)
            objective = Labelled(splits, sizes, GoldLabels.read(splits, data["labels"]))
            assert sizes.layers == LAYERS + 1
            how = training(epochs=7, learning_rate=rate)
            epochs = fit_objective(objective, states, [objective.probe], how, 0)
            expected.append(score_of_table(metric, objective.table([epochs[-1].recorded]), objective.names))
    assert [row["score"] for row in scored] == pytest.approx(expected, abs=0.08)
    assert [(row["learning_rate"], row["fold"]) for row in scored] == [
        (rate, fold) for rate in RATES for fold in (1, 2)
    ]
    assert [row["rows"] for row in scored] == [len(part) for part in parts[:2]] * 2
    best = BestRate.of(scored)
    assert f"on 2 inner folds; best learning rate {best.learning_rate:g}" in line
    chosen = RATES.index(best.learning_rate)
    assert best.score == pytest.approx(sum(expected[2 * chosen :][:2]) / 2, abs=0.08)


@pytest.mark.parametrize("corpus", ["text"], indirect=True)
def test_no_validation_row_matters(tiny, corpus, data, metric):
    """The folds of a corpus whose validation labels are all the other way round have the same scores."""
    index, path = stored(tiny, corpus), corpus / "folds.parquet"
    score_folds(folds_job(tiny, path, metric, index=index, **data))
    before = read_folds(path)[1]
    table = read_table(data["labels"])
    facts = {name: provenance_of(table)[name] for name in ("fingerprint", "label_names")}
    flipped = [row["label"] if row["split"] == "train" else 1 - row["label"] for row in table.to_pylist()]
    columns = {"split": table["split"], "row": table["row"], "label": pa.array(flipped)}
    write_table(pa.table(columns), data["labels"], facts)
    score_folds(folds_job(tiny, path, metric, index=index, **data))
    assert read_folds(path)[1] == before


@pytest.mark.parametrize("corpus", ["text"], indirect=True)
def test_a_tuned_probe_is_trained_with_the_best_rate_and_records_it(tiny, corpus, data, metric, caplog):
    index, folds, tuned, fixed = stored(tiny, corpus), corpus / "folds.parquet", corpus / "a.json", corpus / "b.json"
    score_folds(folds_job(tiny, folds, metric, index=index, **data))
    job = jobs.probe_job(tiny, tuned, metric, HOW, index=index, folds=folds, **data)
    settings = job.settings.model_copy(update={"learning_rates": RATES})
    with caplog.at_level(logging.WARNING):
        train_probe(jobs.job("probe", settings, {**data, "index": index, "folds": folds}, **job.outputs))
    assert "The best learning rate of original on t is 0.03, at the end of the list (3e-05, 0.03)" in caplog.text
    jobs.probe(tiny, fixed, metric, training(epochs=7, learning_rate=3e-2), index=index, **data)
    run, expected = jobs.run_of(tuned), jobs.run_of(fixed)
    assert (run.pop("learning_rates"), run["learning_rate"]) == ([3e-5, 3e-2], 3e-2)
    assert run == expected
    assert jobs.outcomes_of(tuned).read_bytes() != b"" and jobs.scores(tuned, metric) == jobs.scores(fixed, metric)


@pytest.mark.parametrize("corpus", ["text"], indirect=True)
def test_a_training_that_diverges_has_no_score(tiny, corpus, data, metric):
    path, index = corpus / "folds.parquet", stored(tiny, corpus)
    score_folds(folds_job(tiny, path, metric, rates=(1e-2, 1e38), index=index, **data))
    scored = read_folds(path)[1]
    assert [row["score"] is None for row in scored] == [False, False, True, True]
    assert BestRate.of(scored).learning_rate == 1e-2
    line = score_folds(folds_job(tiny, path, metric, rates=(1e38,), index=index, **data))
    assert line == f"no {metric} on 2 inner folds, because training diverged"
    with pytest.raises(InputError, match="Training diverged at every learning rate"):
        BestRate.of(read_folds(path)[1])
    with pytest.raises(DamagedArtefact, match="has no scores of inner folds"):
        read_folds(data["labels"])


def test_the_best_rate_has_the_best_mean_and_the_ends_are_named():
    scores = rows((0.1, 0.5), (0.1, 0.7), (0.2, 0.8), (0.2, 0.6), (0.3, 0.9), (0.3, 0.1))
    assert BestRate.of(scores) == BestRate(0.2, pytest.approx(0.7), False)
    assert BestRate.of(scores[:4]) == BestRate(0.2, pytest.approx(0.7), True)
    assert BestRate.of(scores[:2]) == BestRate(0.1, pytest.approx(0.6), False), "there is no list to be at the end of"
    assert BestRate.of(rows((0.3, 0.5), (0.1, 0.5))).learning_rate == 0.1, "the smaller of equally good ones"


@pytest.mark.parametrize("corpus", ["text"], indirect=True)
def test_floors_are_ranked_by_their_scores_on_folds(tiny, corpus, data, metric):
    paths, scores = [], {}
    for name in ("zeros", "identity"):
        paths.append(corpus / f"{name}.parquet")
        score_folds(folds_job(tiny, paths[-1], metric, rates=(3e-2,), variant=f"{name}/all", **data))
        scores[name] = BestRate.of(read_folds(paths[-1])[1]).score
    assert scores["zeros"] != scores["identity"]
    expected = tuple(sorted(scores, key=lambda name: -scores[name]))
    for floors in (("zeros", "identity"), ("identity", "zeros")):
        assert best_floors(paths, floors) == {("tiny", "t"): expected}
    assert best_floors([paths[0], paths[0]], ("mean-output",)) == {}
