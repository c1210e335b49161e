"""After any edits of a config, results in the same folder have the values of a fresh run.

The walk edits a config at random, runs it in one folder, and compares every artefact with a fresh run of that config.
It can draw every key of a config, so a key that some record of settings leaves out by mistake is found.
"""

import json
import os
import random
import shutil
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from test_decoder import write_decoder
from tiny import ABSENT, ROWS, WORDS, with_keys, workflow_of, write_data, write_model
from tiny import CONFIG as TINY

from papa.commands.inspect import prune, unneeded
from papa.commands.measure import run_here
from papa.config.reading import config_of
from papa.config.reading import keys as keys_of
from papa.data.digests import digest_of_file
from papa.errors import InputError
from papa.files import digest_of_table, read_table
from papa.plan.study import Plan
from papa.run.execute import run
from papa.run.start import planned

STEPS = 12
"""Steps of the walk; each costs about two runs of the study."""
EDITS = 3
"""Edits of the config in each step."""
SEED = int(os.environ.get("PAPA_TEST_SEED", "0"))
"""Another number draws other edits."""

SPLITS = ("train", "validation")
TRAINING = {"learning_rate": 0.01, "batch_size": 8, "epochs": 1}
SENTENCES = TINY["corpora"]["sentences"]
WORD_CORPUS = TINY["corpora"]["words"]
CONFIG = {
    "name": "walk",
    "run": TINY["run"] | {"tasks": ["animals"]},
    "models": TINY["models"],
    "corpora": {"sentences": SENTENCES},
    "tasks": {
        "animals": TRAINING | {"corpus": "sentences", "label": "animal", "metric": "accuracy"}
    },
    "threads": 1,
    "device": "cpu",
}
CONLL = {
    "files": {split: f"data/words.{split}.conll" for split in SPLITS},
    "columns": ["words", "tags"],
}
HUB = {"hub": "some/data", "config": "tiny", "first": "sentence", "slots": 13}
RUNNING = SENTENCES | {"slots": 9}
MODEL = "models.tiny"
OTHER = {"path": "models/other"}
CORPUS = "corpora.sentences"
TASK = "tasks.animals"
GRID = "grids.more"
NEXT = {
    "models.next": {"path": "models/next"},
    "corpora.running": RUNNING | {"blocks": True},
    "tasks.guess": {"corpus": "running", "metric": "log_likelihood"},
    "grids.more": {"models": ["next"], "tasks": ["guess"], "fractions": ["1", "0"]},
}
FROM_HUB = {"corpora.sentences": HUB, "hub_mirror": "hub"}
TAGS = {
    "corpora.words": WORD_CORPUS,
    "tasks.tags": {"corpus": "words", "label": "tags", "metric": "token_accuracy"},
}
MASKED = {
    "corpora.running": RUNNING,
    "tasks.hidden": {"corpus": "running", "metric": "negative_log_perplexity"},
    "run.tasks": ["animals", "hidden"],
}
FILES = ("data/sentences.train.csv", "data/sentences.validation.csv")
VALUES = {
    "run.constants": (["zeros"], ["average", "uniform"], ABSENT),
    "run.orders": (["random"], ["lambda", "gradient"], ABSENT),
    "tasks.*.published": ("cola", ABSENT),
    "run.fractions": (["1", "0"], ["1", "1/4", "0"], ["1", "1/2", "0"]),
    "run.seeds": ([2], [1, 2], [1]),
    "run.tasks": (["animals", "tags"], ["tags"], ["animals"]),
    "grids": (ABSENT,),
    "grids.*.constants": (["toeplitz"], ["toeplitz-trained"], ["average"]),
    "grids.*.orders": (["last-layer-first"], ["gradient"]),
    "grids.*.fractions": (["1", "0"], ["1/2"]),
    "grids.*.seeds": ([3], [1, 3]),
    "grids.*.tasks": (["tags"], ["animals"]),
    "grids.*.title": ("More", "Even more"),
    "corpora.*.config": ("tiny", "other"),
    "corpora.*.revision": ("a" * 40, "b" * 40),
    "corpora.*.train": ("train", "more"),
    "corpora.*.validation": ("validation", "more", ["validation", "more"]),
    "corpora.*.files.train": FILES,
    "corpora.*.files.validation": FILES,
    "corpora.*.first": ("sentence", "long"),
    "corpora.*.second": ("long", ABSENT),
    "corpora.*.slots": (7, 13),
    "corpora.*.train_limit": (17, 1000, ABSENT),
    "corpora.*.cluster": ("long", "sentence", 3, ABSENT),
    "tasks.*.title": ("Animals", ABSENT),
    "tasks.*.label": ("long", "animal"),
    "tasks.*.labels": (["0", "1"], ["1", "0"], ["0", "1", "2"], ["short", "long"], ABSENT),
    "tasks.*.subset": ("long", ABSENT),
    "tasks.*.metric": ("f1", "matthews_correlation", "accuracy"),
    "tasks.*.learning_rate": (0.02, 0.01),
    "tasks.*.batch_size": (5, 8),
    "tasks.*.epochs": (2, 1),
    "resamples": (0, 2, 3),
    "fidelity": ("published_code", ABSENT),
    "margin": (0.3, "2 points", ABSENT),
    "floors": ([], ["identity", "zeros"], ["zeros", "mean-output"], ["zeros"]),
    "layout": ("published_code", "natural", "paper", ABSENT),
    "keep_hidden_states": (False, True),
    "ranking": (ABSENT,),
    "ranking.seeds": ([1], [0, 1], [0]),
    "ranking.epochs": (2, ABSENT),
    "ranking.draws": (1, 2),
    "patterns": (ABSENT,),
    "hub_mirror": ("hub", "mirror", ABSENT),
    "precision": ("bfloat16", "float32"),
}
"""New values of keys, by the path of the key; the first model, corpus, task or grid stands for all of its kind."""
NEEDED = dict.fromkeys(("run.tasks", "grids.*.tasks"), TAGS)
NEEDED |= dict.fromkeys(
    [f"corpora.*.{key}" for key in ("config", "revision", "train", "validation")], FROM_HUB
)
"""What an edit of a key changes, too."""
NAMES = {"models.*": MODEL, "corpora.*": CORPUS, "tasks.*": TASK, "grids.*": GRID}

DRAWN = {
    "run.models": [
        {"models.other": OTHER, "run.models": ["other"]},
        {"run.models": ["tiny"]},
    ],
    "grids.*.models": [{"models.other": OTHER, f"{GRID}.models": ["other"]}],
    "models": [{"models.other": OTHER}],
    "models.*.hub": [{MODEL: {"hub": "some/model"}, "hub_mirror": "hub"}],
    "models.*.revision": [{MODEL: OTHER | {"hub": "some/model", "revision": "b"}}],
    "models.*.path": [
        {MODEL: {"path": value}} for value in ("models/other", "models/tiny", "models/moved")
    ],
    "models.*.sha256": [
        {MODEL: {"path": "models/tiny"}, f"{MODEL}.sha256": value}
        for value in (lambda: digest_of_file("models/tiny/model.safetensors"), "0" * 64)
    ],
    "models.*.package": [{MODEL: {"package": "packaged_model"}}],
    "corpora": [{"corpora.unused": RUNNING}],
    "corpora.*.hub": [FROM_HUB],
    "corpora.*.files": [{CORPUS: SENTENCES}],
    "corpora.*.columns": [
        TAGS | {"corpora.words": CONLL | {"words": "words", "slots": 11}, "run.tasks": ["tags"]}
    ],
    "corpora.*.words": [TAGS | {"corpora.words.words": "words"}],
    "corpora.*.blocks": [NEXT, NEXT | {"corpora.running.blocks": False}],
    "tasks": [MASKED],
    "tasks.*.corpus": [
        {"corpora.again": RUNNING, f"{TASK}.corpus": "again"},
        {f"{TASK}.corpus": "sentences"},
    ],
    "patterns.tasks": [{"patterns": {"tasks": ["animals"], "heads": [[0, 0]]}}],
    "patterns.heads": [{"patterns": {"tasks": ["animals"], "heads": [[1, 1]]}}],
}
DRAWN |= {
    key: [
        NEEDED.get(key, {})
        | {".".join([NAMES.get(".".join(parts[:2]), ".".join(parts[:2])), *parts[2:]]): value}
        for value in values
    ]
    for key, values in VALUES.items()
    for parts in [key.split(".")]
}
"""For every key, edits of the config; an edit maps paths of keys to their new values."""

NOT_DRAWN = {
    "name": "names the folder of the results",
    "run": "is drawn by its keys",
    "device": "changes rounding, and there may be one device only",
    "token_budget": "changes rounding, because batches of averages are others",
    "threads": "changes rounding",
}
"""Keys that the walk cannot draw, with the reason."""
RESTORED = ("grids", "corpora.*.files", "layout", "ranking", "patterns")
"""Keys whose edits undo those of other keys."""

WITH_FILES = pytest.mark.usefixtures("files")
WITH_FILES_UNDRAWN = pytest.mark.usefixtures("no_figures", "files")


@WITH_FILES
def test_the_walk_can_draw_every_key():
    keys = [key.replace("NAME", "*") for key, _ in keys_of()]
    assert sorted([*DRAWN, *NOT_DRAWN]) == sorted(keys)
    before = config_of(CONFIG)
    for key, edits in DRAWN.items():
        legal = [asked for edit in edits if is_legal(asked := edited(CONFIG, edit))]
        assert legal and (key in RESTORED or any(config_of(asked) != before for asked in legal)), (
            key
        )


def edited(config, edit):
    config = with_keys(
        config, {path: value() if callable(value) else value for path, value in edit.items()}
    )
    for task in config["tasks"].values():
        for key, value in TRAINING.items():
            task.setdefault(key, value)
    return config


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Models, texts and mirrors; the mirror folders have the same dataset at two commits."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PAPA_MACHINE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", f"{tmp_path}/cache")
    write_data(Path("data"))
    for seed, name in enumerate(("tiny", "other")):
        write_model(Path("models", name), seed)
    shutil.copytree("models/tiny", "models/moved")
    Path("packaged_model.py").write_text("def get_model_path():\n    return 'models/other'\n")
    monkeypatch.syspath_prepend(tmp_path)
    write_decoder(Path("models/next"))
    for split in ROWS:
        tagged = pd.read_json(f"data/words.{split}.jsonl", lines=True)
        sentences = [
            "\n".join(f"{word} {tag}" for word, tag in zip(*row, strict=True))
            for row in tagged.to_numpy()
        ]
        Path(f"data/words.{split}.conll").write_text("\n\n".join(sentences) + "\n")
    for folder, commit in (("hub", "a" * 40), ("mirror", "b" * 40)):
        shutil.copytree("models/other", Path(folder, "some/model"))
        for config in ("tiny", "other"):
            write_dataset(Path(folder, "some/data", config), seed=len(config) + len(folder))
        record = {
            "repository": "some/data",
            "repo_type": "dataset",
            "revision": commit,
            "commit": commit,
        }
        Path(folder, "some/data/.papa-revision.json").write_text(json.dumps(record))


def write_dataset(folder, seed):
    chance = random.Random(seed)
    folder.mkdir(parents=True)
    for split, rows in {**ROWS, "more": 14}.items():
        sentences = [" ".join(chance.choices(WORDS, k=chance.randint(3, 9))) for _ in range(rows)]
        table = {"sentence": sentences, "animal": [row % 2 for row in range(rows)]}
        table["long"] = [("long", "short")[chance.randrange(2)] for _ in range(rows)]
        pq.write_table(pa.table(table), folder / f"{split}-00000-of-00001.parquet")


DATA_EDITS = ("nothing", "column", "training label", "label", "subset", "text", "swapped files")
"""Edits of sentences.train.csv and sentences.validation.csv."""


def edit_data(kind, chance):
    train, validation = (Path(f"data/sentences.{split}.csv") for split in ROWS)
    if kind == "swapped files":
        contents = [path.read_text() for path in (train, validation)]
        train.write_text(contents[1])
        validation.write_text(contents[0])
    path = train if kind == "training label" else chance.choice([train, validation])
    rows = pd.read_csv(path, dtype=str)
    row = chance.randrange(len(rows))
    if kind == "column":
        rows[f"new {chance.random()}"] = "x"
    elif "label" in kind:
        rows.loc[row, "animal"] = "1" if rows.loc[row, "animal"] == "0" else "0"
    elif kind == "subset":
        rows.loc[row, "long"] = chance.choice(["long", "short"])
    elif kind == "text":
        rows.loc[row, "sentence"] = " ".join(chance.choices(WORDS, k=5))
    rows.to_csv(path, index=False)


@pytest.mark.slow
@WITH_FILES_UNDRAWN
def test_results_after_edits_are_those_of_a_fresh_run():
    chance = random.Random(SEED)
    keys = []
    config = CONFIG
    compared = 0
    assert finish(config, "walk") is None
    while compared < STEPS:
        asked = config
        drawn = []
        for _ in range(EDITS):
            if not keys:
                keys = chance.sample(sorted(DRAWN), k=len(DRAWN))
            edit = edited(asked, chance.choice(DRAWN[key := keys.pop()]))
            if is_legal(edit):
                asked = edit
                drawn = [*drawn, key]
        drawn.append(chance.choice(DATA_EDITS))
        edit_data(drawn[-1], chance)
        fresh = f"fresh {compared}"
        refused = finish(asked, "walk")
        assert refused == finish(asked, fresh), drawn
        if refused is None:
            assert tables_in("walk") == tables_in(fresh), (drawn, asked)
            config = asked
            compared += 1
        shutil.rmtree(fresh, ignore_errors=True)


def tables_in(folder):
    """Return the values of all tables of a study."""
    return {
        path.name: digest_of_table(read_table(path))
        for path in sorted(Path(folder).glob("tables/*.parquet"))
    }


def is_legal(config):
    try:
        config_of(config)
    except InputError:
        return False
    return True


def plan_of(config, folder):
    return Plan(config_of(config), folder, cache=Path(folder, "cache"))


def finish(config, folder):
    """Run what is missing; returns the sentence of a refusal."""
    try:
        run_here(plan_of(config, folder))
    except InputError as error:
        return str(error)
    assert plan_of(config, folder).missing == []
    return None


LATER = {"learn_lambda": 1, "hidden_states": 1, "probe": 4, "report": 1}
"""What corrected training labels of a task need: λ, its probes, and the states of the order."""


REPORT = {"report": 1}


def nothing(folder):
    """No file is edited."""


def rows_of(split, change):
    def edit(folder):
        path = folder / f"data/sentences.{split}.csv"
        rows = pd.read_csv(path, dtype=str)
        change(rows)
        rows.to_csv(path, index=False)

    return edit


def first_cell(split, column, value):
    """Another value in the first row of a split."""

    def change(rows):
        rows.loc[0, column] = value

    return rows_of(split, change)


def switched(rows):
    rows.loc[:2, "animal"] = rows.loc[:2, "animal"].map({"0": "1", "1": "0"})


EDITED = {
    "nothing": (nothing, {}, {}),
    "a new column": (rows_of("train", lambda rows: rows.insert(0, "new", "x")), {}, {}),
    "training labels": (rows_of("train", switched), {}, LATER),
    "validation labels": (rows_of("validation", switched), {}, REPORT),
    "a subset": (
        first_cell("validation", "long", "tall"),
        {},
        REPORT,
    ),
    "a cluster": (nothing, {"corpora.sentences.cluster": "long"}, REPORT),
    "a validation text": (
        first_cell("validation", "sentence", "the cat runs"),
        {},
        {"tokenize": 1, "hidden_states": 2, "probe": 4, "report": 1},
    ),
    "a training text": (
        first_cell("train", "sentence", "the cat runs"),
        {},
        {
            "tokenize": 1,
            "average": 1,
            "learn_lambda": 1,
            "hidden_states": 2,
            "probe": 4,
            "report": 1,
        },
    ),
    "the learning rate": (nothing, {"tasks.animals.learning_rate": 0.002}, LATER),
    "one more seed": (nothing, {"run.seeds": [1, 2]}, {"probe": 8, "report": 1}),
    "samples of training rows": (nothing, {"resamples": 2}, {"probe": 8, "report": 1}),
    "a title": (nothing, {"tasks.animals.title": "Animals"}, REPORT),
    "a margin": (nothing, {"margin": 0.2}, REPORT),
    "another config": (
        nothing,
        {"name": "second", "run.tasks": ["animals"]},
        REPORT,
    ),
    "other names": (
        nothing,
        {
            "name": "renamed",
            "models": {"other": {"path": "models/tiny"}},
            "corpora.texts": TINY["corpora"]["sentences"],
            "tasks.again": TINY["tasks"]["animals"] | {"corpus": "texts", "title": "Again"},
            "run.models": ["other"],
            "run.tasks": ["again", "tags"],
        },
        REPORT,
    ),
    "a task removed": (nothing, {"run.tasks": ["tags"]}, REPORT),
    "a fraction": (
        nothing,
        {"run.fractions": ["1", "1/2", "1/4", "0"]},
        {"hidden_states": 2, "probe": 2, "report": 1},
    ),
    "a moved model": (
        lambda folder: (folder / "models/tiny").rename(folder / "models/moved"),
        {"models.tiny": {"path": "models/moved"}},
        {},
    ),
    "touched scripts": (
        lambda folder: [path.touch() for path in folder.rglob("*") if path.is_file()],
        {},
        {},
    ),
}
"""Edits of the files and of the config, and the jobs that they need."""


ALL_EDITS = pytest.mark.parametrize(("change", "keys", "expected"), EDITED.values(), ids=EDITED)


@ALL_EDITS
def test_only_what_an_edit_changes_is_computed(computed_copy, change, keys, expected):
    change(computed_copy.folder)
    assert computed_copy.planned(with_keys(TINY, keys)) == expected


@pytest.mark.slow
@ALL_EDITS
def test_times_and_records_of_snakemake_change_nothing(recorded_copy, change, keys, expected):
    """Nothing but the content of files counts."""
    change(recorded_copy.folder)
    paths = sorted(recorded_copy.folder.rglob("*"))
    random.Random(0).shuffle(paths)
    for place, path in enumerate(paths):
        os.utime(path, (1.6e9 + place, 1.6e9 + place))
    assert recorded_copy.planned(with_keys(TINY, keys)) == expected


@WITH_FILES_UNDRAWN
def test_states_that_are_not_kept_are_gone_and_change_no_number():
    one, two = ({**CONFIG, "keep_hidden_states": keep} for keep in (True, False))
    assert finish(one, "kept") is None
    assert finish(two, "gone") is None
    assert [len([*Path(name).glob("states/*.hidden")]) for name in ("kept", "gone")] == [6, 0]
    assert tables_in("kept") == tables_in("gone")
    assert not unneeded(Path("kept"))


@WITH_FILES_UNDRAWN
def test_a_run_with_nothing_to_do_makes_its_plan_that_of_its_folder_again(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "")  # which is changed
    study, other = (config_of(with_keys(CONFIG, {"run.seeds": seeds})) for seeds in ([1], [2]))
    run_here(Plan(study, "results/walk"))
    Plan(other, "results/walk").write()
    assert unneeded(Path("results"))
    assert not planned(with_keys(CONFIG, {"run.seeds": [1]}), workflow_of()).plan.missing
    assert not unneeded(Path("results"))


@WITH_FILES
def test_studies_that_share_a_cache_through_a_link_keep_each_others_files():
    shared = Path("shared")
    shared.mkdir()
    for user, keys in (("a", {"run.seeds": [1]}), ("b", {"run.seeds": [2]})):
        Path(user, "results").mkdir(parents=True)
        Path(user, "results/cache").symlink_to(shared.absolute())
        plan = Plan(config_of(with_keys(CONFIG, keys)), Path(user, "results/walk"))
        plan.write()
        for job in plan.jobs:
            Path(job.output).parent.mkdir(exist_ok=True)
            Path(job.output).touch()
    assert not unneeded(Path("b/results"))
    shutil.rmtree("b/results/walk")
    unwanted = unneeded(Path("b/results"))
    probes = [path.name for path in unwanted if path.parent.name == "probe"]
    assert len(probes) == 6
    assert all("-2-" in name for name in probes)
    prune(Path("b/results"), list(unwanted))
    assert not unneeded(Path("a/results"))
    kept = Plan(config_of(with_keys(CONFIG, {"run.seeds": [1]})), "a/results/walk")
    assert [batch.rule for batch in kept.missing] == ["report"]


@WITH_FILES_UNDRAWN
def test_states_stay_for_readers_that_another_run_has_added():
    one, two = (
        with_keys(CONFIG, {"keep_hidden_states": False, "run.seeds": seeds})
        for seeds in ([1], [1, 2])
    )
    old = plan_of(one, "s")
    old.write()
    *before, last, _ = old.missing
    for batch in before:
        run(batch, "s")
    plan_of(two, "s").write()
    run(last, "s")
    assert Path(last.jobs[0].reads["states"]).exists()
    assert finish(two, "s") is None


@WITH_FILES_UNDRAWN
@pytest.mark.slow
def test_the_report_follows_names_and_deleted_files():
    keys = {"run.models": ["a", "b"], "run.tasks": ["animals"], "run.fractions": ["1", "0"]}
    paths = {"a": {"path": "models/tiny"}, "b": {"path": "models/other"}}
    assert finish(with_keys(CONFIG, keys | {"models": paths}), "s") is None
    swapped = with_keys(CONFIG, keys | {"models": {"a": paths["b"], "b": paths["a"]}})
    assert [batch.rule for batch in plan_of(swapped, "s").missing] == ["report"]
    assert finish(swapped, "s") is finish(swapped, "fresh") is None
    expected = tables_in("fresh")
    assert tables_in("s") == expected
    Path("s/tables/summary.parquet").unlink()
    assert finish(swapped, "s") is None
    assert tables_in("s") == expected


@WITH_FILES
def test_jobs_ask_for_the_disk_space_of_the_hidden_states_that_they_write_or_read(monkeypatch):
    monkeypatch.setattr(Plan, "_bytes", lambda plan, job: 3_000_000_000)
    asked = {(batch.rule, batch.disk_mb) for batch in plan_of(CONFIG, "s").batches}
    others = {(rule, 1000) for rule in ("tokenize", "average", "learn_lambda", "report")}
    assert asked == others | {("hidden_states", 4000), ("probe", 4000)}


@WITH_FILES
def test_averages_of_one_corpus_are_one_job():
    plan = plan_of(with_keys(CONFIG, {"floors": ["zeros", "mean-output"]}), "s")
    [batch] = [batch for batch in plan.missing if batch.rule == "average"]
    assert [job.about["kind"] for job in batch.jobs] == ["average", "mean-output"]


@WITH_FILES
def test_tasks_with_one_order_of_heads_share_its_hidden_states():
    tasks = {
        "tasks.longer": CONFIG["tasks"]["animals"] | {"epochs": 2},
        "run.tasks": ["animals", "longer"],
    }
    config = with_keys(CONFIG, tasks | {"ranking": {"epochs": 1}})
    rules = [batch.rule for batch in Plan(config_of(config), "shared").missing]
    assert [rules.count(rule) for rule in ("learn_lambda", "hidden_states", "probe")] == [1, 2, 12]


@WITH_FILES_UNDRAWN
def test_a_forced_run_leaves_states_to_all_of_their_readers():
    config = with_keys(CONFIG, {"keep_hidden_states": False})
    assert finish(config, "s") is None
    expected = tables_in("s")
    run_here(Plan(config_of(config), "s", cache=Path("s/cache"), forced={"probe"}))
    assert tables_in("s") == expected


@WITH_FILES
def test_a_file_that_was_moved_aside_is_missing():
    plan = plan_of(CONFIG, "s")
    made = Path(plan.jobs[0].output)
    made.parent.mkdir(parents=True)
    made.with_name(f"{made.name}.damaged").touch()
    assert plan_of(CONFIG, "s").jobs[0].output == str(made)
