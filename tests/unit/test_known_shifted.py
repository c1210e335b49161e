"""The known encoder whose states are only shifted: its attention, what constants do to it, and what undoes that."""

import pytest
import torch
import transformers
from test_known_lookup import right, states_of_cls

import papa
from papa.data.generated import generate
from papa.data.generated.known import known_model
from papa.data.generated.looking import ANSWER, ANSWER_SIZE, FIRST_WORD, SECOND_WORD, SLOTS, UNUSED
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
    last = (real.sum(1) - 1)[:, None].expand_as(real)
    for (layer, head), keys in ((FIRST_WORD, 1), (SECOND_WORD, 2), (MARK, last)):
        weights = output.attentions[layer][:, head].gather(2, torch.as_tensor(keys).expand_as(real)[..., None])
        assert weights[..., 0][real].min() > 0.999
    assert (output.hidden_states[-1][..., UNUSED.start][real] - 1).abs().max() < 1e-3
    assert (output.hidden_states[-1][..., ANSWER].abs()[real] - ANSWER_SIZE).abs().max() < 1e-2


def test_constants_shift_the_mark_and_leave_the_words(model, inputs, texts, average):
    original, replaced = (states_of_cls(model, inputs, **given) for given in ({}, {"constants": average}))
    assert right(original, texts) == HALF
    mark, words = slice(UNUSED.start, UNUSED.start + 1), slice(0, UNUSED.start)
    assert (replaced - original)[..., words].abs().max() < 0.15, "only LayerNorm, which divides by a smaller norm"
    ends = inputs["attention_mask"].sum(1) - 1
    shift = (replaced - original)[:, -1, mark][:, 0]
    assert shift[ends > 14].max() < -0.3 and shift[ends == 13].abs().max() < 0.01
    share = right(replaced, texts)
    assert share["position"] < 0.75 and share["lookup"] == 0.5


def test_a_bias_of_one_norm_undoes_the_shift(model, inputs, texts, average):
    """By hand: 0.2 more mark in every state, before the MLP that reads it."""
    norm = model.model.encoder.layer[1].attention.output.LayerNorm
    norm.bias.data[UNUSED.start] += 0.2
    try:
        assert right(states_of_cls(model, inputs, constants=average), texts) == HALF
    finally:
        norm.bias.data[UNUSED.start] -= 0.2


def test_with_zeros_no_word_arrives(model, inputs, texts):
    zeros = torch.zeros(2, 5, SLOTS, SLOTS)
    assert right(states_of_cls(model, inputs, constants=zeros), texts) == {"position": 0.5, "lookup": 0.5}
