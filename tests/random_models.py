"""Small models with random weights, one per family, each with a tokenizer trained on texts of the demo.

Each has 2 layers of 4 heads. The model of a family is the same in every process.
"""

import atexit
import csv
import json
import shutil
import tempfile
from collections import Counter
from functools import cache
from itertools import islice

import torch
import transformers
from tiny import REPOSITORY
from tokenizers import ByteLevelBPETokenizer
from tokenizers.processors import TemplateProcessing

from papa.data.weights import without_progress_bars

DECODERS = ("gpt2", "llama")
SLOTS = 128
SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "initializer_range": 0.2,  # makes attention far from uniform, as in trained models
}
VOCABULARY = 600
SPECIAL_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
SPECIAL_TOKENS_OF = {
    "roberta": ["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
    "deberta": ["[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]"],
}
"""Special tokens, in the order of their ids, of families whose byte-level tokenizer has a class in transformers."""


@cache
def random_model(family):
    """The folder of the random model of a family; it is made once a process."""
    folder = tempfile.mkdtemp(prefix=f"papa-random-{family}-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    with without_progress_bars():
        _make(family, folder)
    return folder


def _make(family, folder):
    tokenizer = _word_piece() if family in ("bert", "electra") else _byte_level(family)
    tokenizer.save_pretrained(folder)
    ends = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    # positions start after the padding id
    roberta = {"type_vocab_size": 1, "max_position_embeddings": SLOTS + 2, **ends}
    deberta = {
        "relative_attention": True,
        "position_biased_input": False,
        "pos_att_type": ["c2p", "p2c"],
        "type_vocab_size": 0,
        "max_relative_positions": -1,
    }
    local = {
        "global_attn_every_n_layers": 2,
        "local_attention": 8,
        **ends,
        "cls_token_id": tokenizer.cls_token_id,
        "sep_token_id": tokenizer.sep_token_id,
    }
    special = {
        "electra": {"embedding_size": 16},
        "roberta": roberta,
        "deberta": deberta,
        "modernbert": local,
        "gpt2": ends,
        "llama": ends | {"num_key_value_heads": 2},
    }
    common = {"pad_token_id": tokenizer.pad_token_id, "max_position_embeddings": SLOTS}
    settings = SIZES | {"vocab_size": len(tokenizer)} | common | special.get(family, {})
    config = transformers.AutoConfig.for_model(family, **settings)
    model_class = (
        transformers.AutoModelForCausalLM if family in DECODERS else transformers.AutoModel
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model_class.from_config(config).save_pretrained(folder)


def _sentences():
    """Four hundred rows of each task of the demo with texts."""
    for corpus in ("agreement", "inference"):
        with open(
            REPOSITORY / f"data/demo/{corpus}/train.csv", encoding="utf-8", newline=""
        ) as file:
            rows = list(islice(csv.DictReader(file), 400))
        for column in ("first", "second"):
            yield from (row[column] for row in rows if column in row)


def _word_piece():
    # the trainer of `tokenizers` assigns ids in random order, so the most frequent words become the pieces
    words = Counter(word for sentence in _sentences() for word in sentence.split())
    letters = sorted({letter for word in words for letter in word})
    pieces = [*SPECIAL_TOKENS, *letters, *(f"##{letter}" for letter in letters)]
    frequent = sorted(words.keys() - set(pieces), key=lambda word: (-words[word], word))
    vocabulary = [*pieces, *frequent[: VOCABULARY - len(pieces)]]
    ids = {piece: index for index, piece in enumerate(vocabulary)}
    return transformers.BertTokenizer(vocab=ids, model_max_length=SLOTS)


def _byte_level(family):
    """A byte-level tokenizer, an instance of the family's class if it has one.

    The tokenizers of most decoders add no special tokens and have no padding token.
    """
    special = (
        ["<|endoftext|>"] if family in DECODERS else SPECIAL_TOKENS_OF.get(family, SPECIAL_TOKENS)
    )
    trained = ByteLevelBPETokenizer(add_prefix_space=family not in SPECIAL_TOKENS_OF)
    trained.train_from_iterator(
        _sentences(), vocab_size=VOCABULARY, special_tokens=special, show_progress=False
    )
    if family in SPECIAL_TOKENS_OF:
        model = json.loads(trained.to_str())["model"]
        vocabulary = model["vocab"]
        merges = [tuple(pair) for pair in model["merges"]]
        family_class = getattr(transformers, f"{family.capitalize()}Tokenizer")
        return family_class(vocab=vocabulary, merges=merges, model_max_length=SLOTS)
    names = dict.fromkeys(("bos_token", "eos_token", "unk_token"), special[0])
    if family not in DECODERS:
        ids = [(token, trained.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
        templates = "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1"
        trained._tokenizer.post_processor = TemplateProcessing(*templates, ids)
        names = {f"{token[1:-1].lower()}_token": token for token in special}
        names |= {"bos_token": "[CLS]", "eos_token": "[SEP]"}
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=trained._tokenizer, model_max_length=SLOTS, **names
    )
