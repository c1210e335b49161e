"""Training rows: samples, and parts for seeds."""

from itertools import pairwise

import jobs
import pytest
import torch
from jobs import training
from sizes import CORPUS_SLOTS, LAYERS, TRAIN
from torch import nn
from torch.nn.functional import cross_entropy

import papa
from papa.data.tokens import Tokens
from papa.method.fitting import TrainingTask, fit, training_rows
from papa.method.objectives import GoldLabels, Labelled
from papa.method.probes import ProbeSizes
from papa.method.states import StreamedStates
from papa.plan.jobs import OfTask


def sample(rows, available=103, seed=1, **changes):
    return training_rows(available, training(rows=rows, **changes), seed)


def test_a_smaller_sample_is_part_of_a_larger_one_and_the_same_for_every_seed():
    assert sample(None).tolist() == list(range(103))
    samples = [set(sample(rows).tolist()) for rows in ("1/8", "1/4", 53, "0.7")]
    assert list(map(len, samples)) == [12, 25, 53, 72]
    assert all(small < large for small, large in pairwise(samples))
    assert set(sample("1/4", seed=2).tolist()) == samples[1] != set(range(25))
    with pytest.raises(papa.InputError, match="train_rows is 104, but the corpus has 103 training rows"):
        sample(104)
    # parts of seeds have no common rows
    parts = [sample("1/5", seed=seed, resampled=True).tolist() for seed in range(1, 7)]
    assert [len(part) for part in parts] == [20] * 6
    assert len({row for part in parts[:5] for row in part}) == 100 and parts[5] == parts[0]


def test_a_probe_learns_from_its_sample_as_a_plain_loop_does(tiny, corpus, data, metric, loaded):
    """The oracle: AdamW of torch on the sampled rows only."""
    how = training(rows="3/5", batch_size=7, epochs=2)
    splits = Tokens.read(data["tokens"])
    sizes = ProbeSizes(LAYERS + 1, loaded.hidden, CORPUS_SLOTS, 0.4, 0.0)
    states = StreamedStates(loaded, loaded.replacement, rounded=True)

    def objective():
        torch.manual_seed(3)
        return Labelled(splits, sizes, GoldLabels.read(data["labels"], "label t", splits["train"]))

    ours, plain, read = objective(), objective(), set()
    batch_of = ours.batch
    ours.batch = lambda rows: read.update(rows.tolist()) or batch_of(rows)
    fit(TrainingTask("probe", [ours.probe], ours, states), OfTask(kind="text", training=how, seed=3))
    rows = training_rows(TRAIN, how, 3)
    assert read == set(rows.tolist()) and len(read) == int(0.6 * TRAIN)

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


@pytest.mark.parametrize("corpus", ["text"], indirect=True)
def test_lambda_and_gradients_learn_from_the_sample_too(tiny, corpus, data, monkeypatch):
    read, batch = set(), Labelled.batch
    monkeypatch.setattr(Labelled, "batch", lambda self, rows: read.update(rows.tolist()) or batch(self, rows))
    how = training(rows="1/3", epochs=2)
    expected = set(training_rows(TRAIN, how, 0).tolist())
    for stage in (
        lambda: jobs.learn(tiny, corpus / "lambda.parquet", how, constant="zeros", **data),
        lambda: jobs.weigh(tiny, corpus / "weights.parquet", how, constant="zeros", **data),
        lambda: jobs.probe(tiny, corpus / "run.parquet", how, **data),
    ):
        read.clear()
        stage()
        assert read == expected and len(read) == TRAIN // 3
