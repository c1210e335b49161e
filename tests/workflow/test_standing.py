"""The DAG stands: also of a finished study, snakemake knows every job, and its own tools work."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from comparing import same_results
from tiny import CONFIG, JOBS, with_keys

RESULTS = Path("results/tiny")
OPTIONS = ("--configfile", "config.yaml")
PAGE = "results/tiny/report/index.html"
FLOWS = {
    "average": {"tokenize"},
    "learn_lambda": {"tokenize", "average"},
    "hidden_states": {"tokenize", "average", "learn_lambda"},
    "probe": {"tokenize", "hidden_states"},
    "report": {"tokenize", "average", "learn_lambda", "probe"},
}
"""The rules whose files each rule reads."""
PLAIN = ("--workflow-profile", "none")
"""Without papa's profile, snakemake also looks at the list of inputs, and at code."""
SEEDS = with_keys(CONFIG, {"run.seeds": [1, 2]})


def printed(workflow, *options):
    process = workflow.run(*OPTIONS, *options)
    return process.stdout + process.stderr


def shown(workflow, *options):
    """What `papa run` prints for other programs."""
    command = [sys.executable, "-m", "papa", "run", "config.yaml", *options]
    return subprocess.run(command, **workflow.settings(), capture_output=True).stdout


def grown(folder):
    """Make all files of the cache too large for snakemake to compare them by content, and newer than what they made."""
    cache = folder / "results/cache"
    for path in (path for stage in JOBS for path in cache.glob(f"{stage}/*")):
        with open(path, "ab") as file:
            file.write(b"0" * 2_000_000)
    for path in cache.glob("tokenize/*"):
        path.touch()


@pytest.mark.parametrize("profile", [(), PLAIN])
def test_a_finished_study_has_nothing_to_do(computed_copy, profile):
    probe, tokens = (
        next(computed_copy.folder.glob(f"results/cache/{name}")).relative_to(computed_copy.folder)
        for name in ("probe/*-original-*", "tokenize/*")
    )
    for target in ((), (PAGE,), (str(probe),), (str(tokens),)):
        assert "Nothing to be done" in printed(computed_copy, "-n", *profile, *target)
    grown(computed_copy.folder)
    shutil.rmtree(computed_copy.folder / ".snakemake", ignore_errors=True)
    assert "Nothing to be done" in printed(computed_copy, "-n", *profile)


def test_its_rules_say_what_flows(computed):
    graph = shown(computed, "--rulegraph", "dot", PAGE)
    assert graph.rstrip().endswith("}")
    names = dict(re.findall(r'(\d+)\[label = "(\w+)"', graph))
    flows = {}
    for reader, read in (
        (names[two], names[one]) for one, two in re.findall(r"(\d+) -> (\d+)", graph)
    ):
        flows.setdefault(reader, set()).add(read)
    assert flows == FLOWS


def test_snakemake_lists_and_reports_its_files(computed, tmp_path):
    lines = [line.split("\t") for line in shown(computed, "--summary").splitlines()[1:]]
    rules = [line[2] for line in lines if line[0]]
    others = {rule: number for rule, number in JOBS.items() if rule != "report"}
    assert {rule: rules.count(rule) for rule in others} == others
    assert {line[-1] for line in lines} == {"no update"}
    written = {
        path.name
        for name in ("tables", "figures")
        for path in (computed.folder / RESULTS / name).iterdir()
        if path.stem not in ("reliance", "score_and_drop")  # they depend on results
    }
    assert {Path(line[0]).name for line in lines if line[2] == "report"} >= written | {"index.html"}
    printed(computed, "--report", f"{tmp_path}/report.html")
    page = (tmp_path / "report.html").read_text()
    assert all(name in page for name in ("index.html", "summary.md", "claims.md"))


def test_a_dry_run_lists_jobs_and_commands(fresh):
    fresh.write(CONFIG)
    assert printed(fresh, "-n").count("\nrule probe:") == JOBS["probe"]
    assert printed(fresh, "-n", "-p").count("-m papa.run.execute results/tiny ") == sum(
        JOBS.values()
    )


FORCED = {
    ("--forceall",): JOBS,
    ("-R", "report"): {"report": 1},
    ("-R", "probe"): {"probe": 8, "report": 1},
    ("-R", "learn_lambda"): {"learn_lambda": 2, "hidden_states": 2, "probe": 2, "report": 1},
    ("-f", "report"): {"report": 1},
}
"""Options that compute again, and the jobs that run: the rule, and all that depends on it."""


@pytest.mark.parametrize("options", FORCED)
def test_what_is_forced_is_computed_again(computed_copy, options):
    assert computed_copy.planned(None, *OPTIONS, *options) == FORCED[options]


@pytest.mark.slow
def test_what_is_forced_has_the_same_bytes(computed, computed_copy):
    made = next(computed_copy.folder.glob("results/cache/learn_lambda/tiny-animals*"))
    before = made.stat().st_ino
    computed_copy.run("--cores", "2", *OPTIONS, "-R", "learn_lambda")
    assert made.stat().st_ino != before, "it was computed"
    same_results(computed.folder / "results", computed_copy.folder / "results")
    assert computed_copy.planned(None, *OPTIONS) == {}, "it was forced for one run only"


@pytest.mark.parametrize("name", ["report/index.html", "tables/runs.parquet", "tables/reliance.md"])
def test_deleted_files_of_the_report_are_made_again(computed_copy, name):
    (computed_copy.folder / RESULTS / name).unlink()
    assert computed_copy.planned(None, *OPTIONS) == {"report": 1}


def test_a_deleted_member_of_a_batch_runs_its_batch(computed_copy):
    computed_copy.compute(SEEDS)
    for path in computed_copy.folder.glob("results/cache/probe/tiny-animals-original-*"):
        path.rename(computed_copy.folder / path.name)
        assert computed_copy.planned(None, *OPTIONS) == {"probe": 1, "report": 1}
        (computed_copy.folder / path.name).rename(path)


def test_the_cache_is_not_deleted(computed):
    process = computed.snakemake(*OPTIONS, "--delete-all-output")
    assert process.returncode == 1
    assert "delete files that other studies need" in process.stderr
    assert "Traceback" not in process.stdout + process.stderr


def test_an_error_while_results_are_printed_is_an_error(computed_copy):
    (computed_copy.folder / RESULTS / "tables/claims.json").write_text("{")
    process = computed_copy.snakemake(*OPTIONS, "--cores", "1", "--force")  # only the rule `all`
    assert process.returncode == 1
    assert "the results were not printed" in process.stderr


@pytest.mark.parametrize(("module", "missing"), [("papa.errors", "papa"), ("pyarrow", "pyarrow")])
def test_a_snakemake_without_papa_says_how_to_install_it(fresh, module, missing):
    code = (
        f"import sys; sys.modules[{module!r}] = None; from snakemake.cli import main; main(['-n'])"
    )
    command = [sys.executable, "-c", code]
    process = subprocess.run(command, **fresh.settings(), capture_output=True)
    said = process.stdout + process.stderr
    assert process.returncode == 1
    assert "Traceback" not in said
    assert f"workflow needs {missing}: pip install 'papa-attention[workflow]'." in said


@pytest.mark.slow
@pytest.mark.parametrize("profile", [(), PLAIN])
def test_jobs_whose_files_exist_end_at_once(computed_copy, profile):
    """If papa could not set the times of files, and hidden states are not kept."""
    source = computed_copy.folder / "papa/plan/missing.py"
    source.write_text(source.read_text().replace("os.utime(", "(lambda *_, **__: None)("))
    options = (
        "--cores",
        "2",
        "--configfile",
        computed_copy.write(CONFIG | {"keep_hidden_states": False}),
    )
    shutil.rmtree(computed_copy.folder / RESULTS / "states")
    grown(computed_copy.folder)
    printed = computed_copy.run(*options, *profile).stdout
    assert printed.count("its files exist") == sum(JOBS.values()) - 4 - 2
    assert not [*computed_copy.folder.glob("results/tiny/states/*.hidden")]
    assert computed_copy.planned(None, *options, *profile) == {}


@pytest.mark.slow
def test_one_more_seed_and_back(computed_copy):
    """A partial run does not print the old results, and each switch of configs makes one report.

    Both with papa's profile and without, which runs back.
    """
    made = {}
    for config, name in ((CONFIG, "config.yaml"), (SEEDS, "seeds.yaml")):
        options = ("--cores", "2", "--configfile", computed_copy.write(config, name))
        if config is SEEDS:
            partial = computed_copy.run(*options, "--until", "probe")
            assert "The results are based" not in partial.stdout + partial.stderr
            plans(computed_copy, options, {"report": 1})
        computed_copy.run(*options)
        plans(computed_copy, options, {})
        summary = computed_copy.folder / RESULTS / "tables/summary.parquet"
        made[name] = options, summary.read_bytes()
    for name in ("config.yaml", "seeds.yaml"):
        options, expected = made[name]
        plans(computed_copy, options, {"report": 1})
        computed_copy.run(*options, *PLAIN)
        assert summary.read_bytes() == expected
        plans(computed_copy, options, {})
        dry_run = printed(computed_copy, "-n", *options)
        assert not re.search("missing metadata:.*report", dry_run)


def plans(workflow, options, jobs):
    """Assert that a dry run plans these jobs, with papa's profile and without."""
    for profile in ((), PLAIN):
        assert workflow.planned(None, *options, *profile) == jobs
