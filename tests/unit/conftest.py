"""A tiny random BERT, its tokenizer, inputs and constants."""

import pytest
import torch
from sizes import CHANNELS, EXAMPLES, HEADS, LAYERS, SLOTS, VOCABULARY
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

LETTERS = "abcdefghijklmnopqrstuvwxyz"


@pytest.fixture(autouse=True)
def _fixed_seed():
    torch.manual_seed(0)
    torch.set_num_threads(1)


@pytest.fixture
def model():
    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=HEADS * CHANNELS,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=41,
        max_position_embeddings=47,
        initializer_range=0.4,
    )
    return BertModel(config).eval()


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
def inputs():
    """Dense inputs with gaps: an example of one token, one that fills all slots, and others between."""
    lengths = [1, SLOTS, *torch.randint(2, SLOTS, (EXAMPLES - 2,)).tolist()]
    ids = torch.zeros(EXAMPLES, SLOTS, dtype=torch.long)
    for row, length in enumerate(lengths):
        slots = torch.randperm(SLOTS)[:length]
        ids[row, slots] = torch.randint(4, VOCABULARY, (length,))
    mask = (ids != 0).long()
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": torch.randint(0, 2, ids.shape) * mask}


@pytest.fixture
def matrices():
    """Constants that are no distributions: signed, with a row of zeros."""
    constants = torch.randn(LAYERS, HEADS, SLOTS, SLOTS)
    constants[:, :, 2] = 0
    return constants
