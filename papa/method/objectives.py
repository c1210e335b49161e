"""What is measured: a probe that reads labels or guesses masked tokens (paper, Sec. 4), or the model's own head.

An objective says which tokens it needs of each batch, what the loss of a batch is, and what became of every example
that is scored: its outcomes, of which all scores are made later. It does not know where hidden states come from: from a
store, or through the model. The head of a decoder, which guesses every next token, takes the place of a probe, of texts
and of the choices of questions: then logits come through the model, and nothing is trained.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction, FunctionCtx, once_differentiable
from torch.nn.functional import cross_entropy, pad

from papa.config.settings import Machine
from papa.config.stages import LambdaOf, ProbeOf, WeightsOf
from papa.config.study import Job
from papa.data.masking import VALIDATION, Masking, Masks, masked_batch
from papa.data.packed import Packed
from papa.data.tokenize import tokenizer_of
from papa.data.tokens import Tokens, whole_numbers
from papa.errors import DamagedArtefact, InputError
from papa.files import JSON, MEND, PathLike, provenance_of, read_table
from papa.method.fitting import Kept
from papa.method.probes import MlmProbe, SequenceProbe, Sizes, TokenProbe, activation_of, spread_of
from papa.model.linear import linear
from papa.model.model import Model
from papa.model.replacement import Replacement

if TYPE_CHECKING:
    import pyarrow as pa

OUTCOMES = """
Columns of outcomes: `seed`, that of the probe; `split`; `example`, the number of a row in its split; for labels `gold`
and `predicted`, indices of the label names, and for labels of words `word`, the number of the word in its row; for
questions these are indices of choices, `normalised` is the choice that is predicted by log-likelihood per character,
and `trivial` is how much of this question a guess gets right that knows none; for masked or next tokens `tokens`, their
summed `loss` in nats, and that of a guess that ignores the text, `trivial`; for next tokens `kl`, the Kullback-Leibler
divergence of what is guessed from what the original guesses, in nats, likewise summed. `predicted` and `loss` are those
after the last epoch, and those after epoch N are called `predicted_N` and `loss_N`.
"""
IGNORED = -100
"""The label of a token that has none."""
IDLE = -1
EVALUATED_AT_ONCE = 64
"""Examples whose labels are predicted together."""
DECODED_AT_ONCE = 256
"""Tokens that are decoded together, because each has as many logits as the vocabulary has words."""
ROWS = 64
"""Masked tokens are rounded up to a multiple: where oneDNN multiplies, it keeps a kernel for every number it meets."""


@dataclass(frozen=True)
class Batch:
    """Examples of a split, and what a probe reads of them.

    Args:
        tokens: the split.
        examples: int64 `[example]`, their numbers there.
        packed: their packed row, as the model reads it.
        gold: int64, what is right: `[example]`, or `[place]` if there are places.
        places: int64 `[place]`, the tokens of the row whose hidden states are read; None stands for all.
    """

    tokens: Tokens
    examples: Tensor
    packed: Packed
    gold: Tensor
    places: Tensor | None = None


States = Callable[[Batch], Tensor]
"""From a batch to the hidden states of its places, float32 `[place, L+1, hidden]`; or to logits `[token, word]`."""


@dataclass(frozen=True)
class Through:
    """Hidden states that the model computes when they are asked for.

    Args:
        model: the frozen model.
        replacement: what its layers do with their heads now.
        dropout: whether the model drops while training examples pass.
        rounded: whether hidden states go through float16 as stored ones do; nothing is then learned through them.
        direct: whether the model's own head makes logits of them.
    """

    model: Model
    replacement: Callable[[], Replacement]
    dropout: bool = False
    rounded: bool = False
    direct: bool = False

    def __call__(self, batch: Batch) -> Tensor:
        """Float32 `[place, L+1, hidden]`, or `[token, word]` by the model's own head, on the model's device."""
        dropout = self.dropout and batch.tokens.split == "train"
        if self.direct:
            return self.model.scores(self.model.pack(batch.packed), self.replacement(), dropout).float()
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.rounded):
            states = self.model.run(self.model.pack(batch.packed), self.replacement(), dropout)
        if batch.places is not None:
            places = batch.places.to(self.model.device)
            states = [state.index_select(0, places) for state in states]
        hidden = torch.stack(states, dim=1)
        return hidden.half().float() if self.rounded else hidden.float()


class Objective(ABC):
    """What is measured on the splits of a corpus, and the new probe that is trained for it, if there is one."""

    probe: nn.Module
    splits: Mapping[str, Tokens]

    @property
    def examples(self) -> int:
        """How many training examples there are."""
        return len(self.splits["train"])

    @property
    def facts(self) -> dict[str, JSON]:
        """What outcomes say of the objective."""
        return {}

    def begin(self, epoch: int) -> None:  # noqa: B027  nothing to do if examples are the same in every epoch
        """Make ready for an epoch, counted from 1."""

    @abstractmethod
    def batch(self, examples: Tensor) -> Batch:
        """Training examples, by their numbers."""

    @abstractmethod
    def loss(self, batch: Batch, hidden: Tensor) -> Tensor:
        """The mean loss of a batch; 0 if there is nothing to learn in it."""

    @abstractmethod
    def scored(self) -> Iterator[Batch]:
        """All examples that are scored, batch by batch, those of a split in their order."""

    @abstractmethod
    def outcomes(self, batch: Batch, hidden: Tensor) -> Tensor:
        """What became of a batch that is scored: a number for each of its labels or texts, one-dimensional."""

    @abstractmethod
    def table(self, epochs: Sequence[Kept]) -> pa.Table:
        """The outcomes of all examples that are scored, after every epoch; for its columns see `OUTCOMES`."""

    def loss_on(self, states: States) -> Callable[[Tensor], Tensor]:
        """From numbers of training examples to their mean loss on these hidden states."""

        def loss(examples: Tensor) -> Tensor:
            batch = self.batch(examples)
            return self.loss(batch, states(batch))

        return loss

    def outcomes_on(self, states: States) -> Kept:
        """What the probe makes of all that is scored, by split."""
        found: dict[str, list[Tensor]] = {}
        self.probe.eval()
        with torch.inference_mode():
            for batch in self.scored():
                found.setdefault(batch.tokens.split, []).append(self.outcomes(batch, states(batch)).cpu())
        self.probe.train()
        return {split: torch.cat(parts) for split, parts in found.items()}


def objective_of(
    job: Job[LambdaOf] | Job[ProbeOf] | Job[WeightsOf],
    splits: Mapping[str, Tokens],
    sizes: Sizes,
    model: Model | None,
    seed: int,
) -> Objective:
    """The objective of a job with a new probe: labelled, or if it has no labels next or masked tokens, or choices.

    Args:
        job: may read `labels`.
        splits: the tokens of all splits.
        sizes: of the model whose hidden states are read.
        model: that model; None if hidden states are stored.
        seed: what masks follow from.
    """
    labels, identity = job.maybe("labels"), job.settings.model.model
    if labels is not None and not job.settings.direct:
        found: Objective = Labelled(splits, sizes, Labels.read(splits, labels))
    elif model is None:
        raise InputError("A task without a probe of labels needs the model; stream the hidden states.")
    elif splits["train"].questions is not None:
        found = Choice(splits, model, labels)
    elif job.settings.direct:
        found = Next(splits, model)
    elif model.causal:
        raise InputError(
            f"Model {identity.name} sees no later tokens, so that it cannot guess masked ones from both sides; "
            "measure it by log_likelihood, or leave it out of masked language modelling."
        )
    else:
        found = Masked(splits, model, Masking.of(tokenizer_of(identity), identity.name), seed)
    if model is not None:
        found.probe.to(model.device)
    return found


# -- labels -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Labels:
    """What is right for the examples of each split, or for their words.

    Args:
        values: int64 by split, indices of names: `[example]`, or `[token]` with IGNORED where a token has no label.
        names: what the labels are called.
    """

    values: Mapping[str, Tensor]
    names: Sequence[str]

    @classmethod
    def read(cls, splits: Mapping[str, Tokens], path: PathLike) -> Labels:
        """The labels of all splits from their file; raises `DamagedArtefact` if they are those of other texts."""
        values, facts = _labels_of(splits, path)
        return cls(values, facts["label_names"])


class Labelled(Objective):
    """One label for each text, or one for each word on its first sub-token.

    Args:
        splits: the tokens of all splits.
        sizes: of the model whose hidden states are read.
        labels: what is right.
    """

    probe: SequenceProbe | TokenProbe

    def __init__(self, splits: Mapping[str, Tokens], sizes: Sizes, labels: Labels):
        self.splits, self.labels, self.names = splits, labels.values, list(labels.names)
        self.of_words = splits["train"].words is not None
        given = sizes.hidden, len(self.names)
        if self.of_words:
            self.probe = TokenProbe(sizes.layers, *given, sizes.initializer_range)
        else:
            self.probe = SequenceProbe(sizes.layers, sizes.slots, *given, sizes.probe_dropout, sizes.initializer_range)

    @property
    def facts(self) -> dict[str, JSON]:
        """The names of the labels."""
        return {"label_names": self.names}

    def batch(self, examples: Tensor) -> Batch:
        return self._batch("train", examples)

    def loss(self, batch: Batch, hidden: Tensor) -> Tensor:
        if not len(batch.gold):  # the mean over no word is no number
            return 0 * (hidden.sum() + torch.stack([values.sum() for values in self.probe.parameters()]).sum())
        return cross_entropy(self._logits(batch, hidden), batch.gold.to(hidden.device))

    def scored(self) -> Iterator[Batch]:
        for split, tokens in self.splits.items():
            if split != "train":
                for examples in torch.arange(len(tokens)).split(EVALUATED_AT_ONCE):
                    yield self._batch(split, examples)

    def outcomes(self, batch: Batch, hidden: Tensor) -> Tensor:
        """The label that the probe gives to each example, or to each labelled word."""
        return self._logits(batch, hidden).argmax(-1) if len(batch.gold) else batch.gold

    def table(self, epochs: Sequence[Kept]) -> pa.Table:
        """A row for each example, or for each labelled word, with its label and what it was taken for."""
        import pyarrow as pa

        parts = []
        for split, tokens in self.splits.items():
            if split == "train":
                continue
            labels = self.labels[split]
            own = labels != IGNORED
            columns = {"example": torch.arange(len(tokens))}
            if tokens.words is not None:
                columns = {
                    "example": columns["example"].repeat_interleave(tokens.lengths)[own],
                    "word": tokens.words[own],
                }
            columns |= {"gold": labels[own]} | _by_epoch("predicted", [epoch[split] for epoch in epochs])
            forms = {"example": pa.int32(), "word": pa.int32()}
            made = {name: pa.array(values.numpy(), forms.get(name, pa.int16())) for name, values in columns.items()}
            parts.append(pa.table({"split": pa.array([split] * int(own.sum())).dictionary_encode()} | made))
        return pa.concat_tables(parts).unify_dictionaries()

    def _batch(self, split: str, examples: Tensor) -> Batch:
        tokens, labels = self.splits[split], self.labels[split]
        packed = tokens.batch(examples)
        if not self.of_words:
            return Batch(tokens, examples, packed, labels[examples])
        own = labels[tokens.tokens_of(examples)]
        places = (own != IGNORED).nonzero().squeeze(1)
        return Batch(tokens, examples, packed, own[places], places)

    def _logits(self, batch: Batch, hidden: Tensor) -> Tensor:
        """Logits `[example, label]`, or `[labelled token, label]`."""
        if isinstance(self.probe, SequenceProbe):
            return self.probe.packed(hidden, batch.packed.to(hidden.device))
        return self.probe.packed(hidden)


def _labels_of(splits: Mapping[str, Tokens], labels: PathLike) -> tuple[dict[str, Tensor], dict[str, JSON]]:
    """The labels of each split, `[example]` or `[token]`, and what their file says of them."""
    table, found = read_table(labels), {}
    facts = provenance_of(table)
    _must_belong(labels, facts, splits)
    for split, tokens in splits.items():
        values = table.slice(*tokens.rows).column("label").combine_chunks()
        if tokens.words is None:
            found[split] = whole_numbers(values)
            continue
        flat, lengths = whole_numbers(values.flatten()), whole_numbers(values.value_lengths())
        begin = (lengths.cumsum(0) - lengths).repeat_interleave(tokens.lengths)
        own = flat[(begin + tokens.words).clamp(0, len(flat) - 1)]
        found[split] = torch.where((tokens.words >= 0) & (own >= 0), own, IGNORED)
    return found, facts


def _must_belong(path: PathLike, facts: Mapping[str, JSON], splits: Mapping[str, Tokens]) -> None:
    if facts.get("fingerprint") != splits["train"].provenance["corpus"]:
        raise DamagedArtefact(f"{path} is made of other texts than these tokens; {MEND}.")


# -- tokens that are guessed -------------------------------------------------------------------------------------------


class _Guessed(Objective):
    """Tokens that are guessed: each text that is scored has a loss. Without labels it is those of one split."""

    def batch(self, examples: Tensor) -> Batch:
        return self._batch("train", examples)

    def scored_splits(self) -> list[str]:
        """The splits whose texts are scored."""
        return ["validation"]

    def scored(self) -> Iterator[Batch]:
        for split in self.scored_splits():
            yield from (self._batch(split, examples) for examples in self._scored_together(split))

    def in_order(self, of_texts: Tensor, split: str = "validation") -> Tensor:
        """What became of the texts of a split, `[example, ...]` in the order of `scored`, by their numbers."""
        return of_texts[torch.cat(list(self._scored_together(split))).argsort()]

    def _scored_together(self, split: str) -> Iterator[Tensor]:
        return self.splits[split].batches(Machine.current().token_budget)

    @abstractmethod
    def _batch(self, split: str, examples: Tensor) -> Batch:
        """Examples of a split, and which of their tokens are guessed."""


class Masked(_Guessed):
    """Masked tokens, to be guessed: those of training texts are drawn anew in every epoch, from (seed, epoch).

    Only masked tokens are decoded, and never more than `DECODED_AT_ONCE` of them together, because what bounds memory
    is the vocabulary.

    Args:
        splits: the tokens of all splits.
        model: the model whose hidden states are read, and whose input embeddings the probe is tied to.
        masking: how tokens are masked.
        seed: what the masks of training texts follow from.

    Raises:
        InputError: there is a validation split, and no token of it is masked, or the model has no embeddings of words.
    """

    probe: MlmProbe

    def __init__(self, splits: Mapping[str, Tokens], model: Model, masking: Masking, seed: int):
        self.splits, self.masking, self.seed = splits, masking, seed
        self.masks: dict[str, Masks] = {}
        if "validation" in splits:
            self.masks["validation"] = masking.draw(splits["validation"].ids, *VALIDATION)
            if not self.facts["masked"]:
                raise InputError("No token of the validation split is masked: its texts are too few and too short.")
        embeddings = _embeddings_of(model)
        self.vocabulary, config = len(embeddings), model.config
        self.probe = MlmProbe(model.states, model.hidden, embeddings.float(), activation_of(config), spread_of(config))

    @property
    def facts(self) -> dict[str, JSON]:
        """How many tokens of the validation split are masked."""
        return {"masked": int(self.masks["validation"].chosen.count_nonzero())}

    def begin(self, epoch: int) -> None:
        """Draw the masks of an epoch."""
        self.masks["train"] = self.masking.draw(self.splits["train"].ids, self.seed, epoch)

    def loss(self, batch: Batch, hidden: Tensor) -> Tensor:
        """Mean cross-entropy in nats; differentiable in the probe and in `hidden`, not in the embeddings."""
        return self._summed(batch, hidden) / max(1, len(batch.gold))

    def outcomes(self, batch: Batch, hidden: Tensor) -> Tensor:
        """The loss of each text in nats, summed over its masked tokens, `[example]`."""
        assert batch.places is not None
        nats = losses(self.probe, hidden, batch.gold).double()
        text = torch.repeat_interleave(torch.arange(len(batch.examples)), batch.packed.lengths.cpu())
        return nats.new_zeros(len(batch.examples)).index_add_(0, text[batch.places.cpu()].to(nats.device), nats)

    def table(self, epochs: Sequence[Kept]) -> pa.Table:
        """A row for each text of the validation split: masked tokens, their summed loss, and that of guessing blindly.

        `trivial` is the loss of a guess from how often each token is in the training texts, with one more of each.
        Special tokens are never masked, so that they take no share.
        """
        tokens, masks = self.splits["validation"], self.masks["validation"]
        seen = torch.bincount(self.splits["train"].ids.long(), minlength=self.vocabulary).double()
        guessed = torch.zeros_like(seen).index_copy(0, self.masking.ordinary, seen[self.masking.ordinary] + 1)
        columns = _by_epoch("loss", [self.in_order(epoch["validation"]) for epoch in epochs])
        return _of_texts(tokens, masks.chosen, guessed, columns)

    def _batch(self, split: str, examples: Tensor) -> Batch:
        own = masked_batch(self.splits[split], self.masks[split], examples)
        return Batch(self.splits[split], examples, own.packed, own.gold, own.places)

    def _summed(self, batch: Batch, hidden: Tensor) -> Tensor:
        """Cross-entropy in nats of guessing the gold from `hidden` `[masked, L+1, hidden]`, summed over tokens."""
        return summed_loss(self.probe, hidden, batch.gold)


def _embeddings_of(model: Model) -> Tensor:
    """The input embeddings of a model, `[word, size]`; raises `InputError` if it has none."""
    try:
        weight = model.model.get_input_embeddings().weight
    except (AttributeError, NotImplementedError):  # a module of several tables, or none that transformers knows of
        weight = None
    if not isinstance(weight, Tensor) or weight.ndim != 2:
        raise InputError(
            f"{type(model.model).__name__} has no table of input embeddings, to which the probe of masked tokens is "
            "tied; leave it out of masked language modelling."
        )
    return weight


class Next(_Guessed):
    """Next tokens, guessed by the model's own head from those before: nothing is trained.

    The first token of a text has none before it, and is not guessed; every other token is, special ones too.

    Args:
        splits: the tokens of all splits.
        model: a causal model with its head.

    Raises:
        InputError: the model sees later tokens, or no validation text has two tokens.
    """

    def __init__(self, splits: Mapping[str, Tokens], model: Model):
        _must_be_causal(model, "log_likelihood needs a decoder, and negative_log_perplexity masks tokens")
        if "validation" in splits and not bool((splits["validation"].lengths > 1).any()):
            raise InputError("No text of the validation split has a next token: each is one token long.")
        self.splits, self.model, self.probe = splits, model, nn.Identity()

    def loss(self, batch: Batch, hidden: Tensor) -> Tensor:
        """Mean cross-entropy in nats; differentiable in the logits `hidden` `[token, word]`."""
        guessed = (batch.gold != IGNORED).sum().clamp(min=1)
        return cross_entropy(hidden, batch.gold.to(hidden.device), ignore_index=IGNORED, reduction="sum") / guessed

    def outcomes(self, batch: Batch, hidden: Tensor) -> Tensor:
        """The summed loss of each text, and its divergence from the original, in nats: `[example, 2]`."""
        original, gold = self.model.scores(self.model.pack(batch.packed)).float(), batch.gold.to(hidden.device)
        text = torch.repeat_interleave(batch.packed.lengths).to(hidden.device)
        found = hidden.new_zeros(len(batch.examples), 2, dtype=torch.float64)
        for rows in torch.arange(len(gold), device=hidden.device).split(DECODED_AT_ONCE):
            own = rows[gold[rows] != IGNORED]
            guess, first = hidden[own].log_softmax(-1), original[own].log_softmax(-1)
            loss = -guess.gather(1, gold[own, None]).squeeze(1)
            divergence = (first.exp() * (first - guess)).sum(-1)
            found.index_add_(0, text[own], torch.stack([loss, divergence], dim=1).double())
        return found

    def table(self, epochs: Sequence[Kept]) -> pa.Table:
        """A row for each text of the validation split: its guessed tokens, their summed loss and divergence.

        `trivial` is the loss of a guess from how often each token is in the training texts, with one more of each.
        """
        tokens, train = self.splits["validation"], self.splits["train"]
        words = int(self.model.config.get_text_config().vocab_size)
        seen = torch.bincount(train.ids[_has_before(train)].long(), minlength=words).double()
        loss, kl = self.in_order(epochs[-1]["validation"]).unbind(1)
        return _of_texts(tokens, _has_before(tokens), seen + 1, {"loss": loss, "kl": kl})

    def _batch(self, split: str, examples: Tensor) -> Batch:
        tokens = self.splits[split]
        packed = tokens.batch(examples)
        return Batch(tokens, examples, packed, _next_tokens(packed))


class Choice(_Guessed):
    """Choices behind their questions, of which the model's own head finds one the most likely: nothing is trained.

    The likelihood of a choice is that of its tokens given the question. The loss is the cross-entropy in nats of the
    right choice among those of its question, to which they are as likely as the softmax of their log-likelihoods says.
    Training examples are questions; choices are scored one by one.

    Args:
        splits: the tokens of all splits, which are of choices.
        model: a causal model with its head.
        labels: the file that says which choices are right; if there is none, the first of each question is.

    Raises:
        InputError: the model sees later tokens.
        DamagedArtefact: labels are those of other texts.
    """

    def __init__(self, splits: Mapping[str, Tokens], model: Model, labels: PathLike | None):
        _must_be_causal(model, "choice_accuracy needs a decoder")
        self.splits, self.model, self.probe = splits, model, nn.Identity()
        self.questions = {split: tokens.questions for split, tokens in splits.items() if tokens.questions is not None}
        self.right = {split: torch.zeros(len(own), dtype=torch.long) for split, own in self.questions.items()}
        self.usual: int | None = None
        """The choice that is right most often in training; None if nothing says so."""
        if labels is not None:
            self.right, self.usual = _right_choices(splits, labels)

    @property
    def facts(self) -> dict[str, JSON]:
        """Numbers of choices as names of labels, as many as the largest question has."""
        most = max(int(own.sizes.max()) for own in self.questions.values())
        return {"label_names": [str(number) for number in range(most)]}

    @property
    def examples(self) -> int:
        """How many training questions there are."""
        return len(self.questions["train"])

    def batch(self, examples: Tensor) -> Batch:
        """All choices of some training questions, by the numbers of the questions."""
        return self._batch("train", self.questions["train"].choices_of(examples))

    def loss(self, batch: Batch, hidden: Tensor) -> Tensor:
        """Mean cross-entropy in nats of the right choices; differentiable in the logits `hidden` `[token, word]`."""
        split = batch.tokens.split
        questions, sizes = self.questions[split].question[batch.examples].unique_consecutive(return_counts=True)
        likely = _by_question(self._log_likelihoods(batch, hidden), sizes)
        return cross_entropy(likely, self.right[split][questions].to(likely.device))

    def scored_splits(self) -> list[str]:
        return [split for split in self.splits if split != "train"]

    def outcomes(self, batch: Batch, hidden: Tensor) -> Tensor:
        """The log-likelihood of each choice in nats, `[example]`."""
        return self._log_likelihoods(batch, hidden).double()

    def table(self, epochs: Sequence[Kept]) -> pa.Table:
        """A row for each question: which choice is right, and which is the most likely, in all and per character.

        `trivial` is 1 if the choice that is right most often in the training rows is right here too, and else 0; if
        nothing says which that is, one divided by the number of choices.
        """
        import pyarrow as pa

        parts = []
        for split in self.scored_splits():
            own, right = self.questions[split], self.right[split]
            likely = self.in_order(epochs[-1][split], split)
            columns = {
                "example": torch.arange(len(own)),
                "gold": right,
                "trivial": 1 / own.sizes.double() if self.usual is None else (right == self.usual).double(),
                "predicted": _taken(_by_question(likely, own.sizes), right),
                "normalised": _taken(_by_question(likely / own.characters, own.sizes), right),
            }
            forms = {"example": pa.int32(), "trivial": pa.float64()}
            made = {name: pa.array(values.numpy(), forms.get(name, pa.int16())) for name, values in columns.items()}
            parts.append(pa.table({"split": pa.array([split] * len(own)).dictionary_encode()} | made))
        return pa.concat_tables(parts).unify_dictionaries()

    def _batch(self, split: str, examples: Tensor) -> Batch:
        tokens = self.splits[split]
        packed = tokens.batch(examples)
        first = packed.lengths.cumsum(0) - packed.lengths + self.questions[split].begin[examples]
        of_choice = torch.arange(len(packed.ids)) >= (first - 1).repeat_interleave(packed.lengths)
        return Batch(tokens, examples, packed, _next_tokens(packed).where(of_choice, IGNORED))

    def _log_likelihoods(self, batch: Batch, hidden: Tensor) -> Tensor:
        """The log-likelihoods of choices in nats, summed over their tokens, `[example]`."""
        gold = batch.gold.to(hidden.device)
        own = (gold != IGNORED).nonzero().squeeze(1)
        choice = torch.repeat_interleave(batch.packed.lengths).to(hidden.device)[own]
        parts = [cross_entropy(hidden[rows], gold[rows], reduction="none") for rows in own.split(DECODED_AT_ONCE)]
        nats = torch.cat(parts)
        return nats.new_zeros(len(batch.examples)).index_add(0, choice, -nats)


def _right_choices(splits: Mapping[str, Tokens], labels: PathLike) -> tuple[dict[str, Tensor], int]:
    """Which choice of each question is right, `[question]` by split, and which is most often in the training rows."""
    import pyarrow.compute as pc

    table = read_table(labels)
    facts = provenance_of(table)
    _must_belong(labels, facts, splits)
    rows = {split: table.filter(pc.equal(table["split"], split)) for split in splits}
    right = {split: whole_numbers(own.column("label").combine_chunks()).long() for split, own in rows.items()}
    counts = list(facts["train_counts"])
    return right, counts.index(max(counts))


def _by_question(values: Tensor, sizes: Tensor) -> Tensor:
    """A value of each choice as `[question, choice]`, -inf where a question has no such choice.

    Args:
        values: `[example]`, one question after another.
        sizes: how many choices each of the questions has, `[question]`.
    """
    there = torch.arange(int(sizes.max())) < sizes[:, None]
    return values.new_full(there.shape, -torch.inf).masked_scatter(there.to(values.device), values)


def _taken(likely: Tensor, right: Tensor) -> Tensor:
    """The most likely choice of each question; where the right one is no likelier than another, that other.

    Args:
        likely: how likely each choice is, `[question, choice]`.
        right: the right one, `[question]`.
    """
    own = right[:, None]
    best, other = likely.scatter(1, own, -torch.inf).max(1)
    return torch.where(likely.gather(1, own).squeeze(1) > best, right, other)


def _must_be_causal(model: Model, needed: str) -> None:
    if not model.causal:
        raise InputError(
            f"{type(model.full).__name__} sees later tokens, so that it cannot be asked for the next one; {needed}."
        )


def _next_tokens(packed: Packed) -> Tensor:
    """The token that follows each token of a packed row in its text, IGNORED after the last one, `[token]`."""
    gold = packed.ids.roll(-1)
    gold[packed.lengths.cumsum(0) - 1] = IGNORED
    return gold


def _has_before(tokens: Tokens) -> Tensor:
    """The tokens of a split that have one before them in their text, bool `[token]`."""
    found = torch.ones(len(tokens.ids), dtype=torch.bool)
    found[tokens.offsets[:-1]] = False
    return found


def _of_texts(tokens: Tokens, chosen: Tensor, guessed: Tensor, columns: Mapping[str, Tensor]) -> pa.Table:
    """Outcomes with a row for each text of the validation split.

    Args:
        tokens: the split.
        chosen: the tokens that are guessed, bool `[token]`.
        guessed: how often a guess that ignores the text expects each word, `[word]`.
        columns: what became of the texts, `[example]` each.
    """
    import pyarrow as pa

    text = torch.arange(len(tokens)).repeat_interleave(tokens.lengths)[chosen]
    blind = -(guessed / guessed.sum()).log()[tokens.ids[chosen].long()]
    sums = torch.zeros(len(tokens), dtype=torch.float64)
    values = {
        "example": torch.arange(len(tokens)),
        "tokens": torch.bincount(text, minlength=len(tokens)),
        "trivial": sums.index_add(0, text, blind),
        **columns,
    }
    forms = {"example": pa.int32(), "tokens": pa.int32()}
    made = {name: pa.array(own.numpy(), forms.get(name, pa.float64())) for name, own in values.items()}
    return pa.table({"split": pa.array(["validation"] * len(tokens)).dictionary_encode()} | made)


def _by_epoch(name: str, epochs: Sequence[Tensor]) -> dict[str, Tensor]:
    """Columns of what the last epoch came to, and those before it with their numbers."""
    return {name: epochs[-1]} | {f"{name}_{number}": own for number, own in enumerate(epochs[:-1], start=1)}


def losses(probe: MlmProbe, hidden: Tensor, gold: Tensor) -> Tensor:
    """Cross-entropies in nats of guessing `gold` `[masked]` from `hidden` `[masked, L+1, hidden]`, each by itself."""
    idle = ROWS - len(gold) % ROWS
    rows, right = pad(hidden, (0, 0, 0, 0, 0, idle)), pad(gold.to(hidden.device), (0, idle))
    found = [
        cross_entropy(probe.packed(own), own_right, reduction="none")
        for own, own_right in zip(rows.split(DECODED_AT_ONCE), right.split(DECODED_AT_ONCE), strict=True)
    ]
    return torch.cat(found)[: len(gold)]


def summed_loss(probe: MlmProbe, hidden: Tensor, gold: Tensor) -> Tensor:
    """Cross-entropy in nats of guessing `gold` `[masked]` from `hidden` `[masked, L+1, hidden]`, summed over tokens.

    Differentiable in the probe's parameters and in `hidden`; the embeddings get no gradient.
    """
    idle = ROWS - len(gold) % ROWS
    states = probe.states(pad(hidden, (0, 0, 0, 0, 0, idle)))
    gold = pad(gold.to(hidden.device), (0, idle), value=IDLE)
    total: Tensor = _TiedCrossEntropy.apply(states, probe.embeddings, probe.bias, gold, torch.is_grad_enabled())
    return total


class _TiedCrossEntropy(torch.autograd.Function):
    """Sum of cross-entropies of a frozen decoder, over tokens whose `gold` is not IDLE.

    Gradients are made on the way forward, chunk by chunk, so that no logits have to be kept for the way back.
    """

    @staticmethod
    def forward(
        context: FunctionCtx, states: Tensor, embeddings: Tensor, bias: Tensor, gold: Tensor, learning: bool
    ) -> Tensor:
        total = torch.zeros((), dtype=torch.float64, device=states.device)
        of_states, of_bias = torch.empty_like(states), torch.zeros_like(bias)
        for begin in range(0, len(states), DECODED_AT_ONCE):
            rows = slice(begin, begin + DECODED_AT_ONCE)
            real, own = gold[rows, None] != IDLE, gold[rows, None].clamp(min=0)
            logits = linear(states[rows], embeddings).add_(bias)  # [chunk, vocabulary]
            logits.sub_(logits.logsumexp(1, keepdim=True))
            total -= logits.gather(1, own)[real].sum(dtype=torch.float64)
            if learning:
                slopes = logits.exp_().scatter_add_(1, own, logits.new_full(own.shape, -1.0)).mul_(real)
                of_states[rows] = linear(slopes, embeddings.t())
                of_bias += slopes.sum(0)
        if learning:
            context.save_for_backward(of_states, of_bias)
        return total.to(states.dtype)

    @staticmethod
    @once_differentiable
    def backward(context: BackwardCFunction, gradient: Tensor) -> tuple[Tensor | None, ...]:
        of_states, of_bias = list(context.saved_tensors)
        return gradient * of_states, None, gradient * of_bias, None, None
