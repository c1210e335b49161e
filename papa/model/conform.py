"""Check code that ablates heads: a hook, or a function of another library, runs on small models with random weights.

Most checks rewrite the weights so that the right result does not change, and a certain defect shows. If queries and
keys are normalised, for example, the scale of their projections has no effect.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, cast

import torch
from torch import Tensor, nn

from papa.errors import InputError, first_line
from papa.model.check import TOLERANCE, distance
from papa.model.reference import Reference
from papa.model.replacement import Head

if TYPE_CHECKING:
    from transformers import PreTrainedModel

LAYERS, HEADS, GROUPS, WIDTH, HIDDEN = 2, 4, 2, 6, 28
"""Sizes of the models. In decoders, heads have a width of their own: 4 × 6 channels and 28 hidden units."""
SIZES = {"num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "hidden_size": HIDDEN, "vocab_size": 50}
SIZES |= {"intermediate_size": 40, "max_position_embeddings": 64, "pad_token_id": 0}
GROUPED = {"num_key_value_heads": GROUPS, "head_dim": WIDTH}
ENCODERS = ("bert",)
MODELS = (*ENCODERS, "llama", "qwen3", "gemma3_text")
"""Types of the models: an encoder, and decoders with grouped heads; the last two also normalise queries and keys."""
PROJECTIONS = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"]
PROJECTIONS_OF = {
    "bert": ["attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"]
}
PROBES: tuple[Head, ...] = ((0, 1), (1, 2))
"""Heads for the checks that do not try all heads; they are in different layers and groups."""
TOGETHER: tuple[Head, ...] = ((0, 1), (0, 3), (1, 2))
LENGTHS = (6, 3, 1)
"""Tokens of the texts."""
ROUNDING = TOLERANCE[torch.float32]

Ablation = Callable[["PreTrainedModel", int, int], object]
Pairs = list[tuple[Tensor, Tensor]]
"""Results and what they should be; empty if a check does not apply."""


class Outcome(NamedTuple):
    """The outcome of a check on a model.

    Args:
        check: name of the check.
        model: type of the model.
        verdict: "ok", "FAIL", "error", or "-" if the check does not apply.
        distance: largest distance of logits from what they should be, relative to their norm; None without a result.
        error: message of an exception.
    """

    check: str
    model: str
    verdict: str
    distance: float | None = None
    error: str = ""


@dataclass(frozen=True, repr=False)
class Conformance:
    """The outcomes of all checks; printed as a table.

    Args:
        outcomes: one for each check and model.
    """

    outcomes: tuple[Outcome, ...]

    @property
    def failed(self) -> list[str]:
        """The names of the checks that failed or raised an error on some model."""
        failed = {each.check for each in self.outcomes if each.verdict in ("FAIL", "error")}
        return [name for name in CHECKS if name in failed]

    def __repr__(self) -> str:
        models = list(dict.fromkeys(each.model for each in self.outcomes))
        verdicts = {(each.check, each.model): each.verdict for each in self.outcomes}
        rows = [[name, *(verdicts[name, model] for model in models), check.sentence] for name, check in CHECKS.items()]
        rows.insert(0, ["check", *models, "passed if"])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        messages = dict.fromkeys(f"{each.model}: {each.error}" for each in self.outcomes if each.error)
        applied = len({each.check for each in self.outcomes if each.verdict != "-"})
        return "\n".join([*lines, *messages, f"{applied - len(self.failed)} of {applied} checks passed."])


@torch.no_grad()
def conform(function: Ablation, models: Iterable[str] = MODELS) -> Conformance:
    """Check code that ablates heads on small random models: is it this head, and only this head?

    Args:
        function: called with a transformers model, a layer and a head, both counted from 0. From then on, the head's
            output must be zero wherever the model runs. It returns a handle with `remove()`, or a context manager. If
            the context manager yields a function, papa calls that instead of the model; it is called with input_ids and
            attention_mask `[example, slot]` and returns logits `[example, slot, word]`, or an output that has them.
        models: types of models: "bert", "llama", "qwen3" or "gemma3_text".

    Returns:
        The outcomes, printed as a table; `failed` names the checks that failed. An exception is an outcome too.

    Raises:
        InputError: there is no such model, or the function returns something else.

    Example:
        >>> def ablate(model, layer, head):
        ...     channels = slice(head * model.config.head_dim, (head + 1) * model.config.head_dim)
        ...     def hook(module, arguments):
        ...         heads = arguments[0].clone()
        ...         heads[..., channels] = 0
        ...         return (heads,)
        ...     return model.model.layers[layer].self_attn.o_proj.register_forward_pre_hook(hook)
        >>> papa.conform(ablate, ["llama", "qwen3"]).failed
        []
    """
    kinds = list(models)
    if unknown := [kind for kind in kinds if kind not in MODELS]:
        raise InputError(f"There is no model {unknown[0]!r} for checks; choose from {', '.join(MODELS)}.")
    if not callable(function):
        raise InputError(f"{type(function).__name__} cannot be called; expected a function of a model, layer and head.")
    stock = {kind: _random_model(kind) for kind in kinds}
    others = [(model, _logits(model, _texts())) for model in copy.deepcopy(list(stock.values()))]
    outcomes = []
    for kind, model in stock.items():
        trial = _Trial(function, model, others)
        outcomes += [trial.outcome(name, kind) for name in CHECKS]
    return Conformance(tuple(outcomes))


def _random_model(kind: str) -> PreTrainedModel:
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM

    encoder = kind in ENCODERS
    config = AutoConfig.for_model(kind, **SIZES, **({} if encoder else GROUPED))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model: PreTrainedModel = (AutoModelForMaskedLM if encoder else AutoModelForCausalLM).from_config(config).eval()
        for name, parameter in model.named_parameters():
            if "position_embeddings" in name:
                parameter.zero_()  # so padding before a text does not change it
            else:
                parameter.normal_(std=0.3)
    return model


def _texts(seed: int = 0) -> Tensor:
    """Return ids of texts without padding, `[text, slot]`."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1, SIZES["vocab_size"], (len(LENGTHS), max(LENGTHS)), generator=generator)


@contextmanager
def _ablated(function: Ablation, model: PreTrainedModel, heads: Sequence[Head]) -> Iterator[Callable[..., object]]:
    """Yield a function that runs a model with ablated heads."""
    run: Callable[..., object] = model
    with ExitStack() as stack:
        for layer, head in heads:
            handle = function(model, layer, head)
            if isinstance(handle, AbstractContextManager):
                entered: object = stack.enter_context(handle)
                run = entered if callable(entered) else model
            elif callable(remove := getattr(handle, "remove", None)):
                stack.callback(remove)
            else:
                raise InputError(
                    f"The function returned {type(handle).__name__}; it must return a handle with remove(), or a "
                    "context manager (add @contextmanager to a function that yields)."
                )
        yield run


def _logits(run: Callable[..., object], ids: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the logits of texts; all tokens are real without a mask."""
    output = run(input_ids=ids, attention_mask=torch.ones_like(ids) if mask is None else mask)
    logits = getattr(output, "logits", output)
    if not isinstance(logits, Tensor):
        raise InputError(f"The model with an ablated head returned {type(output).__name__}; it must return logits.")
    return logits.clone()


def _largest(pairs: Pairs) -> float:
    return distance([result for result, _ in pairs], [expected for _, expected in pairs])


class _Trial:
    """A function that ablates heads, a model, and other models with their logits."""

    def __init__(self, function: Ablation, model: PreTrainedModel, others: list[tuple[PreTrainedModel, Tensor]]):
        self.function, self.stock, self.others = function, model, others
        config = model.config
        self.group = HEADS // getattr(config, "num_key_value_heads", HEADS)
        self.width, self.ids = getattr(config, "head_dim", HIDDEN // HEADS), _texts()
        self.causal = config.model_type not in ENCODERS

    def outcome(self, name: str, kind: str) -> Outcome:
        check = CHECKS[name]
        try:
            pairs = check.pairs(self)
        except InputError:
            raise
        except Exception as error:  # code of users raises many types of errors
            return Outcome(name, kind, "error", error=f"{type(error).__name__}: {first_line(error)}")
        if not pairs:
            return Outcome(name, kind, "-")
        largest = _largest(pairs)
        return Outcome(name, kind, "ok" if largest <= (0 if check.exact else ROUNDING) else "FAIL", largest)

    def run(self, head: Head, ids: Tensor, mask: Tensor | None = None, model: PreTrainedModel | None = None) -> Tensor:
        """Run a fresh copy, so a function that does not restore the model fails only the check for that."""
        copied = copy.deepcopy(self.stock if model is None else model)
        with _ablated(self.function, copied, [head]) as run:
            return _logits(run, ids, mask)

    @cached_property
    def single(self) -> dict[Head, Tensor]:
        """The results with one ablated head."""
        return {(layer, head): self.run((layer, head), self.ids) for layer in range(LAYERS) for head in range(HEADS)}

    def expected(self, *heads: Head) -> Tensor:
        constants = torch.zeros(LAYERS, HEADS, self.ids.shape[1], self.ids.shape[1])
        with Reference(self.stock, constants, heads, torch.ones_like(self.ids)):
            return _logits(self.stock, self.ids)

    def weights(self, model: nn.Module) -> Iterator[list[nn.Linear]]:
        """Yield each layer's projections of queries, keys, values and outputs."""
        names = PROJECTIONS_OF.get(self.stock.config.model_type, PROJECTIONS)
        modules = [[module for path, module in model.named_modules() if path.endswith(name)] for name in names]
        yield from cast("Iterator[list[nn.Linear]]", map(list, zip(*modules, strict=True)))

    def reference(self) -> Pairs:
        return [(result, self.expected(head)) for head, result in self.single.items()]

    def effect(self) -> Pairs:
        before = _logits(self.stock, self.ids)
        changed = [distance([self.single[head]], [before]) > ROUNDING for head in PROBES]
        return [(torch.tensor(float(each)), torch.ones(())) for each in changed]

    def _unchanged(self, chosen: Callable[[int, int], bool]) -> Pairs:
        """Let only the chosen heads of a layer reach the output; without the ablated head, nothing may change."""
        pairs = []
        for layer, head in PROBES:
            model, heads = copy.deepcopy(self.stock), [other for other in range(HEADS) if chosen(head, other)]
            if not heads:
                return []
            output = list(self.weights(model))[layer][-1].weight.view(HIDDEN, HEADS, self.width)
            output[:, [other for other in range(HEADS) if other not in heads]] = 0
            pairs.append((self.run((layer, head), self.ids, model=model), _logits(model, self.ids)))
        return pairs

    def heads(self) -> Pairs:
        return self._unchanged(lambda head, other: head // self.group != other // self.group)

    def key_group(self) -> Pairs:
        return self._unchanged(lambda head, other: head // self.group == other // self.group and head != other)

    def _same(self, model: PreTrainedModel) -> Pairs:
        """Compare a model with the stock model; both compute the same."""
        return [(self.run(head, self.ids, model=model), self.single[head]) for head in PROBES]

    def channels(self) -> Pairs:
        model = copy.deepcopy(self.stock)
        for _, _, value, output in self.weights(model):  # reverse the channels within each head
            for parameter in value.parameters():
                parameter.copy_(parameter.unflatten(0, (-1, self.width)).flip(1).flatten(0, 1))
            output.weight.copy_(output.weight.unflatten(1, (-1, self.width)).flip(2).flatten(1, 2))
        return self._same(model)

    def projection(self) -> Pairs:
        model, order = copy.deepcopy(self.stock), torch.arange(HIDDEN).roll(5)
        attention = list(self.weights(model))
        heads_first = {id(each) for *inputs, _ in attention for module in inputs for each in module.parameters()}
        heads_second = {id(output.weight) for *_, output in attention}
        for parameter in model.parameters():  # permute hidden units everywhere, and no channels of heads
            for axis, size in enumerate(parameter.shape):
                if size == HIDDEN and id(parameter) not in (heads_first, heads_second)[axis]:
                    parameter.copy_(parameter.index_select(axis, order))
        return self._same(model)

    def norm(self) -> Pairs:
        model = copy.deepcopy(self.stock)
        if not any(name.endswith("q_norm") for name, _ in model.named_modules()):
            return []
        for query, key, *_ in self.weights(model):
            query.weight.mul_(2)
            key.weight.mul_(2)
        return self._same(model)

    def padding(self) -> Pairs:
        pairs, after = [], torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]
        for head in PROBES:
            texts = [text[:length] for text, length in zip(self.ids, LENGTHS, strict=True)]
            expected = torch.cat([self.run(head, text[None])[0] for text in texts])
            for real in (after, after.flip(1)):
                ids = torch.zeros_like(self.ids)
                ids[real] = torch.cat(texts)
                pairs.append((self.run(head, ids, real.long())[real], expected))
        return pairs

    def future(self) -> Pairs:
        changed = torch.cat([self.ids[:, :-1], _texts(1)[:, -1:]], dim=1)
        pairs = [(self.single[head], self.run(head, changed)) for head in PROBES if self.causal]
        return [(one[:, :-1], other[:, :-1]) for one, other in pairs]

    def together(self) -> Pairs:
        model = copy.deepcopy(self.stock)
        if _largest(self.reference()) > ROUNDING:
            return []
        with _ablated(self.function, model, TOGETHER) as run:
            # a function of another library knows only its own head
            return [(_logits(run, self.ids), self.expected(*TOGETHER))] if run is model else []

    def restored(self) -> Pairs:
        pairs, before = [], _logits(self.stock, self.ids)
        for stops in (False, True):
            model = copy.deepcopy(self.stock)
            with suppress(_Stop), _ablated(self.function, model, PROBES[:1]) as run:
                _logits(run, self.ids)
                if stops:
                    raise _Stop
            pairs.append((_logits(model, self.ids), before))
        return pairs

    def other_models(self) -> Pairs:
        pairs = []
        for head in PROBES:
            with _ablated(self.function, copy.deepcopy(self.stock), [head]) as run:
                _logits(run, self.ids)
                pairs += [(_logits(other, self.ids), before) for other, before in self.others]
        return [*pairs, *((_logits(other, self.ids), before) for other, before in self.others)]


class _Stop(Exception):
    """An error of the user while a head is ablated."""


class Check(NamedTuple):
    """A check: when it is passed, what it compares, and whether rounding is a failure."""

    sentence: str
    pairs: Callable[[_Trial], Pairs]
    exact: bool = False


CHECKS = {
    "reference": Check("the result is that of papa's reference", _Trial.reference),
    "effect": Check("the result changes", _Trial.effect),
    "heads": Check("no head with other keys changes, in any layer", _Trial.heads),
    "group": Check("no head with the same keys changes", _Trial.key_group),
    "channels": Check("whole heads are written, not channels of several", _Trial.channels),
    "projection": Check("the write is before the output projection", _Trial.projection),
    "norm": Check("queries and keys are still normalised", _Trial.norm),
    "padding": Check("a text gets the same result in a batch with padding on either side", _Trial.padding),
    "future": Check("no token sees a later one", _Trial.future),
    "together": Check("three heads can be ablated at once", _Trial.together),
    "restored": Check("the model is as before afterwards, even after an error", _Trial.restored, exact=True),
    "models": Check("no other model changes, during and afterwards", _Trial.other_models, exact=True),
}
"""The checks, in the order of the table."""
