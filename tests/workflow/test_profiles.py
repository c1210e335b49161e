"""Profiles for a cluster and for GPUs: they parse, and plan what a plain run plans."""

import copy
import re
import shutil

import pytest
import yaml
from tiny import CONFIG, JOBS, REPOSITORY, Copy


@pytest.mark.parametrize("name", ["default", "gpu", "slurm"])
def test_plans_the_same_jobs(fresh, name):
    profile = f"workflow/profiles/{name}"
    arguments = ["--cores", "2"] if name == "default" else []
    process = fresh.snakemake("-n", "--configfile", fresh.write(CONFIG), "--workflow-profile", profile, *arguments)
    assert process.returncode == 0, process.stderr
    # `quiet` of a profile hides the table of jobs, so it is asked for again
    assert fresh.planned(CONFIG, "--workflow-profile", profile, *arguments) == JOBS


def rules_with_scripts():
    """The script of every rule that has one."""
    text = "".join(path.read_text(encoding="utf-8") for path in REPOSITORY.glob("workflow/rules/*.smk"))
    rules = re.split(r"^rule (\w+):$", text, flags=re.MULTILINE)[1:]
    scripts = {name: re.search(r"scripts/(\w+\.py)", body) for name, body in zip(rules[::2], rules[1::2], strict=True)}
    return {name: f"workflow/scripts/{script[1]}" for name, script in scripts.items() if script}


RULES = rules_with_scripts()
ENCODER = {name for name, path in RULES.items() if 'threads="encoder"' in (REPOSITORY / path).read_text("utf-8")}


def test_rules_of_profiles_exist():
    for path in REPOSITORY.glob("workflow/profiles/*/profile.yaml"):
        profile = yaml.safe_load(path.read_text(encoding="utf-8"))
        assert profile.get("set-resources", {}).keys() <= RULES.keys(), path


def test_slurm_jobs_state_what_they_need(fresh):
    profile = "workflow/profiles/slurm"
    process = fresh.snakemake("-n", "--configfile", fresh.write(CONFIG), "--workflow-profile", profile)
    jobs = [text.split("\n\n")[0] for text in process.stdout.split("\nrule ")[1:]]
    assert jobs
    for job in jobs:
        if not job.startswith("all:"):
            assert "runtime=" in job
            assert "mem_mb=" in job


def test_every_rule_that_runs_the_encoder_asks_for_a_gpu():
    profile = yaml.safe_load((REPOSITORY / "workflow/profiles/gpu/profile.yaml").read_text(encoding="utf-8"))
    assert {"average", "probe_through_encoder"} <= ENCODER
    assert profile["set-resources"] == {rule: {"gpu": 1} for rule in ENCODER}


def test_jobs_ask_by_sizes_once_these_are_known(finished):
    config = CONFIG | {"run": CONFIG["run"] | {"seeds": [2]}}
    arguments = ["-n", "--configfile", finished.write(config, "edited.yaml"), "--quiet", "host"]
    process = finished.snakemake(*arguments, "--cores", "8")
    probes = [text.split("\n\n")[0] for text in process.stdout.split("\nrule probe:")[1:]]
    assert len(probes) == 6
    assert all("mem_mb=400" in probe and "runtime=15" in probe for probe in probes)


def test_gpu_jobs_ask_for_a_gpu(fresh):
    config = copy.deepcopy(CONFIG)
    config["tasks"]["tags"]["features"] = "stream"
    config["corpora"]["words"]["shards"] = 2
    profile = "workflow/profiles/gpu"
    process = fresh.snakemake(
        "-n", "--configfile", fresh.write(config), "--workflow-profile", profile, "--quiet", "host"
    )
    jobs = [text.split("[")[0] for text in process.stdout.split("\nrule ")[1:]]
    asking = {job.split(":")[0] for job in jobs if "gpu=1" in job}
    assert asking == ENCODER
    assert "probe" in {job.split(":")[0] for job in jobs}


def test_encoders_at_once_have_a_gpu_each(fresh, tmp_path, monkeypatch):
    """The choice is real, the GPUs are not: torch finds none, and `auto` runs on the CPU."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7,9")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    shutil.copytree(fresh.folder, tmp_path / "papa")
    workflow = Copy(tmp_path / "papa")
    config = ["--configfile", workflow.write(CONFIG | {"threads": {"encoder": 1}})]
    limits = ["--workflow-profile", "workflow/profiles/gpu", "--cores", "2", "--resources", "gpu=2"]
    for rule in ("tokenize", "average"):  # both averages are ready at once
        process = workflow.snakemake(*config, *limits, "--until", rule)
        assert process.returncode == 0, process.stdout + process.stderr
    logs = [path.read_text(encoding="utf-8") for path in workflow.folder.glob("results/tiny/logs/**/average.log")]
    got = [re.findall(r"this job has the GPU (\d)$", log, re.MULTILINE) for log in logs]
    assert sorted(got) == [["7"], ["9"]]


def test_reading_of_threads(fresh):
    """Threads are the config's; fewer cores plan fewer, and the scripts take the config's all the same."""
    config = CONFIG | {"threads": {"encoder": 3, "probe": 2}}
    process = fresh.snakemake("-n", "--cores", "8", "--configfile", fresh.write(config))
    jobs = process.stdout.split("\nrule ")[1:]
    assert all("threads: 3" in job for job in jobs if job.startswith("average:"))
    assert all("threads: 2" in job for job in jobs if job.startswith("probe:"))
