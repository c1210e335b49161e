"""All that differs between families of encoders: a line for each in `FAMILIES`, and what a loaded model shows itself.

A new family needs its line here; one whose attention has a form of its own also needs a class in `attention.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor, nn
from torch.nn.functional import pad

from papa.data.packed import Packed
from papa.errors import InputError
from papa.model.attention import BertAttention, DebertaAttention, ReplaceableAttention
from papa.model.linear import rounded_up
from papa.model.replacement import Session

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel


class Family(NamedTuple):
    """A family of encoders: how people write its name, what takes the place of its attention modules, and whether its
    sequence classifiers, and so probes, drop between pooler and output."""

    name: str
    attention: type[ReplaceableAttention] = BertAttention
    drops_in_probe: bool = True


# by `model_type`
FAMILIES = {
    "bert": Family("BERT"),
    "camembert": Family("CamemBERT", drops_in_probe=False),
    "data2vec-text": Family("Data2VecText", drops_in_probe=False),
    "deberta": Family("DeBERTa (the first)", DebertaAttention),
    "electra": Family("ELECTRA"),
    "ernie": Family("ERNIE"),
    "roberta": Family("RoBERTa", drops_in_probe=False),
    "splinter": Family("Splinter"),
    "xlm-roberta": Family("XLM-RoBERTa", drops_in_probe=False),
}


def family_of(config: PreTrainedConfig, what: str) -> Family:
    """The family of a model with this config; raises `InputError` for a decoder and for a model of no known family."""
    if getattr(config, "is_decoder", False):
        raise InputError(f"{what} is a decoder; the method is defined for encoders.")
    family = FAMILIES.get(config.model_type)
    if family is None:
        *names, last = (family.name for family in FAMILIES.values())
        raise InputError(
            f"{what} is a model of the type {config.model_type}, whose attention is not supported; supported are "
            f"encoders of the families {', '.join(names)} and {last}. Use one of these, or add a family as "
            "docs/extending.md says."
        )
    return family


def attention_in(model: nn.Module) -> dict[str, nn.Module]:
    """The self-attention modules of a transformers model by their names, layer by layer.

    Raises:
        InputError: `model` is no such model, is no encoder, or its layers have other attention modules than its family.
    """
    config: PreTrainedConfig | None = getattr(model, "config", None)
    if not isinstance(model, nn.Module) or config is None:
        given = repr(model) if isinstance(model, str) else f"a {type(model).__name__}"
        raise InputError(f"An encoder of transformers is needed, such as AutoModel loads; {given} was given.")
    family_of(config, type(model).__name__)
    found = {
        name: module
        for name, module in model.named_modules()
        if type(module).__module__.startswith("transformers.") and type(module).__name__.endswith("SelfAttention")
    }
    if len(found) != config.num_hidden_layers:
        raise InputError(
            f"{type(model).__name__} has {config.num_hidden_layers} layers and {len(found)} attention modules of "
            "transformers, which can be replaced; give a model as it was loaded."
        )
    return found


def patch(model: PreTrainedModel, stock: Mapping[str, nn.Module], session: Session) -> None:
    """Put replaceable attention modules, steered by `session`, where `stock` ones are in `model`."""
    replaceable: Callable[..., ReplaceableAttention] = FAMILIES[model.config.model_type].attention
    for layer, (name, module) in enumerate(stock.items()):
        model.set_submodule(name, replaceable(module, layer, session))


def shape_of(config: PreTrainedConfig) -> tuple[int, int]:
    """(layers, heads per layer)."""
    return int(config.num_hidden_layers), int(config.num_attention_heads)


def layers_of(model: PreTrainedModel) -> list[nn.Module]:
    """The layers, first to last."""
    return list(model.get_submodule("encoder.layer").children())


def slots_limit(model: PreTrainedModel) -> int:
    """How many slots the model has positions for; raises `InputError` if positions cannot be counted."""
    before = _padding_position(model)
    return int(model.config.max_position_embeddings) - (0 if before is None else before + 1)


def embed(model: PreTrainedModel, batch: Packed) -> Tensor:
    """The embeddings `[1, token, hidden]`, as the first layer takes them. Idle tokens round the row up."""
    idle = rounded_up(len(batch.ids)) - len(batch.ids)
    ids, segments, positions = (
        pad(values, (0, idle))[None] for values in (batch.ids, batch.segments, positions_of(model, batch))
    )
    embeddings = model.get_submodule("embeddings")
    state: Tensor = embeddings(input_ids=ids, token_type_ids=segments, position_ids=positions)
    if hasattr(model, "embeddings_project"):  # ELECTRA, if embeddings are smaller than hidden states
        state = model.get_submodule("embeddings_project")(state)
    return state


def positions_of(model: PreTrainedModel, batch: Packed) -> Tensor:
    """The position id of every token, `[token]`: its slot, or in RoBERTa and its like its rank among real tokens."""
    padding = _padding_position(model)
    if padding is None:
        return batch.slots
    # RoBERTa counts ids that are not padding from the start of an example, and gives padding its own position
    counted = (batch.ids != padding).long()
    ranks = counted.cumsum(0)
    before = (ranks - counted)[batch.lengths.cumsum(0) - batch.lengths]
    return (ranks - before[batch.example_of]) * counted + padding


def layer_options(model: PreTrainedModel) -> dict[str, Tensor | None]:
    """What the layers want to be called with beside the hidden states."""
    relative: Callable[[], Tensor] | None = getattr(model.get_submodule("encoder"), "get_rel_embedding", None)
    # DeBERTa; our attention knows which tokens may attend to which, and their distances, without being told
    return {} if relative is None else {"attention_mask": None, "rel_embeddings": relative()}


def hidden_state(output: Tensor | tuple[Tensor, ...]) -> Tensor:
    """The hidden states in what a layer returns, which some families put into a tuple."""
    return output[0] if isinstance(output, tuple) else output


def probe_dropout(config: PreTrainedConfig) -> float:
    """Dropout before the output of a sequence probe: the model's own for BERT and DeBERTa, none for RoBERTa.

    Families that the paper does not have go with the one they descend from; ELECTRA has the model's own.
    """
    if not FAMILIES[config.model_type].drops_in_probe:
        return 0.0
    own = getattr(config, "classifier_dropout", None)
    return float(config.hidden_dropout_prob if own is None else own)


def _padding_position(model: PreTrainedModel) -> int | None:
    """The position of padding in families that count tokens from behind it; None in those whose positions are slots."""
    embeddings = model.get_submodule("embeddings")
    if not hasattr(embeddings, "padding_idx"):
        return None
    padding: int | None = vars(embeddings)["padding_idx"]
    if padding is None:
        raise InputError(
            f"The config of this {type(model).__name__} has no pad_token_id, from which its positions are counted; "
            "set pad_token_id in its config.json to the id of its tokenizer's padding token."
        )
    return padding
