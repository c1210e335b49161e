"""Short measurements on a sample of a config's texts: the rates that `papa.jobs.planning` multiplies.

The stages' own functions run here, so that what they cost stays true when they change.
"""

from __future__ import annotations

import io
import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from papa.config import machine
from papa.config.grids import Config, is_masked
from papa.config.jobs import Job
from papa.config.parameters import Parameters
from papa.data.masking import VALIDATION, Masking
from papa.data.prepare import prepare_labels, prepare_texts
from papa.data.tokenize import tokenize_corpus
from papa.data.tokens import Tokens
from papa.data.weights import tokenizer_of
from papa.errors import InputError
from papa.files import provenance_of, read_table, write_table
from papa.jobs.pacing import clock_of, paced, processor_seconds, seconds_each, seconds_of
from papa.jobs.planning import LaidOut, Measured, Shape, Training
from papa.method.averages import average_attention, constant_matrices
from papa.method.features import probe_sizes
from papa.method.fitting import fit
from papa.method.hidden import HiddenPart, HiddenStates
from papa.method.labelled import EVALUATED_AT_ONCE, HiddenOf, Labelled
from papa.method.mlm import MaskedTraining, negative_log_perplexity
from papa.method.streaming import TrainedConstants
from papa.model.load import model_of
from papa.model.model import Model
from papa.model.replacement import Replacement

Plans = Callable[[], Replacement]
SAMPLE = 1024
"""Rows of each split that are looked at."""
STARTS = {
    "": "import papa.results.tables, pandas, pyarrow.parquet",
    "probe": "import papa.method.training, papa.method.metrics",
}
LOADING = """
import json, sys
from papa.model.load import model_of
from papa.data.weights import weights_digest
model = json.loads(sys.argv[1])
model_of(model), weights_digest(model)
"""


def measure(config: Config, jobs: Sequence[Job], say: Callable[[str], None]) -> Measured:
    """Measure what the costs of `jobs` follow from; `say` is told what is being measured.

    Models and data that are not here are fetched, as the workflow would. What cannot be had is left out, with its
    reason among the problems.
    """
    os.environ[machine.VARIABLE] = Parameters(config).machine()
    with TemporaryDirectory(prefix="papa-plan-") as folder, redirect_stderr(io.StringIO()):
        return _Measuring(config, jobs, Path(folder), say).everything()


class _Measuring:
    """The measurements of one config, and the files that its stages leave in `folder`."""

    def __init__(self, config: Config, jobs: Sequence[Job], folder: Path, say: Callable[[str], None]):
        self.config, self.jobs, self.folder, self.say = config, jobs, folder, say
        self.parameters, self.here = Parameters(config), machine.current()
        self.rows: dict[str, dict[str, int]] = {}
        """Rows of each split of each corpus."""
        self.sampled: dict[str, Tensor] = {}
        self.reading: dict[str, float] = {}
        self.models: dict[str, Shape] = {}
        self.layouts: dict[tuple[str, str], LaidOut] = {}
        self.trainings: dict[tuple[str, str, str], Training] = {}
        self.problems: dict[str, str] = {}
        self.device = "cpu"

    def everything(self) -> Measured:
        self.say("Measuring how long a job takes to start")
        start = {kind: processor_seconds(code) for kind, code in STARTS.items()}
        for corpus in self._of("corpus", rule="prepare_texts"):
            self._try(f"corpus {corpus}", self._sample_texts, corpus)
        for task in self._of("task", rule="prepare_labels"):
            self._try(f"task {task}", self._sample_labels, task)
        for model in self._of("model"):
            if model:
                self._try(f"model {model}", self._measure_model, model)
        known = self.reading, self.models, self.layouts, self.trainings
        return Measured(self.device, start, *known, self.problems)

    def _of(self, name: str, **wanted: str) -> list[str]:
        """The distinct values of a wildcard among the jobs that have the wanted ones."""
        chosen = (job for job in self.jobs if all(getattr(job, key) == value for key, value in wanted.items()))
        return list(dict.fromkeys(getattr(job, name) for job in chosen))

    def _try(self, what: str, measurement: Callable[..., None], *names: Any) -> None:
        self.say(f"Measuring {what}")
        try:
            measurement(*names)
        except InputError as error:
            self.problems[what] = str(error)

    def _sample_texts(self, corpus: str) -> None:
        texts, begin = self.folder / f"{corpus}.texts", time.process_time()
        prepare_texts(self.parameters.corpus(corpus), texts)
        self.reading[corpus] = time.process_time() - begin
        about = provenance_of(read_table(texts))
        self.rows[corpus] = about["rows"]
        chance, begins = np.random.default_rng(0), 0
        numbers = []
        for rows in about["rows"].values():
            numbers.append(begins + np.sort(chance.permutation(rows)[:SAMPLE]))
            begins += rows
        self.sampled[corpus] = torch.from_numpy(np.concatenate(numbers))
        self._take_sample(corpus, texts, self._texts(corpus))

    def _sample_labels(self, task: str) -> None:
        corpus = self.config["tasks"][task]["corpus"]
        texts, labels = self.folder / f"{corpus}.texts", self.folder / f"{task}.labels"
        if corpus in self.rows:
            prepare_labels(texts=texts, labels=labels, **self.parameters.labels(task))
            self._take_sample(corpus, labels, self._labels(task))

    def _take_sample(self, corpus: str, path: Path, sample: Path) -> None:
        table = read_table(path)
        write_table(table.take(self.sampled[corpus].numpy()), sample, provenance_of(table))

    def _texts(self, corpus: str) -> Path:
        return self.folder / f"{corpus}.sampled-texts"

    def _labels(self, task: str) -> Path:
        return self.folder / f"{task}.sampled-labels"

    def _measure_model(self, model: str) -> None:
        identity, threads = self.parameters.model(model), self.here.encoder_threads
        torch.set_num_threads(threads)
        encoder = model_of(identity)
        self.device = encoder.device.type
        start = processor_seconds(LOADING, json.dumps(identity))
        self.models[model] = Shape(encoder.layers, encoder.heads, encoder.hidden, start)
        for corpus in self._of("corpus", rule="tokenize", model=model):
            if corpus.split("/")[0] in self.rows:
                self._try(f"model {model} on corpus {corpus}", self._measure_layout, model, encoder, corpus)
        for task, training in dict.fromkeys((job.task, job.training) for job in self.jobs if job.model == model):
            if training and (model, self.config["tasks"][task]["corpus"]) in self.layouts:
                masked = is_masked(self.config["tasks"][task])
                if masked or self._labels(task).exists():
                    measure = self._measure_masked if masked else self._measure_training
                    self._try(f"model {model} on task {task}", measure, model, encoder, task, training)

    def _tokens(self, model: str, corpus: str) -> Path:
        return self.folder / f"{model}.{corpus.replace('/', '.')}.tokens"

    def _measure_layout(self, model: str, encoder: Model, corpus: str) -> None:
        own = corpus.split("/")[0]
        texts, path = self._texts(own), self._tokens(model, corpus)
        lay_out = partial(tokenize_corpus, texts=texts, tokens=path, **self.parameters.layout(model, corpus))
        lay_out()  # the first time, libraries are loaded
        loading = seconds_of(lambda: tokenizer_of(self.parameters.model(model)), time.process_time)
        seconds = max(0.0, seconds_of(lay_out, time.process_time) - loading)
        splits = Tokens.read(path, *self.rows[own])
        times = {split: rows / min(rows, SAMPLE) for split, rows in self.rows[own].items()}
        train, clock = splits["train"], clock_of(encoder.device, self.here.encoder_threads)
        batches = list(train.batches(self.here.token_budget))
        chosen = [batches[number] for number in np.random.default_rng(0).permutation(len(batches))]
        matrices = constant_matrices("toeplitz", encoder.layers, encoder.heads, train.n)

        def seconds_per_token(run: Callable[[int], object]) -> float:
            number, seconds = paced(run, len(chosen), clock)
            return seconds / int(torch.cat([train.lengths[batch] for batch in chosen[:number]]).sum())

        def encode(plan: Replacement, number: int) -> None:
            with torch.inference_mode():
                for batch in chosen[:number]:
                    states = encoder.run(encoder.pack(train.batch(batch)), plan)
                    torch.isfinite(torch.stack([state.half() for state in states], dim=1).cpu()).all()

        self.layouts[model, corpus] = LaidOut(
            slots=train.n,
            examples={split: len(part) * times[split] for split, part in splits.items()},
            tokens={split: len(part.ids) * times[split] for split, part in splits.items()},
            laying_out=seconds * sum(self.rows[own].values()) / len(self.sampled[own]),
            encoding=seconds_per_token(partial(encode, encoder.replacement())),
            encoding_replaced=seconds_per_token(partial(encode, encoder.replacement(matrices))),
            averaging=seconds_per_token(lambda number: average_attention(encoder, map(train.batch, chosen[:number]))),
        )

    def _measure_training(self, model: str, encoder: Model, task: str, training: str) -> None:
        """A few steps of a probe: on stored hidden states, or through the encoder."""
        tokens = Tokens.read(self._tokens(model, self.config["tasks"][task]["corpus"]))
        splits = {split: Labelled(part, self._labels(task)) for split, part in tokens.items()}
        sizes = probe_sizes(encoder, splits["train"].tokens.n)
        probe = splits["train"].probe(sizes)
        parameters = sum(values.numel() for values in probe.parameters())
        if training == "stored":
            torch.set_num_threads(self.here.probe_threads)
            clock = clock_of(torch.device("cpu"), self.here.probe_threads)
            hidden_of = {split: self._stored(part.tokens, sizes) for split, part in splits.items()}
            beside: list[nn.Parameter] = []
        else:
            torch.set_num_threads(self.here.encoder_threads)
            clock = clock_of(encoder.device, self.here.encoder_threads)
            probe = probe.to(encoder.device)
            plan, beside = _learned(encoder, splits["train"].tokens.n, training)
            hidden_of = {split: self._through(encoder, part.tokens, plan, training) for split, part in splits.items()}
        given = self.config["tasks"][task] | {"epochs": 1}

        def loss_of(examples: Tensor) -> Tensor:
            logits, gold = splits["train"].logits(probe, examples, hidden_of["train"])
            return cross_entropy(logits, gold.to(logits.device))

        def train(number: int) -> None:
            examples = min(number * given["batch_size"], len(splits["train"]))
            generator = torch.Generator().manual_seed(0)
            fit([*probe.parameters(), *beside], loss_of, examples, given, generator, lambda epoch: {}, "measuring")

        def score(number: int) -> None:
            examples = torch.arange(min(number * EVALUATED_AT_ONCE, len(splits["validation"])))
            predicted = splits["validation"].predictions(probe, hidden_of["validation"], examples)
            splits["validation"].evaluate(given["metric"], predicted, examples)

        step = seconds_each(train, len(splits["train"]), given["batch_size"], clock)
        of_score = 0.0
        if training != "lambda":  # λ is learned on the training split alone
            of_score = seconds_each(score, len(splits["validation"]), EVALUATED_AT_ONCE, clock)
        self.trainings[model, task, training] = Training(step, of_score, parameters)

    def _measure_masked(self, model: str, encoder: Model, task: str, training: str) -> None:
        """A few steps of masked language modelling, which always go through the encoder."""
        tokens = Tokens.read(self._tokens(model, self.config["tasks"][task]["corpus"]))
        train_split, validation = tokens["train"], tokens["validation"]
        torch.set_num_threads(self.here.encoder_threads)
        clock = clock_of(encoder.device, self.here.encoder_threads)
        masking = Masking.of(tokenizer_of(self.parameters.model(model)), model)
        masked = MaskedTraining(encoder, train_split, masking, seed=0, dropout=self.config["encoder_dropout"])
        masked.begin(1)
        masks = masking.draw(validation.ids, *VALIDATION)
        plan, beside = _learned(encoder, train_split.n, training)
        given, learned = self.config["tasks"][task] | {"epochs": 1}, list(masked.probe.parameters())

        def loss_of(examples: Tensor) -> Tensor:
            return masked.loss(examples, plan())

        def train(number: int) -> None:
            examples = min(number * given["batch_size"], len(train_split))
            generator = torch.Generator().manual_seed(0)
            fit([*learned, *beside], loss_of, examples, given, generator, lambda epoch: {}, "measuring")

        def score() -> None:
            negative_log_perplexity(masked.probe, encoder, plan(), validation, masks)

        step = seconds_each(train, len(train_split), given["batch_size"], clock)
        of_score = 0.0 if training == "lambda" else seconds_of(score, clock) / len(validation)
        parameters = sum(values.numel() for values in learned)
        self.trainings[model, task, training] = Training(step, of_score, parameters)

    def _through(self, encoder: Model, tokens: Tokens, plan: Callable[[], Replacement], training: str) -> HiddenOf:
        dropout = self.config["encoder_dropout"] and tokens.split == "train"

        def hidden_of(examples: Tensor) -> Tensor:
            with torch.set_grad_enabled(training != "streamed" and torch.is_grad_enabled()):
                return torch.stack(encoder.run(encoder.pack(tokens.batch(examples)), plan(), dropout), dim=1)

        return hidden_of

    def _stored(self, tokens: Tokens, sizes: Mapping[str, Any]) -> HiddenOf:
        """Hidden states in a file without content, which takes no disk and is read like any other."""
        path, shape = self.folder / f"{tokens.split}.hidden", (sizes["layers"], sizes["hidden"])
        with open(path, "wb") as file:
            file.truncate(2 * len(tokens.ids) * math.prod(shape))
        part = HiddenPart(path, tokens.rows[0], sum(tokens.rows), 0, None)
        hidden = HiddenStates([part], {tokens.split: 0}, *shape)
        return lambda examples: hidden.read(examples, tokens)


def _learned(encoder: Model, slots: int, training: str) -> tuple[Plans, list[nn.Parameter]]:
    """What the layers do with their heads, and what is learned of it: a weight for each, all constants, or nothing."""
    if training == "streamed":
        return encoder.replacement, []
    matrices = constant_matrices("toeplitz", encoder.layers, encoder.heads, slots).to(encoder.device)
    if training == "lambda":
        raw = nn.Parameter(torch.zeros(encoder.layers, encoder.heads, device=encoder.device))
        return lambda: encoder.replacement(matrices, mixing=raw.sigmoid()), [raw]
    heads = [(layer, head) for layer in range(encoder.layers) for head in range(encoder.heads)]
    trained = TrainedConstants(matrices, heads).to(encoder.device)
    return lambda: encoder.replacement(trained(), heads), list(trained.parameters())
