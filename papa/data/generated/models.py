"""Small models with random weights, one per family: every stage can run on them without a pretrained model.

Each has 2 layers of 4 heads and a tokenizer (WordPiece, or byte-level BPE) that is trained on generated sentences. The
model of a family is bit-identical on all machines. Its measurements show nothing about pretrained models.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from papa.data.digests import digest_of_file, user_cache
from papa.data.generated import GRAMMAR_VERSION, LABELLED_GRAMMARS, generate
from papa.data.weights import without_progress_bars
from papa.errors import InputError
from papa.files import digest_of_json

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

DECODERS = ("gpt2", "gpt_neox", "llama", "qwen2", "modernbert-decoder")
ENCODERS = ("bert", "roberta", "deberta", "electra", "xlm-roberta", "distilbert", "albert", "deberta-v2", "modernbert")
FAMILIES = ENCODERS + DECODERS
"""The types of the models, by their names in transformers."""
SLOTS = 128
SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "initializer_range": 0.2,  # makes attention far from uniform, as in trained models
}
VOCABULARY = 600
RECIPE = 2
"""Increase this whenever the code below makes different models."""
SEAL_NAME = ".sealed"
"""Name of the file in a cached folder that contains the digest of all other files."""
SPECIAL_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
SPECIAL_TOKENS_OF = {
    "roberta": ["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
    "deberta": ["[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]"],
}
"""Special tokens, in the order of their ids, of families whose byte-level tokenizer has a class in transformers."""


def random_model(family: str) -> Path:
    """Return the folder of the random model of a family in `FAMILIES`; it is generated once, in the user's cache."""
    if family not in FAMILIES:
        raise InputError(f"There is no random model {family!r}; there are {', '.join(FAMILIES)}.")
    recipe = [RECIPE, GRAMMAR_VERSION, SLOTS, VOCABULARY, SIZES]
    return made_once(f"random-{family}", recipe, lambda folder: _make(family, folder))


def made_once(name: str, recipe: Sequence[object], make: Callable[[Path], None]) -> Path:
    """Return the folder for a recipe in the user's cache; `make` fills it if it is missing or damaged.

    A folder is intact if its files match the digest in its seal.
    """
    cache = user_cache()
    folder = cache / f"{name}-{hashlib.sha256(json.dumps(recipe).encode()).hexdigest()[:12]}"
    if _intact(folder):
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    with open(cache / ".models.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # released when the file is closed
        if _intact(folder):  # another job was faster
            return folder
        temporary = Path(tempfile.mkdtemp(dir=cache, prefix=f".{name}-"))
        try:
            with without_progress_bars():
                make(temporary / "new")
            (temporary / "new" / SEAL_NAME).write_text(_digest(temporary / "new"), encoding="utf-8")
            if folder.exists():
                os.rename(folder, temporary / "old")
            os.rename(temporary / "new", folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return folder


def _intact(folder: Path) -> bool:
    try:
        return (folder / SEAL_NAME).read_text(encoding="utf-8") == _digest(folder)
    except OSError:
        return False


def _digest(folder: Path) -> str:
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.name != SEAL_NAME)
    return digest_of_json([[path.name for path in files], digest_of_file(*files)])


def _make(family: str, folder: Path) -> None:
    import torch
    import transformers

    tokenizer = _word_piece() if family in ("bert", "electra") else _byte_level(family)
    tokenizer.save_pretrained(folder)
    ends = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    # positions start after the padding id
    roberta = {"type_vocab_size": 1, "max_position_embeddings": SLOTS + 2, **ends}
    deberta = {"relative_attention": True, "position_biased_input": False, "pos_att_type": ["c2p", "p2c"]}
    deberta |= {"type_vocab_size": 0, "max_relative_positions": -1}
    local = {"global_attn_every_n_layers": 2, "local_attention": 8, **ends}
    marks = {"cls_token_id": tokenizer.cls_token_id, "sep_token_id": tokenizer.sep_token_id}
    special: dict[str, dict[str, object]] = {
        "electra": {"embedding_size": 16},
        "albert": {"embedding_size": 16},
        "roberta": roberta,
        "xlm-roberta": roberta,
        "deberta": deberta,
        "deberta-v2": deberta | {"position_buckets": 16, "share_att_key": True, "norm_rel_ebd": "layer_norm"},
        "modernbert": local | marks,
        "modernbert-decoder": local | marks,
        "gpt2": ends,
        "gpt_neox": ends,
        "llama": ends | {"num_key_value_heads": 2},
        "qwen2": ends | {"num_key_value_heads": 2},
    }
    common = {"pad_token_id": tokenizer.pad_token_id, "max_position_embeddings": SLOTS}
    settings = SIZES | {"vocab_size": len(tokenizer)} | common | special.get(family, {})
    config = transformers.AutoConfig.for_model(family, **settings)
    model_class = transformers.AutoModelForCausalLM if family in DECODERS else transformers.AutoModel
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model_class.from_config(config).save_pretrained(folder)


def _sentences() -> Iterator[str]:
    for corpus in LABELLED_GRAMMARS:
        rows = generate(corpus, "train", 200, seed=0)
        for column in ("first", "second"):
            if column in rows:
                yield from rows[column]


def _word_piece() -> PreTrainedTokenizerBase:
    from transformers import BertTokenizer

    # the trainer of `tokenizers` assigns ids in random order, so the most frequent words become the pieces
    words = Counter(word for sentence in _sentences() for word in sentence.split())
    letters = sorted({letter for word in words for letter in word})
    pieces = [*SPECIAL_TOKENS, *letters, *(f"##{letter}" for letter in letters)]
    frequent = sorted(words.keys() - set(pieces), key=lambda word: (-words[word], word))
    vocabulary = [*pieces, *frequent[: VOCABULARY - len(pieces)]]
    return BertTokenizer(vocab={piece: index for index, piece in enumerate(vocabulary)}, model_max_length=SLOTS)


def _byte_level(family: str) -> PreTrainedTokenizerBase:
    """Return a byte-level tokenizer, an instance of the family's class if it has one.

    The tokenizers of most decoders add no special tokens and have no padding token.
    """
    import transformers
    from tokenizers import ByteLevelBPETokenizer
    from tokenizers.processors import TemplateProcessing

    bare = family in DECODERS and family != "modernbert-decoder"  # this decoder has its encoder's tokenizer
    special = ["<|endoftext|>"] if bare else SPECIAL_TOKENS_OF.get(family, SPECIAL_TOKENS)
    trained = ByteLevelBPETokenizer(add_prefix_space=family not in SPECIAL_TOKENS_OF)
    trained.train_from_iterator(_sentences(), vocab_size=VOCABULARY, special_tokens=special, show_progress=False)
    tokenizer: PreTrainedTokenizerBase
    if family in SPECIAL_TOKENS_OF:
        model = json.loads(trained.to_str())["model"]
        vocabulary, merges = model["vocab"], [tuple(pair) for pair in model["merges"]]
        family_class = getattr(transformers, f"{family.capitalize()}Tokenizer")
        tokenizer = family_class(vocab=vocabulary, merges=merges, model_max_length=SLOTS)
        return tokenizer
    names = dict.fromkeys(("bos_token", "eos_token", "unk_token"), special[0])
    if not bare:
        ids = [(token, trained.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
        pair = "[CLS] $A [SEP] $B [SEP]" if family == "xlm-roberta" else "[CLS] $A [SEP] $B:1 [SEP]:1"  # one segment
        trained._tokenizer.post_processor = TemplateProcessing("[CLS] $A [SEP]", pair, ids)
        names = {f"{token[1:-1].lower()}_token": token for token in special}
        names |= {"bos_token": "[CLS]", "eos_token": "[SEP]"}
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=trained._tokenizer, model_max_length=SLOTS, **names
    )
    return tokenizer
