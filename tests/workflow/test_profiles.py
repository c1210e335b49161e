"""Profiles for a cluster and for GPUs: they parse, and plan what a plain run plans."""

import pytest
import yaml
from tiny import CONFIG, JOBS, REPOSITORY


@pytest.mark.parametrize("name", ["default", "gpu", "slurm"])
def test_plans_the_same_jobs(fresh, name):
    profile = f"workflow/profiles/{name}"
    arguments = ["--cores", "2"] if name == "default" else []
    process = fresh.snakemake("-n", "--configfile", fresh.write(CONFIG), "--workflow-profile", profile, *arguments)
    assert process.returncode == 0, process.stderr
    # `quiet` of a profile hides the table of jobs, so it is asked for again
    assert fresh.planned(CONFIG, "--workflow-profile", profile, *arguments) == JOBS


def test_rules_of_profiles_exist():
    for path in REPOSITORY.glob("workflow/profiles/*/profile.yaml"):
        profile = yaml.safe_load(path.read_text(encoding="utf-8"))
        assert profile.get("set-resources", {}).keys() <= JOBS.keys(), path


def test_slurm_jobs_state_what_they_need(fresh):
    profile = "workflow/profiles/slurm"
    process = fresh.snakemake("-n", "--configfile", fresh.write(CONFIG), "--workflow-profile", profile)
    jobs = [text.split("\n\n")[0] for text in process.stdout.split("\nrule ")[1:]]
    assert jobs
    for job in jobs:
        if not job.startswith("all:"):
            assert "runtime=" in job
            assert "mem_mb=" in job


def test_jobs_ask_by_sizes_once_these_are_known(finished):
    config = CONFIG | {"run": CONFIG["run"] | {"seeds": [2]}}
    arguments = ["-n", "--configfile", finished.write(config, "edited.yaml"), "--quiet", "host"]
    process = finished.snakemake(*arguments, "--cores", "8")
    probes = [text.split("\n\n")[0] for text in process.stdout.split("\nrule probe:")[1:]]
    assert len(probes) == 6
    assert all("mem_mb=400" in probe and "runtime=15" in probe for probe in probes)


def test_gpu_jobs_ask_for_a_gpu(fresh):
    profile = "workflow/profiles/gpu"
    process = fresh.snakemake(
        "-n", "--configfile", fresh.write(CONFIG), "--workflow-profile", profile, "--quiet", "host"
    )
    jobs = [text.split("[")[0] for text in process.stdout.split("\nrule ")[1:]]
    asking = {job.split(":")[0] for job in jobs if "gpu=1" in job}
    assert asking == {"average", "train_lambda", "features_of_corpus", "features_of_task"}


def test_reading_of_threads(fresh):
    """Threads are the config's; fewer cores plan fewer, and the scripts take the config's all the same."""
    config = CONFIG | {"threads": {"encoder": 3, "probe": 2}}
    process = fresh.snakemake("-n", "--cores", "8", "--configfile", fresh.write(config))
    jobs = process.stdout.split("\nrule ")[1:]
    assert all("threads: 3" in job for job in jobs if job.startswith("average:"))
    assert all("threads: 2" in job for job in jobs if job.startswith("probe:"))
