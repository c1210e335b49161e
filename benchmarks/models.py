"""Every text model of the installed transformers, with small random weights: which ones papa can be used with.

    python benchmarks/models.py --page docs/models.md   # all of them, into the page: 5 to 30 minutes
    python benchmarks/models.py bert llama          # these, on the terminal

Each type runs in a process of its own, with a limit of time and memory. What fails is listed with its reason.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import signal
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from papa.model.verification import Verified

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

SECONDS = 90
PATIENCE = 600
GIGABYTES = 8
"""Limits of CPU time, wall-clock time and memory for a type."""
SIZES: Mapping[str, Any] = {
    "vocab_size": 97,
    **dict.fromkeys(
        "hidden_size d_model n_embd dim embedding_size emb_dim word_embed_proj_dim".split(), 32
    ),
    **dict.fromkeys(
        (
            "num_hidden_layers",
            "n_layer",
            "num_layers",
            "n_layers",
            "encoder_layers",
            "decoder_layers",
        ),
        4,
    ),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(
        ("num_key_value_heads", "num_kv_heads", "n_kv_heads", "multi_query_group_num"), 2
    ),
    **dict.fromkeys(
        "head_dim d_kv qk_rope_head_dim qk_nope_head_dim v_head_dim attention_head_size".split(), 8
    ),
    **dict.fromkeys(("kv_lora_rank", "q_lora_rank"), 16),
    **dict.fromkeys(
        ("intermediate_size", "d_ff", "n_inner", "ffn_dim", "hidden_dim", "moe_intermediate_size"),
        48,
    ),
    **dict.fromkeys(
        (
            "encoder_ffn_dim",
            "decoder_ffn_dim",
            "shared_expert_intermediate_size",
            "ffn_hidden_size",
        ),
        48,
    ),
    **dict.fromkeys(
        ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length"), 64
    ),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 2),
    **dict.fromkeys(
        (
            "num_experts_per_tok",
            "num_selected_experts",
            "moe_k",
            "n_group",
            "topk_group",
            "moe_topk",
        ),
        1,
    ),
    **dict.fromkeys(
        ("num_experts_per_token", "moe_top_k", "num_expert_group", "topk", "num_expert_groups"), 1
    ),
    **dict.fromkeys(("num_mem_blocks", "attn_layer_offset"), 1),
    **dict.fromkeys(("attn_layer_period", "expert_layer_period", "layer_group_size"), 2),
    **dict.fromkeys(
        ("mamba_n_heads", "mamba_num_heads", "n_mamba_heads", "linear_num_value_heads"), 8
    ),
    **dict.fromkeys(("linear_num_key_heads", "mamba_d_state", "ssm_state_size", "rotary_dim"), 4),
    **dict.fromkeys(
        ("mamba_d_head", "mamba_head_dim", "linear_key_head_dim", "linear_value_head_dim"), 8
    ),
    **dict.fromkeys(("mamba_d_ssm",), 64),
    **dict.fromkeys(("sliding_window", "local_attention", "attention_window"), 4),
    **dict.fromkeys(("query_pre_attn_scalar",), 8),
    **dict.fromkeys(("type_vocab_size",), 2),
    "attn_layer_indices": [1, 3],  # which layers attend, where a config leaves that open
    "image_size": 32,
    "patch_size": 8,
    "num_mel_bins": 8,
    "max_source_positions": 24,
}
"""Sizes of small models, by the keys of configs."""
MIXED: Mapping[str, Mapping[str, Any]] = {
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2},
    "minimax_m3_vl_text": {"layer_types": ["full_attention", "minimax_m3_sparse"] * 2},
}
"""Layer types that a model type's checkpoints have and its default config lacks."""
LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
LISTED = ("attn_layer_indices", "layer_types", "mlp_layer_types", "layers_block_type")
VARIATIONS: tuple[Mapping[str, Any], ...] = (
    {},
    {"open": True},
    {"num_heads": 8},
    {"num_key_value_heads": 4, "open": True},
    {"head_dim": 16, "hidden_size": 64, "open": True},
    {"attention_types": [[["global", "local"], 2]]},
    {"layer_types": ["conv", "full_attention"] * 2, "open": True},
    {"is_decoder": True},
    {"is_encoder_decoder": False},
    {"default_language": "en_XX", "open": True},
    {
        "num_experts": 8,
        "n_routed_experts": 8,
        "num_local_experts": 8,
        "n_group": 2,
        "topk_group": 2,
        "open": True,
    },
)
"""Changes of sizes, tried in turn until a model can be built and run; "open" also sets sizes that are None."""


def kinds() -> list[str]:
    """Return the types of all text models: causal and masked language models, and text encoders."""
    from transformers.models.auto import modeling_auto as auto

    names: set[str] = set()
    for mapping in ("CAUSAL_LM", "MASKED_LM", "TEXT_ENCODING"):
        names |= set(getattr(auto, f"MODEL_FOR_{mapping}_MAPPING_NAMES"))
    return sorted(names)


def small_config(kind: str, **changed: Any) -> PreTrainedConfig:
    """Return a config of this type with small sizes, some of them `changed`."""
    from transformers import AutoConfig

    return AutoConfig.for_model(
        kind, **_small(AutoConfig.for_model(kind).to_dict(), changed) | MIXED.get(kind, {})
    )


def _small(said: Mapping[Any, Any], changed: Mapping[str, Any]) -> dict[str, Any]:
    """Return the changes that make a config, or one inside another, small."""
    named = {name: value for name, value in said.items() if isinstance(name, str)}
    left_open = {
        name
        for name, value in named.items()
        if value is None and (changed.get("open") or name in LISTED)
    }
    small: dict[str, Any] = {
        name: value
        for name, value in (SIZES | changed).items()
        if name in named and (type(named[name]) in (int, type(value)) or name in left_open)
    }
    if "num_key_value_heads" in named:  # models that compress keys have as many as queries
        small["num_key_value_heads"] = changed.get(
            "num_key_value_heads", 4 if "kv_lora_rank" in named else 2
        )
    small |= {
        name: min(own_id, 5)
        for name, own_id in named.items()
        if name.endswith("_token_id") and type(own_id) is int
    }
    if named.get("pad_token_id", 0) is None:
        small["pad_token_id"] = 0
    layers = next((named[name] for name in LAYERS if type(named.get(name)) is int), None)
    for name, value in named.items():
        if isinstance(value, list) and (len(value) == layers or name in LISTED):
            small[name] = (list({repr(one): one for one in value}.values()) * 4)[
                :4
            ]  # what is listed layer by layer
        elif isinstance(value, dict) and (name.endswith("_config") or "model_type" in value):
            small[name] = {"model_type": value["model_type"]} if "model_type" in value else {}
            small[name] |= _small(value, changed)
    return small


def small_model(kind: str) -> PreTrainedModel:
    """A model of this type with random weights, none of them zero, so that nothing left out goes unnoticed.

    Raises:
        Exception: what went wrong first, if no variation of sizes gives a model that runs.
    """
    import torch

    from papa.model.check import tiny_batch
    from papa.model.forms import PADDED

    first: Exception | None = None
    seen: list[object] = []
    for changed in VARIATIONS:
        try:
            config = small_config(kind, **changed)
            if config.to_dict() in seen:
                continue
            seen.append(config.to_dict())
            model = _made(kind, config)
            base: Any = model.base_model
            if not (getattr(config, "is_encoder_decoder", False) and hasattr(base, "decoder")):
                with torch.no_grad():
                    PADDED.states(base, tiny_batch(base, "after"))
            return model
        except Exception as error:
            first = first or error
    assert first is not None
    raise first


def _made(kind: str, config: PreTrainedConfig) -> PreTrainedModel:
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForTextEncoding
    from transformers.models.auto import modeling_auto as auto

    classes = {
        "CAUSAL_LM": AutoModelForCausalLM,
        "MASKED_LM": AutoModelForMaskedLM,
        "TEXT_ENCODING": AutoModelForTextEncoding,
    }
    makes: Any = None
    for mapping, auto_class in classes.items():
        if kind in getattr(auto, f"MODEL_FOR_{mapping}_MAPPING_NAMES"):
            makes = auto_class
            if not (getattr(config, "is_encoder_decoder", False) and mapping != "TEXT_ENCODING"):
                break
    torch.manual_seed(0)
    model: PreTrainedModel = makes.from_config(config, attn_implementation="eager").eval().float()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim > 1:
                weight.normal_(std=0.3)
            elif "norm" not in name.lower():
                weight.normal_(std=0.2)
            else:
                weight.add_(torch.rand_like(weight) * 0.2)
    return model


def check(kind: str) -> dict[str, Any]:
    """Return the findings about a type, in this process."""
    from papa.model.verification import verify

    try:
        model = small_model(kind)
    except (
        Exception
    ) as error:  # the sizes may not go together, or the model needs a package that is not there
        return asdict(
            Verified(kind, "not made", f"{type(error).__name__}: {shorten(str(error), 250)}")
        )
    verified = verify(model)
    if (
        "allowed in torch.float32" in verified.why
    ):  # roundings grow in some models with weights as large as these
        verified = verify(model.double())
    if verified.form != "refused" and not _loads(kind):
        verified = Verified(
            kind,
            "refused",
            f"checkpoints are an encoder with a decoder; {type(model).__name__} alone can be used",
        )
    return asdict(replace(verified, kind=kind))  # some types share the class of another


def _loads(kind: str) -> bool:
    """Return whether papa loads checkpoints of a type, and not only a part of the model."""
    from transformers import AutoConfig

    from papa.errors import InputError
    from papa.model.load import class_of

    try:
        class_of(AutoConfig.for_model(kind), kind)
    except InputError:
        return False
    return True


def swept(chosen: list[str]) -> Iterator[dict[str, Any]]:
    """Yield the findings about types, each from a separate process that starts with all libraries imported."""
    import torch
    import transformers.models.auto.modeling_auto  # noqa: F401

    import papa.model.verification  # noqa: F401

    torch.set_num_threads(1)
    small_model("bert")  # what all types import
    context = get_context("fork")
    for kind in chosen:
        ours, theirs = context.Pipe()
        process = context.Process(target=_told, args=(kind, theirs))
        process.start()
        theirs.close()
        try:
            found = ours.recv() if ours.poll(PATIENCE) else None
            why = f"took more than {PATIENCE} seconds"
        except EOFError:
            process.join()
            spent = process.exitcode == -signal.SIGXCPU
            found = None
            why = f"took more than {SECONDS} seconds" if spent else f"ended with {process.exitcode}"
        yield found or asdict(Verified(kind, "not made", why))
        process.kill()
        process.join()


def _told(kind: str, pipe: Connection) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (GIGABYTES * 2**30,) * 2)
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 5))
    pipe.send(check(kind))


def updated(page: str, records: list[dict[str, Any]]) -> str:
    """Return the page with these findings in its numbers and tables, each of which has a row already."""
    from importlib.metadata import version

    from papa.commands.verify import table_of
    from papa.results.table import escape_markdown

    packed, compact, padded, rest = (
        [one for one in records if one["form"] in forms]
        for forms in (("packed",), ("compact",), ("padded",), ("refused", "not made"))
    )
    whys = [escape_markdown(shorten(one["why"], 150, placeholder=" …")) for one in rest]
    reasons = [
        f"| {one['kind']} | {one['form']} | {why} |" for one, why in zip(rest, whys, strict=True)
    ]
    tables = {
        "Packed": table_of(packed).markdown(),
        "Compact": table_of(compact).markdown(),
        "Padded": table_of(padded).markdown(),
        "Text models that are not used": "\n".join(["| type | | why |", "|---|---|---|", *reasons]),
    }
    for title, table in tables.items():
        escaped = table.replace("\\", r"\\")
        page = re.sub(rf"(?m)(^## {title}\n[^|]*)(^\|.*\n)+", rf"\1{escaped}\n", page)
    used = f"**{len(packed) + len(compact) + len(padded)} of {len(records)} types"
    versions = f"transformers {version('transformers')} (torch {version('torch')})"
    return re.sub(
        r"\*\*\d+ of \d+ types", used, re.sub(r"transformers \S+ \(torch \S+\)", versions, page)
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kinds", nargs="*")
    parser.add_argument("--page", type=Path, help="the page to update, docs/models.md")
    given = parser.parse_args(sys.argv[1:])
    records = []
    for one in swept([kind for kind in kinds() if not given.kinds or kind in given.kinds]):
        records.append(one)
        print(json.dumps(one), flush=True)
    if given.page:
        given.page.write_text(updated(given.page.read_text("utf-8"), records), encoding="utf-8")


if __name__ == "__main__":
    main()
