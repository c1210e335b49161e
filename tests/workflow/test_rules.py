"""The rules themselves: short, alike, and built on nothing that snakemake does not document."""

import re

import pytest
import yaml
from tiny import CONFIG, REPOSITORY, with_keys

from papa.config.reading import config_of
from papa.config.study import Plan
from papa.config.variant import STORED_PATTERN, VARIANT_PATTERN

WORKFLOW = REPOSITORY / "workflow"
RULES = sorted(WORKFLOW.glob("rules/*.smk"))
SOURCES = [REPOSITORY / "Snakefile", WORKFLOW / "Snakefile", *RULES]
TEXT = "\n".join(path.read_text(encoding="utf-8") for path in SOURCES)
BODIES = {
    match[2] or match[1]: match[0]
    for match in re.finditer(r"^(?:use )?rule (\w+)(?: as (\w+) with)?:\n(?:(?:    .*)?\n)*", TEXT, re.MULTILINE)
}
"""The text of each rule, by its name."""


def test_nothing_private_of_snakemake_is_used():
    """`configfiles` is how a workflow knows which config it was given; no other way tells it from single keys."""
    assert set(re.findall(r"\bworkflow\.(\w+)", re.sub(r'".*?"', "", TEXT))) <= {"configfiles", "source_path"}
    scripts = [path.read_text(encoding="utf-8") for path in WORKFLOW.glob("scripts/*.py")]
    imported = re.findall(r"^\s*(?:from|import) (snakemake[\w.]*)", "\n".join([TEXT, *scripts]), re.MULTILINE)
    assert set(imported) <= {"snakemake.utils"}


def test_what_takes_seconds_is_not_queued():
    """A rule made with `use rule` does not inherit `localrule`."""
    queued = {"tokenize", "average", "train_lambda", "weigh_heads", "hidden_states"}
    queued |= {"probe", "stream_probe", "all", "everything"}
    assert {name for name, body in BODIES.items() if "localrule: True" not in body} <= queued


def test_profiles_name_rules_that_exist():
    for path in WORKFLOW.glob("profiles/*/profile.yaml"):
        profile = yaml.safe_load(path.read_text(encoding="utf-8"))
        assert {*profile.get("set-resources", {}), *profile.get("groups", {})} <= BODIES.keys(), path


@pytest.mark.parametrize("keys", [{}, {"fidelity": "published_code"}])
def test_a_run_belongs_to_one_rule(keys):
    """If its path matched both, snakemake would also create the jobs of the other; the study knows the right one."""
    grid = {"trained": {"fractions": ["1/2"], "constants": ["average", "average-trained"], "seeds": [1]}}
    study = Plan(config_of(with_keys(CONFIG, keys) | {"grids": grid}), "results/tiny")
    jobs = study.probes()
    tasks = {"probe": f"(?:{study.stored_tasks_pattern()})", "stream_probe": study.streamed_tasks_pattern()}
    variants = {"probe": STORED_PATTERN, "stream_probe": VARIANT_PATTERN}
    for job in jobs:
        for path in job.outputs.values():
            matching = [
                rule
                for rule in tasks
                if re.fullmatch(f"models/tiny/tasks/{tasks[rule]}/runs/{variants[rule]}/[a-z.]+", path)
            ]
            assert matching == [job.rule], path
    assert {job.rule for job in jobs} == ({"stream_probe"} if keys else {"probe", "stream_probe"})
