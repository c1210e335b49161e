"""Tiny random models of every family, and what their stock modules compute on the padded layout."""

import copy
from functools import partial
from string import ascii_lowercase

import pytest
import torch
import transformers
from sizes import CHANNELS, EXAMPLES, HEADS, LAYERS, SLOTS, VOCABULARY
from tiny import tokenizer_of
from tokenizers.pre_tokenizers import ByteLevel

RELATIVE = {"relative_attention": True, "position_biased_input": False}
BUCKETS = RELATIVE | {"position_buckets": 8, "norm_rel_ebd": "layer_norm"}
BOTH = {"pos_att_type": ["c2p", "p2c"]}
FAR = {"relative_attention": True, "max_relative_positions": 17, "type_vocab_size": 2}
FAMILIES = {
    "bert": ("Bert", {}),
    "roberta": ("Roberta", {"type_vocab_size": 1, "pad_token_id": 1}),
    "electra": ("Electra", {"embedding_size": 13}),
    "electra-unprojected": ("Electra", {"embedding_size": HEADS * CHANNELS}),
    "deberta": ("Deberta", RELATIVE | {"pos_att_type": "c2p|p2c"}),
    "deberta-far": ("Deberta", FAR | {"pos_att_type": "c2p|p2c"}),
    "deberta-c2p": ("Deberta", RELATIVE | {"pos_att_type": "c2p"}),
    "deberta-p2c": ("Deberta", RELATIVE | {"pos_att_type": "p2c"}),
    "deberta-absolute": ("Deberta", {}),
    "deberta-v2": ("DebertaV2", BUCKETS | BOTH | {"share_att_key": True}),
    "deberta-v2-unshared": ("DebertaV2", BUCKETS | {"pos_att_type": ["p2c", "c2p"]}),
    "deberta-v2-c2p": (
        "DebertaV2",
        {"relative_attention": True, "pos_att_type": ["c2p"], "type_vocab_size": 2},
    ),
    "xlm-roberta": ("XLMRoberta", {"type_vocab_size": 1}),
    "camembert": ("Camembert", {"type_vocab_size": 1}),
    "data2vec": ("Data2VecText", {"type_vocab_size": 1}),
    "ernie": ("Ernie", {"use_task_id": True}),
    "splinter": ("Splinter", {}),
}
ROBERTA = ("Roberta", ["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
DISTINCT = ("roberta", "electra", "deberta", "deberta-far")


def random_model(family):
    name, options = FAMILIES[family]
    sizes = {
        "hidden_size": HEADS * CHANNELS,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "vocab_size": VOCABULARY,
        "intermediate_size": 41,
        "max_position_embeddings": 47,
        "initializer_range": 0.4,
    }
    model = getattr(transformers, f"{name}Model")(
        getattr(transformers, f"{name}Config")(**sizes | options)
    ).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("bias"):  # zero at the start, which would hide one that is left out
                weight.normal_(std=0.3)
    return model


# rotary embeddings turn pairs of channels
SIZES = {
    "hidden_size": 4 * 6,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "pad_token_id": 0,
    "vocab_size": VOCABULARY,
    "intermediate_size": 41,
    "max_position_embeddings": 47,
}
GROUPED = {"num_key_value_heads": 2, "head_dim": 6}
WINDOW = {"sliding_window": 5}
EXPERTS = {
    "num_local_experts": 2,
    "num_experts_per_tok": 1,
    "hidden_size": 32,
    "head_dim": 8,
    "intermediate_size": 48,
}  # what they multiply comes in whole vectors
ENDS = {"bos_token_id": 1, "eos_token_id": 2}
DECODERS = {
    "gpt2": ("GPT2LMHeadModel", ENDS),
    "gpt-neox": ("GPTNeoXForCausalLM", ENDS),
    "opt": (
        "OPTForCausalLM",
        ENDS | {"pad_token_id": 1, "word_embed_proj_dim": 4 * 6, "ffn_dim": 41},
    ),
    "llama": ("LlamaForCausalLM", GROUPED),
    "qwen2": ("Qwen2ForCausalLM", GROUPED | ENDS),
    "qwen3": ("Qwen3ForCausalLM", GROUPED | ENDS),
    "mistral": ("MistralForCausalLM", GROUPED | WINDOW),
    "gemma2": (
        "Gemma2ForCausalLM",
        GROUPED | WINDOW | {"query_pre_attn_scalar": 7, "attn_logit_softcapping": 2.0},
    ),
    "gpt-oss": ("GptOssForCausalLM", GROUPED | WINDOW | ENDS | EXPERTS),
}
WITHOUT_EXPERTS = [name for name in DECODERS if name != "gpt-oss"]
LOCAL = {
    "cls_token_id": 1,
    "sep_token_id": 2,
    "local_attention": 6,
    "global_attn_every_n_layers": 2,
}
OTHER_ENCODERS = {
    "modernbert": ("ModernBertModel", ENDS | LOCAL),
    "distilbert": ("DistilBertModel", {}),
    "albert": ("AlbertModel", {"embedding_size": 13}),
    "deberta-v2": (
        "DebertaV2Model",
        BUCKETS | BOTH | {"position_buckets": 6, "share_att_key": True},
    ),
    "t5": ("T5EncoderModel", {"d_kv": 6, "d_ff": 41, "relative_attention_num_buckets": 8}),
}


def stock(name):
    made, options = (DECODERS | OTHER_ENCODERS)[name]
    if name == "t5":
        needs_t5()
    kind = getattr(transformers, made)
    torch.manual_seed(0)
    model = kind._from_config(
        kind.config_class(**SIZES | options), attn_implementation="eager"
    ).eval()
    with torch.no_grad():
        for place, weight in model.named_parameters():
            if weight.ndim > 1:
                weight.normal_(std=0.4)
            elif "norm" not in place.lower() and "ln_" not in place:
                weight.normal_(std=0.3)
    return model


def of_lengths(*lengths, slots=SLOTS):
    """Texts of these lengths, of random tokens, that begin in slot 0."""
    mask = torch.arange(slots) < torch.tensor(lengths)[:, None]
    ids = torch.randint(4, VOCABULARY, mask.shape, generator=torch.Generator().manual_seed(1))
    return {"input_ids": ids * mask, "attention_mask": mask.long()}


def texts(left=False, padding=0):
    """Five texts of different lengths, padded behind, or in front, by the id of padding."""
    inputs = of_lengths(3, 19, 11, 1, 23)
    mask = inputs["attention_mask"].bool()
    tokens = inputs["input_ids"][mask]
    if left:
        mask = mask.flip(1)
    ids = torch.full(mask.shape, padding).masked_scatter(mask, tokens)
    return {"input_ids": ids, "attention_mask": mask.long()}


def laid(model, padding):
    """Texts of one token, of all slots, and of lengths between, with padding before, after or between their tokens."""
    lengths = torch.tensor([1, SLOTS, *torch.randint(2, SLOTS, (EXAMPLES - 2,)).tolist()])
    mask = torch.arange(SLOTS) < lengths[:, None]
    if padding != "after":
        mask = torch.stack(
            [row[torch.randperm(SLOTS)] if padding == "between" else row.flip(0) for row in mask]
        )
    pad = model.config.pad_token_id
    segments = max(getattr(model.config, "type_vocab_size", 1), 1)
    ids = torch.randint(4, VOCABULARY, mask.shape).masked_fill(~mask, pad)
    inputs = {"input_ids": ids, "attention_mask": mask.long()}
    return inputs | (
        {"token_type_ids": torch.randint(0, segments, ids.shape) * mask} if segments > 1 else {}
    )


def letters_tokenizer():
    """A tokenizer to which every letter is a token, at the beginning of a word and within it."""
    return tokenizer_of([*ascii_lowercase, *(f"##{letter}" for letter in ascii_lowercase)])


def byte_tokenizer(name, marks, **options):
    """The tokenizer of a family but for its size: every byte is a token."""
    vocabulary = {
        mark: number for number, mark in enumerate([*marks, *sorted(ByteLevel.alphabet())])
    }
    return getattr(transformers, f"{name}Tokenizer")(vocab=vocabulary, merges=[], **options)


def needs_t5():
    """Skip a test of T5's attention if transformers does not look it up by name, which it does since 5.15."""
    if not transformers.T5EncoderModel._can_set_attn_implementation():
        pytest.skip("papa refuses T5 in this version of transformers")


def only(*families):
    return pytest.mark.parametrize("family", families, indirect=True)


def rows_of(inputs, rows):
    """The inputs of some rows."""
    return {name: values[rows] for name, values in inputs.items()}


def real(hidden, inputs):
    return hidden.transpose(1, 2)[inputs["attention_mask"].bool()]


def stock_states(model, inputs):
    return torch.stack(model(**inputs, output_hidden_states=True).hidden_states, dim=1)


def states_of(model, inputs):
    """All hidden states of a plain model's tokens, `[token, layer + 1, hidden]`."""
    return real(stock_states(model, inputs), inputs)


def stock_attention(model, inputs):
    eager = copy.deepcopy(model)
    eager.set_attn_implementation("eager")
    return torch.stack(
        eager(**inputs, output_attentions=True).attentions, dim=1
    )  # [example, layer, head, query, key]


close = partial(torch.testing.assert_close, atol=1e-4, rtol=0)
