"""Probes trained through the encoder: against stored hidden states, and constants that are learned."""

import json

import pyarrow as pa
import pytest
import torch
from safetensors.torch import load_file
from sizes import CORPUS_SLOTS, HEADS, LAYERS, TRAIN, VALIDATION

import papa
from papa.data.tokenize import write_groups
from papa.data.tokens import Tokens
from papa.files import provenance_of, read_table, write_table
from papa.method.averages import average_corpus
from papa.method.features import extract_features, heads_to_replace
from papa.method.ranking import rank_heads, train_lambda
from papa.method.streaming import TrainedConstants, train_probe_through_encoder
from papa.method.training import train_probe

TASK = {"metric": "accuracy", "learning_rate": 1e-2, "batch_size": 5, "epochs": 3}


@pytest.fixture
def stages(tiny, corpus):
    """Runs stages on the corpus; `stored` and `streamed` give what a run says, and its probe."""

    class Stages:
        task = TASK
        if "words" in read_table(corpus / "tokens.parquet").column_names:
            task = TASK | {"metric": "token_accuracy"}
        tokens, labels = corpus / "tokens.parquet", corpus / "labels.parquet"
        constants, order = corpus / "average.h5", corpus / "order.parquet"

        def behind(self, fraction):
            given = {"constants": self.constants, "order": self.order, "fraction": fraction}
            return {"1": {}, "0": given | {"order": None}}.get(fraction, given)

        def stored(self, fraction):
            hidden, index = corpus / "1of1.hidden", corpus / "1of1.json"
            extract_features(tiny, self.tokens, hidden, index, **self.behind(fraction))
            return self._run(
                lambda *out: train_probe(self.tokens, self.labels, [hidden], [index], *out, self.task, 1, {})
            )

        def streamed(self, fraction, seed=1, kind="average", **options):
            behind = self.behind(fraction) | {"kind": kind} | options
            return self._run(
                lambda *out: train_probe_through_encoder(
                    tiny, self.tokens, self.labels, *out, self.task, seed, {}, **behind
                )
            )

        def _run(self, stage):
            run, probe = corpus / "run.json", corpus / "probe.safetensors"
            stage(run, probe)
            return json.loads(run.read_text()), load_file(probe)

    made = Stages()
    average_corpus(tiny, made.tokens, made.constants)
    train_lambda(tiny, made.tokens, made.labels, corpus / "lambda.parquet", made.task, 0, made.constants)
    rank_heads(corpus / "lambda.parquet", made.order)
    return made


@pytest.mark.parametrize("fraction", ["1", "1/2", "0"])
def test_streamed_equals_stored(stages, fraction):
    stored, of_stored = stages.stored(fraction)
    streamed, of_streamed = stages.streamed(fraction)
    # a rounding of float16 may fall the other way where a batch is another
    torch.testing.assert_close(of_streamed, of_stored, atol=2e-3, rtol=0)
    assert {key: streamed[key] for key in ("kept", "heads", "rows", "provenance")} == {
        key: stored[key] for key in ("kept", "heads", "rows", "provenance")
    }
    assert streamed["score"] == pytest.approx(stored["score"], abs=0.04)
    losses = [[epoch["loss"] for epoch in run["curve"]] for run in (streamed, stored)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-3)


@pytest.mark.parametrize("fraction", ["1/2", "0"])
def test_constants_are_trained_for_replaced_heads_alone(stages, fraction):
    run, state = stages.streamed(fraction, kind="average-trained")
    replaced = [(layer, head) for layer in range(LAYERS) for head in range(HEADS)]
    if fraction != "0":
        replaced = sorted(heads_to_replace(stages.order, fraction))
    assert [tuple(head) for head in state["heads"].tolist()] == replaced
    assert run["kept"] == LAYERS * HEADS - len(replaced)
    start = papa.ConstantMatrices.load(stages.constants)
    moved = (state["matrices"] - torch.stack([start.mean[head] for head in replaced])).abs()
    assert bool((moved.flatten(1).max(1).values > 1e-4).all())
    # where no text has both slots there is nothing to learn from
    assert not moved[:, start.count == 0].any()


def test_trained_constants_are_what_the_written_ones_give(stages, tiny, corpus):
    """Hidden states under the matrices of the file are those that the last scores were read from."""
    run, state = stages.streamed("0", kind="average-trained")
    encoder = papa.load_model(str(corpus / "tiny"), device="cpu")
    matrices = torch.zeros(LAYERS, HEADS, CORPUS_SLOTS, CORPUS_SLOTS)
    matrices[state["heads"][:, 0], state["heads"][:, 1]] = state["matrices"]
    part = Tokens.read(stages.tokens)["validation"]
    batch = part.batch(torch.arange(len(part)))
    hidden = torch.stack(encoder.run(encoder.pack(batch), encoder.replacement(matrices)), dim=1)
    probe_state = {name: values for name, values in state.items() if name not in ("heads", "matrices")}
    if "slot_weights" in probe_state:
        labels = read_table(stages.labels).column("label").to_pylist()[-len(part) :]
        probe = papa.SequenceProbe(LAYERS + 1, CORPUS_SLOTS, encoder.hidden, 2)
        probe.load_state_dict(probe_state)
        right = probe.eval().packed(hidden, batch).argmax(-1) == torch.tensor(labels)
        assert float(right.float().mean()) == pytest.approx(run["score"])


def test_data_free_constants_are_trained_too(stages):
    run, state = stages.streamed("0", kind="toeplitz-trained")
    start = papa.constant_matrices("toeplitz", LAYERS, HEADS, CORPUS_SLOTS).flatten(0, 1)
    moved = (state["matrices"] - start).abs().flatten(1).max(1).values
    assert run["kept"] == 0 and bool((moved > 1e-4).all())


def test_gradients_reach_the_matrices_of_replaced_heads_through_the_normalisation():
    start = torch.rand(LAYERS, HEADS, 7, 7)
    constants = TrainedConstants(start, [(0, 3), (2, 1)])
    full = constants()
    assert torch.equal(full[0, 3], start[0, 3]) and not full[0, 2].any()
    full.sum().backward()
    assert constants.matrices.grad.shape == (2, 7, 7)


def test_the_same_seed_gives_the_same_bytes(stages):
    first, again, other = (stages.streamed("0", kind="average-trained", seed=seed) for seed in (1, 1, 2))
    assert first[0] == again[0] and all(torch.equal(first[1][name], again[1][name]) for name in first[1])
    assert any(not torch.equal(first[1][name], other[1][name]) for name in first[1])


@pytest.mark.parametrize(("fraction", "kind"), [("1", "average"), ("1/2", "average"), ("0", "average-trained")])
def test_the_encoder_drops_while_a_probe_trains(stages, fraction, kind):
    plain, _ = stages.streamed(fraction, kind=kind)
    first, again = (stages.streamed(fraction, kind=kind, encoder_dropout=True) for _ in range(2))
    assert first[0] == again[0] and all(torch.equal(first[1][name], again[1][name]) for name in first[1])
    assert [epoch["loss"] for epoch in first[0]["curve"]] != [epoch["loss"] for epoch in plain["curve"]]
    assert (first[0]["provenance"].pop("encoder_dropout"), plain["provenance"].pop("encoder_dropout")) == (True, False)
    assert first[0]["provenance"] == plain["provenance"]


def test_the_encoder_does_not_drop_while_a_probe_is_scored(stages, monkeypatch):
    asked = []

    def run(encoder, batch, plan=None, dropout=False, own=papa.Model.run):
        asked.append((dropout, torch.is_inference_mode_enabled()))
        return own(encoder, batch, plan, dropout)

    monkeypatch.setattr(papa.Model, "run", run)
    stages.streamed("0", encoder_dropout=True)
    # the first two are those of the check at load time
    assert set(asked[2:]) == {(True, False), (False, True)}


def test_the_encoder_drops_while_lambda_is_learned(stages, tiny, corpus):
    def learned(**options):
        train_lambda(
            tiny, stages.tokens, stages.labels, corpus / "l.parquet", stages.task, 0, stages.constants, **options
        )
        return read_table(corpus / "l.parquet").column("value").to_pylist()

    first, again, plain = learned(encoder_dropout=True), learned(encoder_dropout=True), learned()
    assert first == again != plain
    assert plain == read_table(corpus / "lambda.parquet").column("value").to_pylist()


@pytest.mark.parametrize("fraction", ["1", "0"])
def test_further_validation_splits_are_scored_apart(stages, corpus, fraction):
    """Two of them, both with all labels turned around."""
    before = stages.stored(fraction)
    for name in ("tokens", "labels"):
        table = read_table(corpus / f"{name}.parquet")
        more = table.slice(TRAIN)
        if name == "labels":
            turned = [
                [1 - label for label in row] if isinstance(row, list) else 1 - row for row in more["label"].to_pylist()
            ]
            more = more.set_column(2, "label", pa.array(turned, more["label"].type))
        parts = [more.set_column(0, "split", pa.array([split] * VALIDATION)) for split in ("zeta", "alpha")]
        about = provenance_of(table)
        if "rows" in about:
            about["rows"] |= dict.fromkeys(("zeta", "alpha"), VALIDATION)
        if name == "tokens":
            groups = [table.slice(0, TRAIN), table.slice(TRAIN), *parts]
            write_groups(groups, table.schema, corpus / "tokens.parquet", about)
        else:
            write_table(pa.concat_tables([table, *parts]), corpus / "labels.parquet", about)
    turned_around = {"score": pytest.approx(1 - before[0]["score"]), "examples": VALIDATION}
    for run, probe in (stages.stored(fraction), stages.streamed(fraction)):
        assert run["subsets"] == {"alpha": turned_around, "zeta": turned_around}
        assert run["rows"] == {"train": TRAIN, "validation": VALIDATION, "alpha": VALIDATION, "zeta": VALIDATION}
        assert (run["score"], run["curve"][-1]["score"]) == (before[0]["score"],) * 2
        torch.testing.assert_close(probe, before[1], atol=2e-3, rtol=0)
