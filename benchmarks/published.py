"""The published procedure on stock transformers (BERT), with which the project's times and numbers are compared.

Every text is padded to n slots, attention is eager and collected over all layers, a constant takes the place of a
softmax output after queries and keys were computed, and the frozen encoder runs again for every epoch and seed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import BertModel
from transformers.models.bert.modeling_bert import BertSelfAttention

Inputs = dict[str, Tensor]  # input_ids, attention_mask, token_type_ids: [batch, slot]


def lay_out(tokenizer: Any, texts: Sequence[str], slots: int) -> Inputs:
    """Single texts in fixed slots (PAPER section 1): [SEP] in the last slot."""
    inputs = {
        "input_ids": torch.full((len(texts), slots), tokenizer.pad_token_id),
        "attention_mask": torch.zeros(len(texts), slots, dtype=torch.long),
        "token_type_ids": torch.zeros(len(texts), slots, dtype=torch.long),
    }
    for row, ids in enumerate(tokenizer(list(texts), add_special_tokens=False).input_ids):
        begin = [tokenizer.cls_token_id, *ids][: slots - 1]
        for ids_of_part, start in ((begin, 0), ([tokenizer.sep_token_id], slots - 1)):
            inputs["input_ids"][row, start : start + len(ids_of_part)] = torch.tensor(ids_of_part)
            inputs["attention_mask"][row, start : start + len(ids_of_part)] = 1
    return inputs


def load_model(folder: str) -> BertModel:
    """Load a frozen BERT with eager attention, in eval mode, so without dropout."""
    model = BertModel.from_pretrained(folder, attn_implementation="eager", add_pooling_layer=False)
    return model.eval().requires_grad_(False)


def both_real(mask: Tensor) -> Tensor:
    """[batch, slot] -> [batch, query, key]: 1 where the query's and the key's slot hold a token."""
    return mask[:, :, None].float() * mask[:, None, :].float()


@torch.no_grad()
def average_attention(model: BertModel, batches: Iterable[Inputs]) -> tuple[Tensor, Tensor, Tensor]:
    """Sum and mean [layer, head, query, key] and count [query, key] of the attention matrices (PAPER section 2)."""
    total: Tensor = torch.zeros(())
    count: Tensor = torch.zeros(())
    for inputs in batches:
        pattern = both_real(inputs["attention_mask"])
        attentions = model(**inputs, output_attentions=True).attentions
        total = total + torch.stack(
            [(attention * pattern[:, None]).sum(0) for attention in attentions]
        )
        count = count + pattern.sum(0)
    return total, torch.nan_to_num(total / count), count


class SelfAttention(BertSelfAttention):
    """Stock self-attention, then constants in place of the softmax output of some heads, or mixed into all of them."""

    constants: Tensor  # [head, query, key]
    heads: list[int]  # heads that use their constant
    raw: nn.Parameter | None  # [head], the lambdas before the sigmoid; None: no mixing

    def forward(  # type: ignore[override]
        self, hidden_states: Tensor, attention_mask: Tensor | None = None, **_: object
    ) -> tuple[Tensor, Tensor]:
        if (
            attention_mask is None
        ):  # stock BERT leaves the mask out where no slot of the batch is padding
            attention_mask = hidden_states.new_zeros(
                len(hidden_states), 1, 1, hidden_states.shape[1]
            )
        per_head = (*hidden_states.shape[:2], self.num_attention_heads, self.attention_head_size)
        query = self.query(hidden_states).view(per_head).transpose(1, 2)
        key = self.key(hidden_states).view(per_head).transpose(1, 2)
        value = self.value(hidden_states).view(per_head).transpose(1, 2)

        attention = query @ key.transpose(2, 3) * self.scaling + attention_mask
        attention = self.dropout(functional.softmax(attention, dim=-1))
        pattern = both_real(attention_mask[:, 0, 0] == 0)[:, None]
        if self.raw is not None:
            constants = functional.normalize(self.constants * pattern, p=1.0, dim=-1)
            mixing = self.raw.sigmoid()[:, None, None]
            attention = mixing * attention + (1 - mixing) * constants
        elif self.heads:
            constants = functional.normalize(self.constants[self.heads] * pattern, p=1.0, dim=-1)
            attention[:, self.heads] = constants
        return (attention @ value).transpose(1, 2).reshape(hidden_states.shape), attention


def attention_modules(model: BertModel) -> list[Any]:
    """The self-attention of each layer."""
    return [layer.get_submodule("attention.self") for layer in model.encoder.layer]


def use_constants(
    model: BertModel, constants: Tensor, heads: Iterable[Sequence[int]] = (), mix: bool = False
) -> None:
    """Give the model the constants [layer, head, query, key] for `heads` (layer, head), or lambdas of 0.5 for all."""
    chosen = [(layer, head) for layer, head in heads]
    for number, attention in enumerate(attention_modules(model)):
        attention.__class__ = SelfAttention  # same parameters, the forward above
        attention.constants = constants[number].float()
        attention.heads = sorted(head for of, head in chosen if of == number)
        attention.register_parameter(
            "raw", nn.Parameter(torch.zeros(constants.shape[1])) if mix else None
        )


def lambdas(model: BertModel) -> list[nn.Parameter]:
    """Return λ before the sigmoid, one [head] per layer, of a model whose constants were set with `mix`."""
    return [attention.raw for attention in attention_modules(model)]


class Probe(nn.Module):
    """The probe for sequence tasks, on the hidden states of all layers (PAPER section 5)."""

    def __init__(self, model: BertModel, slots: int, labels: int) -> None:
        super().__init__()
        layers = model.config.num_hidden_layers + 1
        hidden = model.config.hidden_size
        self.slot_weights = nn.Parameter(torch.full((layers, slots), 1 / slots))
        self.dense = nn.Linear(layers * hidden, hidden)
        self.dropout = nn.Dropout(model.config.hidden_dropout_prob)
        self.output = nn.Linear(hidden, labels)
        for linear in (self.dense, self.output):
            nn.init.normal_(linear.weight, std=model.config.initializer_range)
            nn.init.zeros_(linear.bias)

    def forward(self, hidden_states: Sequence[Tensor], mask: Tensor) -> Tensor:
        weighted = [
            (weights * mask)[:, None] @ hidden  # [batch, 1, slot] @ [batch, slot, hidden]
            for weights, hidden in zip(self.slot_weights, hidden_states, strict=True)
        ]
        pooled = torch.tanh(self.dense(torch.cat(weighted, dim=-1).squeeze(1)))
        return self.output(self.dropout(pooled))


def logits_of(model: BertModel, probe: Probe, inputs: Inputs) -> Tensor:
    """[batch, label]"""
    hidden_states = model(**inputs, output_hidden_states=True).hidden_states
    return probe(hidden_states, inputs["attention_mask"])


def batches_of(
    inputs: Inputs, size: int, shuffled: torch.Generator | None = None
) -> Iterator[tuple[Tensor, Inputs]]:
    """Yield row indices and inputs, `size` rows at a time, in order or shuffled by the generator."""
    rows = len(inputs["input_ids"])
    order = torch.arange(rows) if shuffled is None else torch.randperm(rows, generator=shuffled)
    for batch in order.split(size):
        yield batch, {name: tensor[batch] for name, tensor in inputs.items()}


def train(
    model: BertModel,
    probe: Probe,
    batches: Iterable[tuple[Inputs, Tensor]],
    learning_rate: float,
    mix: bool = False,
) -> None:
    """Train the probe, with `mix` the lambdas too, on batches of (inputs, labels)."""
    parameters = [*probe.parameters(), *(lambdas(model) if mix else [])]
    optimiser = torch.optim.AdamW(parameters, lr=learning_rate, weight_decay=0.0)
    probe.train()
    for inputs, labels in batches:
        loss = functional.cross_entropy(logits_of(model, probe, inputs), labels)
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimiser.step()


@torch.no_grad()
def predict(model: BertModel, probe: Probe, batches: Iterable[Inputs]) -> Tensor:
    """Return the label with the highest logit for each example."""
    probe.eval()
    return torch.cat([logits_of(model, probe, inputs).argmax(-1) for inputs in batches])
