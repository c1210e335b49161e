"""A tiny random model, its tokenizer, inputs and constants."""

import pytest
import torch
from families import random_model
from sizes import EXAMPLES, HEADS, LAYERS, SLOTS, VOCABULARY
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

LETTERS = "abcdefghijklmnopqrstuvwxyz"


@pytest.fixture(autouse=True)
def _fixed_seed():
    torch.manual_seed(0)
    torch.set_num_threads(1)


@pytest.fixture
def family():
    """BERT, where a test module does not say otherwise."""
    return "bert"


@pytest.fixture
def model(family):
    return random_model(family)


@pytest.fixture
def tokenizer():
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *LETTERS, *(f"##{letter}" for letter in LETTERS)]
    fast = Tokenizer(WordPiece({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
    fast.pre_tokenizer = Whitespace()
    fast.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=fast, pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]", unk_token="[UNK]"
    )


@pytest.fixture
def inputs(model):
    """Dense inputs with gaps: an example of one token, one that fills all slots, and others between."""
    lengths = [1, SLOTS, *torch.randint(2, SLOTS, (EXAMPLES - 2,)).tolist()]
    padding, segments = model.config.pad_token_id, max(model.config.type_vocab_size, 1)
    ids = torch.full((EXAMPLES, SLOTS), padding)
    for row, length in enumerate(lengths):
        slots = torch.randperm(SLOTS)[:length]
        ids[row, slots] = torch.randint(4, VOCABULARY, (length,))
    mask = (ids != padding).long()
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": torch.randint(0, segments, ids.shape) * mask}


@pytest.fixture
def matrices():
    """Constants that are no distributions: signed, with a row of zeros."""
    constants = torch.randn(LAYERS, HEADS, SLOTS, SLOTS)
    constants[:, :, 2] = 0
    return constants
