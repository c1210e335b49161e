"""The natural layout is what transformers' tokenizers return, and papa's models compute the stock model's states."""

import copy

import pytest
import torch
from families import byte_tokenizer, close, only, stock_states

import papa
from papa.data.layout import texts_in_blocks
from papa.model.model import Model

LENGTHS = [(1, 1), (3, 9), (13, 2), (2, 17), (11, 11), (19, 19), (1, 30), (30, 1)]
ALPHABET = "abcdefghijklmnopqrstuvwxyzabcdefghij"


def letters(count):
    return " ".join(ALPHABET[:count])


def stock_inputs(tokenizer, first, second, slots):
    options = {"truncation": True, "padding": "max_length", "max_length": slots, "return_token_type_ids": True}
    return dict(tokenizer(first, second, **options, return_tensors="pt"))


@pytest.mark.parametrize("slots", [11, 12, 23])
@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("kind", ["letters", "roberta"])
def test_inputs_are_those_of_the_stock_tokenizer(tokenizer, kind, pairs, slots):
    if kind == "roberta":
        tokenizer = byte_tokenizer("Roberta", ["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    first, second = ([letters(length) for length in lengths] for lengths in zip(*LENGTHS, strict=True))
    texts = (first, second) if pairs else (first, None)
    expected = stock_inputs(tokenizer, *texts, slots)
    actual = papa.lay_out(tokenizer, *texts, slots=slots, style="natural")
    for name, values in actual.items():
        assert torch.equal(values, expected[name] * (1 if name == "input_ids" else expected["attention_mask"])), name


@only("bert", "roberta", "electra", "deberta-v2", "deberta-far")
def test_hidden_states_are_those_of_the_stock_model(model, tokenizer):
    first, second = ([letters(length) for length in lengths] for lengths in zip(*LENGTHS, strict=True))
    stock = stock_inputs(tokenizer, first, second, 23)
    if model.config.type_vocab_size < 2:
        stock["token_type_ids"] = torch.zeros_like(stock["token_type_ids"])
    ours = papa.lay_out(tokenizer, first, second, slots=23, style="natural")
    ours["token_type_ids"] = stock["token_type_ids"]
    expected, actual = stock_states(model, stock), Model(copy.deepcopy(model)).hidden_states(ours)
    keep = stock["attention_mask"].bool()
    assert expected[:, -1][keep].std() > 0.1
    close(actual.transpose(1, 2)[keep], expected.transpose(1, 2)[keep], atol=1e-5)


def test_averages_are_over_natural_positions(model, tokenizer):
    """In fixed slots the last separator of every text is in the last slot; naturally, it follows the text."""
    ours = Model(model)
    natural, fixed = (
        papa.average_attention(ours, [papa.lay_out(tokenizer, [letters(3), letters(5)], slots=11, style=style)])
        for style in ("natural", "paper")
    )
    reached = [constants.count.diagonal().nonzero().flatten().tolist() for constants in (natural, fixed)]
    assert reached == [[0, 1, 2, 3, 4, 5, 6], [0, 1, 2, 3, 4, 5, 10]]


def test_the_last_block_of_running_text_leaves_no_gap(tokenizer):
    blocks = list(texts_in_blocks(tokenizer, [letters(11)], 9, contiguous=True))
    assert [block.slots for block in blocks] == [[*range(9)], [*range(6)]]
