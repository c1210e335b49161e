"""Tiny random models of every family, and what their stock modules compute on the padded layout."""

import copy
from string import ascii_lowercase

import pytest
import torch
import transformers
from sizes import CHANNELS, HEADS, LAYERS, VOCABULARY
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.pre_tokenizers import ByteLevel, Whitespace
from tokenizers.processors import TemplateProcessing

RELATIVE = {"relative_attention": True, "position_biased_input": False}
BUCKETS = {"position_buckets": 8, "norm_rel_ebd": "layer_norm"}
FAMILIES = {
    "bert": ("Bert", {}),
    "roberta": ("Roberta", {"type_vocab_size": 1, "pad_token_id": 1}),
    "electra": ("Electra", {"embedding_size": 13}),
    "electra-unprojected": ("Electra", {"embedding_size": HEADS * CHANNELS}),
    "deberta": ("Deberta", RELATIVE | {"pos_att_type": "c2p|p2c"}),
    "deberta-far": (
        "Deberta",
        {"relative_attention": True, "pos_att_type": "c2p|p2c", "max_relative_positions": 17, "type_vocab_size": 2},
    ),
    "deberta-c2p": ("Deberta", RELATIVE | {"pos_att_type": "c2p"}),
    "deberta-p2c": ("Deberta", RELATIVE | {"pos_att_type": "p2c"}),
    "deberta-absolute": ("Deberta", {}),
    "deberta-v2": (
        "DebertaV2",
        RELATIVE | BUCKETS | {"pos_att_type": ["c2p", "p2c"], "share_att_key": True, "norm_rel_ebd": "layer_norm"},
    ),
    "deberta-v2-unshared": ("DebertaV2", RELATIVE | BUCKETS | {"pos_att_type": ["p2c", "c2p"]}),
    "deberta-v2-c2p": ("DebertaV2", {"relative_attention": True, "pos_att_type": ["c2p"], "type_vocab_size": 2}),
    "xlm-roberta": ("XLMRoberta", {"type_vocab_size": 1}),
    "camembert": ("Camembert", {"type_vocab_size": 1}),
    "data2vec": ("Data2VecText", {"type_vocab_size": 1}),
    "ernie": ("Ernie", {"use_task_id": True}),
    "splinter": ("Splinter", {}),
}
DISTINCT = ("roberta", "electra", "deberta", "deberta-far")


def random_model(family):
    name, options = FAMILIES[family]
    sizes = {"hidden_size": HEADS * CHANNELS, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS}
    sizes |= {"vocab_size": VOCABULARY, "intermediate_size": 41, "max_position_embeddings": 47}
    sizes |= {"initializer_range": 0.4}
    model = getattr(transformers, f"{name}Model")(getattr(transformers, f"{name}Config")(**sizes | options)).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("bias"):  # zero at the start, which would hide one that is left out
                weight.normal_(std=0.3)
    return model


def letters_tokenizer():
    """A tokenizer to which every letter is a token, at the beginning of a word and within it."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *ascii_lowercase, *(f"##{letter}" for letter in ascii_lowercase)]
    fast = Tokenizer(WordPiece({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
    fast.pre_tokenizer = Whitespace()
    fast.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=fast, pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]", unk_token="[UNK]"
    )


def byte_tokenizer(name, marks, **options):
    """The tokenizer of a family but for its size: every byte is a token."""
    vocabulary = {mark: number for number, mark in enumerate([*marks, *sorted(ByteLevel.alphabet())])}
    return getattr(transformers, f"{name}Tokenizer")(vocab=vocabulary, merges=[], **options)


def needs_t5():
    """Skip a test of T5's attention if transformers does not look it up by name, which it does since 5.15."""
    if not transformers.T5EncoderModel._can_set_attn_implementation():
        pytest.skip("papa refuses T5 in this version of transformers")


def only(*families):
    return pytest.mark.parametrize("family", families, indirect=True)


def real(hidden, inputs):
    return hidden.transpose(1, 2)[inputs["attention_mask"].bool()]


def stock_states(model, inputs):
    return torch.stack(model(**inputs, output_hidden_states=True).hidden_states, dim=1)


def stock_attention(model, inputs):
    eager = copy.deepcopy(model)
    eager.set_attn_implementation("eager")
    return torch.stack(eager(**inputs, output_attentions=True).attentions, dim=1)  # [example, layer, head, query, key]


def close(actual, expected, atol=1e-4):
    torch.testing.assert_close(actual, expected, atol=atol, rtol=0)
