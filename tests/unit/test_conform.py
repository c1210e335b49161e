"""`papa.conform` passes a right hook, and names the defects of wrong ones."""

import json
import re
import sys
from contextlib import ExitStack, contextmanager, nullcontext

import pytest
import torch
from tiny import REPOSITORY
from typer.testing import CliRunner

import papa
from papa.cli import app
from papa.model.conform import CHECKS, MODELS


def attention(model, layer):
    paths = (".attention.output", ".self_attn")
    return [module for name, module in model.named_modules() if name.endswith(paths)][layer]


def projection(model, layer):
    """The output projection, of BERT or of a decoder."""
    module = attention(model, layer)
    return getattr(module, "o_proj", None) or module.dense


def channels(model, head):
    sizes = model.config
    width = getattr(sizes, "head_dim", sizes.hidden_size // sizes.num_attention_heads)
    return slice(head * width, (head + 1) * width)


def zeroed(states, index):
    states = states.clone()
    states[..., index] = 0
    return states


def right(model, layer, head):
    index = channels(model, head)
    return projection(model, layer).register_forward_pre_hook(lambda _, inputs: (zeroed(inputs[0], index),))


def slices_the_output_of_the_projection(model, layer, head):
    index = channels(model, head)
    return projection(model, layer).register_forward_hook(lambda _, __, output: zeroed(output, index))


def mixes_up_the_axes_of_heads_and_channels(model, layer, head):
    index = slice(head, None, model.config.num_attention_heads)
    return projection(model, layer).register_forward_pre_hook(lambda _, inputs: (zeroed(inputs[0], index),))


def zeroes_all_heads(model, layer, head):
    return projection(model, layer).register_forward_pre_hook(lambda _, inputs: (inputs[0] * 0,))


@contextmanager
def skips_the_normalisation_of_queries_and_keys(model, layer, head):
    module = attention(model, layer)
    norms = {name: module._modules.get(name) for name in ("q_norm", "k_norm")}
    module._modules.update({name: torch.nn.Identity() for name, norm in norms.items() if norm})
    try:
        with right(model, layer, head):
            yield
    finally:
        module._modules.update({name: norm for name, norm in norms.items() if norm})


def returns_nothing(model, layer, head):
    index = channels(model, head)

    def hook(module, inputs):
        zeroed(inputs[0], index)

    return projection(model, layer).register_forward_pre_hook(hook)


@contextmanager
def drops_the_mask(model, layer, head):
    with right(model, layer, head):
        yield lambda input_ids, attention_mask: model(input_ids).logits


@contextmanager
def patches_the_class(model, layer, head):
    index, module_class = channels(model, head), type(attention(model, layer))
    stock = module_class.forward

    def forward(module, *arguments, **keywords):
        if module.layer_idx != layer:
            return stock(module, *arguments, **keywords)
        with module.o_proj.register_forward_pre_hook(lambda _, inputs: (zeroed(inputs[0], index),)):
            return stock(module, *arguments, **keywords)

    module_class.forward = forward
    try:
        yield
    finally:
        module_class.forward = stock


def zeroes_a_group_of_heads(model, layer, head):
    """As code does that hooks the values, of which a group of heads has one."""
    config, module = model.config, attention(model, layer)
    index = channels(model, head // (config.num_attention_heads // config.num_key_value_heads))
    return module.v_proj.register_forward_hook(lambda _, __, output: zeroed(output, index))


def zeroes_the_first_text_only(model, layer, head):
    def hook(_, inputs):
        states = inputs[0].clone()
        states[0, :, channels(model, head)] = 0
        return (states,)

    return projection(model, layer).register_forward_pre_hook(hook)


def zeroes_all_layers(model, layer, head):
    stack = ExitStack()
    for number in range(model.config.num_hidden_layers):
        stack.enter_context(right(model, number, head))
    return stack


def divides_hidden_units_by_heads(model, layer, head):
    """Only in some models is this the width of a head."""
    width = model.config.hidden_size // model.config.num_attention_heads
    index = slice(head * width, (head + 1) * width)
    return projection(model, layer).register_forward_pre_hook(lambda _, inputs: (zeroed(inputs[0], index),))


@contextmanager
def sees_the_future(model, layer, head):
    def hook(_, inputs):
        return (inputs[0] + 0.1 * inputs[0].mean(1, keepdim=True),)

    with projection(model, layer).register_forward_pre_hook(hook), right(model, layer, head):
        yield


@contextmanager
def forgets_an_earlier_head(model, layer, head):
    """One attribute of the model holds the hook, so the second hook takes the place of the first."""
    if earlier := vars(model).pop("_hook", None):
        earlier.remove()
    object.__setattr__(model, "_hook", right(model, layer, head))
    try:
        yield
    finally:
        if last := vars(model).pop("_hook", None):
            last.remove()


@contextmanager
def restores_only_without_an_error(model, layer, head):
    handle = right(model, layer, head)
    yield
    handle.remove()


def is_never_removed(model, layer, head):
    right(model, layer, head)
    return nullcontext()


DEFECTS = {
    slices_the_output_of_the_projection: "projection, reference heads group",
    mixes_up_the_axes_of_heads_and_channels: "channels, reference heads group",
    zeroes_all_heads: "heads group, reference",
    skips_the_normalisation_of_queries_and_keys: "norm, reference heads group",
    returns_nothing: "effect, reference",
    drops_the_mask: "padding",
    patches_the_class: "models",
    zeroes_a_group_of_heads: "group, reference",
    zeroes_the_first_text_only: "padding, reference",
    zeroes_all_layers: "heads group, reference",
    divides_hidden_units_by_heads: "channels, reference heads group",
    sees_the_future: "future, reference heads group padding",
    forgets_an_earlier_head: "together",
    restores_only_without_an_error: "restored",
    is_never_removed: "restored",
}
"""The checks that a wrong hook fails: first those that name the defect, then those that it cannot pass either."""
MODELS_OF = {skips_the_normalisation_of_queries_and_keys: ["qwen3"], slices_the_output_of_the_projection: MODELS[:2]}


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.__name__)
def test_a_defect_is_named(defect):
    failed = papa.conform(defect, MODELS_OF.get(defect, ["llama"])).failed
    assert failed == [name for name in CHECKS if name in DEFECTS[defect].replace(",", "").split()]


@contextmanager
def returns_logits(model, layer, head):
    """As a library does that runs models itself."""
    with right(model, layer, head):
        yield lambda **inputs: model(**inputs).logits


@pytest.mark.parametrize("function", [right, returns_logits])
def test_a_right_hook_passes_on_all_models(function):
    checked = papa.conform(function)
    applied = [each for each in checked.outcomes if each.verdict == "ok"]
    number = len({each.check for each in applied})
    assert checked.failed == [] and repr(checked).endswith(f"{number} of {number} checks passed.")
    without = {"together"} if function is returns_logits else set()
    assert {each.check for each in applied} == CHECKS.keys() - without
    never = {("bert", "group"), ("bert", "norm"), ("bert", "future"), ("llama", "norm")}
    assert {(each.model, each.check) for each in checked.outcomes if each.check not in without} - never == {
        (each.model, each.check) for each in applied
    }
    assert all(each.distance < 1e-6 for each in applied)


def test_an_exception_is_an_outcome():
    checked = papa.conform(lambda model, layer, head: model.no_such_layers, ["llama"])
    assert checked.failed == [name for name in CHECKS if name != "norm"]  # llama has none
    assert "llama: AttributeError: 'LlamaForCausalLM' object has no attribute 'no_such_layers'" in repr(checked)


@pytest.mark.parametrize(
    ("function", "models", "message"),
    [
        (right, ["gpt"], "There is no model 'gpt' for checks"),
        (3, ["llama"], "int cannot be called"),
        (lambda model, layer, head: None, ["llama"], "The function returned NoneType; it must return a handle"),
        (lambda model, layer, head: nullcontext(dict), ["llama"], "an ablated head returned dict; it must return"),
    ],
)
def test_what_does_not_fit_is_one_sentence(function, models, message):
    with pytest.raises(papa.InputError, match=message):
        papa.conform(function, models)


def python_of(page):
    return re.findall("```python\n(.*?)```", (REPOSITORY / page).read_text(encoding="utf-8"), re.DOTALL)


def test_the_command_imports_a_function_of_this_folder(tmp_path, monkeypatch):
    """The functions are those of the page: a hook that is right, and one that is not."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "hooks_of_the_page.py").write_text(python_of("docs/conform.md")[0], encoding="utf-8")
    passed = CliRunner().invoke(app, ["conform", "hooks_of_the_page:ablate", "--model", "llama", "--json"])
    assert passed.exit_code == 0 and json.loads(passed.stdout)["failed"] == []
    wrong = CliRunner().invoke(app, ["conform", "hooks_of_the_page:ablate", "--model", "bert"])
    assert wrong.exit_code == 1 and "bert: AttributeError: " in wrong.stdout
    missing = CliRunner().invoke(app, ["conform", "hooks_of_the_page:other"])
    assert missing.exit_code == 2 and "cannot be imported" in missing.stderr
