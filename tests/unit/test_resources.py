"""What jobs ask for: read off footers, growing with what is held in memory and with nothing else."""

import os
from dataclasses import replace

import pyarrow as pa
import pytest

from papa.files import footer_of, write_table
from papa.jobs.resources import Sizes, Work, memory, memory_of_files, sizes_of, walltime

MODEL = {"layers": 12, "heads": 12, "hidden": 768, "intermediate": 3072, "vocabulary": 30522}
BERT_BASE = Sizes(**MODEL, slots=128, examples=10_000, tokens=300_000)
LARGER = replace(BERT_BASE, examples=1_000_000, tokens=30_000_000)
TRAINING = {"batch_size": 16, "epochs": 4, "metric": "accuracy"}
AVERAGE = Work("average", threads=2, token_budget=1024)
FEATURES = replace(AVERAGE, rule="features_of_corpus")
LAMBDA = replace(AVERAGE, rule="train_lambda", training=TRAINING)
PROBE = replace(LAMBDA, rule="probe", threads=1)
STREAMED = replace(LAMBDA, rule="probe_through_encoder")


def lay_out(path, **about):
    ids = pa.array([[1, 2, 3], [4], [5, 6]], pa.list_(pa.int32()))
    write_table(pa.table({"split": ["train", "train", "validation"], "ids": ids}), path, {"slots": 128, **about})
    return path


def test_a_footer_counts_values_in_lists(tmp_path):
    about, held = footer_of(lay_out(tmp_path / "tokens.parquet"))
    assert about["slots"] == 128 and held == {"split": 3, "ids": 6}


def test_sizes_are_those_of_model_and_corpus(tmp_path):
    path = lay_out(tmp_path / "tokens.parquet", sizes=MODEL)
    assert sizes_of(path) == replace(BERT_BASE, examples=3, tokens=6)


def test_sizes_are_read_again_after_a_change(tmp_path):
    path = lay_out(tmp_path / "tokens.parquet", sizes=MODEL)
    sizes_of(path)
    lay_out(path, sizes=MODEL | {"layers": 6})
    os.utime(path, ns=(1, 1))
    assert sizes_of(path).layers == 6


def test_what_is_not_there_yet_is_a_missing_file(tmp_path):
    """Which is what the workflow shows as <TBD>."""
    with pytest.raises(FileNotFoundError) as error:
        sizes_of(tmp_path / "tokens.parquet")
    assert error.value.filename == str(tmp_path / "tokens.parquet")


def test_for_what_cannot_be_read_a_job_asks_enough_to_say_so(tmp_path):
    lay_out(tmp_path / "old.parquet")  # without sizes
    (tmp_path / "damaged.parquet").write_bytes(b"PAR1 and no more")
    for name in ("old.parquet", "damaged.parquet"):
        sizes = sizes_of(tmp_path / name)
        assert sizes is None and memory(AVERAGE, sizes) == 1000 and walltime(AVERAGE, sizes) == 10


@pytest.mark.parametrize("work", [AVERAGE, FEATURES])
def test_memory_of_averages_and_hidden_states_is_flat_in_the_corpus(work):
    assert memory(work, BERT_BASE) == memory(work, LARGER)


@pytest.mark.parametrize("work", [LAMBDA, PROBE, STREAMED])
def test_memory_of_training_grows_with_token_ids_alone(work):
    more = LARGER.tokens - BERT_BASE.tokens
    assert 12 * more / 1e6 < memory(work, LARGER) - memory(work, BERT_BASE) < 60 * more / 1e6


def test_memory_follows_slots_budget_batch_and_what_is_trained():
    longer = replace(BERT_BASE, slots=512)
    assert memory(AVERAGE, longer) - memory(AVERAGE, BERT_BASE) > 12 * (512**2 - 128**2) * 144 / 1e6
    assert memory(replace(FEATURES, token_budget=8192), BERT_BASE) > memory(FEATURES, BERT_BASE)
    larger = replace(LAMBDA, training=TRAINING | {"batch_size": 64})
    assert (
        memory(larger, BERT_BASE) > memory(LAMBDA, BERT_BASE) > memory(STREAMED, BERT_BASE) > memory(PROBE, BERT_BASE)
    )
    assert memory(replace(STREAMED, trained=True), BERT_BASE) >= memory(LAMBDA, BERT_BASE)


def test_walltime_follows_data_epochs_threads_parts_and_gpus():
    long = walltime(LAMBDA, LARGER) - 10
    assert walltime(replace(LAMBDA, training=TRAINING | {"epochs": 8}), LARGER) - 10 == pytest.approx(2 * long, rel=0.1)
    assert walltime(replace(LAMBDA, threads=4), LARGER) < long
    assert walltime(replace(LAMBDA, gpu=True), LARGER) < long / 20
    whole = walltime(FEATURES, LARGER) - 10
    assert walltime(replace(FEATURES, parts=4), LARGER) - 10 == pytest.approx(whole / 4, rel=0.1)


def test_a_job_is_read_off_a_config():
    config = {
        "tasks": {"mood": TRAINING},
        "ranking": {"epochs": 1},
        "device": "cuda",
        "token_budget": 512,
    }
    learning = Work.of(config, "train_lambda", {"task": "mood"}, 2)
    assert learning == Work("train_lambda", 2, 512, True, TRAINING | {"epochs": 1})
    through = {"task": "mood", "variant": "average-trained/all"}
    assert Work.of(config, "probe_through_encoder", through, 2).trained
    assert not Work.of(config, "probe_through_encoder", through | {"variant": "original"}, 2).trained
    assert Work.of(config, "features_of_corpus", {"part": "3of8"}, 2).parts == 8


def test_texts_ask_by_the_size_of_their_files(tmp_path):
    for name, size in (("small", 10**3), ("large", 10**8)):
        (tmp_path / name).write_bytes(b"\n" * size)
    assert memory_of_files(tmp_path / "small") < 1000 < memory_of_files(tmp_path / "small", tmp_path / "large")
