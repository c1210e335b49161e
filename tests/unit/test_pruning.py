"""`papa inspect RESULTS --prune`: lists and deletes what no plan names, unless a run holds the cache."""

import fcntl
import os
import platform

import pytest
from command import invoke
from refusals import input_error

from papa.commands.inspect import prune, unneeded
from papa.files import checkpoint_of, write_json
from papa.plan.study import PLAN, STUDIES
from papa.run.start import lock, locked

NAMES = {
    name: f"{name}-{number:016x}"
    for number, name in enumerate(("needed", "old", "data", "kept", "unread"))
}

PLANNED = {
    "data": {"sentences": f"../cache/data/{NAMES['data']}.parquet"},
    "artefacts": [{"path": f"../cache/probe/{NAMES['needed']}.parquet"}],
    "states": [f"states/{NAMES['kept']}.hidden"],
}


@pytest.fixture
def results(tmp_path):
    cache = tmp_path / "cache"
    study = tmp_path / "study"
    write_json(PLANNED, study / PLAN)
    for stage, name in (("probe", "needed"), ("probe", "old"), ("data", "data")):
        (cache / stage).mkdir(parents=True, exist_ok=True)
        path = cache / stage / f"{NAMES[name]}.parquet"
        path.write_bytes(b"1234")
        checkpoint_of(path).write_bytes(b"12")
    write_json({}, cache / "check/some.json")
    for name in ("kept", "unread"):
        (study / "states").mkdir(exist_ok=True)
        (study / "states" / f"{NAMES[name]}.hidden").write_bytes(b"1")
    (study / "states/alabama.csv").touch()
    (cache / "probe/.ipynb_checkpoints").mkdir()
    return tmp_path


def pruned(results, answer, code=0):
    return invoke("inspect", results, "--prune", code=code, input=f"{answer}\n")


def test_prune_lists_and_deletes_only_what_no_plan_names(results):
    before = set(results.rglob("*"))
    listed = pruned(results, "n").stdout
    assert set(results.rglob("*")) == before
    assert NAMES["old"] in listed
    assert NAMES["unread"] in listed
    assert not any(NAMES[name] in listed for name in ("needed", "data", "kept"))
    old = results / f"cache/probe/{NAMES['old']}.parquet"
    unread = results / f"study/states/{NAMES['unread']}.hidden"
    pruned(results, "y")
    assert before - set(results.rglob("*")) == {old, checkpoint_of(old), unread}
    assert "Every file is needed." in pruned(results, "y").stdout


def test_prune_refuses_while_a_run_holds_the_cache(results):
    held = locked(results / "cache", fcntl.LOCK_SH, "")
    before = set(results.rglob("*"))
    assert "A run holds" in pruned(results, "y", code=2).stderr
    assert set(results.rglob("*")) == before
    os.close(held)


def registered(cache, folder, host="elsewhere"):
    """A study of another user needs the old file."""
    path = cache / STUDIES / f"{folder.name}.json"
    write_json(
        {"folder": str(folder), "host": host, "files": [f"probe/{NAMES['old']}.parquet"]}, path
    )
    return path


def test_prune_keeps_what_a_study_of_another_user_needs(results, tmp_path_factory):
    theirs = tmp_path_factory.mktemp("theirs") / "results" / "study"
    theirs.mkdir(parents=True)
    entry = registered(results / "cache", theirs)
    [states] = unneeded(results)
    assert states.name == f"{NAMES['unread']}.hidden"
    theirs.rmdir()
    assert len(unneeded(results)) == 4
    assert entry in unneeded(results)
    theirs.parent.rmdir()  # as if it were on a disk that only another machine has
    assert len(unneeded(results)) == 1
    registered(results / "cache", theirs, platform.node())
    pruned(results, "y")
    assert not entry.exists()
    assert not list((results / "cache").rglob(f"{NAMES['old']}*"))


def test_prune_keeps_what_a_run_has_named_since_it_was_listed(results):
    listed = list(unneeded(results))
    states = [f"states/{NAMES[name]}.hidden" for name in ("kept", "unread")]
    write_json(PLANNED | {"states": states}, results / "study" / PLAN)
    prune(results, listed)
    assert [path.exists() for path in listed] == [False, False, True]


def test_a_cache_that_cannot_be_locked_leaves_the_results_free(results):
    taken = locked(results / "cache", fcntl.LOCK_EX, "")
    with input_error("are being deleted"):
        lock(results / "study", results / "cache")
    os.close(taken)
    for file in lock(results / "study", results / "cache"):
        os.close(file)
