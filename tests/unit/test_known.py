"""A decoder whose heads are known: their attention on the stock model, and what papa has to find of them."""

import math
import runpy

import pytest
import torch
import transformers
from torch.nn.functional import cross_entropy

import papa
from benchmarks import known

INDUCTION = known.INDUCTION
WRITE = runpy.run_path(str(known.DEMO / "write.py"))
DECODER = runpy.run_path(str(known.DEMO / "induction.py"))
PREVIOUS = DECODER["PREVIOUS"]
FIRST = DECODER["FIRST"]
SLOTS = 48
TEXTS = 200
UNIFORM = math.log(len(WRITE["VOCABULARY"]))
ALL = [(layer, head) for layer in range(2) for head in range(5)]
IDLE = [head for head in ALL if head not in (PREVIOUS, FIRST, INDUCTION)]


@pytest.fixture(scope="module")
def tokenizer():
    return transformers.AutoTokenizer.from_pretrained(known.FOLDER)


@pytest.fixture(scope="module")
def stock():
    return transformers.AutoModelForCausalLM.from_pretrained(
        known.FOLDER, attn_implementation="eager"
    ).eval()


@pytest.fixture(scope="module")
def model():
    return papa.load_model(known.FOLDER, device="cpu")


def texts(name, split="validation", rows=TEXTS):
    return [row["text"] for row in known.generate(name, split, rows)]


@pytest.fixture(scope="module", params=["repeats", "no-repeats"])
def read(request, tokenizer, model):
    """A corpus: its name, its validation texts laid out, and the averages over its training texts."""
    validation, train = (
        papa.lay_out(tokenizer, texts(request.param, split, rows), slots=SLOTS, style="contiguous")
        for split, rows in (("validation", TEXTS), ("train", 1000))
    )
    return request.param, validation, papa.average_attention(model, [train])


def again(inputs):
    """For every slot with a word that the text had before, the slot behind that word; else 0: `[example, slot]`."""
    behind = torch.zeros_like(inputs["input_ids"])
    for row, ids in enumerate(inputs["input_ids"].tolist()):
        for slot, token in enumerate(ids[: int(inputs["attention_mask"][row].sum())]):
            before = [place for place in range(slot) if ids[place] == token]
            behind[row, slot] = before[-1] + 1 if before else 0
    return behind


def losses(model, inputs, **replaced):
    """The losses of the tokens that follow from those before, and of all others, in nats: two of `[token]`."""
    logits = model.logits(inputs, **replaced)[:, :-1]
    ids = inputs["input_ids"][:, 1:]
    real = inputs["attention_mask"][:, 1:].bool()
    repeated = again(inputs)[:, :-1] > 0
    nats = cross_entropy(logits.transpose(1, 2), ids, reduction="none")
    return nats[real & repeated], nats[real & ~repeated]


# -- the model, without papa -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["repeats", "no-repeats"])
def test_heads_of_the_stock_model_look_where_they_should(name, stock, tokenizer):
    inputs = papa.lay_out(tokenizer, texts(name), slots=SLOTS, style="contiguous")
    del inputs["token_type_ids"]
    with torch.no_grad():
        attentions = stock(**inputs, output_attentions=True).attentions
    real = inputs["attention_mask"].bool()
    slots = torch.arange(SLOTS)

    def looked_at(head, keys):
        """The weight that a head gives to a key `[example, slot]` of every query with a token."""
        return attentions[head[0]][:, head[1]].gather(2, keys[..., None])[..., 0][real]

    assert looked_at(PREVIOUS, (slots - 1).clamp(min=0).expand_as(real)).min() > 0.999
    assert looked_at(FIRST, torch.zeros_like(inputs["input_ids"])).min() > 0.999
    assert looked_at(INDUCTION, again(inputs)).min() > 0.999
    for layer, head in IDLE:
        assert attentions[layer][:, head][real].amax(-1).median() < 0.5
    # an even idle head looks at other tokens in every text, an odd one at all alike
    assert (
        attentions[1][:, 0, 20, :20].std(0).max()
        > 0.01
        > 1e-6
        > attentions[1][:, 1, 20, :20].std(0).max()
    )


# -- what papa finds ---------------------------------------------------------------------------------------------------


def test_constants_in_all_heads_but_the_induction_head_cost_nothing(model, read):
    name, inputs, average = read
    others = [head for head in ALL if head != INDUCTION]
    original = losses(model, inputs)
    replaced = losses(model, inputs, constants=average, heads=others)
    assert (torch.cat(replaced) - torch.cat(original)).abs().max() < 1e-3
    assert (len(original[0]) > 1000) == (name == "repeats")


@pytest.mark.parametrize("head", ALL)
def test_what_constants_and_zeros_cost_in_each_head(model, read, head):
    name, texts, average = read
    inputs = {key: values[:50] for key, values in texts.items()}
    zeros = torch.zeros(2, 5, SLOTS, SLOTS)
    for constants, destroying in ((average, [INDUCTION]), (zeros, [INDUCTION, PREVIOUS])):
        repeated, others = losses(model, inputs, constants=constants, heads=[head])
        assert others.mean() == pytest.approx(UNIFORM, abs=1e-4)
        if name == "repeats":
            assert repeated.mean() == pytest.approx(UNIFORM if head in destroying else 0, abs=1e-2)


# -- what a study says of it -------------------------------------------------------------------------------------------


def test_a_study_claims_all_heads_but_the_one_that_needs_its_input(tmp_path):
    assert known.study(3, tmp_path) == (9, {"repeats/average/lambda/0": 1.0})
