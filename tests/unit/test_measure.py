"""A study in this process: the same numbers as the workflow's jobs, for texts and labels given as Python objects."""

import json
import os
import shutil
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch
from families import letters_tokenizer, random_model
from test_decoders import stock
from transformers import AutoModel
from typer.testing import CliRunner

import papa
from papa.cli import app
from papa.config.settings import Machine, ModelSettings
from papa.config.study import Study
from papa.data.local_digests import LocalSourceDigests
from papa.files import read_table, trace_of
from papa.jobs.heads import heads_of, save_heads
from papa.jobs.measure import _placed, _splits
from papa.jobs.stage import performed
from papa.jobs.start import PLACES, lock
from papa.model.load import keeping_models, load_model
from papa.results.page import reported_config

WORDS = "abcdefgh"
QUICK = {"run": {"seeds": [1, 2], "fractions": ["1", "1/2", "0"]}, "tasks": {"epochs": 2, "learning_rate": 1e-2}}


def texts_of(number, seed=0):
    """Texts of a few letters, of class 1 if they begin with one of the first four."""
    generator = torch.Generator().manual_seed(seed)
    texts = [" ".join(WORDS[letter] for letter in torch.randint(8, (5,), generator=generator)) for _ in range(number)]
    return texts, ["yes" if text[0] < "e" else "no" for text in texts]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    torch.manual_seed(0)
    random_model("bert").save_pretrained(folder)
    letters_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def decoder(tmp_path, tokenizer):
    stock("llama").save_pretrained(tmp_path / "decoder")
    tokenizer.backend_tokenizer.post_processor = None
    tokenizer.save_pretrained(tmp_path / "decoder")
    return tmp_path / "decoder"


@pytest.fixture(scope="module")
def study(folder, tmp_path_factory):
    """A study that no test changes."""
    return measured(folder, tmp_path_factory.mktemp("study"))


def measured(model, folder, **settings):
    return papa.measure(model, *texts_of(60), texts_of(40, 1), QUICK | {"margin": 0.2} | settings, folder)


@pytest.fixture
def changed(study, tmp_path):
    return Path(shutil.copytree(study.folder, tmp_path / study.folder.name))


def test_a_study_has_claims_a_curve_heads_a_picture_and_a_page(study, tmp_path):
    assert study.claims["margin"] == 0.2 and str(study.claims) == study.claims["sentence"] == repr(study.claims)
    assert repr(study) == f"<papa.measure: {study.claims}>" and "<table" in study._repr_html_()
    assert set(study.curve["fraction"]) == {"1", "1/2", "0"} and study.curve["mean"].between(0, 1).all()
    assert sorted(study.heads["rank"]) == list(range(len(study.heads))) and study.heads["value"].between(0, 1).all()
    assert study.heads.sort_values("rank")["value"].is_monotonic_increasing
    (order,) = study.folder.rglob("order.parquet")
    ranked = read_table(order).to_pandas()[["layer", "head"]].to_numpy().tolist()
    assert study.heads.sort_values("rank")[["layer", "head"]].to_numpy().tolist() == ranked
    assert study.plot().to_dict()["title"]
    page = study.save(tmp_path / "kept")
    assert page.exists() and page.read_text() == study.page.read_text()
    with pytest.raises(papa.InputError, match="never overwrites"):
        study.save(tmp_path / "kept")


def test_finished_jobs_are_not_repeated(study, folder, changed, monkeypatch):
    made = []
    monkeypatch.setattr("papa.jobs.measure.performed", lambda job: made.append(job.stage) or performed(job))
    assert measured(folder, study.folder).curve.equals(study.curve) and made == []
    assert measured(folder, changed, margin=0.5).claims["margin"] == 0.5 and set(made) == {"claims", "losses", "page"}


@pytest.mark.usefixtures("no_figures")
def test_scores_are_those_of_jobs_that_each_load_the_model(study, tmp_path):
    """As processes of the workflow do."""
    other = Study(study.config, tmp_path / "other", LocalSourceDigests(study.config.machine))
    for job in other.jobs():
        performed(_placed(other, job, other.config.machine))
    expected = read_table(tmp_path / "other" / "tables" / "summary.parquet").to_pandas()
    actual = read_table(study.folder / "tables" / "summary.parquet").to_pandas()
    pd.testing.assert_frame_equal(actual, expected)


@pytest.mark.usefixtures("no_figures")
def test_a_decoder_is_measured_by_its_own_head(decoder):
    texts, _ = texts_of(120)
    study = papa.measure(decoder, texts, settings={"run": {"fractions": ["1", "1/2", "0"]}, "corpora": {"slots": 13}})
    curve = study.curve.set_index(["constant", "fraction"])["mean"]
    assert study.config.tasks["next"].metric == "log_likelihood"
    assert (curve < 0).all() and len(study.heads) == 12
    place = study.folder
    assert place.exists()
    del study
    assert not place.exists()


@pytest.mark.usefixtures("no_figures")
def test_a_loaded_model_is_taken_with_its_tokenizer(study, folder, tmp_path):
    loaded = AutoModel.from_pretrained(folder)
    assert measured(loaded, tmp_path / "loaded").curve["mean"].tolist() == study.curve["mean"].tolist()
    loaded.name_or_path = "nowhere/at-all"
    with pytest.raises(papa.InputError, match="tokenizer of this BertModel could not be loaded from 'nowhere/at-all'"):
        papa.measure(loaded, *texts_of(40))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("a b", ["x"]), "train is a single text; give a list of texts"),
        (([], []), "train is empty; give a list of texts"),
        (
            (pd.DataFrame({"text": ["a", "b"]}), ["x"]),
            r"train is a table; give one of its columns, as in table\['text'\]",
        ),
        ((["a", ("b", "c")], ["x", "y"]), "must contain only texts"),
        ((["a", "b"], ["x"]), "train has 2 texts but 1 labels"),
        ((["a", "b"], ["x", "y"]), "too few to hold some out"),
        ((["a b"] * 9, ["x"] * 9, ["c"]), r"validation must be a pair \(texts, labels\)"),
        ((texts_of(9)[0], ["x", 1, *"abcdefg"]), "All texts must have one type"),
    ],
)
def test_wrong_use_gets_a_sentence(folder, given, message):
    with pytest.raises(papa.InputError, match=message):
        papa.measure(folder, *given)
    with pytest.raises(papa.InputError, match="given without labels; give labels, or single texts"):
        papa.measure(folder, [["a", str(number)] for number in range(9)])
    with pytest.raises(papa.InputError, match="a dict was given"):
        papa.measure({}, *texts_of(20))


def test_what_is_held_out_is_drawn_and_no_copy_of_it_is_trained_on():
    texts = [f"text {number % 30}" for number in range(90)]
    train, held = _splits(texts, list(range(90)), None)
    assert len(held["first"]) == 18 and not set(held["first"]) & set(train["first"])
    assert sorted(held["label"] + train["label"]) == list(range(90))
    assert held["first"] != [f"text {number}" for number in range(4, 90, 5)]


def test_a_model_is_loaded_once_where_models_are_kept(tiny, monkeypatch):
    from papa.config.stages import Encoding
    from papa.model import load

    times = []
    monkeypatch.setattr(load, "load_model", lambda *how: times.append(how) or load_model(*how))
    with keeping_models():
        first, second = (load.model_of(Encoding(model=tiny), Machine.current()) for _ in range(2))
    assert first is second and len(times) == 1
    assert load.model_of(Encoding(model=tiny), Machine.current()) is not first
    assert isinstance(first, papa.Model)


@pytest.mark.usefixtures("no_figures")
def test_the_command_measures_files_and_ends_with_the_sentence_and_the_report(folder, tmp_path):
    for split, number, seed in (("train", 60, 0), ("validation", 40, 1)):
        texts, labels = texts_of(number, seed)
        pd.DataFrame({"text": texts, "mood": labels}).to_csv(tmp_path / f"{split}.csv", index=False)
    files = ["--train", tmp_path / "train.csv", "--validation", tmp_path / "validation.csv"]
    options = [*files, "--column", "label=mood", "--folder", tmp_path / "out"]
    done = CliRunner().invoke(app, ["measure", str(folder), *map(str, options)])
    assert done.exit_code == 0, done.output
    claim, _, table = done.stdout.partition("Score, by")
    assert "From 5 seeds and 40 validation examples" in " ".join(claim.split()), "the claim comes before the table"
    assert table.endswith(f"\nReport:  {tmp_path / 'out' / 'report' / 'index.html'}\n")
    again = CliRunner().invoke(app, ["measure", str(folder), *map(str, options), "--json"])
    assert json.loads(again.stdout)["margin"] == 0.1
    other = pd.DataFrame({"text": texts_of(60)[0], "mood": texts_of(60)[1]})
    other.to_parquet(tmp_path / "other.parquet")  # labels may be called something else in any form of file
    held = ["--validation", str(tmp_path / "other.parquet"), "--folder", str(tmp_path / "other")]
    options = ["--train", str(tmp_path / "other.parquet"), *held, "--column", "label=mood", "--json"]
    named = json.loads(CliRunner().invoke(app, ["measure", str(folder), *options]).stdout)
    assert read_table(tmp_path / "other/tables/summary.parquet").to_pandas()["task"].unique().tolist() == ["mood"]
    assert named["margin"] == 0.1
    alone = CliRunner().invoke(app, ["measure", str(folder), "--train", str(tmp_path / "validation.csv")])
    assert alone.exit_code == 2 and "there is no file" in alone.output
    wrong = CliRunner().invoke(app, ["measure", str(folder), *map(str, files), "--column", "label=no"])
    assert wrong.exit_code == 2 and "has no column 'no'" in wrong.output


def test_heads_are_saved_with_constants_and_a_card_whose_code_runs(study, folder, tokenizer, tmp_path, monkeypatch):
    heads = heads_of(study.folder)
    shared = save_heads(heads, study.folder, tmp_path / "shared")
    assert sorted(path.name for path in shared.iterdir()) == ["README.md", "constants.h5", "heads.json", "heads.tsv"]
    card = (shared / "README.md").read_text()
    assert str(study.claims) in card
    (average,) = study.folder.rglob("average.h5")
    constants = papa.ConstantMatrices.load(average)
    assert torch.equal(papa.ConstantMatrices.load(shared / "constants.h5").mean, constants.mean)
    monkeypatch.chdir(shared)
    names = run_code(card)
    inputs = papa.lay_out(tokenizer, ["A text."], slots=constants.n)
    replaced = [tuple(head) for head in heads["replaced"]]
    expected = papa.load_model(folder).hidden_states(inputs, constants, replaced)
    real = inputs["attention_mask"] == 1
    torch.testing.assert_close(names["outputs"].last_hidden_state[real], expected[:, -1][real], atol=1e-5, rtol=1e-5)


def run_code(card):
    names = {}
    exec(card.split("```python")[1].split("```")[0], names)
    return names


def test_the_code_of_a_card_runs_for_a_package_and_a_model_of_the_hub(study, folder, changed, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.path", [str(tmp_path), *sys.path])
    (tmp_path / "has_tiny.py").write_text(f"def get_model_path():\n    return {str(folder)!r}\n", encoding="utf-8")
    heads = heads_of(changed)
    (changed / PLACES).write_text(json.dumps({heads["model"]: {"package": "has_tiny"}}), encoding="utf-8")
    monkeypatch.chdir(save_heads(heads, changed, tmp_path / "of-package"))
    of_package = run_code(Path("README.md").read_text())["outputs"].last_hidden_state
    reported = reported_config(trace_of(study.page).settings["config"])
    models = {heads["model"]: ModelSettings(hub="owner/tiny", revision="a" * 40)}
    reported = reported.model_copy(update={"models": models})
    monkeypatch.setattr("papa.jobs.heads.reported_config", lambda config: reported)
    monkeypatch.chdir(save_heads(heads, changed, tmp_path / "of-hub"))
    card = Path("README.md").read_text()
    assert "base_model: owner/tiny" in card and card.count("revision=") == 2
    Path("owner").mkdir()
    Path("owner/tiny").symlink_to(folder)  # as if transformers had it from the hub
    outputs = run_code(card)["outputs"].last_hidden_state  # threads may add numbers in another order
    torch.testing.assert_close(outputs, of_package, atol=1e-5, rtol=1e-5)


def test_a_folder_is_not_overwritten_and_half_a_study_not_shared(changed, tmp_path):
    heads = heads_of(changed)
    with pytest.raises(papa.InputError, match="exists, and papa never overwrites a folder"):
        save_heads(heads, changed, tmp_path)
    next(changed.rglob("index.html")).unlink()
    with pytest.raises(papa.InputError, match="complete the run first"):
        save_heads(heads, changed, tmp_path / "shared")
    assert not (tmp_path / "shared").exists()


def test_a_folder_that_another_run_writes_to_is_left_alone(folder, tmp_path):
    texts, labels = texts_of(60)
    file = lock(tmp_path / "study")
    try:
        with pytest.raises(papa.InputError, match=r"another run is writing to .*study; wait for it"):
            papa.measure(folder, texts, labels, texts_of(40, 1), QUICK, tmp_path / "study")
        assert [path.name for path in (tmp_path / "study").iterdir()] == [".lock"]
    finally:
        os.close(file)
