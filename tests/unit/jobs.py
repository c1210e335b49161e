"""The stages of the method, each as one job made directly: `paths` in, artefacts out."""

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import torch

from papa.config.job import Job
from papa.config.measures import MEASURES
from papa.config.settings import Machine
from papa.config.stages import (
    AverageOf,
    Encoding,
    HiddenOf,
    LambdaOf,
    MergeOf,
    ModelId,
    OrderFromModel,
    OrderFromWeights,
    ProbeOf,
    TokensOf,
    Training,
    WeightsOf,
)
from papa.data.tokenize import _schema, tokenize_corpus, write_groups
from papa.files import provenance_of, read_json, read_table, read_tensors, write_table
from papa.method.corpus_averages import average_corpus, merge_averages
from papa.method.features import extract_features
from papa.method.head_weights import train_lambda, weigh_heads
from papa.method.metrics import counts_of
from papa.method.orders import order_heads, rank_heads
from papa.method.training import train_probe

TRAINING = Training(learning_rate=1e-2, batch_size=5, epochs=3)


def training(**changes):
    return TRAINING.model_copy(update=changes)


def job(stage, settings, inputs, **outputs):
    """A job; an input is a path, a list of paths, or None if there is none."""
    given = {name: paths if isinstance(paths, list) else [paths] for name, paths in inputs.items() if paths is not None}
    inputs = {name: tuple(map(str, paths)) for name, paths in given.items()}
    outputs = {name: str(path) for name, path in outputs.items()}
    return Job(stage, settings, inputs, outputs, machine=Machine.current())


def encoding(model, precision="float32"):
    return Encoding(model=model if isinstance(model, ModelId) else ModelId(name=model), precision=precision)


def write_texts(folder, **texts):
    """Write the texts of each split as the table of a corpus."""
    rows = {split: len(own) for split, own in texts.items()}
    columns = {
        "split": [split for split, number in rows.items() for _ in range(number)],
        "row": [row for number in rows.values() for row in range(number)],
        "first": [text for own in texts.values() for text in own],
    }
    about = {"fingerprint": "f", "rows": rows, "rows_available": rows}
    write_table(pa.table(columns), folder / "texts.parquet", about)


def lay_out(model, folder, slots, name="tokens", blocks=False):
    """Lay out the texts in a folder; returns the path of the tokens."""
    settings = TokensOf(model=model, slots=slots, style="paper", segments="aligned", blocks=blocks)
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
    facts = {"model": "tiny", "corpus": "f", "slots": slots, "style": "contiguous", "segments": "aligned"}
    write_groups(parts, schema, folder / "tokens.parquet", facts | {"rows": rows, "rows_available": rows})
    return torch.tensor([ids for part in parts for ids in part["ids"].to_pylist()])


def dense(packed):
    """A packed batch as `papa.lay_out` would give it."""
    values = {"input_ids": packed.ids, "attention_mask": torch.ones_like(packed.ids)}
    return {name: packed.unpack(own) for name, own in (values | {"token_type_ids": packed.segments}).items()}


def average(model, tokens, constants, part="1of1", precision="float32", kind="average"):
    settings = AverageOf(model=encoding(model, precision), part=part, kind=kind)
    return average_corpus(job("average", settings, {"tokens": tokens}, constants=constants))


def merge(parts, constants):
    return merge_averages(job("average", MergeOf(), {"parts": parts}, constants=constants))


def learn(model, lambdas, how=TRAINING, seed=0, constant="average", encoder_dropout=False, told=None, **inputs):
    """`told` are further settings."""
    settings = LambdaOf(
        model=encoding(model),
        training=how,
        seed=seed,
        constant=constant,
        encoder_dropout=encoder_dropout,
        **({"metric": usual_metric(inputs)} | (told or {})),
    )
    return train_lambda(job("lambda", settings, inputs, lambdas=lambdas))


def usual_metric(inputs):
    return "accuracy" if "labels" in inputs else "negative_log_perplexity"


def weigh(model, weights, by, told=None, **inputs):
    """`told` are further settings."""
    settings = WeightsOf(model=encoding(model), by=by, **({"training": Training.none()} | (told or {})))
    if settings.seed is not None and settings.metric is None:
        settings = settings.model_copy(update={"metric": usual_metric(inputs)})
    return weigh_heads(job("weights", settings, inputs, weights=weights))


def rank(lambdas, order, name="lambda-0"):
    return rank_heads(job("rank", OrderFromWeights(order=name), {"lambdas": lambdas}, order=order))


def put_in_order(model, order, name, seed=0, unit="head"):
    settings = OrderFromModel(model=encoding(model).model, order=name, seed=seed, unit=unit)
    return order_heads(job("order", settings, {}, order=order))


def store(model, index, variant="original", part="1of1", precision="float32", **inputs):
    settings = HiddenOf(model=encoding(model, precision), variant=variant, part=part)
    return extract_features(job("hidden", settings, inputs, index=index, hidden=Path(index).with_suffix(".hidden")))


def probe_job(model, run, metric="accuracy", how=TRAINING, seed=1, variant="original", encoder_dropout=False, **inputs):
    settings = ProbeOf(
        model=encoding(model),
        task="t",
        metric=metric,
        training=how,
        seeds=(seed,) if isinstance(seed, int) else seed,
        variant=variant,
        encoder_dropout=encoder_dropout,
        streamed="index" not in inputs,
    )
    outputs = {"runs": run, "outcomes": outcomes_of(run), "probes": Path(run).with_suffix(".safetensors")}
    return job("probe", settings, inputs, **outputs)


def outcomes_of(run):
    """The file of the outcomes beside a run."""
    return Path(run).with_suffix(".outcomes.parquet")


def run_of(run, seed=1):
    """What a run says of itself."""
    (found,) = [own for own in read_json(run)["runs"] if own["seed"] == seed]
    return found


def state_of(run, seed=1):
    """What the probe of a seed has learned, by name."""
    tensors, _ = read_tensors(Path(run).with_suffix(".safetensors"))
    own = f"seed-{seed}/"
    return {name.removeprefix(own): values for name, values in tensors.items() if name.startswith(own)}


def scores(run, metric="accuracy", split="validation"):
    """The scores of a split after each epoch, from the outcomes beside a run."""
    table = read_table(outcomes_of(run))
    own = table.filter(pc.equal(table["split"], split))
    before = sum(name.startswith(("predicted_", "loss_")) for name in table.column_names)
    names = provenance_of(table).get("label_names", ())
    counts = [counts_of(metric, own, names, epoch) for epoch in (*range(1, before + 1), None)]
    return [float(MEASURES[metric].score(own.sum(0))) for own in counts]


def probe(*given, **named):
    return train_probe(probe_job(*given, **named))
