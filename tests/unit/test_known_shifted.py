"""The known encoder whose states are only shifted: its attention, what constants do to it, and what undoes that."""

import pytest
import torch
import transformers
from test_known_lookup import right, states_of_cls

import papa
from papa.data.generated import generate
from papa.data.generated.known import known_model
from papa.data.generated.looking import (
    ANSWER,
    ANSWER_SIZE,
    FIRST,
    FIRST_WORD,
    SECOND,
    SECOND_WORD,
    SLOTS,
    SPECIAL,
    STATE_SCALE,
    UNUSED,
)
from papa.data.generated.shifting import MARK

TEXTS = 400
HALF = {"position": 1.0, "lookup": 0.5}
"""The share of right answers of a model that only compares the first word with the second."""


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def model(cache):
    return papa.load_model(known_model("shifted"), device="cpu")


@pytest.fixture(scope="module")
def texts():
    return generate("twice", "validation", TEXTS, seed=0)


@pytest.fixture(scope="module")
def tokenizer(cache):
    return transformers.AutoTokenizer.from_pretrained(known_model("shifted"))


@pytest.fixture(scope="module")
def inputs(tokenizer, texts):
    return papa.lay_out(tokenizer, texts["first"].tolist(), slots=SLOTS)


@pytest.fixture(scope="module")
def average(model, tokenizer):
    train = generate("twice", "train", 1000, seed=0)["first"].tolist()
    return papa.average_attention(model, [papa.lay_out(tokenizer, train, slots=SLOTS)])


def test_heads_of_the_stock_model_look_where_they_should(inputs):
    model = transformers.AutoModel.from_pretrained(known_model("shifted"), attn_implementation="eager").eval()
    with torch.no_grad():
        output = model(**inputs, output_attentions=True, output_hidden_states=True)
    real = inputs["attention_mask"].bool()
    for (layer, head), slot in ((FIRST_WORD, 1), (SECOND_WORD, 2)):
        assert output.attentions[layer][:, head][..., slot][real].min() > 0.999
    words = inputs["input_ids"] >= len(SPECIAL)
    marked = words & (inputs["input_ids"] % 2 == 0)
    assert 0.35 < marked.sum() / words.sum() < 0.65 and marked.any(1).all()
    weights = output.attentions[MARK[0]][:, MARK[1]]
    assert (weights * marked[:, None]).sum(-1)[real].min() > 0.999
    states = output.hidden_states[-1][real] / STATE_SCALE
    assert (states[:, UNUSED.start] - 1).abs().max() < 1e-3
    assert (states[:, ANSWER].abs() - ANSWER_SIZE).abs().max() < 1e-2


def test_constants_shrink_the_mark_to_the_share_of_marked_words(model, inputs, texts, average):
    original, replaced = (states_of_cls(model, inputs, **given) for given in ({}, {"constants": average}))
    assert right(original, texts) == HALF
    words = inputs["input_ids"] >= len(SPECIAL)
    share = (words & (inputs["input_ids"] % 2 == 0)).sum(1) / words.sum(1)
    mark = replaced[:, -1, UNUSED.start]
    assert torch.corrcoef(torch.stack([share, mark]))[0, 1] > 0.95 and 0.4 < mark.mean() < 0.6
    for part in (FIRST, SECOND):  # the words are still there; LayerNorm divides them by a smaller norm
        difference = replaced[..., part].argmax(-1) - original[..., part].argmax(-1)
        assert not difference[:, 1:].any()
    assert right(replaced, texts) == {"position": 0.5, "lookup": 0.5}
    answers = (replaced[:, -1, ANSWER.start] + ANSWER_SIZE) / (2 * ANSWER_SIZE)
    twice = torch.tensor((texts["label"].eq("twice") & texts["kind"].eq("position")).tolist())
    assert 0.4 < (answers[twice] > 0.01).float().mean() < 0.7 and answers[twice].max() < 0.5
    assert answers[~twice].max() < 0.01


def test_a_bias_of_one_norm_brings_the_answer_back(model, inputs, texts, average):
    """By hand: more of the mark in every state, before the MLP that reads it."""
    norm = model.model.encoder.layer[1].attention.output.LayerNorm
    norm.bias.data[UNUSED.start] += 0.4 * STATE_SCALE
    try:
        share = right(states_of_cls(model, inputs, constants=average), texts)
        assert share["position"] >= 0.99 and share["lookup"] == 0.5
    finally:
        norm.bias.data[UNUSED.start] -= 0.4 * STATE_SCALE


def test_with_zeros_no_word_arrives(model, inputs, texts):
    zeros = torch.zeros(2, 5, SLOTS, SLOTS)
    assert right(states_of_cls(model, inputs, constants=zeros), texts) == {"position": 0.5, "lookup": 0.5}
