"""From laid-out tokens and labels to λ and predictions, on a tiny random model and learnable labels."""

from types import SimpleNamespace

import jobs
import numpy as np
import pyarrow as pa
import pytest
import torch
from jobs import training
from refusals import input_error
from sizes import CORPUS_SLOTS, HEADS, LAYERS, TRAIN, VALIDATION
from test_hidden import stored
from torch import nn

from papa.data.tokens import Tokens
from papa.files import read_facts, read_table, write_table
from papa.method import objectives
from papa.method.objectives import (
    IGNORED,
    SequenceProbe,
    TokenProbe,
)
from papa.method.training import TrainingTask, _clip, fit, train_probes
from papa.method.variants import ordered_heads
from papa.stages import OfTask


def test_a_probe_learns_and_the_same_seed_gives_the_same_bytes(tiny, corpus, data):
    states = stored(tiny, corpus)

    def run(name, seed):
        how = training(epochs=15, learning_rate=3e-2)
        path = corpus / f"{name}.parquet"
        jobs.probe(tiny, path, how, seed, states=states, **data)
        return read_facts(path)

    first = run("a", 1)
    again = run("b", 1)
    other = run("c", 2)
    losses = first["curve"]
    assert losses[-1] < losses[0] / 2
    assert len(losses) == 15
    assert losses != other["curve"]
    assert first == again == {"kept": LAYERS * HEADS, "heads": LAYERS * HEADS, "curve": losses}
    assert (corpus / "a.parquet").read_bytes() == (corpus / "b.parquet").read_bytes()


@jobs.TEXTS
@pytest.mark.parametrize("variant", ["original", "toeplitz-trained/all"])
def test_seeds_that_are_trained_together_have_the_bytes_of_each_alone(tiny, corpus, data, variant):
    def job(name, seed):
        return jobs.probe_job(
            tiny, corpus / f"{name}-{seed}.parquet", seed=seed, variant=variant, **data
        )

    assert "3 probes" in train_probes([job("together", seed) for seed in (2, 1, 3)])
    for seed in (1, 2, 3):
        train_probes([job("alone", seed)])
        made = [(corpus / f"{name}-{seed}.parquet").read_bytes() for name in ("together", "alone")]
        assert made[0] == made[1], seed


@pytest.mark.parametrize("corpus", ["words"], indirect=True)
@pytest.mark.parametrize("at_once", [1, 64])
def test_batches_and_sentences_without_a_labelled_word_count_nothing(
    tiny, corpus, data, monkeypatch, at_once
):
    monkeypatch.setattr(objectives, "EVALUATED_AT_ONCE", at_once)
    table = read_table(data["labels"])

    def outcomes(name, bare):
        rows = enumerate(table["label t"].to_pylist())
        labels = pa.array([[IGNORED] * len(row) if bare(number) else row for number, row in rows])
        write_table(
            table.set_column(2, "label t", labels), data["labels"], read_facts(data["labels"])
        )
        run = corpus / f"{name}.parquet"
        jobs.probe(tiny, run, training(batch_size=1, epochs=1), **data)
        assert np.isfinite(read_facts(run)["curve"][0])
        return read_table(run).to_pylist()

    every = outcomes("all", lambda number: number < TRAIN and number % 2)
    some = outcomes("some", lambda number: number % (2 if number < TRAIN else 3))
    assert some == every, "labels of validation texts reach no probe"
    objective = jobs.labelled(data)
    loss = objective.loss(objective.batch(torch.tensor([1, 3])), torch.zeros(0, LAYERS + 1, 35))
    loss.backward()
    assert loss.item() == 0
    assert not any(values.grad.any() for values in objective.probe.parameters())


@jobs.TEXTS
def test_of_a_loss_that_is_no_number_no_file_is_left(tiny, corpus, data):
    states = stored(tiny, corpus)
    before = set(corpus.iterdir())
    with input_error(r"became nan in epoch 1 .* lower the learning rate"):
        jobs.probe(
            tiny, corpus / "run.parquet", training(learning_rate=1e38), states=states, **data
        )
    assert set(corpus.iterdir()) == before


def test_outcomes_are_what_the_probe_makes_of_each_example(tiny, corpus, data, metric, loaded):
    """A row for each example or word with a token, by hand off the probe."""
    run = corpus / "run.parquet"
    of_words = metric == "token_accuracy"
    state = jobs.trained(tiny, run, variant="zeros/all", **data)
    table = read_table(run)
    tokens = read_table(data["tokens"]).slice(TRAIN)
    assert table.column("split").to_pylist() == ["validation"] * table.num_rows
    part = Tokens.read(data["tokens"])["validation"]
    batch = part.batch(torch.arange(len(part)))
    zeros = loaded.replacement(torch.zeros(LAYERS, HEADS, CORPUS_SLOTS, CORPUS_SLOTS))
    with torch.inference_mode():
        hidden = torch.stack(loaded.run(loaded.pack(batch), zeros), dim=1).half().float()
        if of_words:
            sub_tokens = [
                (row, word)
                for row, words in enumerate(tokens.column("words").to_pylist())
                for word in words
            ]
            first = [place for place, (_, word) in enumerate(sub_tokens) if word >= 0]
            rows = [sub_tokens[place] for place in first]
            probe = TokenProbe(LAYERS + 1, loaded.hidden, 2)
            probe.load_state_dict(state)
            given = probe.eval().packed(hidden[first])
        else:
            rows = [(row,) for row in range(VALIDATION)]
            probe = SequenceProbe(LAYERS + 1, CORPUS_SLOTS, loaded.hidden, 2)
            probe.load_state_dict(state)
            given = probe.eval().packed(hidden, batch)
    keys = ["example", *["word"] * of_words]
    assert table.column_names == ["split", *keys, "predicted"]
    assert list(zip(*(table.column(key).to_pylist() for key in keys), strict=True)) == rows
    predicted = given.argmax(-1).tolist()
    assert table.column("predicted").to_pylist() == predicted
    assert len(set(predicted)) == 2
    labels = read_table(data["labels"])["label t"].to_pylist()[TRAIN:]
    gold = [labels[row[0]][row[1]] if of_words else labels[row[0]] for row in rows]
    right = [label == other for label, other in zip(predicted, gold, strict=True)]
    assert jobs.score(run, data["labels"], metric) == pytest.approx(sum(right) / len(right))


def test_lambda_is_learned_and_heads_are_replaced_from_the_smallest_up(tiny, corpus, data, loaded):
    average = corpus / "average.h5"
    lambdas = corpus / "lambda.parquet"
    jobs.average(tiny, data["tokens"], average)
    jobs.learn(tiny, lambdas, seed=3, constants=average, **data)
    table = read_table(lambdas).to_pandas()
    assert len(table) == 3 * LAYERS * HEADS
    assert table.value.between(0, 1).all()
    assert table[table.epoch == 3].value.std() > 0.01
    settings = jobs.variant_of("average/lambda-3/kept-1of2")
    ordered = ordered_heads(
        jobs.job(settings, corpus / "s.hidden", weights=lambdas), settings, loaded
    )
    last = table[table.epoch == 3].set_index(["layer", "head"]).value
    assert [last[head] for head in ordered] == sorted(last)


def test_gradients_are_clipped_as_torch_does():
    for size in (0.0, 0.01, 0.16, 0.2, 1.0, 1e6, float("inf"), float("nan")):
        ours, theirs = (
            [torch.zeros(5, 7, requires_grad=True), torch.zeros(3, requires_grad=True)]
            for _ in range(2)
        )
        for mine, other in zip(ours, theirs, strict=True):
            mine.grad = torch.randn_like(mine) * size
            other.grad = mine.grad.clone()
        _clip(ours)
        nn.utils.clip_grad_norm_(theirs, 1.0)
        gradients = [[values.grad for values in weights] for weights in (ours, theirs)]
        torch.testing.assert_close(*gradients, atol=0, rtol=0, equal_nan=True)


def test_learned_weights_are_finite_too():
    """The last step of an epoch may have no finite gradient, although its loss is finite."""
    weight = torch.nn.Parameter(torch.full((3,), 1e30))
    objective = SimpleNamespace(examples=5, begin=int)
    objective.weighted = lambda parts: [(parts[0], 1.0)]
    objective.loss_on = lambda states, rows: (weight - weight).sqrt().sum()
    task = TrainingTask("fitting", [nn.ParameterList([weight])], objective, None)
    with input_error("The learned weights are not finite in epoch 1 of fitting"):
        fit(task, OfTask(kind="text", training=training(batch_size=5), seed=1))
