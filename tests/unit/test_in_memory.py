"""λ that is learned from batches in memory is that of a study, and errors are one sentence."""

import numpy as np
import pytest
import torch
from refusals import input_error
from test_measure import QUICK, folder, texts_of  # noqa: F401  a fixture
from transformers import AutoTokenizer

import papa

SLOTS = 13


def laid_out(folder, texts, size=17):  # noqa: F811
    inputs = papa.lay_out(AutoTokenizer.from_pretrained(folder), texts, slots=SLOTS)
    begins = range(0, len(inputs["input_ids"]), size)
    return [
        {name: values[begin : begin + size] for name, values in inputs.items()} for begin in begins
    ]


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize("own_head", [False, True], ids=["labels", "next tokens"])
def test_lambda_is_that_of_a_study(folder, tiny_decoder, tmp_path, own_head):  # noqa: F811
    (texts, labels) = texts_of(60)
    others = texts_of(40, 1)
    place = tiny_decoder if own_head else folder
    if own_head:
        labels = None
        others = others[0]
    corpora = {"slots": SLOTS} | ({"blocks": False} if own_head else {})
    tasks = {"learning_rate": 1e-2, "epochs": 2, "batch_size": 16}
    settings = {"run": {"fractions": ["1", "1/2", "0"]}, "tasks": tasks} if own_head else QUICK
    study = papa.measure(
        place,
        texts,
        labels,
        others,
        settings | {"corpora": corpora, "device": "cpu"},
        tmp_path / "s",
    )
    model = papa.load_model(place, device="cpu")
    train = laid_out(place, texts)
    constants = papa.average_attention(model, train)
    draws = torch.get_rng_state()
    with torch.no_grad():
        weights = papa.learn_lambda(model, constants, train, labels, learning_rate=1e-2, epochs=2)
    assert torch.equal(torch.get_rng_state(), draws)
    expected = study.heads.sort_values(["layer", "head"])["value"].to_numpy().reshape(weights.shape)
    assert weights.numpy() == pytest.approx(expected, abs=1e-6)
    assert weights.std() > 1e-4


def test_arguments_that_do_not_fit_are_refused(folder):  # noqa: F811
    model = papa.load_model(folder, device="cpu")
    train = laid_out(folder, ["a b", "c d", "b"])
    constants = papa.average_attention(model, train)
    words = torch.full((3, SLOTS), -100)
    for labels, message in (
        (None, "so it cannot predict the next one; give labels"),
        (["x", "y"], "There are 3 train examples and 2 labels"),
        ([0.5, 1, 2], "must be texts or whole numbers.* one is 0.5"),
        ([0, -100, 1], "one is -100"),
        (words[:2], "must be whole numbers"),
        (torch.zeros_like(words), "Some slots without a token have labels"),
    ):
        with input_error(message):
            papa.learn_lambda(model, constants, train, labels)
    with torch.inference_mode():  # as around a user's own evaluation
        papa.learn_lambda(model, constants, train, np.array([0, 1, 0]), epochs=1)
    with input_error("takes a list of batches"):
        papa.learn_lambda(model, constants, train[0], ["x", "y", "x"])
