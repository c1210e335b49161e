"""Another workflow takes papa as a module: its rules under other names, its results in the other workflow's folder."""

import re

import pytest
import yaml
from tiny import CONFIG, JOBS, Copy, copy_of_repository, with_keys, write_inputs

from papa.files import read_table

SNAKEFILE = """
configfile: "study.yaml"


module papa:
    snakefile:
        "{snakefile}"
    config:
        config["attention"]
    prefix:
        "ours"


use rule * from papa as papa_*


rule conclude:
    default_target: True
    input:
        rules.papa_report.output,
    params:
        key=rules.papa_report.params.key,
    output:
        "conclusion.txt",
    shell:
        "head -n 1 ours/results/tiny/tables/summary.md > {{output}}"
"""


@pytest.fixture
def study(tmp_path):
    """A workflow of somebody else's, in a folder of its own, that asks one question of papa."""
    papa = copy_of_repository(tmp_path / "papa").draw_nothing()
    study = Copy(tmp_path / "study")
    study.folder.mkdir()
    write_inputs(study.folder)
    config = with_keys(CONFIG, {"run.tasks": ["animals"], "run.fractions": ["0"], "floors": []})
    study.write({"attention": config}, "study.yaml")
    snakefile = SNAKEFILE.format(snakefile=papa.folder / "workflow/Snakefile")
    (study.folder / "Snakefile").write_text(snakefile)
    return study


@pytest.mark.slow
def test_another_workflow_runs_papa_as_a_module(study, computed):
    planned = study.planned(None)
    assert planned["conclude"] == 1
    assert planned["papa_probe"] == 1
    assert planned["papa_average"] == 1
    assert all(rule == "conclude" or rule.startswith("papa_") for rule in planned)

    # what a job asks for is reckoned by its rule, also under the rule's other name: an average needs the encoder
    process = study.snakemake("-n")
    asked = dict(
        re.findall(r"^rule (papa_\w+):.*?mem_mb=(\d+)", process.stdout, re.DOTALL | re.MULTILINE)
    )
    assert int(asked["papa_probe"]) < int(asked["papa_average"]), asked

    process = study.run("--cores", "1")
    assert "papa_probe: " not in process.stderr
    assert "Error" not in process.stdout + process.stderr
    assert (study.folder / "conclusion.txt").read_text().strip()
    probes = [
        path.relative_to(study.folder)
        for path in study.folder.glob("ours/results/cache/probe/*.parquet")
    ]
    assert len(probes) == 1
    for probe in probes:  # the numbers are those that papa gives by itself
        assert read_table(study.folder / probe) == read_table(
            computed.folder / probe.relative_to("ours")
        )
    some = ("--rerun-triggers", "mtime", "params")
    assert study.planned(None) == study.planned(None, *some) == {}, "nothing is left to do"
    config = yaml.safe_load((study.folder / "study.yaml").read_text())
    study.write(with_keys(config, {"attention.run.seeds": [1, 2]}), "study.yaml")
    expected = {"papa_probe": 1, "papa_report": 1, "conclude": 1}
    assert study.planned(None) == study.planned(None, *some) == expected


def test_two_modules_have_two_prefixes(study):
    snakefile = (study.folder / "Snakefile").read_text()
    other = (
        snakefile.split("rule conclude")[0].replace("papa", "theirs").replace("/theirs/", "/papa/")
    )
    for prefix, says in (("theirs", "papa_probe"), ("ours", "give each module a `prefix:`")):
        second = other.replace('"ours"', f'"{prefix}"')
        (study.folder / "Snakefile").write_text(second + snakefile)
        process = study.snakemake("-n", "--quiet", "rules")
        printed = process.stdout + process.stderr
        assert says in printed
        assert "Traceback" not in printed


def test_deployed_as_it_is_everything_is_the_target(study, fresh):
    """What snakedeploy writes, and the file that it refers to, run by itself."""
    study.write(CONFIG, "study.yaml")
    snakefile = (study.folder / "Snakefile").read_text().split("rule conclude")[0]
    snakefile = snakefile.replace('config["attention"]', "config").replace(" as papa_*", "")
    (study.folder / "Snakefile").write_text(snakefile)
    assert study.planned(None) == JOBS | {"everything": 1}
    assert fresh.planned(CONFIG, "--snakefile", "workflow/Snakefile") == JOBS | {"everything": 1}
