"""Masked language modelling: masks, blocks of running text, the tied loss against a dense oracle, the whole stage."""

import math
from collections import Counter

import jobs
import pytest
import torch
import transformers
from families import ENDS, SIZES, needs_t5
from random_models import random_model
from refusals import input_error
from sizes import EXAMPLES, HEADS, LAYERS, SLOTS, VOCABULARY
from torch.nn.functional import cross_entropy, gelu
from transformers.activations import ACT2FN

import papa
from papa.data.layout import texts_in_blocks
from papa.data.tokens import Tokens
from papa.files import read_facts, read_table
from papa.method import token_prediction
from papa.method.states import StreamedStates
from papa.method.token_prediction import (
    VALIDATION,
    MaskedTokens,
    Masking,
    MlmProbe,
    masked_batch,
    summed_loss,
    token_losses,
)

HIDDEN = 13
MASK = 56
TRAIN = 67
TEXT_SLOTS = 13
METRIC = "negative_log_perplexity"


@pytest.fixture
def masking_tokenizer(tokenizer):
    tokenizer.add_special_tokens({"mask_token": "[MASK]"})
    assert tokenizer.mask_token_id == MASK
    return tokenizer


@pytest.fixture
def masking(masking_tokenizer):
    return Masking.of(masking_tokenizer, "tiny")


@pytest.fixture
def tiny(model, masking_tokenizer, place_tiny):
    return place_tiny(model, masking_tokenizer)


@pytest.fixture
def tokens(tmp_path, tiny):
    """Running text in which most words are "a" or "b", in turns: a masked one can be guessed from its neighbours."""
    generator = torch.Generator().manual_seed(3)
    texts = []
    for length in torch.randint(1, 41, (TRAIN,), generator=generator).tolist():
        texts.append(" ".join("ab"[place % 2] if place % 7 else "z" for place in range(length)))
    jobs.write_texts(tmp_path, train=texts[:53], validation=texts[53:])
    return jobs.lay_out(tiny, tmp_path, TEXT_SLOTS, blocks=True)


def train(model, tokens, name="run", seed=1, **options):
    """What a run says, with its mean loss."""
    run = tokens.parent / f"{name}.parquet"
    state = jobs.trained(model, run, seed=seed, metric=METRIC, tokens=tokens, **options)
    return read_facts(run) | {"nats": jobs.nats(run), "state": state}


def masked(tokens, masking, *splits):
    """The objective on laid-out tokens, and hidden states through the model."""
    model = papa.load_model(tokens.parent / "tiny", device="cpu")
    return MaskedTokens(Tokens.read(tokens, *splits), model, masking, 1), StreamedStates(
        model, model.replacement
    )


def test_share_of_masked_tokens_and_what_becomes_of_them(masking):
    ids = torch.randint(0, MASK + 1, (1_000_003,))
    masks = masking.draw(ids, 5, 1)
    special = torch.isin(ids, torch.tensor([0, 1, 2, 3, MASK]))
    assert not masks.chosen[special].any()
    assert torch.equal(masks.ids[~masks.chosen], ids[~masks.chosen])
    open_to_choice = int((~special).sum())
    chosen = int(masks.chosen.sum())
    assert abs(chosen - 0.15 * open_to_choice) < 4 * math.sqrt(0.15 * 0.85 * open_to_choice)
    read = masks.ids[masks.chosen]
    gold = ids[masks.chosen]
    others = MASK - 4  # ids that are not special; one draw in `others` gives back what was there
    other = (read != MASK) & (read != gold)
    for place, expected in (
        (read == MASK, 0.8),
        (read == gold, 0.1 + 0.1 / others),
        (other, 0.1 - 0.1 / others),
    ):
        assert abs(int(place.sum()) - expected * chosen) < 4 * math.sqrt(
            expected * (1 - expected) * chosen
        )
    assert int(read[other].min()) == 4
    assert int(read[other].max()) == MASK - 1  # none of them special


def test_masks_follow_from_seed_and_epoch(masking):
    ids = torch.randint(4, MASK, (997,))
    first = masking.draw(ids, 7, 1)
    again = masking.draw(ids, 7, 1)
    assert torch.equal(first.ids, again.ids)
    assert torch.equal(first.chosen, again.chosen)
    for seed, epoch in ((7, 2), (8, 1), (1, 7), VALIDATION):
        assert not torch.equal(first.chosen, masking.draw(ids, seed, epoch).chosen)


def test_a_tokenizer_without_mask_token_is_refused(tokenizer):
    with input_error("tokenizer of model tiny has no mask token"):
        Masking.of(tokenizer, "tiny")


def test_blocks_lose_no_token_and_fill_their_slots(masking_tokenizer):
    texts = ["a b c d e f g", "", " = h = ", " \n", *["i j k"] * 4]
    stream = [
        number
        for ids in masking_tokenizer(texts, add_special_tokens=False).input_ids
        for number in ids
    ]
    blocks = list(texts_in_blocks(masking_tokenizer, texts, 7))
    assert [number for block in blocks for number in block.ids[1:-1]] == stream
    rest = len(stream) % 5
    assert rest
    assert [len(block.ids) for block in blocks] == [7] * (len(stream) // 5) + [rest + 2]
    assert blocks[0].slots == list(range(7))
    assert blocks[-1].slots == [
        *range(rest + 1),
        6,
    ]
    assert {(block.ids[0], block.ids[-1], block.cut) for block in blocks} == {(2, 3, 0)}
    with input_error("2 slots leave no room"):
        list(texts_in_blocks(masking_tokenizer, texts, 2))


def test_blocks_do_not_cross_splits(tokens):
    table = read_table(tokens)
    parts = Tokens.read(tokens)
    for part in parts.values():
        assert part.lengths[:-1].eq(TEXT_SLOTS).all()
        assert 2 < int(part.lengths[-1]) <= TEXT_SLOTS
    assert table.column("row").to_pylist() == [
        *range(len(parts["train"])),
        *range(len(parts["validation"])),
    ]


@pytest.mark.parametrize("size", [HIDDEN, 7])
def test_the_probe_is_the_papers_formula(inputs, size):
    embeddings = torch.randn(VOCABULARY, size)
    probe = MlmProbe(LAYERS + 1, HIDDEN, embeddings, "gelu", initializer_range=0.4)
    assert not probe.bias.any()
    assert isinstance(probe.projection, torch.nn.Linear) == (size != HIDDEN)
    torch.nn.init.normal_(probe.bias)
    hidden = torch.randn(EXAMPLES, LAYERS + 1, SLOTS, HIDDEN)
    chosen = inputs["attention_mask"].bool() & (torch.rand(EXAMPLES, SLOTS) < 0.5)
    pooled = gelu(probe.dense(hidden[1, :, 5].flatten()))
    pooled = probe.projection(pooled)
    chosen[1, 5] = True
    place = int(chosen.flatten()[: SLOTS + 5].sum())
    torch.testing.assert_close(
        probe.packed(hidden.transpose(1, 2)[chosen])[place], embeddings @ pooled + probe.bias
    )
    assert {name for name, _ in probe.named_parameters()} == set(probe.state_dict())
    assert not any("embeddings" in name for name in probe.state_dict())


@pytest.mark.parametrize("count", [0, 1, 64, 101])
def test_losses_and_gradients_are_those_of_all_logits_at_once(monkeypatch, count):
    """At most `DECODED_AT_ONCE` tokens have logits at the same time, and none of them is kept for gradients."""
    monkeypatch.setattr(token_prediction, "DECODED_AT_ONCE", 64)
    shapes = []
    kept = []
    plain = token_prediction.linear

    def noting(*args):
        shapes.append(plain(*args).shape)
        return plain(*args)

    monkeypatch.setattr(token_prediction, "linear", noting)
    embeddings = torch.randn(VOCABULARY, 7, requires_grad=True)
    probe = MlmProbe(LAYERS + 1, HIDDEN, embeddings, initializer_range=0.4)
    torch.nn.init.normal_(probe.bias)
    hidden = torch.randn(count, LAYERS + 1, HIDDEN, requires_grad=True)
    gold = torch.randint(VOCABULARY, (count,))
    wanted = [hidden, *probe.parameters()]
    dense = cross_entropy(probe.packed(hidden), gold, reduction="none")
    expected = torch.autograd.grad(dense.sum(), wanted)
    shapes.clear()
    with torch.no_grad():
        torch.testing.assert_close(token_losses(probe, hidden, gold), dense)
    with torch.autograd.graph.saved_tensors_hooks(
        lambda saved: kept.append(saved.shape) or saved, lambda saved: saved
    ):
        loss = summed_loss(probe, hidden, gold)
    torch.testing.assert_close(loss, dense.sum())
    torch.testing.assert_close(torch.autograd.grad(loss, wanted), expected, atol=2e-4, rtol=1e-3)
    assert max((shape[0] for shape in shapes if shape[1] == VOCABULARY), default=0) == min(
        count, 64
    )
    assert not any(shape[1:] == (VOCABULARY,) for shape in kept if shape != embeddings.shape)
    assert embeddings.grad is None
    assert probe.embeddings.grad is None


def test_each_masked_token_has_its_loss_and_that_of_a_blind_guess(tiny, tokens, masking):
    """Texts of many lengths, which are scored in the order of their lengths."""
    objective, states = masked(jobs.lay_out(tiny, tokens.parent, TEXT_SLOTS, "lines"), masking)
    part = objective.splits["validation"]
    masks = objective.masks["validation"]
    scored = torch.cat([batch.examples for batch in objective.scored()]).tolist()
    assert scored != list(range(14)) == sorted(scored)
    with torch.no_grad():
        objective.probe.bias.normal_()
    table = objective.table(objective.outcomes_on(states)).to_pandas()
    assert list(table) == ["split", "example", "position", "loss", "trivial"]
    assert set(table["split"]) == {"validation"}
    ordinary = masking.ordinary.tolist()
    assert not set(ordinary) & set(masking.special.tolist()), (
        "what is never masked takes no share of the guess"
    )
    seen = Counter(token for token in objective.splits["train"].ids.tolist() if token in ordinary)
    total = seen.total() + len(ordinary)
    for example in range(14):
        drawn = masked_batch(part, masks, torch.tensor([example]))
        rows = table[table["example"] == example]
        assert rows["position"].tolist() == drawn.positions.tolist()
        blind = [-math.log((seen[token] + 1) / total) for token in drawn.gold.tolist()]
        assert rows["trivial"].tolist() == pytest.approx(blind)
        with torch.no_grad():
            hidden = torch.stack(states.model.run(drawn.packed), dim=1)[drawn.positions]
            losses = cross_entropy(objective.probe.packed(hidden), drawn.gold, reduction="none")
        assert rows["loss"].tolist() == pytest.approx(losses.tolist(), rel=1e-5, abs=1e-6)
    assert set(table["example"]) < set(range(14)), "texts without a masked token have no row"
    drawn = []
    for objective.seed, epoch in ((1, 1), (1, 2), (2, 1)):
        objective.begin(epoch)
        drawn.append(tuple(objective.masks["train"].chosen.tolist()))
    assert len(set(drawn)) == 3, "each epoch of each seed is trained on masks of its own"


def test_a_probe_learns_and_the_same_seed_gives_the_same_bytes(tiny, tokens):
    once = train(tiny, tokens, "once", how=jobs.training(epochs=1))
    how = jobs.training(epochs=3)
    first = train(tiny, tokens, "a", how=how)
    other = train(tiny, tokens, "c", seed=2, how=how)
    train(tiny, tokens, "b", how=how)
    assert (tokens.parent / "a.parquet").read_bytes() == (tokens.parent / "b.parquet").read_bytes()
    assert first["nats"] + 0.1 < once["nats"] < math.log(VOCABULARY)
    assert first["kept"] == first["heads"] == LAYERS * HEADS
    assert first["curve"] != other["curve"]
    same = ["example", "position", "trivial"]
    tables = [read_table(tokens.parent / f"{name}.parquet") for name in ("a", "c")]
    assert tables[0].select(same) == tables[1].select(same)
    assert tables[0]["loss"] != tables[1]["loss"]
    assert set(first["state"]) == {"dense.weight", "dense.bias", "bias"}


def test_trained_constants_and_texts_too_short_to_be_masked_are_refused(tiny, tokens, monkeypatch):
    with input_error("The constant toeplitz is trained, which needs labels"):
        train(tiny, tokens, variant="toeplitz-trained/all")
    monkeypatch.setattr("papa.method.token_prediction.CHOSEN_SHARE", 0.0)
    with input_error("No token of the validation split is masked"):
        train(tiny, tokens)


@pytest.mark.parametrize("family", ["roberta", "deberta", "electra", "distilbert", "modernbert"])
def test_every_family_learns_to_guess(family, tmp_path):
    """The random ELECTRA has embeddings of half its hidden size, so that a projection precedes the decoder."""
    random = random_model(family)
    average = tmp_path / "average.h5"
    text = ["the old nurse near the doctors sees the teacher ."]
    jobs.write_texts(tmp_path, train=text * 59, validation=text * 14)
    tokens = jobs.lay_out(random, tmp_path, 17, blocks=True)
    jobs.average(random, tokens, average)
    for name, replaced in (
        ("original", {}),
        ("none", {"constants": average, "variant": "average/all"}),
    ):
        once, run = (
            train(random, tokens, name, how=jobs.training(epochs=n), **replaced) for n in (1, 4)
        )
        assert run["nats"] < once["nats"] - 0.1
        assert run["kept"] == (0 if replaced else run["heads"])
        assert ("projection.weight" in run["state"]) == (family == "electra")


@pytest.mark.parametrize(
    ("name", "given", "activation"),
    [
        ("ModernBertForMaskedLM", {"hidden_activation": "silu"}, "silu"),
        ("DistilBertForMaskedLM", {"activation": "relu"}, "relu"),
        ("T5EncoderModel", {"feed_forward_proj": "gated-gelu", "d_kv": 6}, "gelu_new"),
        ("XLMRobertaForMaskedLM", {"hidden_act": "gelu_new"}, "gelu_new"),
    ],
)
def test_the_activation_is_the_models_by_whichever_name_it_has_it(
    tokens, masking, name, given, activation
):
    if name == "T5EncoderModel":
        needs_t5()
    kind = getattr(transformers, name)
    config = kind.config_class(**SIZES | ENDS | {"cls_token_id": 1, "sep_token_id": 2} | given)
    probe = MaskedTokens(Tokens.read(tokens), papa.Model(kind(config)), masking, 1).probe
    assert type(probe.activation) is type(ACT2FN[activation])
    assert probe.dense.weight.std().item() == pytest.approx(0.02, rel=0.1)
