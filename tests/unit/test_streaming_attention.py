"""Streaming attention: the stock model with a mask written out by hand, and the words for what is not a constant."""

import copy

import pytest
import torch
from families import close, letters_tokenizer, only, random_model, stock_attention
from sizes import CHANNELS, EXAMPLES, SLOTS
from sizes import HEADS as HEADS_OF_FAMILIES
from sizes import LAYERS as LAYERS_OF_FAMILIES
from test_decoders import ENCODERS, HEADS, LAYERS, MODELS, stock, texts
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

import papa
from papa.config.variant import Constant
from papa.data.packed import Examples
from papa.errors import InputError
from papa.method.importance import distances_to
from papa.model.model import Model
from papa.model.replacement import Attending, Streaming, kept_context
from papa.model.visibility import Visibility
from papa.results.phrases import constant_name, constants, constants_heading, with_noun

SINKS, WINDOW = 2, 3
SOME = [(0, 1), (1, 0), (1, 3), (2, 0), (2, 1), (2, 2), (2, 3)]
LOOKED_UP = {name for name in MODELS | ENCODERS if name != "deberta-v2"}  # its attention is looked up nowhere


def near(mask):
    """Whether a query may see a key, `[example, 1, query, key]`, from the positions of tokens counted one by one."""
    allowed = torch.zeros(len(mask), 1, SLOTS, SLOTS, dtype=torch.bool)
    for example, row in enumerate(mask.tolist()):
        tokens = [slot for slot, real in enumerate(row) if real]
        for i, query in enumerate(tokens):
            for j, key in enumerate(tokens):
                allowed[example, 0, query, key] = j < SINKS or i - WINDOW < j < i + WINDOW
    return allowed


class ByHand:
    """A context in which a stock model computes softmax attention term by term.

    `share` `[layer, head]` is the share of each head's own attention; the rest sees only near tokens.
    """

    def __init__(self, model, share, mask):
        self.model, self.share, self.near = model, share, near(mask)

    def __enter__(self):
        skips = {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
        AttentionInterface.register("by_hand", self.attention)
        AttentionMaskInterface.register("by_hand", lambda *args, **named: sdpa_mask(*args, **named | skips))
        self.calls = 0
        self.model.set_attn_implementation("by_hand")
        self.model.base_model.config._attn_implementation = "by_hand"

    def __exit__(self, *_):
        self.model.set_attn_implementation("eager")

    def attention(self, module, query, key, value, attention_mask, scaling=None, softcap=None, s_aux=None, **others):
        layer, self.calls = self.calls, self.calls + 1
        keys, values = (part.repeat_interleave(query.shape[1] // part.shape[1], dim=1) for part in (key, value))
        scores = query @ keys.mT * (query.shape[-1] ** -0.5 if scaling is None else scaling)
        scores = scores if softcap is None else torch.tanh(scores / softcap) * softcap
        if others.get("position_bias") is not None:
            scores = scores + others["position_bias"]
        if attention_mask is None or attention_mask.dtype == torch.bool:
            seen = torch.ones_like(scores[:, :1], dtype=torch.bool) if attention_mask is None else attention_mask
        else:
            scores, seen = scores + attention_mask, attention_mask > -1e4

        def softmax(seen):
            terms = torch.where(seen, (scores - scores.detach().amax(-1, keepdim=True)).exp(), 0)
            total = terms.sum(-1, keepdim=True)
            if s_aux is not None:
                total = total + (s_aux[:, None, None] - scores.detach().amax(-1, keepdim=True)).exp()
            return terms / total.clamp(min=1e-30)

        share = self.share[layer][:, None, None]
        weights = share * softmax(seen) + (1 - share) * softmax(seen & self.near)
        return (weights @ values).transpose(1, 2).contiguous(), None


def share_of(heads):
    share = torch.ones(LAYERS, HEADS)
    for layer, head in heads:
        share[layer, head] = 0
    return share


def states(model, inputs):
    return torch.stack(model(**inputs, output_hidden_states=True).hidden_states, dim=1)


def inputs_of(model, padding):
    inputs = texts(left=padding == "before", padding=model.config.pad_token_id)
    if padding == "between":  # as separators in the last slot have it
        mask = inputs["attention_mask"]
        mask[1] = torch.tensor([1] * 5 + [0] * 4 + [1] * 11 + [0] * 2 + [1])
        ids = torch.randint(4, 61, mask.shape, generator=torch.Generator().manual_seed(3))
        inputs = {"input_ids": ids.masked_fill(mask == 0, model.config.pad_token_id), "attention_mask": mask}
    return inputs


CASES = [(name, padding) for name in sorted(LOOKED_UP) for padding in ("after", "before")]
CASES += [(name, "between") for name in sorted(LOOKED_UP & ENCODERS.keys())]


@pytest.mark.parametrize(("name", "padding"), CASES)
def test_heads_see_the_first_and_the_most_recent_tokens_only(name, padding):
    model = stock(name).base_model
    inputs = inputs_of(model, padding)
    real = inputs["attention_mask"].bool()
    ours = Model(copy.deepcopy(model))
    with torch.no_grad():
        actual = [ours.hidden_states(inputs, Streaming(SINKS, WINDOW), heads) for heads in (SOME, None)]
        for heads, hidden in zip((SOME, [(i, j) for i in range(LAYERS) for j in range(HEADS)]), actual, strict=True):
            with ByHand(model, share_of(heads), inputs["attention_mask"]):
                expected = states(model, inputs)
            close(hidden.transpose(1, 2)[real], expected.transpose(1, 2)[real])
        assert not torch.allclose(actual[0], ours.hidden_states(inputs), atol=1e-2)
        assert not torch.allclose(actual[0], actual[1], atol=1e-2)


def test_layers_share_a_mask(monkeypatch):
    masks, restricted = [], Streaming.restricted

    def watched(self, heads, examples):
        near = restricted(self, heads, examples)
        masks.append(near.allowed)
        return near

    monkeypatch.setattr(Streaming, "restricted", watched)
    model = stock("llama").base_model
    Model(model).hidden_states(inputs_of(model, "after"), Streaming(SINKS, WINDOW))
    assert len(masks) == LAYERS and all(mask is masks[0] for mask in masks)


@pytest.mark.parametrize("name", MODELS | ENCODERS)
def test_a_window_over_the_whole_text_is_the_models_own_attention(name):
    ours = Model(stock(name).base_model)
    inputs = inputs_of(ours.model, "after")
    expected = ours.hidden_states(inputs)
    assert torch.equal(ours.hidden_states(inputs, Streaming(0, SLOTS)), expected)
    close(ours.hidden_states(inputs, Streaming(0, SLOTS), SOME), expected)
    close(ours.hidden_states(inputs, Streaming(SLOTS, 1)), expected)
    mixing = torch.rand(LAYERS, HEADS)
    close(ours.hidden_states(inputs, Streaming(SLOTS, 1), mixing=mixing), expected)


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt-oss", "modernbert"])
def test_gates_lie_between_attention_and_streaming_attention_and_have_its_gradient(name):
    model = stock(name).base_model
    inputs = inputs_of(model, "after")
    real = inputs["attention_mask"].bool()
    ours, gates, slopes = Model(copy.deepcopy(model)), torch.rand(LAYERS, HEADS), []
    for compute in ("ours", "by hand"):
        share = gates.clone().requires_grad_()
        if compute == "ours":
            hidden = ours.hidden_states(inputs, Streaming(SINKS, WINDOW), mixing=share)
        else:
            with ByHand(model, share, inputs["attention_mask"]):
                hidden = states(model, inputs)
        kept = hidden.transpose(1, 2)[real]
        slopes.append((kept, torch.autograd.grad((kept * torch.arange(kept.shape[-1])).sum(), share)[0]))
    (actual, slope), (expected, by_hand) = slopes
    close(actual, expected)
    torch.testing.assert_close(slope, by_hand, atol=1e-3 * float(by_hand.abs().max()), rtol=1e-3)
    assert bool((slope != 0).all())


@only("deberta", "deberta-far", "deberta-v2", "bert")
def test_models_that_compute_distances_see_the_same_tokens(model, inputs):
    """Without sinks in softmax, attention that sees fewer keys is the share of the model's own that remains."""
    whole = stock_attention(model, inputs)[:, 0]  # of the first layer
    expected = whole * near(inputs["attention_mask"])
    expected = expected / expected.sum(-1, keepdim=True).clamp(min=1e-30)
    heads, real = [1, 3], inputs["attention_mask"].bool()
    mixed = whole.clone()
    mixed[:, heads] = expected[:, heads]
    stock_self = model.encoder.layer[0].attention.self
    ours, captured = Model(copy.deepcopy(model)), {}
    layer = ours.model.encoder.layer[0].attention.self
    layer.register_forward_hook(lambda _, __, output: captured.update(context=output[0]))
    packed = ours.pack(inputs)
    ours.run(packed, ours.replacement(Streaming(SINKS, WINDOW), [(0, head) for head in heads]))
    context = packed.unpack(captured["context"].flatten(0, -2)[: len(packed.ids)])
    values, given = {}, {"input_ids": inputs["input_ids"], "attention_mask": inputs["attention_mask"]}
    name = next(name for name, _ in stock_self.named_modules() if name in ("value", "value_proj", "in_proj"))
    module = stock_self.get_submodule(name)
    module.register_forward_hook(lambda _, __, output: values.update(all=output))
    model(**given | {key: part for key, part in inputs.items() if key == "token_type_ids"})
    value = values["all"].view(EXAMPLES, SLOTS, HEADS_OF_FAMILIES, -1)[..., -CHANNELS:].transpose(1, 2)
    if name == "in_proj":
        value = value + stock_self.v_bias.view(HEADS_OF_FAMILIES, 1, CHANNELS)
    close(context[real], (mixed @ value).transpose(1, 2).flatten(2)[real])


@only("deberta", "deberta-v2", "bert")
def test_the_distance_of_attention_from_streaming_attention_is_that_of_the_formula(model, inputs):
    whole, ours = stock_attention(model, inputs), Model(model)
    expected = whole * near(inputs["attention_mask"])[:, None]
    expected = expected / expected.sum(-1, keepdim=True).clamp(min=1e-30)
    measure = distances_to(ours.replacement(Streaming(SINKS, WINDOW)))
    packed, rows = ours.pack(inputs), []
    ours.watch(packed, lambda layer, attention, _: rows.append(measure(layer, attention)))
    real = inputs["attention_mask"].bool()
    for layer in range(LAYERS_OF_FAMILIES):
        squared = (whole[:, layer] - expected[:, layer]).square().sum(-1).transpose(1, 2)[real]  # [token, head]
        longest = torch.arange(rows[layer].shape[2]) < packed.lengths[:, None]
        close(rows[layer].transpose(1, 2)[longest], squared)


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2"])
def test_generation_with_a_cache_is_that_without(name):
    model = stock(name)
    ids = torch.randint(4, 61, (2, 13), generator=torch.Generator().manual_seed(5))
    mask = torch.ones_like(ids)
    mask[1, :4] = 0  # padding in front
    options = {"max_new_tokens": 9, "do_sample": False, "attention_mask": mask, "pad_token_id": 0, "eos_token_id": None}
    options |= {"return_dict_in_generate": True, "output_logits": True}
    with papa.replaced_attention(model, Streaming(SINKS, WINDOW), SOME):
        cached, whole = (model.generate(ids, **options, use_cache=use).logits for use in (True, False))
    close(torch.stack(cached), torch.stack(whole))
    assert not torch.allclose(cached[0], model.generate(ids, **options).logits[0], atol=1e-2)


def test_lambda_is_learned_and_a_sweep_measured_with_streaming_attention():
    pytest.importorskip("pandas")
    ours = Model(stock("llama"))
    inputs = inputs_of(ours.model, "after")
    recipe = papa.Recipe(epochs=1, batch_size=2, learning_rate=0.1, fractions=("1", "1/2", "0"))
    weights = papa.learn_lambda(ours, Streaming(SINKS, WINDOW), [inputs], recipe=recipe)
    assert weights.shape == (LAYERS, HEADS) and bool((weights != 0.5).all())
    rows = papa.sweep(ours, Streaming(SINKS, WINDOW), weights, [inputs], [inputs], recipe)
    whole = papa.sweep(ours, Streaming(0, SLOTS), weights, [inputs], [inputs], recipe)
    assert rows["mean"].nunique() == 3 and whole["mean"].max() - whole["mean"].min() < 1e-5


@pytest.mark.parametrize(
    "name", ["streaming-4-0", "streaming-4", "streaming", "streaming-04-2", "streaming-4-9-trained"]
)
def test_names_without_a_window_are_refused(name):
    with pytest.raises(InputError, match=f"The constant '{name}' does not exist; use one of .*streaming-SINKS-WINDOW"):
        Constant.parse(name)


def test_streaming_attention_is_nowhere_called_a_constant():
    constant = Constant.parse("streaming-4-256")
    assert (constant.window, constant.data_free, constant.name) == ((4, 256), True, "streaming-4-256")
    assert Constant.parse("average").window is None
    words = "streaming attention 4 + 256 (input-dependent)"
    assert constant_name(constant.name) == constants(constant.name) == with_noun(constant.name) == words
    assert with_noun("average-trained") == "average, trained constants"
    assert constants_heading(["average", "streaming-4-256"]) == "replaced by"
    assert constants_heading(["average", None]) == "constants"
    with pytest.raises(InputError, match="cannot be trained"):
        constant.made_trainable()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_a_study_with_streaming_attention_has_orders_and_claims_and_says_that_it_depends_on_the_input(kind, tmp_path):
    tokenizer = letters_tokenizer()
    if kind == "decoder":
        tokenizer.backend_tokenizer.post_processor = None
    torch.manual_seed(0)
    (stock("llama") if kind == "decoder" else random_model("bert")).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    letters = [[" ".join("abcdefgh"[(7 * i + i * j) % 8] for j in range(7)) for i in range(n)] for n in (60, 41)]
    labels = [["yes" if text[0] < "e" else "no" for text in texts] for texts in letters]
    orders = ["lambda", "gradient", "variance"]
    run = {"seeds": [1, 2], "fractions": ["1", "1/2", "0"], "constants": ["streaming-1-2", "average"], "orders": orders}
    settings = {"run": run, "tasks": {"epochs": 1, "learning_rate": 1e-2}, "margin": 0.2}
    train, validation = letters if kind == "decoder" else zip(letters, labels, strict=True)
    if kind == "decoder":
        settings["tasks"] = {}
        study = papa.measure(tmp_path / "model", train, None, validation, settings, tmp_path / "results", slots=31)
    else:
        study = papa.measure(tmp_path / "model", *train, validation, settings, tmp_path / "results")
    rows = study.summary[study.summary["constant"].eq("streaming-1-2")]
    assert set(rows["order"].dropna()) == set(orders) and rows["mean"].notna().all()
    assert len(study.claims["lines"]) == 2 * len(orders)
    words = "streaming attention 1 + 2 (input-dependent)"
    tables = {path.name: path.read_text() for path in (study.folder / "tables").glob("*.md")}
    assert words in tables["score_by_fraction.md"] and words in study.page.read_text()
    everything = [*tables.values(), study.page.read_text(), str(study.claims)]
    assert not [part for part in everything if "streaming-1-2 constants" in part or f"{words} constants" in part]


@pytest.mark.parametrize("window", [WINDOW, 99])
def test_dropout_follows_mixing(window):
    """So gates have no effect where both kinds of attention are the same, and both use the same draws elsewhere."""
    examples = Examples.of_mask(torch.ones(2, SLOTS))
    query, key, values = torch.randn(3, 2, HEADS, SLOTS, CHANNELS).unbind()
    heads, streaming, weights = Attending(query, key, 0.3), Streaming(SINKS, window), torch.rand(HEADS)
    torch.manual_seed(7)
    actual = streaming.mixed(weights, heads, values, Visibility.of(examples, None), 0.5)
    torch.manual_seed(7)
    if window == 99:
        assert torch.equal(actual, kept_context(heads, values, 0.5))
    else:
        attention, gates = streaming.restricted(heads, examples).attention(), weights[:, None, None]
        expected = torch.dropout(attention + gates * (heads.attention() - attention), 0.5, True) @ values
        assert torch.equal(actual, expected)


def test_too_few_tokens_are_refused():
    for sinks, window in ((-1, 3), (4, 0)):
        with pytest.raises(InputError, match=f"{sinks} sinks and a window of {window}; it needs"):
            Streaming(sinks, window)
