"""Attention that models compute in their own code: replaced like attention that is looked up by name.

The oracle is the stock model, in which a hook on the dropout after the softmax writes other matrices.
"""

import copy
import threading
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock

import pytest
import torch
import transformers
from families import close
from refusals import input_error
from torch import nn

import papa
from benchmarks.models import small_model
from papa.data.tokens import Tokens
from papa.method.objectives import Batch
from papa.method.states import StreamedStates
from papa.model import settling
from papa.model.attention import NotLookedUp
from papa.model.check import distance, tiny_batch
from papa.model.forms import PADDED

FAST = ["mpnet", "bloom", "gpt_neo", "xlnet"]
SLOW = """big_bird codegen deberta deberta-v2 gpt_neox_japanese gptj ibert luke megatron-bert openai-gpt rembert
    roformer squeezebert tapas""".split()
KINDS = [*FAST, *(pytest.param(kind, marks=pytest.mark.slow) for kind in SLOW)]
NO_DROPOUT_MODULE = [
    pytest.param(kind, marks=pytest.mark.slow)
    for kind in ("falcon", "flaubert", "mpt", "xglm", "xlm")
]
"""Types without a dropout module after the softmax, so the oracle of hooks cannot be used."""
WINDOW = 3
SMALL = {
    "vocab_size": 97,
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 17,
    "initializer_range": 0.5,
}
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def stock_and_model():
    """From a kind to a small stock model and papa's model of a copy; each is made once."""
    made = {}

    def make(kind):
        if kind not in made:
            stock = small_model(kind)
            made[kind] = stock, papa.Model(copy.deepcopy(stock))
        return made[kind]

    return make


def inputs_of(ids):
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def text_of(length=7):
    """A text of different tokens, without padding."""
    return inputs_of(torch.arange(6, 6 + length)[None])


def uniform(model):
    """Constants for texts of seven tokens."""
    config = model.config
    shape = config.num_hidden_layers, config.num_attention_heads
    return papa.Constants.of("uniform", *shape, 7)


def replaced(stock):
    """A block in which uniform constants replace the attention of a plain model."""
    return papa.replaced_attention(stock, uniform(stock))


def batch_for(model):
    return tiny_batch(model.model, "after" if model.causal else "between")


def written_states(stock, batch, causal, constants, heads):
    """The states of the stock model with these heads' attention overwritten after each softmax."""
    real = batch.unpack(torch.ones_like(batch.ids)).bool()
    seen = real[:, None, :].expand(-1, batch.n, -1)
    if causal:
        seen = seen & torch.ones(batch.n, batch.n, dtype=torch.bool).tril()
    layers = []

    def overwrite(_, __, attention):
        shape = len(batch.lengths), constants.shape[1], batch.n, batch.n
        if attention.dim() < 3 or attention.numel() != torch.Size(shape).numel():
            return None
        layer = len(layers)
        layers.append(attention)
        changed = attention.reshape(shape).clone()
        for of_layer, head in heads:
            if of_layer == layer:
                matrix = constants[layer, head] * seen
                changed[:, head] = matrix / matrix.sum(-1, keepdim=True).clamp(min=1e-30)
        return changed.view(attention.shape)

    hooks = [
        module.register_forward_hook(overwrite)
        for module in stock.modules()
        if isinstance(module, nn.Dropout)
    ]
    with torch.no_grad():
        states = PADDED.states(stock.base_model, batch)
    for hook in hooks:
        hook.remove()
    assert len(layers) == len(constants)
    return states


@pytest.mark.parametrize("kind", KINDS)
def test_replaced_heads_have_the_matrices_that_a_hook_writes(stock_and_model, kind):
    stock, model = stock_and_model(kind)
    batch = batch_for(model)
    shape = model.layers, model.heads, batch.n, batch.n
    constants = torch.rand(shape, generator=torch.Generator().manual_seed(0))
    heads = [(layer, head) for layer in range(model.layers) for head in range(layer % 2, 4, 2)]
    expected = written_states(stock, batch, model.causal, constants, heads)
    with torch.no_grad():
        states = model.run(batch, model.replacement(constants, heads))
        kept = model.run(batch)
    assert distance(states, expected) < 1e-5
    assert distance(kept, expected) > 1e-3


@pytest.mark.parametrize("kind", [*KINDS, *NO_DROPOUT_MODULE])
def test_a_text_keeps_its_states_with_its_own_outputs_and_attention(stock_and_model, kind):
    stock, model = stock_and_model(kind)
    inputs = text_of()
    own = model.hidden_states(inputs)
    with torch.no_grad():
        expected = torch.stack(PADDED.states(stock.base_model, model.pack(inputs)))
    close(own[0], expected, rtol=1e-4)
    for constant in ("average", "mean-output"):
        averages = papa.average_attention(model, [inputs], constant)
        close(model.hidden_states(inputs, averages), own, rtol=1e-4)
    other = papa.average_attention(
        model, [inputs | {"input_ids": inputs["input_ids"] + 9}], "mean-output"
    )
    assert not torch.allclose(model.hidden_states(inputs, other), own, atol=1e-2)


@pytest.mark.parametrize("kind", FAST)
@pytest.mark.parametrize("constant", ["average", "mean-output"])
def test_mixing_leads_from_constants_to_attention_and_has_gradients(
    stock_and_model, kind, constant
):
    _, model = stock_and_model(kind)
    inputs = inputs_of(torch.arange(6, 20).view(2, 7))
    averages = papa.average_attention(model, [inputs], constant)
    shape = model.layers, model.heads
    for weight, constants in ((torch.ones(shape), None), (torch.zeros(shape), averages)):
        mixed = model.hidden_states(inputs, averages, mixing=weight)
        assert torch.allclose(mixed, model.hidden_states(inputs, constants), atol=1e-5)
    weights = torch.full(shape, 0.5, requires_grad=True)
    model.hidden_states(inputs, averages, mixing=weights)[:, -1].square().mean().backward()
    assert bool((weights.grad != 0).all())


@pytest.mark.parametrize("slots", [7, 300])
def test_unused_slots_are_left_out_of_mpnet_without_a_change(slots, monkeypatch):
    config = transformers.MPNetConfig(**SMALL, max_position_embeddings=310)
    torch.manual_seed(0)
    stock = transformers.MPNetModel(config).eval()
    model = papa.Model(copy.deepcopy(stock))
    mask = torch.zeros(2, slots, dtype=torch.long)
    mask[0, [0, slots // 2, slots - 1]] = 1
    mask[1, [0, 1, slots // 2, slots - 3, slots - 2, slots - 1]] = 1
    ids = torch.arange(2 * slots).view(2, slots) % 80 + 7
    ids = ids.masked_fill(mask == 0, config.pad_token_id)
    with torch.no_grad():
        output = stock(ids, mask, output_hidden_states=True)
    expected = torch.stack(output.hidden_states, 1) * mask[:, None, :, None]
    inputs = {"input_ids": ids, "attention_mask": mask}
    close(model.hidden_states(inputs), expected, rtol=1e-4, atol=1e-5)
    packed = model.pack(inputs)
    monkeypatch.setattr(model.model, "forward", Mock(wraps=model.model.forward))
    # in training, the two texts are computed apart, because one is twice as long
    streamed = StreamedStates(model, model.replacement)(Batch(None, None, packed, None))
    close(packed.unpack(streamed), expected.transpose(1, 2), rtol=1e-4, atol=1e-5)
    calls = model.model.forward.call_args_list
    assert [call.kwargs["input_ids"].shape[1] for call in calls] == [3, 6]


def gpt_neo():
    config = transformers.GPTNeoConfig(
        vocab_size=97,
        hidden_size=12,
        num_layers=2,
        num_heads=3,
        attention_types=[[["global", "local"], 1]],
        window_size=WINDOW,
        max_position_embeddings=31,
        initializer_range=0.5,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    torch.manual_seed(0)
    return transformers.GPTNeoForCausalLM(config).eval()


def test_a_window_is_found_and_hides_earlier_tokens_from_constants():
    model = papa.Model(gpt_neo())
    assert model.checked.facts.softmax.windows == (None, WINDOW)
    inputs = text_of(11)
    changed = text_of(11)
    changed["input_ids"][0, 0] = 50
    constants = papa.Constants.of("uniform", model.layers, model.heads, 11)
    first, second = (model.hidden_states(each, constants)[0, -1] for each in (inputs, changed))
    assert not torch.allclose(first[-1], second[-1])
    identity = papa.Constants.of("identity", model.layers, model.heads, 11).mean.clone()
    identity[1] = constants.mean[1]
    first, second = (model.hidden_states(each, identity)[0, -1] for each in (inputs, changed))
    differs = (first != second).any(-1)
    assert differs.tolist() == [True] * WINDOW + [False] * (11 - WINDOW)


def test_generation_with_a_cache_is_the_same_as_without():
    stock = gpt_neo()
    model = papa.Model(copy.deepcopy(stock))
    inputs = text_of(6)
    constants = torch.rand(2, 3, 20, 20, generator=torch.Generator().manual_seed(0))
    heads = [(0, 1), (1, 0), (1, 2)]
    with papa.replaced_attention(stock, constants, heads):
        written = [
            stock.generate(**inputs, max_new_tokens=8, do_sample=False, use_cache=cached)
            for cached in (True, False)
        ]
    assert torch.equal(written[0], written[1])
    logits = model.logits(inputs_of(written[0]), constants[:, :, :14, :14], heads)
    assert torch.equal(logits.argmax(-1)[:, 5:-1], written[0][:, 6:])
    assert not torch.equal(stock.generate(**inputs, max_new_tokens=8, do_sample=False), written[0])


def test_threads_take_turns_with_a_plain_model():
    stock = gpt_neo()
    with replaced(stock):
        expected = stock(**text_of()).logits
        with ThreadPoolExecutor(4) as pool:
            calls = [pool.submit(stock, **text_of()) for _ in range(4)]
    assert all(torch.equal(call.result().logits, expected) for call in calls)


@pytest.mark.parametrize("kind", ["convbert", "nystromformer"])
def test_a_model_in_which_other_parts_mix_tokens_is_refused(kind):
    with input_error("also mix tokens, such as a convolution"):
        papa.Model(small_model(kind))


def test_a_model_without_a_softmax_over_all_tokens_is_refused():
    with input_error("neither looks up its attention by name"):
        papa.Model(small_model("longformer"))


@pytest.mark.skipif(
    transformers.__version__ == "5.4.0", reason="the newest huggingface_hub refuses its config"
)
def test_big_bird_keeps_its_sparse_attention_which_is_refused():
    config = transformers.BigBirdConfig(**SMALL, block_size=4, num_random_blocks=1)
    torch.manual_seed(0)
    stock = transformers.BigBirdModel(config).eval()
    with papa.replaced_attention(stock, papa.Constants.of("zeros", 2, 3, 9)):
        assert stock.attention_type == "block_sparse"
    model = papa.Model(stock)
    assert model.model.attention_type == "block_sparse"
    assert model.form.rows == "padded"
    model.hidden_states(text_of(9))
    assert model.model.attention_type == "block_sparse"
    long = torch.arange(100)[None] % 80 + 6
    with input_error("cannot be"):
        model.hidden_states(inputs_of(long))


def test_attention_to_another_text_is_refused():
    stock = transformers.BertModel(
        transformers.BertConfig(**SMALL, is_decoder=True, add_cross_attention=True)
    ).eval()
    with replaced(stock), input_error("attention to another text"):
        stock(**text_of(), encoder_hidden_states=torch.zeros(1, 7, 8))


def test_a_plain_model_is_restored_and_can_be_called_through_forward():
    stock = small_model("mpnet")
    ids, mask = text_of().values()
    names = set(vars(stock))
    calls = []
    stock.base_model.register_forward_hook(lambda *_: calls.append(1))
    with torch.no_grad():
        before = stock(ids, mask).logits
        with replaced(stock):
            changed = stock.forward(ids, attention_mask=mask).logits
            assert torch.equal(stock(ids, mask).logits, changed)
        after = stock(ids, mask).logits
    assert torch.equal(before, after)
    assert not torch.allclose(before, changed, atol=1e-3)
    assert set(vars(stock)) == names
    assert len(calls) == 4, "the check of the model calls no hooks"


def test_texts_that_use_the_same_slots_share_constants(stock_and_model):
    stock, model = stock_and_model("deberta-v2")
    ids = text_of()["input_ids"]
    both = model.hidden_states(inputs_of(torch.cat([ids, ids.flip(1)])), uniform(stock))
    torch.testing.assert_close(both[:1], model.hidden_states(text_of(), uniform(stock)))


def test_a_base_model_can_be_called_while_its_attention_is_replaced():
    stock = small_model("mpnet").base_model
    text = text_of()
    before = stock(**text).last_hidden_state
    with replaced(stock):
        changed = stock(**text).last_hidden_state
    assert not torch.allclose(before, changed, atol=1e-3)
    assert torch.equal(before, stock(**text).last_hidden_state)


def test_falcon_runs_eagerly_and_gets_its_kernel_back():
    stock = small_model("falcon")
    stock.config._attn_implementation = "sdpa"
    with replaced(stock):
        assert stock.config._attn_implementation == "eager"
    assert stock.config._attn_implementation == "sdpa"


@pytest.mark.usefixtures("checked_anew")
def test_the_same_weights_give_the_same_states_whichever_way_attention_is_replaced(monkeypatch):
    """BERT looks up its attention by name; here it is caught at the softmax, too."""
    stock = small_model("bert")
    by_name = papa.Model(copy.deepcopy(stock))

    def not_looked_up(*_):
        raise NotLookedUp

    monkeypatch.setattr(settling, "patch", not_looked_up)
    caught = papa.Model(stock)
    assert (by_name.form.rows, caught.form.rows) == ("packed", "compact")
    batch = batch_for(by_name)
    matrices = torch.rand(4, 4, batch.n, batch.n, generator=torch.Generator().manual_seed(0))
    mixing = torch.linspace(0, 1, 16).view(4, 4)
    half = [(layer, head) for layer in range(4) for head in range(layer % 2, 4, 2)]
    for instruction in ((None,), (matrices, half), (matrices, None, mixing), (matrices,)):
        expected, actual = (
            model.run(batch, model.replacement(*instruction)) for model in (by_name, caught)
        )
        assert distance(actual, expected) < 1e-5


def test_a_part_of_a_model_cannot_be_called_by_itself():
    stock = small_model("mpnet")
    with replaced(stock), input_error("attention was called directly"):
        stock.base_model(**text_of())
    stock.base_model(**text_of())
    model = papa.Model(stock)
    with input_error(" was called directly"):
        model.full(**text_of())
    with input_error("already passed to papa"):
        papa.Model(copy.deepcopy(model.full))
    with input_error("cannot be copied"):
        copy.deepcopy(model)


def test_a_model_cannot_be_called_by_its_own_hook():
    stock = gpt_neo()
    inner = text_of(6)
    with replaced(stock):
        hook = stock.transformer.h[0].register_forward_hook(lambda *_: stock(**inner) and None)
        with input_error("called while it was running"):
            stock(**inner)
        hook.remove()
        stock(**inner)


def test_another_model_cannot_be_called_by_a_hook():
    """Its softmaxes would be taken for those of the replaced model."""
    stock = small_model("bloom").base_model
    other = copy.deepcopy(stock)
    text = text_of()
    stock.get_input_embeddings().register_forward_hook(lambda *_: other(**text) and None)
    with (
        replaced(stock),
        input_error("a hook called another model"),
    ):
        stock(**text)


class Router(nn.Module):
    """Chooses among seven experts for each token, and leaves the states as they are."""

    def forward(self, states):
        torch.softmax(states[..., :7], dim=-1)
        return states


def test_a_router_with_as_many_experts_as_tokens_is_no_attention():
    stock = small_model("bloom").base_model
    text = text_of()
    with replaced(stock):
        expected = stock(**text).last_hidden_state
    stock.word_embeddings_layernorm = nn.Sequential(stock.word_embeddings_layernorm, Router())
    with replaced(stock):
        states = stock(**text).last_hidden_state
    assert torch.equal(states, expected)


def test_eager_attention_that_differs_from_the_default_kernel_is_refused():
    """Falcon adds alibi twice if it is eager."""
    config = small_model("falcon").config
    config.alibi = True
    torch.manual_seed(0)
    stock = transformers.FalconModel(config).eval()
    with input_error("differ from those of its default kernel"), replaced(stock):
        pass


def test_a_compiled_model_runs_as_python_or_is_refused():
    stock = small_model("bloom").base_model
    compiled = torch.compile(stock, backend="eager")
    with replaced(stock):
        assert torch.equal(
            compiled(**text_of()).last_hidden_state, stock(**text_of()).last_hidden_state
        )
    stock.compile(backend="eager")
    with input_error("do not compile it"), replaced(stock):
        pass


def test_a_model_is_checked_without_autocast():
    stock = small_model("bloom").base_model
    with (
        torch.autocast("cpu", torch.bfloat16),
        replaced(stock),
    ):
        stock(**text_of())


def test_gradient_checkpointing_is_refused():
    """It would compute layers again after the call, without constants."""
    stock = gpt_neo().train()
    stock.gradient_checkpointing_enable()
    with replaced(stock):
        with input_error("gradient_checkpointing_disable"):
            stock(**text_of(6))
        stock.gradient_checkpointing_disable()
        stock(**text_of(6)).logits.sum().backward()


@pytest.mark.parametrize("argument", ["perm_mask", "target_mapping"])
def test_xlnets_other_attention_is_refused(argument):
    stock = small_model("xlnet")
    with replaced(stock), input_error(f"{argument} changes attention"):
        stock(**text_of(), **{argument: torch.zeros(1, 7, 7)})


def test_dropout_is_off_after_passes_of_two_threads():
    """The other thread starts while the first one runs with dropout."""
    model = papa.Model(gpt_neo())
    batch = model.pack(text_of(6))
    waiting = []

    def start_another(*_):
        if not waiting:
            waiting.append(threading.Thread(target=model.run, args=(batch,)))
            waiting[0].start()
            waiting[0].join(0.2)

    model.model.wte.register_forward_hook(start_another)
    model.run(batch, dropout=True)
    waiting[0].join()
    assert not any(module.training for module in model.full.modules())


def test_hooks_of_users_keep_their_order():
    stock = small_model("mpnet")
    called = []
    stock.register_forward_hook(lambda *_: called.append("first"))
    stock.register_forward_hook(lambda *_: called.append("prepended"), prepend=True)
    with replaced(stock):
        stock(**text_of())
    assert called == ["prepended", "first"]


@pytest.mark.parametrize("kind", ["bloom", "gpt_neo"])
def test_outputs_of_heads_are_averaged_in_bfloat16(kind):
    """Their softmax is in float32, and their values are not."""
    stock = small_model(kind)
    exact, rounded = (
        papa.average_attention(papa.Model(model), [text_of()], kind="mean-output")
        for model in (copy.deepcopy(stock), stock.to(torch.bfloat16))
    )
    largest = float(exact.mean.abs().max())
    close(rounded.mean.float(), exact.mean.float(), atol=0.03 * largest, rtol=0.03)


def test_all_slots_of_padded_texts_count_in_the_budget_of_tokens():
    lists = {name: torch.arange(12) % 3 for name in ("ids", "slots", "segments")}
    tokens = Tokens(lists, torch.full((4,), 3), "train", 0, 10)
    assert [len(batch) for batch in tokens.batches(20)] == [4]
    assert [len(batch) for batch in tokens.batches(20, padded=True)] == [2, 2]
