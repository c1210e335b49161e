"""The known encoder: its attention on the stock model, and what constants and zeros have to do to its answer."""

from itertools import product

import pytest
import torch
import transformers

import papa
from papa.data.generated import generate
from papa.data.generated.known import known_model
from papa.data.generated.looking import (
    ANSWER,
    ANSWER_SIZE,
    FIRST_WORD,
    LOOKUP,
    PREVIOUS,
    SECOND_WORD,
    SLOTS,
    START,
    STATE_SCALE,
)
from papa.data.generated.twice import LENGTHS

TEXTS = 400
ALL = list(product(range(2), range(5)))
IDLE = [head for head in ALL if head not in (FIRST_WORD, SECOND_WORD, LOOKUP, PREVIOUS, START)]
ZEROS = torch.zeros(2, 5, SLOTS, SLOTS)


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def tokenizer(cache):
    return transformers.AutoTokenizer.from_pretrained(known_model("lookup"))


@pytest.fixture(scope="module")
def model(cache):
    return papa.load_model(known_model("lookup"), device="cpu")


@pytest.fixture(scope="module")
def texts():
    return generate("twice", "validation", TEXTS, seed=0)


@pytest.fixture(scope="module")
def inputs(tokenizer, texts):
    return papa.lay_out(tokenizer, texts["first"].tolist(), slots=SLOTS)


@pytest.fixture(scope="module")
def average(model, tokenizer):
    train = generate("twice", "train", 1000, seed=0)["first"].tolist()
    return papa.average_attention(model, [papa.lay_out(tokenizer, train, slots=SLOTS)])


@pytest.fixture(scope="module")
def stock(cache, inputs):
    """The output of the model of transformers, with its attention."""
    made = transformers.AutoModel.from_pretrained(known_model("lookup"), attn_implementation="eager").eval()
    with torch.no_grad():
        return made(**inputs, output_attentions=True, output_hidden_states=True)


def states_of_cls(model, inputs, **replaced):
    """All hidden states of [CLS], relative to their scale: `[example, L+1, hidden]`."""
    return model.hidden_states(inputs, **replaced)[:, :, 0] / STATE_SCALE


def right(states, texts):
    """The share of answers of [CLS] that are right, in each half."""
    says = states[:, -1, ANSWER].diff(dim=-1)[:, 0] < 0
    correct = torch.tensor(texts["label"].eq("twice").tolist()) == says
    return {half: correct[texts["kind"].eq(half).tolist()].float().mean().item() for half in ("position", "lookup")}


# -- the model, without papa -------------------------------------------------------------------------------------------


def test_texts_say_a_word_twice_in_the_next_place_or_in_one_that_varies(texts):
    places = {"position": set(), "lookup": set()}
    for text, label, kind in zip(texts["first"], texts["label"], texts["kind"], strict=True):
        words = text.split()
        assert LENGTHS[0] <= len(words) <= LENGTHS[1]
        assert len(words) - len(set(words)) == (label == "twice")
        if label == "twice":
            places[kind].add(words.index(words[0], 1))
    assert places["position"] == {1} and places["lookup"] >= set(range(2, LENGTHS[0]))


def test_heads_of_the_stock_model_look_where_they_should(stock, inputs):
    real, ids, slots = inputs["attention_mask"].bool(), inputs["input_ids"], torch.arange(SLOTS)

    def looked_at(head, keys):
        """The weight that a head gives to a key `[example, slot]` of every query with a token."""
        keys = torch.as_tensor(keys).expand_as(real)
        return stock.attentions[head[0]][:, head[1]].gather(2, keys[..., None])[..., 0][real]

    assert looked_at(FIRST_WORD, 1).min() > 0.999
    assert looked_at(SECOND_WORD, 2).min() > 0.999
    assert looked_at(START, 0).min() > 0.999
    before = (slots - 1).clamp(min=0)
    before[-1] = 0
    assert looked_at(PREVIOUS, before).min() > 0.999
    again = (ids == ids[:, 1:2]) & (slots > 2)
    assert looked_at(LOOKUP, again.long().argmax(1, keepdim=True)).min() > 0.999  # the first slot where there is none
    for layer, head in IDLE:
        assert stock.attentions[layer][:, head][real].amax(-1).median() < 0.5
        # by content: other tokens in every text
        assert stock.attentions[layer][:, head, 0, 1:12].std(0).max() > 0.01


def test_the_stock_model_says_in_every_slot_whether_the_first_word_stands_twice(stock, inputs, texts):
    twice = torch.tensor(texts["label"].eq("twice").tolist())
    expected = torch.where(twice, ANSWER_SIZE, -ANSWER_SIZE)[:, None, None] * torch.tensor([1.0, -1.0])
    distance = (stock.hidden_states[-1][..., ANSWER] / STATE_SCALE - expected).abs()
    assert distance[inputs["attention_mask"].bool()].max() < 1e-3


def test_layer_norm_leaves_states_as_they_are(stock, inputs):
    real = inputs["attention_mask"].bool()
    for states in stock.hidden_states:
        rows = states[real] / STATE_SCALE
        assert rows.mean(-1).abs().max() < 1e-6
        assert rows.norm(dim=-1).max() - rows.norm(dim=-1).min() < 1e-4
    # a token is a 1 in the embeddings, and still so after two layers
    tokens = stock.hidden_states[-1].gather(2, inputs["input_ids"][..., None])[real]
    assert tokens.min() / STATE_SCALE > 0.999


# -- what papa finds ---------------------------------------------------------------------------------------------------


def test_constants_in_all_heads_but_the_lookup_head_change_nothing(model, inputs, average):
    original = states_of_cls(model, inputs)
    others = [head for head in ALL if head != LOOKUP]
    assert (states_of_cls(model, inputs, constants=average, heads=others) - original).abs().max() < 1e-3
    replaced = states_of_cls(model, inputs, constants=average, heads=[LOOKUP])
    assert (replaced - original)[..., ANSWER].abs().max() > ANSWER_SIZE


@pytest.mark.parametrize("head", ALL)
def test_what_constants_and_zeros_cost_in_each_head(model, inputs, texts, average, head):
    nothing = {"position": 1.0, "lookup": 1.0}
    cost = {LOOKUP: {"position": 1.0, "lookup": 0.5}}
    for constants, lost in (
        (average, cost),
        (ZEROS, {**cost, FIRST_WORD: {"position": 0.5, "lookup": 0.5}, SECOND_WORD: {"position": 0.5, "lookup": 1.0}}),
    ):
        states = states_of_cls(model, inputs, constants=constants, heads=[head])
        assert right(states, texts) == lost.get(head, nothing)


def test_constants_in_all_heads_leave_the_half_whose_answer_stands_in_a_fixed_place(model, inputs, texts, average):
    assert right(states_of_cls(model, inputs), texts) == {"position": 1.0, "lookup": 1.0}
    assert right(states_of_cls(model, inputs, constants=average), texts) == {"position": 1.0, "lookup": 0.5}
    assert right(states_of_cls(model, inputs, constants=ZEROS), texts) == {"position": 0.5, "lookup": 0.5}
