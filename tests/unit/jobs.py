"""The stages of the method, each as one job made directly: `paths` in, artefacts out."""

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import torch

from papa.config import stages
from papa.config.job import Job
from papa.config.measures import MEASURES
from papa.config.settings import Machine
from papa.data.tokenize import _schema, tokenize_corpus, write_groups
from papa.files import provenance_of, read_json, read_table, read_tensors, write_table
from papa.method.corpus_averages import average_corpus
from papa.method.features import extract_features
from papa.method.head_weights import train_lambda, weigh_heads
from papa.method.metrics import counts_of
from papa.method.orders import order_heads, rank_heads
from papa.method.training import train_probe

TRAINING = stages.Training(learning_rate=1e-2, batch_size=5, epochs=3)


def training(**changes):
    return TRAINING.model_copy(update=changes)


def job(stage, settings, inputs, **outputs):
    """A job; an input is a path, a list of paths, or None if there is none."""
    given = {name: paths if isinstance(paths, list) else [paths] for name, paths in inputs.items() if paths is not None}
    inputs = {name: tuple(map(str, paths)) for name, paths in given.items()}
    outputs = {name: str(path) for name, path in outputs.items()}
    return Job(stage, settings, inputs, outputs, machine=Machine.current())


def encoding(model, precision="float32"):
    identity = model if isinstance(model, stages.ModelId) else stages.ModelId(name=model)
    return stages.Encoding(model=identity, precision=precision)


def write_texts(folder, **texts):
    rows = {split: len(lines) for split, lines in texts.items()}
    columns = {
        "split": [split for split, number in rows.items() for _ in range(number)],
        "row": [row for number in rows.values() for row in range(number)],
        "first": [text for lines in texts.values() for text in lines],
    }
    about = {"fingerprint": "f", "rows": rows, "rows_available": rows}
    write_table(pa.table(columns), folder / "texts.parquet", about)


def lay_out(model, folder, slots, name="tokens", blocks=False):
    """Lay out the texts in a folder; returns the path of the tokens."""
    settings = stages.TokensOf(model=model, slots=slots, style="paper", blocks=blocks)
    path = folder / f"{name}.parquet"
    tokenize_corpus(job("tokens", settings, {"texts": folder / "texts.parquet"}, tokens=path))
    return path


def write_tokens(folder, slots=7, **rows):
    """Write random tokens that fill all slots; returns the ids `[row, slot]` of all splits."""
    generator, schema, parts = torch.Generator().manual_seed(1), _schema(words=False), []
    for split, number in rows.items():
        ids = torch.randint(4, 50, (number, slots), generator=generator).tolist()
        columns = {"split": [split] * number, "row": list(range(number)), "ids": ids, "cut": [0] * number}
        columns |= {"slots": [list(range(slots))] * number, "segments": [[0] * slots] * number}
        parts.append(pa.Table.from_pydict(columns, schema))
    facts = {"model": "tiny", "corpus": "f", "slots": slots, "style": "contiguous"}
    write_groups(parts, schema, folder / "tokens.parquet", facts | {"rows": rows, "rows_available": rows})
    return torch.tensor([ids for part in parts for ids in part["ids"].to_pylist()])


def dense(packed):
    """A packed batch as `papa.lay_out` would give it."""
    values = {"input_ids": packed.ids, "attention_mask": torch.ones_like(packed.ids)}
    return {name: packed.unpack(row) for name, row in (values | {"token_type_ids": packed.segments}).items()}


def average(model, tokens, constants, precision="float32", kind="average"):
    settings = stages.AverageOf(model=encoding(model, precision), kind=kind)
    return average_corpus(job("average", settings, {"tokens": tokens}, constants=constants))


def learn(model, lambdas, how=TRAINING, seed=0, constant="average", encoder_dropout=False, more=None, **inputs):
    """Learn λ; `more` are further settings."""
    more = {"metric": usual_metric(inputs), "encoder_dropout": encoder_dropout} | (more or {})
    settings = stages.LambdaOf(model=encoding(model), training=how, seed=seed, constant=constant, **more)
    return train_lambda(job("lambda", settings, inputs, lambdas=lambdas))


def usual_metric(inputs):
    return "accuracy" if "labels" in inputs else "negative_log_perplexity"


def weigh(model, weights, more, **inputs):
    """Weigh heads by gradients; `more` are further settings."""
    settings = {"metric": usual_metric(inputs), "encoder_dropout": False} | more
    return weigh_heads(job("weights", stages.WeightsOf(model=encoding(model), **settings), inputs, weights=weights))


def rank(lambdas, order, name="lambda-0"):
    return rank_heads(job("rank", stages.OrderFromWeights(order=name), {"lambdas": lambdas}, order=order))


def put_in_order(model, order, name, seed=0):
    settings = stages.OrderFromModel(model=encoding(model).model, order=name, seed=seed)
    return order_heads(job("order", settings, {}, order=order))


def store(model, index, variant="original", precision="float32", **inputs):
    settings = stages.HiddenOf(model=encoding(model, precision), variant=variant)
    return extract_features(job("hidden", settings, inputs, index=index, hidden=Path(index).with_suffix(".hidden")))


def probe_job(model, run, metric="accuracy", how=TRAINING, seed=1, variant="original", encoder_dropout=False, **inputs):
    more = {"seeds": (seed,) if isinstance(seed, int) else seed, "streamed": "index" not in inputs}
    more |= {"variant": variant, "encoder_dropout": encoder_dropout}
    settings = stages.ProbeOf(model=encoding(model), task="t", metric=metric, training=how, **more)
    outputs = {"runs": run, "outcomes": outcomes_of(run), "probes": Path(run).with_suffix(".safetensors")}
    return job("probe", settings, inputs, **outputs)


def outcomes_of(run):
    return Path(run).with_suffix(".outcomes.parquet")


def run_of(run, seed=1):
    (record,) = [record for record in read_json(run)["runs"] if record["seed"] == seed]
    return record


def state_of(run, seed=1):
    """The learned tensors of the probe of a seed, by name."""
    tensors, _ = read_tensors(Path(run).with_suffix(".safetensors"))
    prefix = f"seed-{seed}/"
    return {name.removeprefix(prefix): values for name, values in tensors.items() if name.startswith(prefix)}


def scores(run, metric="accuracy", split="validation"):
    """The scores of a split after each epoch, from the outcomes of a run."""
    table = read_table(outcomes_of(run))
    rows = table.filter(pc.equal(table["split"], split))
    before = sum(name.startswith(("predicted_", "loss_")) for name in table.column_names)
    names = provenance_of(table).get("label_names", ())
    counts = [counts_of(metric, rows, names, epoch) for epoch in (*range(1, before + 1), None)]
    return [float(MEASURES[metric].score(units.sum(0))) for units in counts]


def probe(*given, **named):
    return train_probe(probe_job(*given, **named))
