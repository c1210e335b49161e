"""The parts of a study on a loaded model, without files: to the same numbers as a study, and errors of one sentence."""

import pandas as pd
import pytest
import torch
from sizes import HEADS, LAYERS
from test_measure import QUICK, decoder, folder, texts_of  # noqa: F401  fixtures
from transformers import AutoTokenizer

import papa
from papa.files import read_tensors

SLOTS = 13
NUMBERS = ["mean", "low", "high", "trivial", "contextless", "loss", "loss_low", "loss_high", "loss_bound"]


def batched(inputs, size=17):
    return [{name: own[begin : begin + size] for name, own in inputs.items()} for begin in range(0, 999, size)][
        : -(-len(inputs["input_ids"]) // size)
    ]


@pytest.fixture
def given(folder):  # noqa: F811
    """Model, and both splits with their labels, as a notebook has them."""
    tokenizer, (texts, labels), (others, right) = AutoTokenizer.from_pretrained(folder), texts_of(60), texts_of(40, 1)
    train, validation = (batched(papa.lay_out(tokenizer, own, slots=SLOTS)) for own in (texts, others))
    return papa.load_model(folder, device="cpu"), (train, labels), (validation, right)


@pytest.fixture
def recipe():
    return papa.Recipe(learning_rate=1e-2, epochs=2, seeds=(1, 2), fractions=("1", "1/2", "0"))


def same(found, study, order="lambda"):
    """Whether a sweep has the numbers of a study's curve."""
    curve = study.curve[study.curve["constant"].ne("zeros").fillna(True)].set_index("fraction")
    found = found.set_index("fraction")
    assert list(found.index) == list(curve.index) and len(found) == 3
    assert found["kept"].tolist() == curve["kept"].tolist() and found["status"].equals(curve["status"])
    pd.testing.assert_frame_equal(found[NUMBERS], curve[NUMBERS], check_exact=False, rtol=1e-5, atol=1e-6)


def test_parts_give_the_numbers_of_a_study(given, folder, recipe, tmp_path):  # noqa: F811
    model, train, validation = given
    settings = QUICK | {"corpora": {"slots": SLOTS}}
    study = papa.measure(folder, *texts_of(60), texts_of(40, 1), settings, tmp_path / "study")
    constants = papa.average_attention(model, train[0])
    weights = papa.learn_lambda(model, constants, *train, recipe)
    expected = study.heads.sort_values(["layer", "head"])["value"].to_numpy().reshape(LAYERS, HEADS)
    assert weights.numpy() == pytest.approx(expected, abs=1e-6) and weights.std() > 1e-3
    same(papa.sweep(model, constants, weights, train, validation, recipe), study)
    probe = papa.fit_probe(model, *train, model.replacement(constants), recipe, seed=2)
    (path,) = study.folder.rglob("average/all/probes.safetensors")
    state = {name.removeprefix("seed-2/"): own for name, own in read_tensors(path)[0].items() if "seed-2" in name}
    assert state.keys() == probe.state_dict().keys()
    for name, own in probe.state_dict().items():
        torch.testing.assert_close(own, state[name], atol=1e-5, rtol=1e-4)


def test_a_decoder_is_measured_by_its_own_head(decoder, recipe, tmp_path):  # noqa: F811
    (texts, _), (others, _) = texts_of(60), texts_of(40, 1)
    told = {"run": {"fractions": ["1", "1/2", "0"]}, "corpora": {"slots": SLOTS, "blocks": False}}
    told["tasks"] = {"learning_rate": 1e-2, "epochs": 2, "batch_size": 16}
    study = papa.measure(decoder, texts, None, others, told, tmp_path / "study")
    tokenizer, model = AutoTokenizer.from_pretrained(decoder), papa.load_model(decoder, device="cpu")
    train, validation = (batched(papa.lay_out(tokenizer, own, slots=SLOTS)) for own in (texts, others))
    constants = papa.average_attention(model, train)
    weights = papa.learn_lambda(model, constants, train, recipe=recipe)
    expected = study.heads.sort_values(["layer", "head"])["value"].to_numpy().reshape(weights.shape)
    assert weights.numpy() == pytest.approx(expected, abs=1e-6) and weights.std() > 1e-4
    same(papa.sweep(model, constants, weights, train, validation, recipe), study)
