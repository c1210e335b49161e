"""The stages of the method, each as one job made directly: `reads` in, a file out."""

from pathlib import Path

import pyarrow as pa
import pytest
import torch
from sizes import CHANNELS, HEADS, LAYERS

from papa.config.measures import MEASURES, Outcomes
from papa.config.settings import Machine
from papa.config.variant import ORIGINAL, Constant, Order, Variant
from papa.data.tokenize import _schema, tokenize_corpus, write_groups
from papa.data.tokens import Tokens
from papa.data.weights import digest_of_model, weights_digest
from papa.files import read_facts, read_table, write_table
from papa.method.averaging import average_corpus
from papa.method.head_weights import learn_weights
from papa.method.objectives import GoldLabels, Labelled, ProbeSizes
from papa.method.states import store_states
from papa.method.training import fit as plain_fit
from papa.method.training import train_probes
from papa.results.finished import item_values
from papa.stages import (
    Average,
    HiddenStates,
    Job,
    LearnLambda,
    Probe,
    ProbeEncoder,
    Tokenize,
    Training,
)

TRAINING = Training(learning_rate=1e-2, batch_size=5, epochs=3)
MACHINE = Machine(device="cpu", token_budget=37)
TEXTS = pytest.mark.parametrize("corpus", ["text"], indirect=True)
"""Marks a test that does not depend on whether texts or words have the labels."""


def training(**changes):
    return TRAINING.model_copy(update=changes)


def job(settings, output, model=None, machine=None, variant="original", **reads):
    """A job that writes to a path; an input is a path, or None if there is none."""
    reads = {name: str(path) for name, path in reads.items() if path is not None}
    inputs = {name: name for name in reads}
    if model is not None:
        reads |= {"model": str(model), "checks": str(Path(model).parent / "check")}
        inputs["model"] = digest_of_model(str(model), weights_digest(str(model), "tiny"))
    about = {"model": "tiny", "task": "t", "corpus": "c"}
    return Job(
        settings,
        settings.record(inputs),
        reads,
        str(output),
        about,
        "label t",
        variant_of(variant),
        machine or MACHINE,
    )


def write_texts(folder, **texts):
    rows = {split: len(lines) for split, lines in texts.items()}
    records = [
        {"split": split, "row": row, "first": text}
        for split, lines in texts.items()
        for row, text in enumerate(lines)
    ]
    facts = {"rows": rows, "rows_available": rows}
    write_table(pa.Table.from_pylist(records), folder / "texts.parquet", facts)


def lay_out(model, folder, slots, name="tokens", blocks=False):
    """Lay out the texts in a folder; returns the path of the tokens."""
    path = folder / f"{name}.parquet"
    settings = Tokenize(slots=slots, layout="paper", blocks=blocks)
    tokenize_corpus([job(settings, path, model, texts=folder / "texts.parquet")])
    return path


def write_tokens(folder, slots=7, **rows):
    """Write random tokens that fill all slots; returns the ids `[row, slot]` of all splits."""
    generator = torch.Generator().manual_seed(1)
    schema = _schema(words=False)
    parts = []
    for split, number in rows.items():
        ids = torch.randint(4, 50, (number, slots), generator=generator).tolist()
        columns = {
            "split": [split] * number,
            "row": list(range(number)),
            "ids": ids,
            "cut": [0] * number,
            "slots": [list(range(slots))] * number,
            "segments": [[0] * slots] * number,
        }
        parts.append(pa.Table.from_pydict(columns, schema))
    write_groups(
        parts,
        schema,
        folder / "tokens.parquet",
        {"slots": slots, "style": "contiguous", "rows": rows},
    )
    return torch.tensor([ids for part in parts for ids in part["ids"].to_pylist()])


def dense(packed):
    """A packed batch as `papa.lay_out` would give it."""
    values = {"input_ids": packed.ids, "attention_mask": torch.ones_like(packed.ids)}
    return {
        name: packed.unpack(row)
        for name, row in (values | {"token_type_ids": packed.segments}).items()
    }


def average(model, tokens, constants, precision="float32", kind="average"):
    return average_corpus(
        [job(Average(kind=kind, precision=precision), constants, model, tokens=tokens)]
    )


def kind_of(reads, metric=None):
    """The name of the kind of task that these inputs make, unless a metric says it."""
    if metric is not None:
        return MEASURES[metric].target.name
    if reads.get("labels") is None:
        return "masked"
    return "word" if "words" in read_table(reads["tokens"]).column_names else "text"


def learn(model, lambdas, how=TRAINING, constant="average", metric=None, **more):
    """Learn λ; `more` are other settings, and the paths of inputs."""
    named = {
        name: more.pop(name) for name in ("seed", "encoder_dropout", "weights") if name in more
    }
    kind = kind_of(more, metric)
    start = Constant.parse(constant).start
    settings = LearnLambda(kind=kind, training=how, constant=start, **{"seed": 0} | named)
    return learn_weights([job(settings, lambdas, model, **more)])


def weigh(model, weights, how=TRAINING, **more):
    """Weigh heads by gradients."""
    return learn(model, weights, how, weights="gradient", **more)


def variant_named(path):
    """The variant with this path, such as average/lambda-0/kept-1of8."""
    if path == ORIGINAL.path:
        return ORIGINAL
    constant, *order, kept = path.split("/")
    fraction = kept.removeprefix("kept-").replace("of", "/") if order else "0"
    return Variant.of(Constant.parse(constant), Order.parse(order[0]) if order else None, fraction)


def variant_of(path, precision="float32", seed=0):
    """The settings of the hidden states of a variant."""
    variant = variant_named(path)
    constant = variant.constant
    order = variant.order
    return HiddenStates(
        constant=constant and constant.start,
        trained=variant.trained,
        order=order and order.name,
        order_seed=seed,
        fraction=str(variant.fraction),
        precision=precision,
    )


def store(model, path, variant="original", precision="float32", **reads):
    """Store hidden states; `weights` are those of an order."""
    return store_states([job(variant_of(variant, precision), path, model, **reads)])


def probe_job(
    model,
    run,
    how=TRAINING,
    seed=1,
    variant="original",
    encoder_dropout=False,
    metric=None,
    **reads,
):
    """The job of a probe: from stored `states`, or with the model."""
    drawn = {name: reads.pop(name) for name in ("sample", "cluster") if name in reads}
    stored = reads.get("states") is not None
    settings = (Probe if stored else ProbeEncoder)(
        kind=kind_of(reads, metric),
        training=how,
        seed=seed,
        encoder_dropout=encoder_dropout,
        **drawn,
    )
    return job(settings, run, None if stored else model, variant=variant, **reads)


def probe(*given, **named):
    return train_probes([probe_job(*given, **named)])


def trained(*given, **named):
    """Train a probe; returns the tensors of what was trained, which no file has."""
    state = {}

    def fit(task, *more):
        epochs = plain_fit(task, *more)
        for module in task.modules:
            state.update(module.state_dict())
        return epochs

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("papa.method.training.fit", fit)
        probe(*given, **named)
    return state


def labelled(data):
    """The objective of the task, with a fresh probe of the tiny BERT's states."""
    splits = Tokens.read(data["tokens"])
    labels = GoldLabels.read(data["labels"], "label t", splits["train"])
    return Labelled(splits, ProbeSizes(LAYERS + 1, HEADS * CHANNELS, 0.4, 0.0), labels)


def score(run, labels, metric="accuracy", split="validation"):
    """The score of a split, from the predictions of a probe and the table with the labels."""
    rows = read_table(run).to_pandas().astype({"split": str})
    table = read_table(labels)
    rows = rows[rows["split"] == split].reset_index(drop=True)
    names = read_facts(labels)["labels"]["t"]["names"]
    measure = MEASURES[metric]
    gold = item_values(table.to_pandas(), "label t", rows).to_numpy(int)
    outcomes = Outcomes(gold, rows["predicted"].to_numpy(int), rows["example"].to_numpy(), names)
    return float(measure.score(measure.counts(outcomes).sum(0)))


def nats(run):
    """The mean loss per token, from the outcomes of a probe of tokens or of a model's own head."""
    return float(read_table(run).to_pandas()["loss"].astype(float).mean())
