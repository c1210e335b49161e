"""Models whose heads are known: their attention on the stock model, and what papa has to find of them."""

import math

import pyarrow as pa
import pytest
import torch
import transformers
from torch.nn.functional import cross_entropy

import papa
from benchmarks import known
from papa.config.settings import Machine
from papa.config.stages import ModelId
from papa.data.generated import generate
from papa.data.generated.known import (
    CANCELLER,
    FIRST,
    INDUCTION,
    KNOWN,
    LONG,
    NEEDED,
    PREVIOUS,
    SECOND_COPY,
    WRONG_TOKEN,
    known_model,
)
from papa.data.generated.recall import CYCLE_WORDS, LONG_WORDS, MAXIMUM_WORDS, NEW_WORDS, REPEATED_WORDS, WORDS
from papa.data.weights import location_of, weights_digest
from papa.files import read_table, write_table
from papa.method.constants import constant_matrices

SLOTS, TEXTS = 48, 200
UNIFORM = math.log(len(WORDS))
ALL = [(layer, head) for layer in range(2) for head in range(5)]
IDLE = [head for head in ALL if head not in (PREVIOUS, FIRST, INDUCTION)]


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def tokenizer(cache):
    return transformers.AutoTokenizer.from_pretrained(known_model("induction"))


@pytest.fixture(scope="module")
def stock(cache):
    folder = known_model("induction")
    return transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()


@pytest.fixture(scope="module")
def model(cache):
    return papa.load_model(known_model("induction"), device="cpu")


def texts(name, split="validation", rows=TEXTS):
    return generate(name, split, rows, seed=0)["first"].tolist()


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
    logits, ids = model.logits(inputs, **replaced)[:, :-1], inputs["input_ids"][:, 1:]
    real, repeated = inputs["attention_mask"][:, 1:].bool(), again(inputs)[:, :-1] > 0
    nats = cross_entropy(logits.transpose(1, 2), ids, reduction="none")
    return nats[real & repeated], nats[real & ~repeated]


# -- the model, without papa -------------------------------------------------------------------------------------------


def test_texts_repeat_what_they_should():
    for text in texts("repeats"):
        words = text.split()
        new = len(set(words))
        assert NEW_WORDS[0] <= new <= NEW_WORDS[1] and REPEATED_WORDS[0] <= len(words) - new <= REPEATED_WORDS[1]
        assert f" {' '.join(words[new:])} " in f" {' '.join(words[:new])} "
    distances = {len(set(words)) - words.index(words[len(set(words))]) for words in map(str.split, texts("repeats"))}
    assert len(distances) >= 20
    assert all(len(set(text.split())) == len(text.split()) <= MAXIMUM_WORDS for text in texts("no-repeats"))


@pytest.mark.parametrize("name", ["repeats", "no-repeats"])
def test_heads_of_the_stock_model_look_where_they_should(name, stock, tokenizer):
    inputs = papa.lay_out(tokenizer, texts(name), slots=SLOTS, style="contiguous")
    del inputs["token_type_ids"]
    with torch.no_grad():
        attentions = stock(**inputs, output_attentions=True).attentions
    real, slots = inputs["attention_mask"].bool(), torch.arange(SLOTS)

    def looked_at(head, keys):
        """The weight that a head gives to a key `[example, slot]` of every query with a token."""
        return attentions[head[0]][:, head[1]].gather(2, keys[..., None])[..., 0][real]

    assert looked_at(PREVIOUS, (slots - 1).clamp(min=0).expand_as(real)).min() > 0.999
    assert looked_at(FIRST, torch.zeros_like(inputs["input_ids"])).min() > 0.999
    assert looked_at(INDUCTION, again(inputs)).min() > 0.999
    for layer, head in IDLE:
        assert attentions[layer][:, head][real].amax(-1).median() < 0.5
    # an even idle head looks at other tokens in every text, an odd one at all alike
    assert attentions[1][:, 0, 20, :20].std(0).max() > 0.01 > 1e-6 > attentions[1][:, 1, 20, :20].std(0).max()


def test_the_stock_model_knows_what_comes_again_and_nothing_else(stock, tokenizer):
    for text in texts("repeats", rows=20):
        ids = torch.tensor([tokenizer(text).input_ids])
        with torch.no_grad():
            nats = cross_entropy(stock(ids).logits[0, :-1], ids[0, 1:], reduction="none")
        repeated = len(ids[0]) - len(set(ids[0].tolist())) - 1  # the first that comes again follows nothing known
        assert nats[-repeated:].max() < 1e-3
        assert nats[:-repeated].tolist() == pytest.approx([UNIFORM] * (len(nats) - repeated), abs=1e-4)


@pytest.mark.parametrize("name", KNOWN)
def test_it_is_one_model_wherever_it_is_made(name, monkeypatch, tmp_path):
    model = ModelId(name="tiny", known=name)
    digest = weights_digest(model, Machine())
    assert location_of(model, Machine()) == str(known_model(name)) and model.origin == f"known {name}"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert weights_digest(model, Machine()) == digest


def test_unknown_known_models_are_listed():
    with pytest.raises(papa.InputError, match="there are induction"):
        known_model("deduction")
    assert set(NEEDED) == set(KNOWN)


# -- what papa finds ---------------------------------------------------------------------------------------------------


def test_constants_in_all_heads_but_the_induction_head_cost_nothing(model, read):
    name, inputs, average = read
    others = [head for head in ALL if head != INDUCTION]
    original, replaced = losses(model, inputs), losses(model, inputs, constants=average, heads=others)
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


# -- heads that interact -----------------------------------------------------------------------------------------------

INTERACTIONS = {"redundant": {INDUCTION, SECOND_COPY}, "trap": {INDUCTION, CANCELLER, WRONG_TOKEN}}
"""The heads of each variation of the decoder that look where the induction head looks."""


@pytest.fixture(scope="module", params=INTERACTIONS)
def variation(request, tokenizer, cache):
    """A variation: its name, papa's model, validation texts with repeats, and the averages over training texts."""
    variation = papa.load_model(known_model(request.param), device="cpu")
    inputs, train = (
        papa.lay_out(tokenizer, texts("repeats", split, rows), slots=SLOTS, style="contiguous")
        for split, rows in (("validation", 53), ("train", 500))
    )
    return request.param, variation, inputs, papa.average_attention(variation, [train])


def test_the_stock_model_has_heads_that_look_where_the_induction_head_looks(variation, stock, tokenizer):
    name, _, inputs, _ = variation
    folder = known_model(name)
    varied = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    texts = {key: values for key, values in inputs.items() if key != "token_type_ids"}
    with torch.no_grad():
        attention = varied(**texts, output_attentions=True).attentions[1]
        unchanged = stock(**texts, output_attentions=True).attentions
    for head in range(5):
        same_as = attention[:, INDUCTION[1]] if (1, head) in INTERACTIONS[name] else unchanged[1][:, head]
        torch.testing.assert_close(attention[:, head], same_as, rtol=0, atol=1e-4)
    assert losses(papa.Model(varied), inputs)[0].max() < 1e-3, "it knows what comes again, as the decoder does"


def test_heads_that_interact_cost_what_they_should(variation):
    name, model, inputs, average = variation

    def cost(*heads):
        return losses(model, inputs, constants=average, heads=[*heads])[0].mean().item()

    alone, all_but = ({head: cost(*heads(head)) for head in ALL} for heads in (lambda h: [h], without))
    harmless = pytest.approx(0, abs=1e-2)
    if name == "redundant":  # either of two heads is enough
        assert all(nats == harmless for nats in alone.values())
        assert cost(INDUCTION, SECOND_COPY) == pytest.approx(UNIFORM, abs=1e-2)
        enough = {INDUCTION, SECOND_COPY}
    else:  # the canceller is needed only as long as the wrong token is written
        assert {head for head, nats in alone.items() if nats > 1e-2} == {INDUCTION, CANCELLER}
        assert alone[CANCELLER] > UNIFORM > alone[INDUCTION] - 1e-2
        assert cost(CANCELLER, WRONG_TOKEN) == harmless
        enough = {INDUCTION}
    assert {head for head, nats in all_but.items() if nats < 1e-2} == enough
    assert cost(*ALL) == pytest.approx(UNIFORM, abs=1e-2)


def without(head):
    return [other for other in ALL if other != head]


# -- what a study says of it -------------------------------------------------------------------------------------------


def test_a_study_claims_all_heads_but_the_one_that_needs_its_input(tmp_path):
    assert known.study(3, tmp_path) == (9, {"tasks/repeats/average/lambda-0": 1.0})
    summary = read_table(next(tmp_path.rglob("summary.parquet"))).to_pandas().query("main")
    scores = summary[summary["constant"].ne("zeros")].groupby("fraction")["mean"].first()
    # by hand: the first time a word stands there, and the first that comes again, are as likely as any other
    rows = generate("repeats", "validation", known.ROWS["validation"], seed=3)["first"].map(str.split)
    repeated = sum(len(words) - len(set(words)) - 1 for words in rows)
    kept = -UNIFORM * (1 - repeated / rows.map(len).sum())
    expected = {fraction: kept for fraction in ("1", "1/2", "1/5", "1/10")} | {"0": -UNIFORM}
    assert scores.to_dict() == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize(("place", "share"), [(9, 1.0), (7, 7 / 9), (0, 0.0)])
def test_the_area_of_an_order_is_the_share_of_heads_that_go_before_the_one_that_is_needed(place, share, tmp_path):
    heads = [head for head in ALL if head != INDUCTION]
    heads.insert(place, INDUCTION)
    columns = {"rank": range(10), "layer": [layer for layer, _ in heads], "head": [head for _, head in heads]}
    write_table(pa.table(columns), tmp_path / "order.parquet", {})
    assert known.auroc(tmp_path / "order.parquet", [INDUCTION]) == pytest.approx(share)
    either = known.auroc(tmp_path / "order.parquet", [INDUCTION, heads[-1 if place < 9 else 0]])
    assert either == 1, "one of two heads is enough"


# -- long texts --------------------------------------------------------------------------------------------------------

LONG_SLOTS = 256
"""Slots of the tests: the model has 4,096, and `benchmarks/known.py --long` uses them all."""


@pytest.fixture(scope="module")
def long_model(cache):
    return transformers.AutoModelForCausalLM.from_pretrained(known_model("long"), attn_implementation="eager").eval()


@pytest.fixture(scope="module")
def cycles(cache):
    """Texts of cycles, cut to the slots of the tests: 8 for validation and 30 for averages."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(known_model("long"))
    return [
        papa.lay_out(tokenizer, texts("cycles", split, rows), slots=LONG_SLOTS, style="contiguous")
        for split, rows in (("validation", 8), ("train", 30))
    ]


def test_cycles_repeat_all_their_words_in_the_same_order():
    lengths = set()
    for words in map(str.split, texts("cycles", rows=40)):
        period = len(set(words))
        assert len(words) == LONG_WORDS and words[period:] == words[:-period]
        lengths.add(period)
    assert min(lengths) >= CYCLE_WORDS[0] and max(lengths) <= CYCLE_WORDS[1] and len(lengths) > 20


def test_the_remainders_of_a_position_are_unique_and_those_of_the_position_before_rotated():
    remainders = LONG.remainders()
    assert len({tuple(row.nonzero().flatten().tolist()) for row in remainders}) == LONG.slots == 1 + LONG_WORDS
    rotated = [part.roll(1, 1) for part in remainders[:-1].split(LONG.divisors, 1)]
    assert torch.equal(torch.hstack(rotated), remainders[1:])


def test_heads_of_the_stock_model_look_where_they_should_in_long_texts(long_model, cycles):
    """Also in the last slots that the model has: only the positions there differ from those of a short text."""
    ids = cycles[0]["input_ids"]
    right = (ids[:, :, None] == ids.roll(1, 1)[:, None]).tril()  # the keys behind an earlier copy of the query
    right[:, :, 0] = ~right[:, :, 1:].any(-1)
    with torch.no_grad():
        first, second = long_model(input_ids=ids, output_attentions=True).attentions
        last = torch.arange(LONG.slots - LONG_SLOTS, LONG.slots)[None]
        late = long_model(input_ids=ids[:1], position_ids=last, output_attentions=True).attentions[0]
    for attention in (first, late):
        assert attention[:, PREVIOUS[1]].diagonal(-1, 1, 2).min() > 0.999
    assert first[:, FIRST[1], :, 0].min() > 0.999
    assert (second[:, INDUCTION[1]] * right).sum(-1).min() > 0.99
    assert second[:, INDUCTION[1], -1].max() < 0.5, "it looks at several copies"
    for layer, head in IDLE:
        assert (first, second)[layer][:, head].amax(-1).median() < 0.5


def test_constants_in_all_heads_but_the_induction_head_cost_nothing_in_long_texts(long_model, cycles):
    validation, train = cycles
    model, others = papa.Model(long_model), [head for head in ALL if head != INDUCTION]
    by_distance = papa.average_attention(model, [train], "by-distance")
    sink = papa.average_attention(model, [train], "sink")
    uniform = constant_matrices("uniform", 2, 5, LONG_SLOTS)
    by_content = [head for head in others if head != PREVIOUS]  # the previous token needs a position
    original = losses(model, validation)
    assert original[0].max() < 0.01 and len(original[0]) > 1000
    assert original[1].tolist() == pytest.approx([UNIFORM] * len(original[1]), abs=1e-4)
    free = [(by_distance, others), (sink, by_content), (uniform, by_content)]
    for constants, heads in free:
        repeated, new = losses(model, validation, constants=constants, heads=heads)
        assert repeated.max() < 0.01 and new.tolist() == pytest.approx([UNIFORM] * len(new), abs=0.01)
    for constants, _ in free:
        repeated, _ = losses(model, validation, constants=constants, heads=[INDUCTION])
        assert repeated.mean() == pytest.approx(UNIFORM, abs=0.05)
    for constants in (sink, uniform):
        assert losses(model, validation, constants=constants, heads=[PREVIOUS])[0].mean() > UNIFORM - 0.05
