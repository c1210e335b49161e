"""From laid-out tokens and labels to λ, orders and runs, on a tiny random model and learnable labels."""

import jobs
import numpy as np
import pyarrow as pa
import pytest
import torch
from jobs import training
from sizes import CORPUS_SLOTS, HEADS, LAYERS, TRAIN, VALIDATION
from test_hidden import stored
from torch import nn

import papa
from papa.config.variant import Variant
from papa.data.tokens import Tokens
from papa.files import provenance_of, read_provenance, read_table, write_table
from papa.method import labelled
from papa.method.fitting import Diverged, TrainingTask, _clip, fit
from papa.method.labelled import GoldLabels, Labelled
from papa.method.objective import IGNORED, Objective
from papa.method.orders import heads_to_replace
from papa.method.probes import ProbeSizes, SequenceProbe, TokenProbe


def test_a_probe_learns_and_the_same_seed_gives_the_same_bytes(tiny, corpus, data, metric):
    index = stored(tiny, corpus)

    def run(name, seed):
        how = training(epochs=15, learning_rate=3e-2)
        jobs.probe(tiny, corpus / f"{name}.json", metric, how, seed, index=index, **data)
        return jobs.run_of(corpus / f"{name}.json", seed)

    first, again, other = run("a", 1), run("b", 1), run("c", 2)
    losses = [epoch["loss"] for epoch in first["curve"]]
    assert losses[-1] < losses[0] / 2 and len(losses) == 15 and first["curve"] != other["curve"]
    assert first["rows"] == {"train": TRAIN, "validation": VALIDATION} and first["cut"]["train"] > 0
    point = {"model": "tiny", "task": "t", "constant": None, "order": None, "fraction": "1"}
    numbers = {"kept": LAYERS * HEADS, "heads": LAYERS * HEADS, "seed": 1}
    assert {name: first[name] for name in point | numbers} == point | numbers
    about = {"weights": first["provenance"]["weights"], "corpus": "f", "label_names": ["low", "high"]}
    assert provenance_of(read_table(corpus / "a.outcomes.parquet")) == point | about
    assert first == again
    for suffix in ("json", "safetensors", "outcomes.parquet"):
        assert (corpus / f"a.{suffix}").read_bytes() == (corpus / f"b.{suffix}").read_bytes()


@pytest.mark.parametrize("corpus", ["text"], indirect=True)
@pytest.mark.parametrize("variant", ["original", "toeplitz-trained/all"])
def test_a_further_seed_is_trained_and_the_others_stay(tiny, corpus, data, metric, monkeypatch, variant):
    trained, path = [], corpus / "run.json"
    files = [path, jobs.outcomes_of(path), path.with_suffix(".safetensors")]
    begin = Objective.begin
    monkeypatch.setattr(Objective, "begin", lambda self, epoch: (trained.append(epoch), begin(self, epoch)))

    def run(*seeds, **more):
        """How many seeds were trained."""
        trained.clear()
        jobs.probe(tiny, path, metric, seed=seeds, variant=variant, **data, **more)
        return trained.count(1)

    def made(seed):
        rows = [row for row in read_table(files[1]).to_pylist() if row["seed"] == seed]
        return jobs.run_of(path, seed), rows, {name: part.tolist() for name, part in jobs.state_of(path, seed).items()}

    assert run(2) == 1
    alone = made(2)
    assert run(1, 3) == 2, "seed 2 is kept, though it is not asked for"
    assert made(2) == alone and read_provenance(path).facts == {"seeds": [1, 2, 3]}
    together = [file.read_bytes() for file in files]
    assert run(1, 2, 3) == 0 and [file.read_bytes() for file in files] == together
    path.unlink()
    assert run(1, 2, 3) == 3 and [file.read_bytes() for file in files] == together, "in whatever steps"
    how = {"how": training(epochs=1)}
    assert run(1, 2, **how) == 2 and read_provenance(path).facts == {"seeds": [1, 2]}, "of other settings none is kept"
    part = files[1].read_bytes()
    assert run(1, 2, 4, **how) == 1
    files[1].write_bytes(part)  # as a kill leaves them that came before the last two files were written
    assert run(1, 2, 4, **how) == 1, "what is not in all files is trained again"
    files[2].write_bytes(files[2].read_bytes()[:-1] + b"x")
    assert run(2, 3, **how) == 2 and read_provenance(path).facts == {"seeds": [2, 3]}, "of damaged files none is kept"


@pytest.mark.parametrize("corpus", ["words"], indirect=True)
@pytest.mark.parametrize("at_once", [1, 64])
def test_batches_and_sentences_without_a_labelled_word_count_nothing(tiny, corpus, data, metric, monkeypatch, at_once):
    monkeypatch.setattr(labelled, "EVALUATED_AT_ONCE", at_once)
    table, splits, sizes = read_table(data["labels"]), Tokens.read(data["tokens"]), (LAYERS + 1, 35, CORPUS_SLOTS)

    def outcomes(name, bare):
        rows = enumerate(table["label"].to_pylist())
        labels = pa.array([[IGNORED] * len(row) if bare(number) else row for number, row in rows])
        about = {"fingerprint": "f", "label_names": ["low", "high"]}
        write_table(table.set_column(2, "label", labels), data["labels"], about)
        jobs.probe(tiny, corpus / f"{name}.json", metric, training(batch_size=1, epochs=1), **data)
        assert np.isfinite(jobs.run_of(corpus / f"{name}.json")["curve"][0]["loss"])
        return read_table(corpus / f"{name}.outcomes.parquet").to_pylist()

    every = outcomes("all", lambda number: number < TRAIN and number % 2)
    some = outcomes("some", lambda number: number % (2 if number < TRAIN else 3))
    assert some == [row for row in every if (row["example"] + TRAIN) % 3 == 0] and 0 < len(some) < len(every)
    objective = Labelled(splits, ProbeSizes(*sizes, 0.4, 0.0), GoldLabels.read(splits, data["labels"]))
    loss = objective.loss(objective.batch(torch.tensor([1, 3])), torch.zeros(0, LAYERS + 1, 35))
    loss.backward()
    assert loss.item() == 0 and not any(values.grad.any() for values in objective.probe.parameters())


@pytest.mark.parametrize("corpus", ["text"], indirect=True)
def test_a_loss_that_is_no_number_keeps_the_last_good_state(tiny, corpus, data):
    with pytest.raises(Diverged, match=r"became nan in epoch 1 .* lower the learning rate"):
        jobs.probe(tiny, corpus / "run.json", how=training(learning_rate=1e38), index=stored(tiny, corpus), **data)
    assert (corpus / "run.seed-1.last-good.safetensors").exists()
    assert not (corpus / "run.json").exists() and not (corpus / "run.safetensors").exists()
    with pytest.raises(papa.InputError, match=r"zeros/lambda-0/kept-1of2 needs an order of heads, but none was given"):
        jobs.store(tiny, corpus / "other.json", "zeros/lambda-0/kept-1of2", tokens=data["tokens"])


def test_outcomes_are_what_the_written_probe_makes_of_each_example(tiny, corpus, data, metric, loaded):
    """A row for each example or labelled word: what is right is read off the labels, the rest by hand off the probe."""
    jobs.probe(tiny, corpus / "run.json", metric, variant="zeros/all", **data)
    table = read_table(corpus / "run.outcomes.parquet")
    assert table.column("split").to_pylist() == ["validation"] * table.num_rows
    labels, tokens = (read_table(data[name]).slice(TRAIN) for name in ("labels", "tokens"))
    labels, of_words, part = labels.column("label").to_pylist(), metric == "token_accuracy", Tokens.read(data["tokens"])
    model, part = loaded, part["validation"]
    batch, state = part.batch(torch.arange(len(part))), jobs.state_of(corpus / "run.json")
    zeros = model.replacement(torch.zeros(LAYERS, HEADS, CORPUS_SLOTS, CORPUS_SLOTS))
    with torch.inference_mode():
        hidden = torch.stack(model.run(model.pack(batch), zeros), dim=1).half().float()
        if of_words:
            sub_tokens = [(row, word) for row, words in enumerate(tokens.column("words").to_pylist()) for word in words]
            first = [place for place, (_, word) in enumerate(sub_tokens) if word >= 0]
            rows = [(*sub_tokens[place], labels[sub_tokens[place][0]][sub_tokens[place][1]]) for place in first]
            probe = TokenProbe(LAYERS + 1, model.hidden, 2)
            probe.load_state_dict(state)
            given = probe.eval().packed(hidden[first])
        else:
            rows = list(zip(range(VALIDATION), labels, strict=True))
            probe = SequenceProbe(LAYERS + 1, CORPUS_SLOTS, model.hidden, 2)
            probe.load_state_dict(state)
            given = probe.eval().packed(hidden, batch)
    keys = ["example", *["word"] * of_words, "gold"]
    assert table.column_names == ["seed", "split", *keys, "predicted", "predicted_1", "predicted_2"]
    assert list(zip(*(table.column(key).to_pylist() for key in keys), strict=True)) == rows
    predicted = given.argmax(-1).tolist()
    assert table.column("predicted").to_pylist() == predicted and len(set(predicted)) == 2
    right = [label == row[-1] for label, row in zip(predicted, rows, strict=True)]
    assert jobs.scores(corpus / "run.json", metric)[-1] == pytest.approx(sum(right) / len(right))


@pytest.mark.parametrize("corpus", ["text"], indirect=True)
def test_outcomes_of_an_epoch_are_those_of_a_probe_trained_no_longer(tiny, corpus, data, metric):
    def outcomes(epochs):
        jobs.probe(tiny, corpus / "run.json", metric, training(epochs=epochs), **data)
        return read_table(corpus / "run.outcomes.parquet")

    one, two, three = map(outcomes, (1, 2, 3))
    assert (one["predicted"], two["predicted"]) == (three["predicted_1"], three["predicted_2"])
    assert two["predicted_1"] == one["predicted"] != three["predicted"] and "predicted_1" not in one.column_names
    assert len(jobs.scores(corpus / "run.json", metric)) == 3


def test_lambda_is_learned_and_ranked_from_the_smallest_up(tiny, corpus, data):
    average, lambdas, order = (corpus / name for name in ("average.h5", "lambda.parquet", "order.parquet"))
    jobs.average(tiny, data["tokens"], average)
    jobs.learn(tiny, lambdas, seed=3, constants=average, **data)
    table = read_table(lambdas).to_pandas()
    assert len(table) == 3 * LAYERS * HEADS and table.value.between(0, 1).all()
    assert table[table.epoch == 3].value.std() > 0.01
    jobs.rank(lambdas, order)
    ranked = read_table(order).to_pandas()
    last = table[table.epoch == 3].set_index(["layer", "head"]).value
    assert [last[pair] for pair in zip(ranked.layer, ranked["head"], strict=True)] == sorted(last)


def test_the_heads_of_an_order_are_replaced_from_its_beginning_and_others_refused(tiny, tmp_path, loaded):
    path, variant = tmp_path / "order.parquet", Variant.parse("zeros/last-layer-first/kept-1of4")
    jobs.put_in_order(tiny, path, "random-2", seed=5)
    with pytest.raises(papa.InputError, match="made with order random-2, but last-layer-first is needed"):
        heads_to_replace(path, variant, loaded)
    jobs.put_in_order(tiny, path, "last-layer-first")
    replaced = heads_to_replace(path, variant, loaded)
    assert replaced == [(layer, head) for layer in (2, 1, 0) for head in range(HEADS)][: 15 - 3]
    about = {"order": "last-layer-first", "weights": loaded.weights}
    table = read_table(path)
    for wrong, facts, message in (
        (table, about | {"weights": "other"}, r"order\.parquet was made with weights other, but .* is needed"),
        (table.slice(1), about, "does not order the heads of this model, which has 3 layers of 5"),
    ):
        write_table(wrong, path, facts)
        with pytest.raises(papa.InputError, match=message):
            heads_to_replace(path, variant, loaded)


def test_gradients_are_clipped_as_torch_does():
    for size in (0.0, 0.01, 0.16, 0.2, 1.0, 1e6, float("inf"), float("nan")):
        ours, theirs = ([torch.zeros(5, 7, requires_grad=True), torch.zeros(3, requires_grad=True)] for _ in range(2))
        for mine, other in zip(ours, theirs, strict=True):
            mine.grad = torch.randn_like(mine) * size
            other.grad = mine.grad.clone()
        _clip(ours)
        nn.utils.clip_grad_norm_(theirs, 1.0)
        gradients = [[values.grad for values in weights] for weights in (ours, theirs)]
        torch.testing.assert_close(*gradients, atol=0, rtol=0, equal_nan=True)


def test_scores_and_learned_weights_are_finite_too():
    weight = torch.nn.Parameter(torch.full((3,), 1e30))
    kept = iter([{"validation": torch.ones(2)}, {"validation": torch.tensor([1.0, torch.inf])}, {}])

    def fitted(loss, how):
        task = TrainingTask(
            "fitting", [weight], torch.arange(5), loss, lambda epoch: None, lambda: next(kept), lambda parts: [1.0]
        )
        with pytest.raises(Diverged) as error:
            fit(task, how, 1)
        return error.value

    score = fitted(lambda rows: weight.sum(), training())
    assert "The score is not finite in epoch 2 of fitting" in str(score) and score.finite_epochs == 1
    # a loss that is finite, and has no finite gradient
    learned = fitted(lambda rows: (weight - weight).sqrt().sum(), training(batch_size=5))
    assert "The learned weights are not finite in epoch 1 of fitting" in str(learned)
    assert next(kept) == {} and bool(weight.isfinite().all())
