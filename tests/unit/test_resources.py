"""The needs of jobs: read off footers, near what was measured, growing with what is in memory and nothing else."""

import os
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa
import pytest
from test_decoders import stock

from papa.config.job import Job
from papa.config.settings import Config, Machine
from papa.config.stages import (
    AverageOf,
    Encoding,
    HiddenOf,
    LambdaOf,
    ModelId,
    OrderFromWeights,
    ProbeOf,
    Training,
    WeightsOf,
)
from papa.data.tokenize import parameters_of_model
from papa.files import write_table
from papa.jobs.resources import (
    MB,
    START_SECONDS,
    Sizes,
    disk,
    disk_in_table,
    format_bytes,
    format_duration,
    gpu_memory_of,
    memory_of,
    memory_of_files,
    seconds,
    sizes_of,
    walltime_of,
)

MODEL = {"layers": 12, "heads": 12, "hidden": 768, "intermediate": 3072, "vocabulary": 30522}
BERT_BASE = Sizes(**MODEL, slots=128, examples=10_000, tokens=300_000, scored=1_000)
LARGER = replace(BERT_BASE, examples=1_000_000, tokens=30_000_000)
LONG = Sizes(**MODEL, slots=512, examples=24, tokens=24 * 512, scored=8)
"""A corpus whose examples all fill 512 slots."""
ENCODING = Encoding(model=ModelId(name="bert"))


def config(**more):
    task = {"corpus": "c", "learning_rate": 0.001, "batch_size": 16, "epochs": 4}
    return Config(
        name="x",
        run={"models": ["bert"], "tasks": ["mood"], "fractions": ["1"], "seeds": [1]},
        models={"bert": {"hub": "owner/bert"}},
        corpora={"c": {"files": {"train": "a.csv", "validation": "b.csv"}, "first": "text", "slots": 128}},
        tasks={
            "mood": task | {"label": "mood", "metric": "accuracy"},
            "masked": task | {"metric": PERPLEXITY},
            "next": task | {"metric": "log_likelihood"},
        },
        **more,
    )


PERPLEXITY = "negative_log_perplexity"
CONFIG = config()


def job(settings, task="mood", stored=False):
    needs = {"index": ()} if stored else {}
    return Job(settings.__class__.__name__, settings, {"tokens": ("t",)}, {}, wildcards={"task": task}, needs=needs)


def training(batch_size=16, epochs=4, **recipe):
    return Training(learning_rate=0.001, batch_size=batch_size, epochs=epochs, **recipe)


def learning(**more):
    settings = {"metric": "accuracy", "seed": 0, "constant": "average", "encoder_dropout": False}
    return job(LambdaOf(model=ENCODING, training=training(**more), **settings))


def probing(variant="original", streamed=False, task="mood", **more):
    about = {"task": task, "metric": "accuracy", "seeds": (1,), "encoder_dropout": False}
    settings = ProbeOf(model=ENCODING, training=training(**more), variant=variant, streamed=streamed, **about)
    return job(settings, task, stored=not streamed)


def weighing(stored=False, **more):
    how = {"training": training(**more), "seed": 0, "encoder_dropout": False}
    return job(WeightsOf(model=ENCODING, constant="average", **how), stored=stored)


AVERAGE = job(AverageOf(model=ENCODING))
HIDDEN = job(HiddenOf(model=ENCODING, variant="average/all"))
TRAINED = "average-trained/all"


LLAMA = Sizes(
    layers=32, heads=32, hidden=4096, intermediate=14336, vocabulary=128256, slots=2048,
    examples=1000, tokens=2_000_000, scored=100, parameters=8_030_261_248, layer_parameters=6_979_588_096,
)  # fmt: skip


def test_an_80_gb_gpu_holds_the_averages_of_an_8b_decoder_in_2048_slots():
    """The weights have 32.1 GB and the sums 34.4 GB; a second copy of the sums would not fit."""
    on_gpu = gpu_memory_of(AVERAGE, CONFIG, LLAMA)
    assert 8 * 32 * 32 * 2048**2 + 4 * LLAMA.weight_count == pytest.approx(66.5e9, rel=1e-3)
    assert 67_000 < on_gpu < 85_000 < on_gpu + 34_400
    assert on_gpu < gpu_memory_of(AVERAGE, config(device="cuda"), LLAMA) < 80_000, "more tokens at once"
    halved = job(AverageOf(model=Encoding(model=ModelId(name="bert"), precision="bfloat16_weights")))
    assert on_gpu - gpu_memory_of(halved, CONFIG, LLAMA) > 16_000
    assert gpu_memory_of(probing(), CONFIG, LLAMA) == 0, "a probe that reads stored states runs no model"
    assert gpu_memory_of(probing("original", streamed=True), CONFIG, LLAMA) > 32_000


def test_parameters_are_counted_and_not_loaded(tiny_decoder, tmp_path):
    counted = parameters_of_model(tiny_decoder, Machine.current())
    (tmp_path / "tiny/model.safetensors").unlink()
    assert parameters_of_model(tiny_decoder, Machine.current()) == counted
    model = stock("llama")
    assert counted["parameters"] == sum(values.numel() for values in model.parameters())
    outside = model.get_input_embeddings().weight.numel() + model.get_output_embeddings().weight.numel()
    assert counted["layer_parameters"] == counted["parameters"] - outside


def lay_out(path, **about):
    ids = pa.array([[1, 2, 3], [4], [5, 6]], pa.list_(pa.int32()))
    rows = {"rows": {"train": 2, "validation": 1}, "slots": 128}
    write_table(pa.table({"split": ["train", "train", "validation"], "ids": ids}), path, rows | about)
    return path


def test_sizes_are_those_of_model_and_corpus(tmp_path):
    path = lay_out(tmp_path / "tokens.parquet", sizes=MODEL)
    assert sizes_of(path) == replace(BERT_BASE, examples=3, tokens=6, scored=1)
    lay_out(path, sizes=MODEL | {"layers": 6})
    os.utime(path, ns=(1, 1))
    assert sizes_of(path).layers == 6, "the file is read again after a change"


def test_what_is_not_there_yet_is_a_missing_file(tmp_path):
    """The workflow shows it as <TBD>."""
    with pytest.raises(FileNotFoundError) as error:
        sizes_of(tmp_path / "tokens.parquet")
    assert error.value.filename == str(tmp_path / "tokens.parquet")


def test_for_what_cannot_be_read_a_job_asks_enough_to_say_so(tmp_path):
    lay_out(tmp_path / "old.parquet")  # without sizes
    (tmp_path / "damaged.parquet").write_bytes(b"PAR1 and no more")
    for name in ("old.parquet", "damaged.parquet"):
        sizes = sizes_of(tmp_path / name)
        assert sizes is None and memory_of(AVERAGE, CONFIG, sizes) == 1000
        assert walltime_of(AVERAGE, CONFIG, sizes, 2) == 10


@pytest.mark.parametrize(
    ("of", "measured"),
    [(AVERAGE, 2106), (HIDDEN, 1985), (learning(batch_size=4), 4144), (probing(TRAINED, True, batch_size=4), 3929)],
    ids=["average", "hidden", "lambda", "trained"],
)
def test_memory_is_a_little_more_than_was_measured(of, measured):
    """Largest resident sets in MiB: BERT BASE with 512 slots, one thread, 1024 tokens at once."""
    assert 1.2 <= memory_of(of, CONFIG, LONG) * MB / (measured * 2**20) <= 1.9


@pytest.mark.parametrize("of", [AVERAGE, HIDDEN])
def test_memory_of_averages_and_hidden_states_is_flat_in_the_corpus(of):
    assert memory_of(of, CONFIG, BERT_BASE) == memory_of(of, CONFIG, LARGER)


@pytest.mark.parametrize("of", [learning(), probing(), probing(streamed=True)])
def test_memory_of_training_grows_only_with_token_ids(of):
    more = LARGER.tokens - BERT_BASE.tokens
    assert 12 * more / 1e6 < memory_of(of, CONFIG, LARGER) - memory_of(of, CONFIG, BERT_BASE) < 60 * more / 1e6


def test_weights_of_heads_ask_for_the_passes_that_they_make():
    def hours(of, sizes=BERT_BASE):
        return (seconds(of, CONFIG, sizes, 2) - 10) / (seconds(AVERAGE, CONFIG, sizes, 2) - 10)

    # four passes of the probe's training, and one forward and backward; λ goes backward in every epoch
    assert 7 < hours(weighing()) < 9 < 12 < hours(learning()) < 14
    # of stored states no pass is needed to train the probe
    assert 3 < hours(weighing(stored=True)) < 4 and hours(probing(), BERT_BASE) < 0.5
    assert hours(probing(streamed=True)) > 4


def test_memory_follows_slots_budget_batch_and_what_is_trained():
    longer = replace(BERT_BASE, slots=512)
    more = memory_of(AVERAGE, CONFIG, longer) - memory_of(AVERAGE, CONFIG, BERT_BASE)
    assert more > 12 * (512**2 - 128**2) * 144 / 1e6
    assert memory_of(HIDDEN, config(token_budget=8192), BERT_BASE) > memory_of(HIDDEN, CONFIG, BERT_BASE)
    amounts = [learning(batch_size=64), learning(), probing(streamed=True), probing()]
    asked = [memory_of(of, CONFIG, BERT_BASE) for of in amounts]
    assert asked[0] > asked[1] >= asked[2] > asked[3]
    assert memory_of(probing(TRAINED, True), CONFIG, BERT_BASE) >= memory_of(learning(), CONFIG, BERT_BASE)
    masked = probing(streamed=True, task="masked")
    assert memory_of(masked, CONFIG, BERT_BASE) > memory_of(probing(streamed=True), CONFIG, BERT_BASE)


def test_walltime_follows_data_epochs_threads_and_gpus():
    long = walltime_of(learning(), CONFIG, LARGER, 2) - 10
    assert walltime_of(learning(epochs=8), CONFIG, LARGER, 2) - 10 == pytest.approx(2 * long, rel=0.1)
    assert walltime_of(learning(), CONFIG, LARGER, 4) < long
    assert walltime_of(learning(), config(device="cuda"), LARGER, 2) < long / 20


def test_every_seed_takes_its_time_and_room():
    one = probing()
    five = replace(one, settings=one.settings.model_copy(update={"seeds": (1, 2, 3, 4, 5)}))
    taken = [seconds(of, CONFIG, BERT_BASE, 1) - START_SECONDS for of in (one, five)]
    assert taken[1] == pytest.approx(5 * taken[0])
    written = [disk(of, CONFIG, BERT_BASE) for of in (one, five)]
    assert 4.5 * written[0] < written[1] <= 5 * written[0]
    assert memory_of(five, CONFIG, BERT_BASE) > memory_of(one, CONFIG, BERT_BASE)


def test_disk_is_what_is_written():
    assert disk(HIDDEN, CONFIG, BERT_BASE) == -(-(300_000 * 13 * 768 * 2 + 10_000 * 4) // MB)
    assert disk(AVERAGE, CONFIG, BERT_BASE) == -(-(144 * 128**2 * 12 + 128**2 * 8) // MB)
    trained, plain = (disk(of, CONFIG, BERT_BASE) for of in (probing(TRAINED, True), probing()))
    assert trained - plain == pytest.approx(144 * 128**2 * 4 / MB, abs=1)
    assert disk(job(OrderFromWeights(order="lambda-0")), CONFIG, None) == 1


def test_outcomes_in_the_table_of_all_are_those_after_the_last_epoch():
    one, four = probing(epochs=1), probing(epochs=4)
    assert 0 < disk_in_table(one, BERT_BASE) == disk_in_table(four, BERT_BASE)
    seeds = len(one.settings.seeds)
    assert disk_in_table(one, BERT_BASE) == pytest.approx(seeds * BERT_BASE.scored * 6 / MB)
    assert disk_in_table(HIDDEN, BERT_BASE) == disk_in_table(one, None) == 0


@pytest.mark.parametrize(("metric", "epochs"), [("accuracy", 4), ("entity_f1", 4), (PERPLEXITY, 4), (PERPLEXITY, 1)])
def test_disk_of_outcomes_is_a_little_more_than_they_take(tmp_path, metric, epochs):
    """Of ten words a sentence; what a probe says has no pattern that would make it small."""
    chance, rows, words = np.random.default_rng(0), 200_000, 10 if metric == "entity_f1" else 1
    columns = {"example": np.repeat(np.arange(rows // words, dtype=np.int32), words)}
    gold = chance.integers(0, 9, rows).astype(np.int16)
    if metric == PERPLEXITY:
        columns |= {"tokens": chance.integers(0, 20, rows).astype(np.int32), "trivial": chance.random(rows)}
        columns |= {f"loss_{epoch}": chance.random(rows) for epoch in range(epochs)}
    else:
        columns |= {"word": np.arange(rows, dtype=np.int32) % words} if words > 1 else {}
        said = {f"predicted_{epoch}": np.where(chance.random(rows) < 0.8, gold, gold[::-1]) for epoch in range(epochs)}
        columns |= {"gold": gold} | said
    table = pa.table({"split": pa.array(["validation"] * rows).dictionary_encode()} | columns)
    write_table(table, tmp_path / "outcomes.parquet", {})
    taken = (tmp_path / "outcomes.parquet").stat().st_size / MB
    many = replace(BERT_BASE, examples=rows // words, tokens=rows, scored=rows // words)
    settings = probing(epochs=epochs).settings.model_copy(update={"metric": metric})
    with_outcomes, without = (disk(job(settings), CONFIG, sizes) for sizes in (many, replace(many, scored=0)))
    assert 1 <= (with_outcomes - without) / taken < (6 if words > 1 else 2.5)


FILES = {"files": {"train": "a.csv", "validation": "b.csv"}, "slots": 61}
RUN = {"models": ["bert"], "tasks": ["texts", "words"], "fractions": ["1", "1/2", "0"], "seeds": [1, 2]}
RUN["constants"] = ["average", "toeplitz", "mean-output", "by-distance", "zeros"]
RUN["orders"] = ["lambda", "gradient", "random"]
GRIDS = {"masks": {"tasks": ["masked"], "constants": ["average"], "orders": ["lambda", "gradient"]}}
GRIDS["trained"] = {"constants": ["average-trained", "toeplitz-trained"], "fractions": ["0"]}
GRIDS["decoded"] = {"tasks": ["next"], "constants": ["average"], "orders": RUN["orders"][:2]}
EVERYTHING = {
    "name": "needs",
    "run": RUN,
    "grids": GRIDS,
    "models": {"bert": {"hub": "owner/bert"}},
    "corpora": {
        "texts": FILES | {"first": "text"},
        "words": FILES | {"words": "words"},
        "running": FILES | {"first": "text", "blocks": True},
    },
    "tasks": {
        name: {"corpus": corpus, "metric": metric, "learning_rate": 0.001, "batch_size": 16, "epochs": 3} | label
        for name, corpus, metric, label in (
            *(("texts", "texts", "f1", {"label": "l"}), ("words", "words", "entity_f1", {"label": "l"})),
            *(("masked", "running", PERPLEXITY, {}), ("next", "running", "log_likelihood", {})),
        )
    },
}
"""Every kind of job that reads a laid-out corpus."""


def test_texts_ask_by_the_size_of_their_files(tmp_path):
    for name, amount in (("small", 10**3), ("large", 10**8)):
        (tmp_path / name).write_bytes(b"\n" * amount)
    assert memory_of_files(tmp_path / "small") < 1000 < memory_of_files(tmp_path / "small", tmp_path / "large")


def test_numbers_as_people_say_them():
    readable = [format_duration(amount) for amount in (0.2, 40, 300, 4320, 5 * 3600, 3.4 * 86400)]
    assert readable == ["< 1 s", "40 s", "5 min", "72 min", "5.0 hours", "3.4 days"]
    readable = [format_bytes(amount) for amount in (7, 5e6, 1.25e9, 41e9, 2e12)]
    assert readable == ["7 B", "5 MB", "1.2 GB", "41 GB", "2 TB"]


def test_a_recipe_is_priced():
    """Fewer training rows cost less, but every epoch is scored on all validation rows; a linear probe is small."""
    sizes = replace(BERT_BASE, examples=1100, tokens=33_000, scored=100)

    def cost(make, **recipe):
        return seconds(make(**recipe), CONFIG, sizes, 1) - START_SECONDS

    for make in (learning, partial(probing, streamed=True), probing):
        whole = cost(make)
        assert cost(make, rows="1/4") == pytest.approx(whole * 350 / 1100)
        assert cost(make, rows=250) == pytest.approx(whole * 350 / 1100)
        assert cost(make, rows="1/5", resampled=True, patience=2) == pytest.approx(whole * 300 / 1100)
    assert cost(partial(weighing, "gradient"), rows="1/4") < cost(partial(weighing, "gradient"))
    assert cost(probing, probe="linear") < cost(probing) / 2  # both read the same hidden states
    assert memory_of(probing(probe="linear"), CONFIG, sizes) < memory_of(probing(), CONFIG, sizes)
