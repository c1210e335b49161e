"""A study in this process: the same numbers as the workflow's jobs, for texts and labels given as Python objects."""

import fcntl
import json
import os
import shutil

import datasets
import pandas as pd
import pyarrow as pa
import pytest
import torch
from command import invoke
from families import letters_tokenizer, random_model
from refusals import input_error
from transformers import AutoModel

import papa
from papa.commands.measure import _data_of
from papa.data.readers import read_file
from papa.files import read_table
from papa.plan.study import Plan
from papa.run import execute
from papa.run.start import locked

UNDRAWN = pytest.mark.usefixtures("no_figures")
WORDS = "abcdefgh"
ROLES = {"first": "sentence", "label": "mood"}
QUICK = {
    "run": {"seeds": [1, 2], "fractions": ["1", "1/2", "0"]},
    "tasks": {"epochs": 2, "learning_rate": 1e-2},
}


def texts_of(number, seed=0):
    """Texts of a few letters, of class 1 if they begin with one of the first four."""
    generator = torch.Generator().manual_seed(seed)
    texts = [
        " ".join(WORDS[letter] for letter in torch.randint(8, (5,), generator=generator))
        for _ in range(number)
    ]
    return texts, ["yes" if text[0] < "e" else "no" for text in texts]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    torch.manual_seed(0)
    random_model("bert").save_pretrained(folder)
    letters_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def study(folder, tmp_path_factory):
    """A study that no test changes."""
    return measured(folder, tmp_path_factory.mktemp("study"))


def measured(model, folder, **settings):
    return papa.measure(
        model, *texts_of(60), texts_of(40, 1), QUICK | {"margin": 0.2} | settings, folder
    )


def test_a_study_has_claims_a_curve_heads_a_picture_and_a_page(study):
    assert study.claims["margin"] == ["20%"]
    assert str(study.claims) == repr(study.claims)
    assert repr(study) == f"<papa.Study: {study.claims}>"
    assert "<table" in study._repr_html_()
    assert set(study.curve["fraction"]) == {"1", "1/2", "0"}
    assert study.curve["mean"].between(0, 1).all()
    assert sorted(study.heads["rank"]) == list(range(len(study.heads)))
    assert study.heads["value"].between(0, 1).all()
    assert study.heads.sort_values("rank")["value"].is_monotonic_increasing
    assert study.plot().to_dict()["title"]
    assert study.page.exists()


def test_finished_jobs_are_not_repeated(study, folder, tmp_path, monkeypatch):
    made = []
    changed = shutil.copytree(study.folder, tmp_path / study.folder.name)
    run = execute.run
    monkeypatch.setattr(
        "papa.commands.measure.run",
        lambda batch, *at: made.append(batch.rule) or run(batch, *at),
    )
    assert measured(folder, study.folder).curve.equals(study.curve)
    assert made == []
    assert measured(folder, changed, margin=0.5).claims["margin"] == ["50%"]
    assert made == ["report"]


@UNDRAWN
def test_scores_are_those_of_jobs_that_each_load_the_model(study, tmp_path):
    """As processes of the workflow do."""
    other = Plan(study.config, tmp_path / "other")
    other.write()
    for batch in other.missing:
        execute.run(batch, other.results)
    expected = read_table(tmp_path / "other" / "tables" / "summary.parquet").to_pandas()
    pd.testing.assert_frame_equal(
        read_table(study.folder / "tables" / "summary.parquet").to_pandas(), expected
    )


@UNDRAWN
def test_a_decoder_is_measured_by_its_own_head(tiny_decoder):
    texts, _ = texts_of(120)
    study = papa.measure(
        tiny_decoder,
        texts,
        settings={"run": {"fractions": ["1", "1/2", "0"]}, "corpora": {"slots": 13}},
    )
    curve = study.curve.set_index(["constant", "fraction"])["mean"]
    assert study.config.tasks["next-token"].metric == "log_likelihood"
    assert (curve < 0).all()
    assert len(study.heads) == 12
    place = study.folder
    assert place.exists()
    del study
    assert not place.exists()


@UNDRAWN
def test_a_loaded_model_is_taken_with_its_tokenizer(study, folder, tmp_path):
    loaded = AutoModel.from_pretrained(folder)
    results = tmp_path / "loaded"
    assert measured(loaded, results).curve["mean"].tolist() == study.curve["mean"].tolist()
    weights = (results / "model/model.safetensors").read_bytes()
    next(loaded.parameters()).data += 1
    with input_error("has results of another model"):
        measured(loaded, results)
    assert (results / "model/model.safetensors").read_bytes() == weights
    assert not [*results.glob("model-*")]
    loaded.name_or_path = "nowhere/at-all"
    for model, message in (
        (loaded, "of this BertModel could not be loaded from 'nowhere/at-all'"),
        ({}, "a dict was"),
    ):
        with input_error(message):
            papa.measure(model, *texts_of(40))


def tables():
    texts, labels = texts_of(60)
    frame = pd.DataFrame(
        {"id": range(60), "sentence": texts, "mood": labels}, index=range(100, 160)
    )
    names = datasets.Features(
        {"sentence": datasets.Value("string"), "mood": datasets.ClassLabel(names=["no", "yes"])}
    )
    dataset = datasets.Dataset.from_dict(
        {"sentence": texts, "mood": [int(label == "yes") for label in labels]}, names
    )
    return {"frame": frame, "dataset": dataset, "arrow": pa.Table.from_pandas(frame)}


@pytest.mark.parametrize("kind", ["frame", "dataset", "arrow"])
def test_a_table_is_read_by_the_names_of_its_columns(kind, tmp_path):
    table = tables()[kind]
    data = _data_of(table, None, table, tmp_path, {"columns": ROLES})
    data.write()
    assert data.columns == ROLES
    assert data.metric == "accuracy"
    assert data.training_rows == 60
    rows = read_file(tmp_path / "train.parquet")
    labels = rows.classes("mood", None, None)
    assert (rows.table.column("sentence").to_pylist(), [name for [name] in labels]) == texts_of(60)
    options = {"columns": {"text": "sentence"}, "hold_out": 0.5, "drop_empty": True}
    held = _data_of(table, None, None, tmp_path, options)
    assert [held.unwritten[split].table.num_rows for split in ("train", "validation")] == [30, 30]
    assert held.columns == {"first": "sentence"}
    assert held.notes[0].startswith("Dropped 0 of 60 rows of train,")
    with input_error("would be replaced"):
        _data_of(
            tmp_path / "train.parquet", None, None, tmp_path, {"columns": ROLES, "hold_out": 0.5}
        )


def test_a_file_is_held_out_in_part_unless_another_is_next_to_it_and_its_classes_can_be_named(
    tmp_path,
):
    options = {"columns": ROLES, "label_names": [-1, 1]}
    train = tmp_path / "train.csv"
    validation = tmp_path / "validation.csv"
    work = tmp_path / "data"
    tables()["frame"].assign(mood=[-1, 1] * 30).to_csv(train, index=False)
    data = _data_of(train, None, None, work, options)
    rows = {split: read.table.to_pylist() for split, read in data.unwritten.items()}
    assert len(rows["validation"]) == 12
    assert len({row["id"] for row in rows["train"] + rows["validation"]}) == 60
    assert data.labels == ["-1", "1"]
    assert f"{train} has no validation file beside it" in data.notes[0]
    shutil.copy(train, validation)
    data = _data_of(train, None, None, work, options)
    assert data.files["validation"] == str(validation)
    assert not data.unwritten


def test_lists_of_words_are_measured_by_a_label_for_each_word(tmp_path):
    data = _data_of([["a", letter] for letter in WORDS], [["O", "B-X"]] * 8, None, tmp_path, {})
    assert data.columns == {"words": "words", "label": "label"}
    assert data.metric == "entity_f1"


def changed_texts(place, text, held_out=False):
    """Texts, labels and validation texts, one of which is changed; or the labels, if a text is held out."""
    texts, labels = texts_of(60)
    (labels if held_out else texts)[place] = text
    return [texts, labels] if held_out else [texts, labels, texts_of(9)]


def blank_row():
    frame = tables()["frame"]
    frame.loc[141, "sentence"] = " "
    return frame


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (["a b", ["x"]], {}, "train is a single text; give a list of texts"),
        (
            ["frame", ["x"]],
            {},
            r"train is a table, so its labels must be in a column; give columns=\{'label': NAME\}",
        ),
        ([["a", "b"], ["x"]], {}, "train has 2 texts but 1 labels"),
        ([texts_of(9)[0], ["x", 1, *"abcdefg"]], {}, "All texts must have one type"),
        (
            [[("a", "b", "c")] * 3, ["x"] * 3],
            {},
            r"only tuples of two texts, or .*; train\[0\] is a tuple",
        ),
        (
            [[None, "a"], ["x", "y"]],
            {},
            r"^train has no text in column first in 1 of 2 .*: train\[0\]\)",
        ),
        (
            [[["a", str(number)] for number in range(9)]],
            {},
            "given without labels; give labels, or single texts",
        ),
        (
            ["frame"],
            {},
            'train is a table; name the columns to use, as in columns={"first": .* has id, sentence',
        ),
        (
            ["frame"],
            {"columns": {"label": "mood"}},
            "`columns` names no column of texts; give first=",
        ),
        (
            ["frame"],
            {"columns": ROLES, "label_names": "no,yes"},
            "label_names is the single text 'no,yes'; give",
        ),
        (
            ["splits"],
            {"columns": ROLES},
            r"A dataset has the splits train; give one of them, as in data\['train'\]",
        ),
        (["train.csv", ["x"]], {}, "labels and validation texts must be in files, too"),
        # messages name the row that was given, also if rows before it are held out
        (
            [blank_row()],
            {"columns": ROLES},
            r"^train has no text in column sentence in 1 of 60 .*0: train\[41\]\)",
        ),
        (
            changed_texts(7, None),
            {},
            r"^train has no text in column first in 1 of 60 .*0: train\[7\]\)",
        ),
        (
            [*texts_of(60), (*changed_texts(7, None)[:2],)],
            {},
            r"^validation has no text .* 1 of 60 .* validation\[7\]",
        ),
        (
            changed_texts(50, "", held_out=True),
            {"hold_out": 0.02},
            r"^train has no label .*: train\[50\]\)",
        ),
    ],
)
def test_what_cannot_be_used_gets_a_sentence(folder, arguments, options, message):
    known = tables()
    known["splits"] = datasets.DatasetDict({"train": known["dataset"]})
    train, *others = (
        known.get(each, each) if isinstance(each, str) else each for each in arguments
    )
    with input_error(message):
        papa.measure(folder, train, *others, **options)


def no_locks(*_):
    raise OSError(37, "none")


@UNDRAWN
def test_the_command_measures_files_and_ends_with_the_sentence_and_the_report(
    folder, tmp_path, monkeypatch
):
    options = ["--folder", tmp_path / "out", "--column", "label=mood"]
    for split, number, seed in (("train", 60, 0), ("validation", 40, 1)):
        texts, labels = texts_of(number, seed)
        file = tmp_path / f"{split}.csv"
        pd.DataFrame({"text": texts, "mood": labels}).to_csv(file, index=False)
        options += [f"--{split}", file]
    done = invoke("measure", folder, *options)
    assert done.stderr.startswith(
        "chose: first = text, label = mood, metric = accuracy, slots = 16"
    )
    said = " ".join(done.stdout.split())
    assert said.startswith("With all 15 heads replaced by average constants, ")
    assert "based on 5 seeds, 5 samples of training rows and 40 validation examples" in said
    assert done.stdout.endswith(f"\nReport: {tmp_path / 'out' / 'report' / 'index.html'}\n")
    monkeypatch.setattr(
        "papa.commands.measure.fetch", lambda config, machine, say: say("offline") or machine
    )
    monkeypatch.setattr("papa.run.start.fcntl.flock", no_locks)
    again = invoke("measure", folder, *options, "--json")
    assert "offline" in again.stderr
    assert "cannot be locked (none)" in again.stderr
    assert json.loads(again.stdout)["margin"] == ["10%"]
    assert ", probe" not in again.stderr
    assert read_table(tmp_path / "out/tables/summary.parquet").to_pandas()[
        "task"
    ].unique().tolist() == ["mood"]


def test_a_folder_that_another_run_writes_to_is_left_alone(folder, tmp_path):
    said = input_error(r"another run is writing to .*study; wait for it")
    with os.fdopen(locked(tmp_path / "study", fcntl.LOCK_EX, "taken")), said:
        measured(folder, tmp_path / "study")
    assert [path.name for path in (tmp_path / "study").iterdir()] == [".lock"]


@pytest.mark.parametrize("other", ["model", "texts", "labels"])
def test_results_of_another_study_are_not_replaced(study, folder, tiny_decoder, other):
    kept = {path: path.read_bytes() for path in study.folder.rglob("*") if path.is_file()}
    texts, labels = texts_of(60, 5 if other == "texts" else 0)
    labels = labels[::-1] if other == "labels" else labels
    model = tiny_decoder if other == "model" else folder
    with input_error(r"results of another model .* give another folder"):
        papa.measure(model, texts, labels, texts_of(40, 1), QUICK, study.folder)
    assert {path: path.read_bytes() for path in kept} == kept


@UNDRAWN
def test_a_study_measures_a_list(folder, tmp_path):
    path = tmp_path / "heads.csv"
    path.write_text("layer,head\n1,0\n")
    settings = QUICK | {"run": QUICK["run"] | {"orders": [{"file": str(path), "name": "mine"}]}}
    study = papa.measure(folder, *texts_of(60), texts_of(40, 1), settings, tmp_path / "s")
    assert {claim["order"] for claim in study.claims["claims"]} == {"list-mine"}
    assert set(study.summary["order"].dropna()) == {"list-mine"}
