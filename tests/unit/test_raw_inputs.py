"""Models of pictures and sound: averages and replaced heads on what they take, against their stock models."""

import pytest
import torch
import transformers
from families import close
from sizes import LAYERS

import papa
from papa.errors import InputError
from papa.model.attention import Session, attention, running
from papa.model.replacement import Keep
from papa.model.verification import verify

HEADS, CHANNELS = 4, 6
SIZES = {"hidden_size": HEADS * CHANNELS, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS}
SIZES |= {"intermediate_size": 41}
PICTURES = {"image_size": 21, "patch_size": 7}
SOUND = {"conv_dim": (12, 12), "conv_stride": (5, 4), "conv_kernel": (10, 8), "num_feat_extract_layers": 2}
SOUND |= {"num_conv_pos_embeddings": 6, "num_conv_pos_embedding_groups": 4}
WHISPER = {
    **{"d_model": HEADS * CHANNELS, "encoder_layers": LAYERS, "encoder_attention_heads": HEADS, "encoder_ffn_dim": 41},
    **{"num_mel_bins": 5, "max_source_positions": 11, "vocab_size": 53, "pad_token_id": 0},
}
MODELS = {
    "vit": ("ViTModel", SIZES | PICTURES),
    "dinov2": ("Dinov2Model", SIZES | PICTURES),
    "clip": ("CLIPVisionModel", SIZES | PICTURES),
    "siglip": ("SiglipVisionModel", SIZES | PICTURES),
    "wav2vec2": ("Wav2Vec2Model", SIZES | SOUND),
    "whisper": ("WhisperModel", WHISPER),
}


def stock(name):
    made, options = MODELS[name]
    kind = getattr(transformers, made)
    torch.manual_seed(0)
    model = kind._from_config(kind.config_class(**options), attn_implementation="eager").eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(std=0.4) if weight.ndim > 1 else weight.add_(torch.rand_like(weight) * 0.2)
    return model.get_encoder() if name == "whisper" else model


def inputs_of(name):
    chance = torch.Generator().manual_seed(1)
    if name == "wav2vec2":
        mask = torch.ones(3, 260, dtype=torch.long)
        mask[1, 190:] = 0
        return {"input_values": torch.randn(3, 260, generator=chance) * mask, "attention_mask": mask}
    if name == "whisper":
        return {"input_features": torch.randn(3, 5, 22, generator=chance)}
    return {"pixel_values": torch.randn(3, 3, 21, 21, generator=chance)}


@pytest.fixture(params=MODELS)
def name(request):
    return request.param


def test_it_is_what_it_was_and_does_what_the_formula_says(name):
    check = verify(stock(name))
    assert (check.form, check.layers, check.heads, check.causal) == ("padded", LAYERS, HEADS, False), check
    assert max(check.stock, check.half, check.all) < 3e-6 and check.skipped == 1


def test_averages_are_those_of_collected_attention(name):
    model, inputs = stock(name), inputs_of(name)
    with torch.no_grad():
        attentions = torch.stack(model(**inputs, output_attentions=True).attentions)  # [layer, example, ...]
    lengths = [attentions.shape[-1]] * 3
    if name == "wav2vec2":
        lengths = model._get_feat_extract_output_lengths(inputs["attention_mask"].sum(1)).tolist()
        assert lengths[1] < lengths[0]
    total, count = torch.zeros_like(attentions[:, 0]), torch.zeros(attentions.shape[-2:])
    for example, length in enumerate(lengths):
        total[..., :length, :length] += attentions[:, example, :, :length, :length]
        count[:length, :length] += 1
    actual = papa.average_attention(papa.Model(model), [inputs])
    assert actual.examples == 3 and torch.equal(actual.count, count.long())
    close(actual.mean, total / count.clamp(min=1), atol=1e-5)


def test_a_constant_that_is_the_examples_own_attention_changes_nothing(name):
    inputs = {key: values[:1] for key, values in inputs_of(name).items()}
    plain = stock(name)
    with torch.no_grad():
        expected = plain(**inputs, output_hidden_states=True)
    average = papa.average_attention(papa.Model(stock(name)), [inputs])
    with papa.replaced_attention(plain, average), torch.no_grad():
        actual = plain(**inputs, output_hidden_states=True)
    close(actual.last_hidden_state, expected.last_hidden_state)
    constants = torch.rand(average.mean.shape, generator=torch.Generator().manual_seed(3))
    with papa.replaced_attention(plain, constants), torch.no_grad():
        other = plain(**inputs, output_hidden_states=True)
    assert (other.last_hidden_state - expected.last_hidden_state).abs().max() > 1e-2
    states = papa.Model(stock(name)).hidden_states(inputs, constants)
    close(states[:, -1], other.hidden_states[-1])


def test_padding_is_what_no_query_sees_in_a_mask_that_a_model_makes_by_itself():
    session, seen = Session([Keep()], layout_from_attention=True), []
    session.observer = lambda layer, attention, _: seen.append((attention, layer.examples))
    queries, mask = torch.randn(2, HEADS, 7, CHANNELS), torch.zeros(2, 1, 7, 7)
    mask[1, :, :, 5:] = torch.finfo(torch.float32).min
    with running(session):
        attention(torch.nn.Identity(), queries, queries, queries, mask)
    actual, examples = seen[0]
    assert examples.real.sum(1).tolist() == [7, 5] and not actual[1, :, :, 5:].any()


def test_constants_of_other_slots_and_other_inputs_are_refused():
    model = papa.Model(stock("vit"))
    with pytest.raises(InputError, match=r"The constants have 7 slots but the inputs 10"):
        model.hidden_states(inputs_of("vit"), torch.rand(LAYERS, HEADS, 7, 7))
    with pytest.raises(InputError, match=r"ViTModel takes pixel_values, but input_ids was given"):
        papa.average_attention(model, [{"input_ids": torch.ones(1, 3, dtype=torch.long)}])
    with pytest.raises(InputError, match=r"ViTModel cannot run on pixel_values \[1, 3, 5, 5\]"):
        papa.average_attention(model, [{"pixel_values": torch.ones(1, 3, 5, 5)}])
