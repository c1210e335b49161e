"""Rules and snakemake's profiles, which plan the same jobs and ask for what a job needs; its command line."""

import re

import pytest
import yaml
from tiny import CONFIG, JOBS, REPOSITORY, with_keys, without_labels

from papa.config.reading import config_of
from papa.plan.study import Plan
from papa.stages import STAGES

PROFILES = {
    path.parent.name: yaml.safe_load(path.read_text("utf-8"))
    for path in REPOSITORY.glob("profiles/*/*.yaml")
}
MORE = with_keys(
    CONFIG,
    {
        "tasks.masked": without_labels(CONFIG["tasks"]["animals"], "negative_log_perplexity"),
        "run.tasks": ["animals", "masked"],
        "run.orders": ["lambda", "gradient"],
        "threads": 3,
        "floors": ["zeros", "identity"],
    },
)
"""A config that has a job of every rule that runs the encoder."""
ENCODER = {name for name, settings in STAGES.items() if settings.runs_encoder}
"""The rules that run the encoder, according to the settings of their stages."""


def jobs_of(workflow, config, profile, *arguments):
    """From each rule to what snakemake prints of its jobs."""
    given = [
        "--configfile",
        workflow.write(config, f"{profile}.yaml"),
        "--quiet",
        "host",
        *arguments,
    ]
    process = workflow.run("-n", "--workflow-profile", f"workflow/profiles/{profile}", *given)
    planned = {}
    for text in re.split(r"\n *(?:local)?rule ", process.stdout)[1:]:
        planned.setdefault(text.split(":")[0], []).append(text.split("\n\n")[0])
    return planned


def test_profiles_have_the_same_memory():
    """A profile that did not say so would delete what a job has written, or lock what nobody unlocks."""
    for profile in PROFILES.values():
        assert profile["nolock"]
        assert profile["keep-incomplete"]
        assert profile["ignore-incomplete"]
        assert profile["scheduler"] == "greedy"


def test_on_slurm_every_job_says_what_it_needs(fresh):
    planned = jobs_of(fresh, CONFIG, "slurm")
    assert {rule: len(jobs) for rule, jobs in planned.items() if rule != "all"} == JOBS
    for rule, jobs in planned.items():
        assert rule == "all" or all("runtime=" in job and "mem_mb=" in job for job in jobs), rule


def test_rules_that_run_the_encoder_ask_for_a_gpu_and_for_threads(fresh):
    assert PROFILES["gpu"]["set-resources"] == {rule: {"gpu": 1} for rule in ENCODER}
    planned = jobs_of(fresh, MORE, "gpu", "--cores", "8")
    assert {
        rule for rule, jobs in planned.items() if any("gpu=1" in job for job in jobs)
    } == ENCODER
    threads = {
        rule: set(re.findall(r"threads: (\d)", "".join(jobs))) for rule, jobs in planned.items()
    }
    asked = {rule: number for rule, number in threads.items() if number}
    assert asked == {name: {"3"} for name in (*ENCODER, "probe")}


def test_every_rule_is_a_stage(fresh, monkeypatch):
    monkeypatch.chdir(fresh.folder)
    assert {
        batch.rule for batch in Plan(config_of(MORE), "nowhere", save=False).missing
    } == STAGES.keys()
    rules = re.findall("^rule (.*):", (REPOSITORY / "Snakefile").read_text(), re.MULTILINE)
    assert {*rules} == STAGES.keys() | {"all"}


def test_the_gpu_block_of_the_slurm_profile_has_all_rules_that_run_the_encoder():
    text = (REPOSITORY / "workflow/profiles/slurm/profile.yaml").read_text()
    block = text[text.index("# set-resources:") :].split("\n\n")[0]
    resources = yaml.safe_load(re.sub("^# ?", "", block, flags=re.MULTILINE))["set-resources"]
    assert set(resources) == ENCODER
    assert all(
        asked["gpu"] == 1 and asked["slurm_partition"] == "gpu" for asked in resources.values()
    )


def test_jobs_ask_for_memory_and_walltime(computed_copy):
    config = CONFIG | {"run": CONFIG["run"] | {"seeds": [2]}}
    probes = jobs_of(computed_copy, config, "default", "--cores", "8")["probe"]
    assert len(probes) == 8
    assert all("mem_mb=2000" in probe and "runtime=60" in probe for probe in probes)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--config", "token_budget=many"],
            "Error: token_budget must be a whole number, but it is 'many'.",
        ),
        (["--configfile", "refused.yaml"], "Error: There is no file data/nowhere"),
        (["--configfile", "twice.yaml"], "twice.yaml contains the key 'name' twice in one block"),
    ],
)
def test_refusals_are_one_line_without_traceback(fresh, arguments, message):
    fresh.write(
        with_keys(CONFIG, {"corpora.words.files.train": "data/nowhere.jsonl"}), "refused.yaml"
    )
    (fresh.folder / "twice.yaml").write_text("name: a\nname: b\n")
    process = fresh.snakemake("-n", "--quiet", "host", *arguments)
    assert process.returncode == 1
    # snakemake itself says which profile there is, and that the default config is extended
    lines = (process.stdout + process.stderr).splitlines()
    (refusal,) = [
        line
        for line in lines
        if not line.startswith(("Config file ", "Using workflow specific profile "))
    ]
    assert message in refusal


@pytest.mark.slow
def test_encoders_at_once_have_a_gpu_each(fresh_copy, tmp_path, monkeypatch):
    """The choice is real, the GPUs are not: torch finds none, and `auto` runs on the CPU."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7,9")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    config = ["--configfile", fresh_copy.write(CONFIG | {"threads": 1})]
    limits = ["--workflow-profile", "workflow/profiles/gpu", "--cores", "2", "--resources", "gpu=2"]
    for rule in ("tokenize", "average"):  # both averages are ready at once
        fresh_copy.run(*config, *limits, "--until", rule)
    logs = [path.read_text() for path in fresh_copy.folder.glob("results/tiny/logs/average-*.log")]
    got = [re.findall(r"this job uses GPU (\d)$", log, re.MULTILINE) for log in logs]
    assert sorted(got) == [["7"], ["9"]]
    assert all(re.search(r"peak memory: [\d,.]+ [MG]B$", log, re.MULTILINE) for log in logs)
