"""A model whose heads are replaced, on the smallest of all families: what it computes, and what it refuses."""

import pytest
import torch
from families import close, rows_of, stock_states
from refusals import input_error
from sizes import CHANNELS, HEADS, LAYERS, SLOTS, VOCABULARY

import papa
from benchmarks.models import small_model
from papa.model.reference import Reference
from papa.model.replacement import Outputs

ZEROS = torch.zeros(LAYERS, HEADS, SLOTS, SLOTS)


def test_the_stock_model_is_put_back_whatever_happens_inside(model, inputs, matrices):
    before = stock_states(model, inputs)

    def types():
        return [type(module) for module in model.modules()]

    modules = types()
    with pytest.raises(RuntimeError, match="inside"), papa.replaced_attention(model, matrices):
        raise RuntimeError("inside")
    assert types() == modules
    assert torch.equal(stock_states(model, inputs), before)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda given: {name: values[1:2, :-2] for name, values in given.items()},
            "23 slots but the inputs 21",
        ),
        (
            lambda given: given | {"output_attentions": True},
            "cannot return attentions; leave out output_attentions",
        ),
        (lambda given: given | {"attention_mask": None}, "input_ids and attention_mask"),
        (
            lambda given: {"inputs_embeds": torch.zeros(2, SLOTS, HEADS * CHANNELS)},
            "input_ids and attention_mask",
        ),
        (
            lambda given: given | {"attention_mask": given["attention_mask"][:, :-1]},
            r"\[11, 22\] must be",
        ),
    ],
)
def test_a_plain_model_refuses_what_it_cannot_do_with_replaced_attention(
    model, inputs, matrices, change, message
):
    with papa.replaced_attention(model, matrices), input_error(message):
        model(**change(inputs))
    model(**inputs, output_attentions=True)


def test_alike_examples_add_up_as_any_others(ours):
    ids = torch.randint(4, VOCABULARY, (7, SLOTS))
    ids[:, 5:11] = 0
    inputs = {"input_ids": ids, "attention_mask": (ids != 0).long()}
    whole = papa.average_attention(ours, [inputs])
    parts = papa.average_attention(ours, [rows_of(inputs, [row]) for row in range(7)])
    close(whole.sum, parts.sum, atol=1e-5)
    assert torch.equal(whole.count, parts.count)


@pytest.mark.parametrize(
    ("name", "place", "value", "message"),
    [
        ("attention_mask", (1, 0), 0, "disagree in example 1, slot 0"),
        ("input_ids", (1, 3), VOCABULARY, "not in the model's vocabulary"),
        ("input_ids", (1, 3), -100, "-100 is not in"),
        ("attention_mask", 1, 0, "no real token"),
        ("token_type_ids", 0, 2, "Segment 2 is not one of the model's 2"),
        ("attention_mask", (1, 2), 2, "other than 0 and 1"),
    ],
)
def test_inputs_with_a_wrong_number_are_refused(ours, inputs, name, place, value, message):
    inputs[name][place] = value
    with input_error(message):
        ours.hidden_states(inputs)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda given: given.update(attention_mask=given["attention_mask"][:, :3]), "must both be"),
        (lambda given: given.pop("attention_mask"), "no attention_mask"),
        (
            lambda given: given.update(token_type_ids=given["token_type_ids"][:2]),
            "must have the same shape",
        ),
        (
            lambda given: given.update(position_ids=given["input_ids"]),
            "have position_ids, which papa would ignore; l",
        ),
        (
            lambda given: given.update(input_ids=given["input_ids"].tolist()),
            'lists, .* return_tensors="pt"',
        ),
    ],
)
def test_inputs_that_cannot_be_right_are_refused(ours, inputs, change, message):
    change(inputs)
    with input_error(message):
        ours.hidden_states(inputs)


def test_what_collators_add_to_inputs_changes_nothing(ours, inputs):
    more = dict.fromkeys(
        ("labels", "special_tokens_mask", "offset_mapping", "length"), inputs["input_ids"]
    )
    assert torch.equal(ours.hidden_states(inputs | more), ours.hidden_states(inputs))


@pytest.mark.parametrize(
    ("constants", "options", "message"),
    [
        (torch.zeros(LAYERS, HEADS + 1, SLOTS, SLOTS), {}, "this model needs"),
        (torch.zeros(LAYERS, HEADS, SLOTS + 1, SLOTS + 1), {}, "must agree"),
        (ZEROS, {"heads": [(LAYERS, 0)]}, "does not exist"),
        (
            ZEROS,
            {"heads": [3]},
            r"contains 3; it must contain pairs",
        ),
        (
            ZEROS,
            {"heads": [(0, 1.9)]},
            r"contains \(0, 1.9\); it must contain",
        ),
        (
            ZEROS,
            {"mixing": torch.full((LAYERS, HEADS), 2.0)},
            "outside",
        ),
        (
            ZEROS,
            {"mixing": torch.ones(LAYERS, HEADS), "heads": []},
            "exclude",
        ),
        (None, {"heads": [(0, 0)]}, "without constants"),
        (
            torch.eye(SLOTS).log().expand(LAYERS, HEADS, SLOTS, SLOTS),
            {"heads": [(0, 0)]},
            "NaN or infinity",
        ),
        (Outputs(torch.full((LAYERS, HEADS, SLOTS, CHANNELS), torch.inf)), {}, "NaN or infinity"),
    ],
)
def test_replacements_that_cannot_be_right_are_refused(ours, inputs, constants, options, message):
    with input_error(message):
        ours.hidden_states(inputs, constants, **options)


def test_in_the_formula_a_key_that_is_not_seen_counts_for_nothing_however_high_its_score():
    """Sharp heads of decoders have scores of later tokens that are higher by a hundred."""
    query = torch.full((1, 1, 2, 1), 10.0)
    key = torch.tensor([1.0, 20.0]).view(1, 1, 2, 1)
    value = torch.tensor([3.0, 5.0]).view(1, 1, 2, 1)
    formula = Reference(None, torch.zeros(1, 1, 2, 2), [], torch.ones(1, 2))
    formula.calls = 0
    context, _ = formula.attention(None, query, key, value, torch.ones(1, 1, 2, 2).tril().bool())
    assert context.flatten().tolist() == [3.0, 5.0]


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_a_model_in_use_is_saved_and_loaded_with_its_own_names(kind, tmp_path):
    stock = small_model(kind)
    expected = {name: weight.clone() for name, weight in stock.state_dict().items()}
    model = papa.Model(stock)
    saved = model.full.state_dict()
    assert saved.keys() == expected.keys()
    assert all(torch.equal(saved[name], weight) for name, weight in expected.items())
    model.full.load_state_dict(expected)
    model.full.save_pretrained(tmp_path)
    again = type(model.full).from_pretrained(tmp_path).state_dict()
    assert all(torch.equal(again[name], weight) for name, weight in expected.items())


@pytest.mark.parametrize(
    ("given", "described"), [("bert", "'bert'"), (torch.nn.Linear(2, 3), "a Linear")]
)
def test_only_a_transformers_model_is_taken(given, described):
    if isinstance(given, torch.nn.Module):
        given.config = {"hidden_size": 3}
    with input_error(f"such as AutoModel loads, but {described} was given"):
        papa.Model(given)
