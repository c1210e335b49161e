"""Samples of training rows: how they are drawn, and the variance between them."""

import jobs
import numpy as np
import pytest
import torch
from jobs import training
from sizes import TRAIN
from torch import nn
from torch.nn.functional import cross_entropy

from papa.method.objectives import Labelled
from papa.method.states import StreamedStates
from papa.method.training import TrainingTask, drawn_rows, fit
from papa.results.statistics import SOURCES, PseudoValues, Spread
from papa.stages import OfTask


def test_samples_are_drawn_with_replacement_and_by_cluster():
    one, two = (drawn_rows(torch.arange(103), sample).tolist() for sample in (1, 2))
    assert len(one) == len(two) == 103
    assert one != two
    assert one == drawn_rows(torch.arange(103), 1).tolist()
    assert 55 < len(set(one)) < 75, "a draw has about 63% of the rows"
    clusters = torch.tensor([7, 7, 3, 7, 3, 5])  # of any size, in any order
    for number in range(1, 9):
        times = drawn_rows(clusters, number).bincount(minlength=6).tolist()
        assert times[0] == times[1] == times[3]
        assert times[2] == times[4]
        assert times[0] + times[2] + times[5] == 3


def between(scores):
    """The variance between the rows of scores `[row, unit]`, without what differs by unit."""
    of_units = scores - scores.mean(1, keepdims=True) - scores.mean(0) + scores.mean()
    rows, units = scores.shape
    return scores.mean(1).var(ddof=1) - (of_units**2).sum() / ((rows - 1) * (units - 1)) / units


def test_the_variance_between_samples_is_that_by_hand_and_counts_once():
    """Means of probes on samples, without what differs by unit; it does not shrink with more seeds."""
    chance = np.random.default_rng(1)
    values = chance.normal(size=(2, 1, 5, 40))
    drawn = chance.normal(size=(2, 7, 40)) + 3 * chance.normal(size=(2, 7, 1))
    table = PseudoValues(values, resampled=drawn)
    spread = Spread.over([[table]])
    contrast = np.array([1.0, -1.0])

    def of_contrast(squares):
        return np.einsum("eij,i,j->e", squares, contrast, contrast)

    rows = SOURCES.index("rows")
    scores = contrast @ drawn.swapaxes(0, 1)  # [sample, unit]
    expected = between(scores)
    means = scores.mean(1).var(ddof=1)
    found = of_contrast(spread.squares[spread.members[:, rows]])
    assert [found[0], found[0] - found[1]] == pytest.approx([means, expected])
    plain = Spread.over([[PseudoValues(values)]])
    with_rows = spread.estimate(contrast)
    without = plain.estimate(contrast)
    assert with_rows.mean == without.mean
    assert with_rows.variance == pytest.approx(without.variance + expected)
    main = plain.members.sum(1) == 1
    # Satterthwaite's, with all of the variance between samples
    parts = np.append(of_contrast(plain.squares[main]), means)
    freedoms = np.append(plain.freedoms[main], 6)
    more = parts * (1 + 4 / freedoms)
    total = with_rows.variance + (more - parts).sum()
    assert with_rows.freedom == pytest.approx(total**2 / (more**2 / freedoms).sum())
    # less than what is due to units
    centred = PseudoValues(values, resampled=drawn - drawn.mean(2, keepdims=True))
    assert Spread.over([[centred]]).estimate(contrast).shares == without.shares
    # one corpus, and another
    both = Spread.over([[table, table], [PseudoValues(values)]])
    joint = both.estimate([1, -1, 1, -1, 0, 0])
    assert both.members[:, rows].sum() == 2
    assert joint.variance == pytest.approx(4 * with_rows.variance)
    beside = Spread.over([[PseudoValues(values, resampled=drawn[:, :0]), table]])
    assert beside.estimate([0, 0, 1, -1]).variance == pytest.approx(with_rows.variance)


def test_over_corpora_the_variance_between_samples_is_without_that_of_their_seeds():
    chance = np.random.default_rng(2)
    values = chance.normal(size=(2, 2, 1, 5, 40)) + chance.normal(size=(2, 2, 1, 5, 1))
    drawn = chance.normal(size=(2, 2, 7, 40)) + 3 * chance.normal(size=(2, 2, 7, 1))
    contrast = np.array([1.0, -1.0])
    of_rows = [between(np.einsum("q,qsu->su", contrast, of_corpus)) for of_corpus in drawn]
    of_seeds = [between(np.einsum("q,qosu->su", contrast, of_corpus)) for of_corpus in values]
    assert min(of_seeds) > 0
    plain = Spread.over([[PseudoValues(each)] for each in values])
    sampled = [
        [PseudoValues(each, resampled=rows)] for each, rows in zip(values, drawn, strict=True)
    ]
    both = Spread.over(sampled)
    for weights, expected in (
        ([1, -1, 1, -1], sum(of_rows) - sum(of_seeds)),
        ([1, -1, 0, 0], of_rows[0]),  # of a single corpus, nothing is subtracted
    ):
        assert both.estimate(weights).variance == pytest.approx(
            plain.estimate(weights).variance + expected
        )


def test_a_probe_learns_from_its_sample_as_a_plain_loop_does(data, loaded):
    """The oracle: AdamW of torch on the sampled rows only."""
    how = training(batch_size=7, epochs=2)
    rows = drawn_rows(torch.arange(TRAIN) // 3, 4)
    states = StreamedStates(loaded, loaded.replacement, rounded=True)

    def objective():
        torch.manual_seed(3)
        return jobs.labelled(data)

    ours = objective()
    plain = objective()
    read = set()
    batch_of = ours.batch
    ours.batch = lambda rows: read.update(rows.tolist()) or batch_of(rows)
    fit(
        TrainingTask("probe", [ours.probe], ours, states, rows),
        OfTask(kind="text", training=how, seed=3),
    )
    assert read == set(rows.tolist()) != set(range(TRAIN))

    optimiser = torch.optim.AdamW(plain.probe.parameters(), how.learning_rate, weight_decay=0.0)
    generator = torch.Generator().manual_seed(3)
    for _ in range(2):
        for part in torch.randperm(len(rows), generator=generator).split(7):
            optimiser.zero_grad()
            batch = plain.batch(rows[part])
            cross_entropy(plain._logits(batch, states(batch)), batch.gold).backward()
            nn.utils.clip_grad_norm_(plain.probe.parameters(), 1.0)
            optimiser.step()
    for mine, other in zip(ours.probe.parameters(), plain.probe.parameters(), strict=True):
        torch.testing.assert_close(mine, other, atol=1e-5, rtol=1e-4)


@jobs.TEXTS
def test_the_stage_draws_the_sample_that_its_job_names(tiny, corpus, data, monkeypatch):
    read = set()
    batch = Labelled.batch
    monkeypatch.setattr(
        Labelled, "batch", lambda self, rows: read.update(rows.tolist()) or batch(self, rows)
    )
    jobs.probe(tiny, corpus / "run.parquet", training(epochs=2), sample=2, cluster=5, **data)
    assert read == set(drawn_rows(torch.arange(TRAIN) // 5, 2).tolist()) != set(range(TRAIN))
