import copy

import pytest
import torch
from families import real, stock_attention, stock_states
from sizes import CHANNELS, EXAMPLES, HEADS, LAYERS, SLOTS, VOCABULARY
from transformers import BertConfig, GPT2Config, GPT2Model

import papa
from papa.data.packed import Examples, Packed
from papa.model.model import Model
from papa.model.replacement import restrict


@pytest.fixture
def encoder(model):
    return Model(copy.deepcopy(model))


def test_nothing_replaced_equals_stock_transformers(model, encoder, inputs):
    hidden = encoder.hidden_states(inputs)
    assert hidden.shape == (EXAMPLES, LAYERS + 1, SLOTS, HEADS * CHANNELS)
    torch.testing.assert_close(real(hidden, inputs), real(stock_states(model, inputs), inputs), atol=1e-4, rtol=0)
    assert not hidden.transpose(1, 2)[inputs["attention_mask"] == 0].any()


@pytest.mark.parametrize("heads", [None, [(0, 1), (2, 4), (2, 0)], [(1, head) for head in range(HEADS)], []])
def test_packed_equals_padded(model, encoder, inputs, matrices, heads):
    packed = encoder.hidden_states(inputs, matrices, heads)
    with papa.replaced_attention(model, matrices, heads):
        padded = stock_states(model, inputs)
    torch.testing.assert_close(real(packed, inputs), real(padded, inputs), atol=1e-4, rtol=0)


def test_replaced_heads_use_the_masked_normalised_constant(model, inputs, matrices):
    """The formula of Sec. 3.3 written out, on the first layer of the stock model."""
    attention = stock_attention(model, inputs)[:, 0]
    mask = inputs["attention_mask"][:, None, None, :]
    own = matrices[0] * mask
    own = own / own.abs().sum(-1, keepdim=True).clamp(min=1e-30)
    replaced = [1, 3]
    attention[:, replaced] = own[:, replaced]
    layer = model.encoder.layer[0]
    embedded = model.embeddings(inputs["input_ids"], inputs["token_type_ids"])
    value = layer.attention.self.value(embedded).view(EXAMPLES, SLOTS, HEADS, CHANNELS).transpose(1, 2)
    context = (attention @ value).transpose(1, 2).flatten(2)
    expected = layer.feed_forward_chunk(layer.attention.output(context, embedded))
    found = Model(model).hidden_states(inputs, matrices, [(0, head) for head in replaced])[:, 1]
    keep = inputs["attention_mask"].bool()
    torch.testing.assert_close(found[keep], expected[keep], atol=1e-4, rtol=0)


def test_a_constant_that_is_the_examples_own_attention_changes_nothing(model, encoder, inputs):
    for row in (0, 1, 5):
        one = {name: values[row : row + 1] for name, values in inputs.items()}
        own = stock_attention(model, one)[0]
        torch.testing.assert_close(
            real(encoder.hidden_states(one, own), one), real(encoder.hidden_states(one), one), atol=1e-4, rtol=0
        )


def test_mixing_of_one_changes_nothing_and_of_zero_replaces_all(encoder, inputs, matrices):
    ones = torch.ones(LAYERS, HEADS)
    torch.testing.assert_close(
        encoder.hidden_states(inputs, matrices, mixing=ones), encoder.hidden_states(inputs), atol=1e-4, rtol=0
    )
    torch.testing.assert_close(
        encoder.hidden_states(inputs, matrices, mixing=0 * ones),
        encoder.hidden_states(inputs, matrices),
        atol=1e-4,
        rtol=0,
    )


def test_mixing_and_constants_are_differentiable(model, inputs, matrices):
    encoder = Model(model.double())
    few = {name: values[:3] for name, values in inputs.items()}
    mixing = torch.rand(LAYERS, HEADS, dtype=torch.float64, requires_grad=True)
    constants = matrices.double().requires_grad_()

    def loss(weights, matrices):
        return encoder.hidden_states(few, matrices, mixing=weights).square().mean()

    here = loss(mixing, constants)
    here.backward()
    here = here.detach()
    step, (layer, head) = 1e-6, (1, 3)
    bumped = mixing.detach().clone()
    bumped[layer, head] += step
    slope = (loss(bumped, constants).detach() - here) / step
    assert float(slope) == pytest.approx(float(mixing.grad[layer, head]), rel=1e-3)
    query, key = few["attention_mask"][2].nonzero()[:2, 0].tolist()
    bumped = constants.detach().clone()
    bumped[layer, head, query, key] += step
    slope = (loss(mixing, bumped).detach() - here) / step
    assert float(slope) == pytest.approx(float(constants.grad[layer, head, query, key]), rel=1e-3, abs=1e-9)


def test_a_replaced_head_computes_no_query_and_no_key(encoder, inputs, matrices):
    with torch.no_grad():
        for layer in encoder.model.encoder.layer:
            for projection in (layer.attention.self.query, layer.attention.self.key):
                projection.weight[: 2 * CHANNELS] = torch.nan
    heads = [(layer, head) for layer in range(LAYERS) for head in range(2)]
    assert encoder.hidden_states(inputs, matrices, heads).isfinite().all()
    assert not encoder.hidden_states(inputs).isfinite().all()


def test_unused_slots_give_zero_rows_not_nan(encoder, inputs):
    few = {name: values[:1] for name, values in inputs.items()}  # one token: no average of other slots
    constants = papa.average_attention(encoder, [few])
    assert encoder.hidden_states(inputs, constants).isfinite().all()


def test_rows_sum_to_one_or_zero(inputs, matrices):
    for examples in (Examples.of_mask(inputs["attention_mask"]), Examples.of_packed(Packed.of(inputs))):
        total = restrict(matrices[0], examples).abs().sum(-1)
        assert bool(((total - 1).abs().lt(1e-5) | (total == 0)).all())


def test_the_stock_model_is_put_back_whatever_happens_inside(model, inputs, matrices):
    before = stock_states(model, inputs)
    modules = [type(module) for module in model.modules()]
    with pytest.raises(RuntimeError, match="inside"), papa.replaced_attention(model, matrices):
        raise RuntimeError("inside")
    assert [type(module) for module in model.modules()] == modules
    assert torch.equal(stock_states(model, inputs), before)


def test_a_plain_model_refuses_inputs_of_other_slots(model, inputs, matrices):
    shorter = {name: values[1:2, :-2] for name, values in inputs.items()}
    with papa.replaced_attention(model, matrices), pytest.raises(papa.InputError, match="23 slots and the inputs 21"):
        model(**shorter)


def test_a_batch_of_one_and_a_single_token_work(encoder, inputs):
    one = {name: values[:1] for name, values in inputs.items()}
    whole = encoder.hidden_states(inputs)[:1]
    torch.testing.assert_close(encoder.hidden_states(one), whole, atol=1e-4, rtol=0)


def test_averages_are_those_of_collected_attention(model, encoder, inputs):
    attention = stock_attention(model, inputs)
    mask = inputs["attention_mask"].double()
    both = mask[:, :, None] * mask[:, None, :]
    halves = [{name: values[part] for name, values in inputs.items()} for part in (slice(0, 4), slice(4, None))]
    constants = papa.average_attention(encoder, iter(halves))
    torch.testing.assert_close(constants.count.double(), both.sum(0))
    torch.testing.assert_close(constants.sum, (attention.double() * both[:, None, None]).sum(0), atol=1e-4, rtol=0)
    assert constants.examples == EXAMPLES and constants.mean.dtype == torch.float32


def test_alike_examples_add_up_as_any_others(encoder):
    ids = torch.randint(4, VOCABULARY, (7, SLOTS))
    ids[:, 5:11] = 0
    inputs = {"input_ids": ids, "attention_mask": (ids != 0).long()}
    whole = papa.average_attention(encoder, [inputs])
    parts = papa.average_attention(
        encoder, [{name: values[[row]] for name, values in inputs.items()} for row in range(7)]
    )
    torch.testing.assert_close(whole.sum, parts.sum, atol=1e-5, rtol=0)
    assert torch.equal(whole.count, parts.count)


def test_embeddings_know_slots_and_segments(model, inputs):
    encoder = Model(model)
    changed = dict(inputs, token_type_ids=1 - inputs["token_type_ids"])
    assert not torch.allclose(encoder.hidden_states(inputs), encoder.hidden_states(changed))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda given: given["attention_mask"].__setitem__((1, 0), 0), "disagree in example 1, slot 0"),
        (lambda given: given["input_ids"].__setitem__((1, 3), VOCABULARY), "not in the model's vocabulary"),
        (lambda given: given["attention_mask"].__setitem__(1, 0), "no real token"),
        (lambda given: given["attention_mask"].__setitem__((1, 2), 2), "other than 0 and 1"),
        (lambda given: given.update(attention_mask=given["attention_mask"][:, :3]), "must both be"),
        (lambda given: given.pop("attention_mask"), "no attention_mask"),
        (lambda given: given.update(token_type_ids=given["token_type_ids"][:2]), "must agree"),
    ],
)
def test_inputs_that_cannot_be_right_are_refused(encoder, inputs, change, message):
    change(inputs)
    with pytest.raises(papa.InputError, match=message):
        encoder.hidden_states(inputs)


@pytest.mark.parametrize(
    ("constants", "options", "message"),
    [
        (torch.zeros(LAYERS, HEADS + 1, SLOTS, SLOTS), {}, "this model needs"),
        (torch.zeros(LAYERS, HEADS, SLOTS, SLOTS + 1), {}, "square"),
        (torch.zeros(LAYERS, HEADS, SLOTS + 1, SLOTS + 1), {}, "must agree"),
        (torch.zeros(LAYERS, HEADS, SLOTS, SLOTS), {"heads": [(LAYERS, 0)]}, "does not exist"),
        (torch.zeros(LAYERS, HEADS, SLOTS, SLOTS), {"mixing": torch.full((LAYERS, HEADS), 2.0)}, "outside"),
        (torch.zeros(LAYERS, HEADS, SLOTS, SLOTS), {"mixing": torch.ones(HEADS, LAYERS)}, "mixing is"),
        (torch.zeros(LAYERS, HEADS, SLOTS, SLOTS), {"mixing": torch.ones(LAYERS, HEADS), "heads": []}, "exclude"),
        (None, {"heads": [(0, 0)]}, "without constants"),
    ],
)
def test_replacements_that_cannot_be_right_are_refused(encoder, inputs, constants, options, message):
    with pytest.raises(papa.InputError, match=message):
        encoder.hidden_states(inputs, constants, **options)


def test_slots_beyond_the_positions_are_refused(encoder):
    ids = torch.full((1, 53), 5)
    with pytest.raises(papa.InputError, match="53 slots, the model has positions for 47"):
        encoder.hidden_states({"input_ids": ids, "attention_mask": torch.ones_like(ids)})


def test_decoders_and_unknown_attention_are_refused(model):
    with pytest.raises(papa.InputError, match="supported are encoders with the attention of BERT, Cam"):
        Model(GPT2Model(GPT2Config(n_layer=1, n_head=2, n_embd=4, vocab_size=5)))
    model.config.is_decoder = True
    with pytest.raises(papa.InputError, match="is a decoder"):
        Model(model)


def test_loading_from_a_folder_and_from_nowhere(tmp_path, model, inputs):
    model.save_pretrained(tmp_path / "tiny")
    encoder = papa.load_model(str(tmp_path / "tiny"), device="cpu")
    torch.testing.assert_close(encoder.hidden_states(inputs), Model(model).hidden_states(inputs))
    assert not any(parameter.requires_grad for parameter in encoder.model.parameters())
    with pytest.raises(papa.InputError, match="could not be loaded"):
        papa.load_model(str(tmp_path / "none"))


def test_a_checkpoint_that_lacks_weights_is_refused(tmp_path, model):
    model.save_pretrained(tmp_path / "tiny")
    config = BertConfig.from_pretrained(tmp_path / "tiny")
    config.num_hidden_layers += 1
    config.save_pretrained(tmp_path / "tiny")
    with pytest.raises(papa.InputError, match="would be random"):
        papa.load_model(str(tmp_path / "tiny"))
