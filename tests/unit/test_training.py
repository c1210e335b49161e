"""From laid-out tokens and labels to features, λ, orders and runs, on a tiny random model and learnable labels."""

import json
import os
import subprocess
import sys

import pytest
import torch
from sizes import CHANNELS, CORPUS_SLOTS, HEADS, LAYERS, TRAIN, VALIDATION

import papa
from papa.data.tokens import Tokens
from papa.files import read_table, write_table
from papa.method.averages import average_corpus
from papa.method.features import extract_features, heads_to_replace, kept_heads
from papa.method.fitting import AdamW, Diverged
from papa.method.hidden import HiddenStates
from papa.method.labelled import Labelled
from papa.method.ranking import rank_heads, train_lambda
from papa.method.training import train_probe

TASK = {"metric": "accuracy", "learning_rate": 1e-2, "batch_size": 5, "epochs": 3}
WORDS = TASK | {"metric": "token_accuracy"}


def files(corpus, name):
    return [corpus / name / part for part in ("1of1.hidden", "1of1.json")]


def parts(corpus, name):
    """The same files as lists of parts."""
    return [[path] for path in files(corpus, name)]


def task_of(corpus):
    return WORDS if "words" in read_table(corpus / "tokens.parquet").column_names else TASK


def test_features_are_the_encoders_hidden_states(tiny, corpus):
    average_corpus(tiny, corpus / "tokens.parquet", corpus / "average.h5")
    average = {"constants": corpus / "average.h5", "fraction": "0"}
    extract_features(tiny, corpus / "tokens.parquet", *files(corpus, "all"), **average)
    tokens = Tokens.read(corpus / "tokens.parquet")
    hidden, about = HiddenStates.opened(*parts(corpus, "all"))
    assert (about["layers"], about["hidden"], about["kept"]) == (LAYERS + 1, HEADS * CHANNELS, 0)
    encoder = papa.load_model(str(corpus / "tiny"), device="cpu")
    constants = papa.ConstantMatrices.load(corpus / "average.h5")
    for part in tokens.values():
        chosen = torch.tensor([7, 2, 19])
        batch = part.batch(chosen)
        dense = {
            "input_ids": batch.unpack(batch.ids),
            "attention_mask": batch.unpack(torch.ones_like(batch.ids)),
            "token_type_ids": batch.unpack(batch.segments),
        }
        expected = encoder.hidden_states(dense, constants).transpose(1, 2)[dense["attention_mask"].bool()]
        torch.testing.assert_close(hidden.read(chosen, part), expected, atol=5e-3, rtol=1e-3)


def test_constants_of_other_weights_or_layout_are_refused(tiny, corpus):
    average_corpus(tiny, corpus / "tokens.parquet", corpus / "average.h5")
    average = papa.ConstantMatrices.load(corpus / "average.h5")
    for key in ("weights", "style", "slots"):
        other = papa.ConstantMatrices(average.sum, average.count, 1, average.about | {key: "other"})
        other.save(corpus / "other.h5")
        with pytest.raises(papa.InputError, match=f"averaged with {key}"):
            extract_features(
                tiny, corpus / "tokens.parquet", *files(corpus, "x"), constants=corpus / "other.h5", fraction="0"
            )
        assert not (corpus / "x" / "index.json").exists()


def test_a_disk_too_small_is_found_before_anything_is_written(tiny, corpus, monkeypatch):
    from collections import namedtuple

    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr("papa.method.hidden.shutil.disk_usage", lambda path: usage(10, 9, 1))
    with pytest.raises(papa.InputError, match=r"the disk of .* has 0\.0 kB free"):
        extract_features(tiny, corpus / "tokens.parquet", *files(corpus, "x"))
    assert list((corpus / "x").iterdir()) == []


def test_truncated_features_are_named(tiny, corpus):
    extract_features(tiny, corpus / "tokens.parquet", *files(corpus, "original"))
    hidden = files(corpus, "original")[0]
    os.truncate(hidden, hidden.stat().st_size - 2)
    with pytest.raises(papa.DamagedArtefact, match=r"1of1\.hidden has"):
        HiddenStates.opened(*parts(corpus, "original"))


def test_a_probe_learns_and_the_same_seed_gives_the_same_bytes(tiny, corpus):
    extract_features(tiny, corpus / "tokens.parquet", *files(corpus, "original"))

    def run(name, seed, epochs=40):
        train_probe(
            corpus / "tokens.parquet", corpus / "labels.parquet", *parts(corpus, "original"),
            corpus / f"{name}.json", corpus / f"{name}.safetensors",
            task_of(corpus) | {"epochs": epochs, "learning_rate": 2e-2}, seed, {"model": "tiny", "task": "t"},
        )  # fmt: skip
        return json.loads((corpus / f"{name}.json").read_text())

    first, again, other = run("a", 1), run("b", 1), run("c", 2)
    assert (
        first["curve"][-1]["loss"] < first["curve"][0]["loss"] / 2
        and len(first["curve"]) == 40
        and first["kept"] == LAYERS * HEADS
    )
    assert first["rows"] == {"train": TRAIN, "validation": VALIDATION} and first["rows_available"] == {
        "train": 99,
        "validation": VALIDATION,
    }
    assert first["cut"]["train"] > 0
    assert first == again and (corpus / "a.json").read_bytes() == (corpus / "b.json").read_bytes()
    assert (corpus / "a.safetensors").read_bytes() == (corpus / "b.safetensors").read_bytes()
    assert first["curve"] != other["curve"]


def test_stored_and_computed_hidden_states_train_alike(tiny, corpus):
    """One step of the loop on float16 features and on the encoder itself gives the same loss."""
    extract_features(tiny, corpus / "tokens.parquet", *files(corpus, "original"))
    tokens = Tokens.read(corpus / "tokens.parquet")["train"]
    labelled = Labelled(tokens, corpus / "labels.parquet")
    hidden, about = HiddenStates.opened(*parts(corpus, "original"))
    encoder = papa.load_model(str(corpus / "tiny"), device="cpu")
    probe = labelled.probe(about).eval()
    chosen = torch.tensor([5, 3, 11])
    stored, gold = labelled.logits(probe, chosen, lambda examples: hidden.read(examples, tokens))
    computed, same = labelled.logits(
        probe, chosen, lambda examples: torch.stack(encoder.run(tokens.batch(examples)), dim=1)
    )
    torch.testing.assert_close(stored, computed, atol=5e-3, rtol=0)
    assert torch.equal(gold, same)


def test_labels_of_words_sit_on_their_first_sub_token(corpus):
    tokens = Tokens.read(corpus / "tokens.parquet")["train"]
    labelled = Labelled(tokens, corpus / "labels.parquet")
    if tokens.words is None:
        assert labelled.labels.tolist() == read_table(corpus / "labels.parquet").column("label").to_pylist()[:TRAIN]
        return
    expected = [
        -100 if word < 0 else row[word]
        for row, words in zip(
            read_table(corpus / "labels.parquet").column("label").to_pylist(),
            read_table(corpus / "tokens.parquet").column("words").to_pylist()[:TRAIN],
            strict=False,
        )
        for word in words
    ]
    assert labelled.labels.tolist() == expected


def test_a_loss_that_is_no_number_keeps_the_last_good_state(tiny, corpus):
    extract_features(tiny, corpus / "tokens.parquet", *files(corpus, "original"))
    with pytest.raises(Diverged, match=r"became nan in epoch 1 .* lower the learning rate"):
        train_probe(
            corpus / "tokens.parquet", corpus / "labels.parquet", *parts(corpus, "original"),
            corpus / "run.json", corpus / "probe.safetensors", task_of(corpus) | {"learning_rate": 1e38}, 1, {},
        )  # fmt: skip
    assert (corpus / "probe.last-good.safetensors").exists()
    assert not (corpus / "run.json").exists() and not (corpus / "probe.safetensors").exists()


def test_labels_of_other_texts_are_refused(corpus):
    table = read_table(corpus / "labels.parquet")
    write_table(table, corpus / "labels.parquet", {"fingerprint": "other", "label_names": ["low", "high"]})
    with pytest.raises(papa.DamagedArtefact, match="labels other texts"):
        Labelled(Tokens.read(corpus / "tokens.parquet")["train"], corpus / "labels.parquet")


def test_lambda_is_learned_and_ranked_from_the_smallest_up(tiny, corpus):
    average_corpus(tiny, corpus / "tokens.parquet", corpus / "average.h5")
    arguments, average = (tiny, corpus / "tokens.parquet", corpus / "labels.parquet"), corpus / "average.h5"
    train_lambda(*arguments, corpus / "lambda.parquet", task_of(corpus), 3, average)
    table = read_table(corpus / "lambda.parquet").to_pandas()
    assert len(table) == 3 * LAYERS * HEADS and table.value.between(0, 1).all()
    assert table[table.epoch == 3].value.std() > 0.01
    train_lambda(*arguments, corpus / "again.parquet", task_of(corpus), 3, average)
    assert table.equals(read_table(corpus / "again.parquet").to_pandas())

    rank_heads(corpus / "lambda.parquet", corpus / "order.parquet", "lambda")
    order = read_table(corpus / "order.parquet").to_pandas()
    last = table[table.epoch == 3].set_index(["layer", "head"]).value
    assert [last[pair] for pair in zip(order.layer, order["head"], strict=True)] == sorted(last)
    replaced = heads_to_replace(corpus / "order.parquet", "1/4")
    assert len(replaced) == 15 - 3 and replaced[0] == (order.layer[0], order["head"][0])
    rank_heads(corpus / "lambda.parquet", corpus / "reversed.parquet", "lambda-reversed")
    backwards = read_table(corpus / "reversed.parquet").to_pandas()
    pairs = [list(zip(table.layer, table["head"], strict=True)) for table in (order, backwards)]
    assert pairs[1] == pairs[0][::-1] and backwards["rank"].tolist() == list(range(LAYERS * HEADS))
    with pytest.raises(papa.InputError, match="those made of it are lambda, lambda-reversed"):
        rank_heads(corpus / "lambda.parquet", corpus / "order.parquet", "alphabetical")


@pytest.mark.parametrize("kind", ["identity", "toeplitz", "zeros"])
def test_constants_that_need_no_text_are_read_from_no_file(tiny, corpus, kind):
    train_lambda(
        tiny, corpus / "tokens.parquet", corpus / "labels.parquet", corpus / "l.parquet", task_of(corpus), 3, kind=kind
    )
    extract_features(tiny, corpus / "tokens.parquet", *files(corpus, kind), fraction="0", kind=kind)
    hidden, about = HiddenStates.opened(*parts(corpus, kind))
    assert about["kept"] == 0
    encoder = papa.load_model(str(corpus / "tiny"), device="cpu")
    part = Tokens.read(corpus / "tokens.parquet")["validation"]
    chosen = torch.tensor([3, 0])
    matrices = papa.constant_matrices(kind, LAYERS, HEADS, CORPUS_SLOTS)
    expected = torch.stack(encoder.run(encoder.pack(part.batch(chosen)), encoder.replacement(matrices)), dim=1)
    torch.testing.assert_close(hidden.read(chosen, part), expected, atol=5e-3, rtol=1e-3)


def test_averages_of_other_texts_must_be_asked_for(tiny, corpus):
    average_corpus(tiny, corpus / "tokens.parquet", corpus / "average.h5")
    average = papa.ConstantMatrices.load(corpus / "average.h5")
    papa.ConstantMatrices(average.sum, average.count, 1, average.about | {"corpus": "g"}).save(corpus / "other.h5")
    other = {"constants": corpus / "other.h5", "fraction": "0"}
    with pytest.raises(papa.InputError, match="averaged with corpus g, and f is asked for"):
        extract_features(tiny, corpus / "tokens.parquet", *files(corpus, "x"), **other)
    extract_features(tiny, corpus / "tokens.parquet", *files(corpus, "x"), **other, kind="average-of-g")


def test_kept_heads_are_rounded_down():
    assert [kept_heads(fraction, 144) for fraction in ("1", "1/2", "1/8", "1/16", "0")] == [144, 72, 18, 9, 0]
    assert kept_heads("1/8", 71) == 8


def test_the_optimiser_takes_the_steps_of_torch():
    torch.manual_seed(1)
    ours = [torch.nn.Parameter(torch.randn(7, 5)), torch.nn.Parameter(torch.randn(3))]
    theirs = [torch.nn.Parameter(values.detach().clone()) for values in ours]
    own, stock = AdamW(ours, 1e-2), torch.optim.AdamW(theirs, lr=1e-2, weight_decay=0.0)
    for _ in range(5):
        for mine, its in zip(ours, theirs, strict=True):
            mine.grad = torch.randn_like(mine)
            its.grad = mine.grad.clone()
        own.step()
        stock.step()
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=0)
    assert all(values.grad is None for values in ours)


def test_training_probes_does_not_load_the_compiler():
    """It takes a second and 90 MB of every job."""
    script = (
        "import sys, torch; from papa.method.fitting import fit;"
        "w = torch.nn.Parameter(torch.ones(3)); task = {'learning_rate': 0.1, 'batch_size': 2, 'epochs': 2};"
        "fit([w], lambda rows: (w * rows.sum()).sum(), 5, task, torch.Generator(), lambda epoch: {}, 'fitting');"
        "sys.exit('torch._dynamo' in sys.modules or bool((w == 1).any()))"
    )
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0
