"""Every text model of the installed transformers, with small random weights: which ones papa can be used with.

    make models                                     # all of them, into docs/models.md: half an hour on two cores
    python benchmarks/models.py bert llama          # these, on the terminal

Each type runs in a process of its own, with a limit of time and memory. What fails is listed with its reason.
"""

from __future__ import annotations

import argparse
import json
import resource
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from papa.model.verify import Verified

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

SECONDS, GIGABYTES = 60, 8
SIZES: Mapping[str, int] = {
    **dict.fromkeys(("vocab_size",), 97),
    **dict.fromkeys(
        ("hidden_size", "d_model", "n_embd", "dim", "embedding_size", "emb_dim", "word_embed_proj_dim"), 32
    ),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "num_layers", "n_layers", "encoder_layers", "decoder_layers"), 4),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads", "n_kv_heads", "multi_query_group_num"), 2),
    **dict.fromkeys(
        ("head_dim", "d_kv", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim", "attention_head_size"), 8
    ),
    **dict.fromkeys(("kv_lora_rank", "q_lora_rank"), 16),
    **dict.fromkeys(("intermediate_size", "d_ff", "n_inner", "ffn_dim", "hidden_dim", "moe_intermediate_size"), 48),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim", "shared_expert_intermediate_size", "ffn_hidden_size"), 48),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length"), 64),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 2),
    **dict.fromkeys(("num_experts_per_tok", "num_selected_experts", "moe_k", "n_group", "topk_group", "moe_topk"), 1),
    **dict.fromkeys(("sliding_window", "local_attention", "attention_window"), 4),
    **dict.fromkeys(("query_pre_attn_scalar",), 8),
    **dict.fromkeys(("type_vocab_size",), 2),
}
"""What small models have, by the names that configs use."""


def kinds() -> list[str]:
    """The types of all text models: language models, masked or not, and encoders of text."""
    from transformers.models.auto import modeling_auto as auto

    found: set[str] = set()
    for mapping in ("CAUSAL_LM", "MASKED_LM", "TEXT_ENCODING"):
        found |= set(getattr(auto, f"MODEL_FOR_{mapping}_MAPPING_NAMES"))
    return sorted(found)


def small_config(kind: str) -> PreTrainedConfig:
    """A config of this type with small sizes."""
    from transformers import AutoConfig

    told = AutoConfig.for_model(kind).to_dict()
    own: dict[str, Any] = {name: value for name, value in SIZES.items() if isinstance(told.get(name), int)}
    if "num_key_value_heads" in told:  # models that compress keys have as many as queries
        own["num_key_value_heads"] = 4 if "kv_lora_rank" in told else 2
    own |= {name: min(own_id, 5) for name, own_id in told.items() if name.endswith("_token_id") and type(own_id) is int}
    if told.get("pad_token_id", 0) is None:
        own["pad_token_id"] = 0
    return AutoConfig.for_model(kind, **own, **_layers(told))


def _layers(told: Mapping[str, Any]) -> dict[str, Any]:
    """What is listed layer by layer, for as many layers."""
    found: dict[str, Any] = {}
    for name in ("layer_types", "mlp_layer_types", "layers_block_type"):
        if isinstance(told.get(name), list):
            seen = list(dict.fromkeys(told[name]))
            found[name] = (seen * 4)[:4]
    return found


def small_model(kind: str, seed: int = 0) -> PreTrainedModel:
    """A model of this type with random weights, none of them zero, so that nothing left out goes unnoticed."""
    import torch
    from transformers import AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForTextEncoding
    from transformers.models.auto import modeling_auto as auto

    config = small_config(kind)
    classes = {
        "CAUSAL_LM": AutoModelForCausalLM,
        "MASKED_LM": AutoModelForMaskedLM,
        "TEXT_ENCODING": AutoModelForTextEncoding,
    }
    makes: Any = AutoModel
    for mapping, own in classes.items():
        if kind in getattr(auto, f"MODEL_FOR_{mapping}_MAPPING_NAMES"):
            makes = own
            if not (getattr(config, "is_encoder_decoder", False) and mapping != "TEXT_ENCODING"):
                break
    torch.manual_seed(seed)
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
    """What is found about a type, in this process."""
    from papa.model.verify import verify

    try:
        model = small_model(kind)
    except Exception as error:  # the sizes may not go together, or the model needs a package that is not there
        return asdict(Verified(kind, "not made", f"{type(error).__name__}: {str(error).splitlines()[0][:150]}"))
    try:
        found = replace(verify(model), kind=kind)  # some types share the class of another
        return asdict(replace(found, form="not made") if "cannot run as it is" in found.why else found)
    except Exception as error:
        return asdict(Verified(kind, "refused", f"{type(error).__name__}: {str(error).splitlines()[0][:150]}"))


def swept(chosen: list[str]) -> Iterator[dict[str, Any]]:
    """What is found about types, each in a process of its own, which begins with all libraries imported."""
    import torch
    import transformers.models.auto.modeling_auto  # noqa: F401

    import papa.model.verify  # noqa: F401

    torch.set_num_threads(1)
    context = get_context("fork")
    for kind in chosen:
        ours, its = context.Pipe()
        process = context.Process(target=_told, args=(kind, its))
        process.start()
        its.close()
        try:
            yield ours.recv() if ours.poll(SECONDS) else failed(kind, f"took more than {SECONDS} seconds")
        except EOFError:
            process.join()
            yield failed(kind, f"ended with exit code {process.exitcode}")
        process.kill()
        process.join()


def _told(kind: str, pipe: Connection) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (GIGABYTES * 2**30,) * 2)
    pipe.send(check(kind))


def failed(kind: str, why: str) -> dict[str, Any]:
    """What is told of a type of which nothing was found."""
    return asdict(Verified(kind, "not made", why))


def page_of(found: list[dict[str, Any]]) -> str:
    """docs/models.md: what can be used, what cannot, and why."""
    from importlib.metadata import version

    from papa.jobs.verify import table_of
    from papa.results.table import escape_markdown

    def told(own: list[dict[str, Any]]) -> str:
        return table_of(own).markdown()

    packed, padded = ([one for one in found if one["form"] == form] for form in ("packed", "padded"))
    rest = [one for one in found if one["form"] not in ("packed", "padded")]
    reasons = [
        f"| {one['kind']} | {one['form']} | {escape_markdown(shorten(one['why'], 110, placeholder=' …'))} |"
        for one in rest
    ]
    return PAGE.format(
        transformers=version("transformers"),
        torch=version("torch"),
        used=len(packed) + len(padded),
        number=len(found),
        packed=told(packed),
        padded=told(padded) if padded else "None.",
        rest="\n".join(["| type | | why |", "|---|---|---|", *reasons]),
    )


PAGE = """# Which models papa can be used with

<!-- Written by `make models`; a test checks a sample of it. -->

papa was tried with every text model of transformers {transformers} (torch {torch}): all types of causal and masked
language models and of encoders of text. Each had four layers and small random weights, in float32 on a processor.
**{used} of {number} types can be used.** Any other checkpoint is checked in the same way when it is loaded, and
refused if it is not computed exactly. `papa verify MODEL` shows the same for a checkpoint, with its own weights.

- *Packed*: the tokens of a batch run as one row without padding, which is fast. *Padded*: as the stock model does.
- *As it is*: the largest distance of hidden states from those of transformers, relative to their norm.
- *Half replaced*, *all replaced*: the same from a reference that is dense and padded and skips nothing, with every
  other head and with all heads replaced. `-` if the attention of the type is a module of its own; then
  `tests/unit/test_families.py` compares it with the type's own attention as a constant.
- *Skipped*: the share of the outputs for queries and keys that is not computed if all heads are replaced.

## Packed

{packed}

## Padded

{padded}

## Not used

*Refused*: papa says this when such a model is loaded. *Not made*: no small model of the type could be made here, so
nothing is known; `papa verify` says what is true of a checkpoint.

{rest}

Next: [method.md](method.md) explains what is replaced, [faq.md](faq.md) what a decoder can be used for.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*")
    parser.add_argument("--page", type=Path, help="where to write the page")
    given = parser.parse_args()
    found = []
    for one in swept(given.kinds or kinds()):
        found.append(one)
        print(json.dumps(one), flush=True)
    if given.page:
        given.page.write_text(page_of(found), encoding="utf-8")


if __name__ == "__main__":
    main()
