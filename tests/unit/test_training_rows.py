"""Training rows: samples, parts for seeds, and held-out rows that decide when training ends."""

from itertools import pairwise
from math import inf

import jobs
import pytest
import torch
from jobs import training
from sizes import CORPUS_SLOTS, LAYERS, TRAIN
from torch import nn
from torch.nn.functional import cross_entropy

import papa
from papa.data.tokens import Tokens
from papa.files import read_table
from papa.method.checkpoints import State
from papa.method.fitting import HELD_OUT, TrainingTask, fit
from papa.method.labelled import GoldLabels, Labelled
from papa.method.objective import fit_objective
from papa.method.probes import LinearSequenceProbe, LinearTokenProbe, ProbeSizes
from papa.method.states import CachedStates
from papa.method.training_rows import best_epoch, is_settled, training_rows


def sample(rows, available=103, seed=1, **changes):
    return training_rows(available, training(rows=rows, **changes), seed)


def test_all_rows_are_used_in_their_order_unless_a_sample_is_asked_for():
    rows = sample(None)
    assert rows.learned.tolist() == rows.all.tolist() == list(range(103)) and not len(rows.held_out)


def test_a_smaller_sample_is_part_of_a_larger_one_and_the_same_for_every_seed():
    samples = [set(sample(rows).learned.tolist()) for rows in ("1/8", "1/4", 53, "0.7")]
    assert list(map(len, samples)) == [12, 25, 53, 72]
    assert all(small < large for small, large in pairwise(samples))
    assert set(sample("1/4", seed=2).learned.tolist()) == samples[1] != set(range(25))
    with pytest.raises(papa.InputError, match="train_rows is 104, but the corpus has 103 training rows"):
        sample(104)


def test_seeds_have_parts_without_common_rows():
    parts = [sample("1/5", seed=seed, resampled=True).learned.tolist() for seed in range(1, 7)]
    assert [len(part) for part in parts] == [20] * 6
    assert len({row for part in parts[:5] for row in part}) == 100 and parts[5] == parts[0]


def test_a_tenth_of_the_rows_is_held_out():
    rows, larger = sample("1/2", patience=2), sample(None, patience=2)
    assert sorted(rows.all.tolist()) == sample("1/2").learned.tolist()
    assert [len(rows.learned), len(rows.held_out), len(larger.held_out)] == [46, 5, 10]
    assert torch.equal(rows.held_out, sample("1/2", seed=5, patience=2).held_out)
    with pytest.raises(papa.InputError, match="but there are only 9; leave out"):
        sample(9, patience=1)


@pytest.mark.parametrize(
    ("losses", "best", "settled"),
    [
        ([3.0], 1, [False, False, False]),
        ([3.0, 2.0, 2.0], 2, [True, False, False]),
        ([3.0, 2.0, 2.5, 2.4], 2, [True, True, False]),
        ([3.0, 4.0, 5.0, 1.0], 4, [False, False, False]),
    ],
)
def test_training_is_settled_when_the_held_out_loss_has_not_fallen(losses, best, settled):
    assert best_epoch(losses) == best
    assert [is_settled(losses, patience) for patience in (1, 2, 3)] == settled
    assert not is_settled([], 1)


class Saved:
    """A checkpoint in memory, which keeps the state after some number of steps."""

    def __init__(self, steps: int):
        self.steps, self.state, self.resumed = steps, None, ""

    def restore(self) -> State | None:
        return self.state

    def save(self, state, ended=False):
        current = state()
        if self.state is None and current.values["steps"] == self.steps:
            tensors = {name: values.clone() for name, values in current.tensors.items()}
            self.state = State(tensors, current.values)

    def discard(self) -> None:
        pass


def fitted(losses, patience, epochs=11, checkpoint=None):
    """Train a weight that grows by 1 in each step, two steps in an epoch, with these losses on held-out rows."""
    weight = nn.Parameter(torch.zeros(3))
    task = TrainingTask(
        "fitting",
        [weight],
        7,
        loss=lambda rows: -weight.sum() + 0 * rows.sum(),
        before_epoch=lambda epoch: None,
        after_epoch=lambda: {"weight": weight.detach().clone()},
        held_out_loss=lambda: torch.tensor(losses[round(weight[0].item() / 2) - 1]),
    )
    how = training(learning_rate=1.0, batch_size=4, epochs=epochs, patience=patience)
    return fit(task, how, 1, checkpoint), weight.detach()


@pytest.mark.parametrize(
    ("losses", "patience", "best"),
    [
        ([5.0, 4.0, 3.0, 3.5, 3.0, 0.0], 2, 3),
        ([5.0, 4.0, 4.5, 3.0, 3.5, 3.5], 1, 2),
        ([5.0, 4.0, 3.0, 2.0, 1.0, 0.5], 2, 6),  # still falls at the maximum
        ([1.0, 4.0, 3.0, 2.0, 1.5, 1.2], 4, 1),
    ],
)
def test_the_epoch_with_the_lowest_held_out_loss_is_used(losses, patience, best):
    epochs, weight = fitted(losses, patience, epochs=6)
    assert len(epochs) == best and torch.allclose(weight, torch.full((3,), 2.0 * best), atol=1e-4)
    assert torch.equal(epochs[-1].recorded["weight"], weight)
    assert [float(epoch.recorded[HELD_OUT]) for epoch in epochs] == losses[:best]


@pytest.mark.parametrize("steps", [1, 4, 5, 6, 8, 10])
def test_training_that_resumes_selects_the_same_epoch(steps):
    losses = [5.0, 3.0, 4.0, 4.0, 4.0, inf]
    expected, weight = fitted(losses, 3)
    checkpoint = Saved(steps)
    fitted(losses, 3, checkpoint=checkpoint)
    assert checkpoint.state is not None
    epochs, resumed = fitted(losses, 3, checkpoint=checkpoint)
    assert len(epochs) == len(expected) == 2 and torch.equal(resumed, weight)


def test_linear_probes_are_one_layer_on_mean_states(inputs):
    mask = inputs["attention_mask"].bool()
    hidden = torch.randn(*mask.shape, LAYERS + 1, 13)  # [example, slot, L+1, hidden]
    batch = papa.data.packed.Packed.of(inputs)
    probe = LinearSequenceProbe(LAYERS + 1, 13, 3)
    means = torch.stack([states[real].mean(0).flatten() for states, real in zip(hidden, mask, strict=True)])
    torch.testing.assert_close(probe.packed(hidden[mask], batch), means @ probe.output.weight.T + probe.output.bias)
    words = LinearTokenProbe(LAYERS + 1, 13, 3)
    expected = hidden[mask].flatten(1) @ words.output.weight.T + words.output.bias
    torch.testing.assert_close(words.packed(hidden[mask]), expected)
    assert sum(values.numel() for values in words.parameters()) == (LAYERS + 1) * 13 * 3 + 3


@pytest.mark.parametrize("probe", ["paper", "linear"])
def test_a_probe_learns_from_its_sample_as_a_plain_loop_does(tiny, corpus, data, metric, loaded, probe):
    """The oracle: AdamW of torch on the sampled rows only, and the held-out rows never reach the gradient."""
    how = training(rows="3/5", probe=probe, batch_size=7, epochs=2, patience=5)
    splits = Tokens.read(data["tokens"])
    sizes = ProbeSizes(LAYERS + 1, loaded.hidden, CORPUS_SLOTS, 0.4, 0.0)
    states = CachedStates(loaded, loaded.replacement(), splits)

    def objective():
        torch.manual_seed(3)
        return Labelled(splits, sizes, GoldLabels.read(splits, data["labels"]), probe == "linear")

    ours, plain, read = objective(), objective(), set()
    batch_of = ours.batch
    ours.batch = lambda rows: read.update(rows.tolist()) or batch_of(rows)
    epochs = fit_objective(ours, states, [ours.probe], how, 3)
    rows = training_rows(TRAIN, how, 3)
    assert read == set(rows.all.tolist()) and len(read) == int(0.6 * TRAIN)

    optimiser = torch.optim.AdamW(plain.probe.parameters(), how.learning_rate, weight_decay=0.0)
    generator, held_out = torch.Generator().manual_seed(3), []

    def loss_of(examples):
        batch = plain.batch(examples)
        return cross_entropy(plain._logits(batch, states(batch)), batch.gold)

    for _ in range(2):
        for part in torch.randperm(len(rows.learned), generator=generator).split(7):
            optimiser.zero_grad()
            loss_of(rows.learned[part]).backward()
            nn.utils.clip_grad_norm_(plain.probe.parameters(), 1.0)
            optimiser.step()
        held_out.append(loss_of(rows.held_out).item())
    assert [float(epoch.recorded[HELD_OUT]) for epoch in epochs] == pytest.approx(held_out[: len(epochs)], abs=1e-5)
    assert len(epochs) == best_epoch(held_out)
    if len(epochs) == 2:
        for mine, other in zip(ours.probe.parameters(), plain.probe.parameters(), strict=True):
            torch.testing.assert_close(mine, other, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("corpus", ["text"], indirect=True)
def test_a_run_records_its_sample_and_the_epoch_it_uses(tiny, corpus, data):
    path = corpus / "run.json"
    how = training(rows="1/2", patience=1, epochs=40, learning_rate=0.1, probe="linear")
    jobs.probe(tiny, path, how=how, seed=(1, 2), **data)
    for seed in (1, 2):
        run = jobs.run_of(path, seed)
        assert run["rows"]["train"] == TRAIN // 2 and run["rows_available"]["train"] == 99
        assert (run["patience"], run["probe"], run["epochs"]) == (1, "linear", 40)
        assert 1 <= len(run["curve"]) < 40
    outcomes = read_table(jobs.outcomes_of(path))
    longest = max(len(jobs.run_of(path, seed)["curve"]) for seed in (1, 2))
    assert ("predicted_1" in outcomes.column_names) == (longest > 1)


@pytest.mark.parametrize("corpus", ["text"], indirect=True)
def test_lambda_and_gradients_learn_from_the_sample_too(tiny, corpus, data, monkeypatch):
    read, batch = set(), Labelled.batch
    monkeypatch.setattr(Labelled, "batch", lambda self, rows: read.update(rows.tolist()) or batch(self, rows))
    how = training(rows="1/3", epochs=2)
    expected = set(training_rows(TRAIN, how, 0).all.tolist())
    jobs.learn(tiny, corpus / "lambda.parquet", how, constant="zeros", **data)
    assert read == expected and len(read) == TRAIN // 3
    read.clear()
    jobs.weigh(tiny, corpus / "weights.parquet", {"training": how, "seed": 0, "constant": "zeros"}, **data)
    assert read == expected


@pytest.mark.parametrize("corpus", ["text"], indirect=True)
def test_lambda_ends_with_the_lowest_held_out_loss(tiny, corpus, data):
    how = training(epochs=9, learning_rate=0.1, patience=1)
    said = jobs.learn(tiny, corpus / "lambda.parquet", how, constant="zeros", **data)
    epochs = read_table(corpus / "lambda.parquet")["epoch"].to_pylist()[-1]
    assert epochs < 9 and f"after {epochs} epoch" in said and "selected on held-out rows" in said
