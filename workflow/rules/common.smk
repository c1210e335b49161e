from papa.config import variant
from papa.config.artefacts import ARTEFACTS
from papa.config.freshness import FRESH
from papa.config.settings import NAME_PATTERN
from papa.errors import InputError
from papa.jobs import resources
from papa.jobs.start import begin, end, marked, started

try:
    STUDY = started(config, workflow.configfiles)
    # An input of every job, newer than all outdated artefacts; it is `ancient` for jobs that are up to date.
    OUTDATED = marked(STUDY)
except InputError as error:
    raise SystemExit(f"Config error: {error}")


# Ignore Ctrl-C until the job has set a handler; otherwise it would print a traceback of Python's imports.
shell.prefix("set -euo pipefail; trap '' INT; ")


def job_of(rule, wildcards):
    return STUDY.job(rule, **dict(wildcards.items()))


def reads(rule, *names):
    """Return the inputs with these names that a job has; they are `ancient` if the job is up to date."""

    def inputs(wildcards):
        job = job_of(rule, wildcards)
        counts, files = ancient if STUDY.state(job) == FRESH else str, STUDY.workflow_inputs(job)
        if hidden := files.keys() - {*names}:
            raise InputError(f"The rule {rule} also reads {', '.join(hidden)}; list these inputs in the rule.")
        paths = {name: [counts(f"<results>/{path}") for path in several] for name, several in files.items()}
        return paths | {"outdated": counts(OUTDATED)}

    return inputs


def sized(rule):
    """Return memory in megabytes and walltime in minutes, both multiplied by the index of the attempt."""
    times = lambda estimate: lambda wildcards, attempt: attempt * estimate(STUDY, job_of(rule, wildcards))
    return {"mem_mb": times(resources.memory), "runtime": times(resources.walltime)}


def parameters(wildcards, output):
    return STUDY.parameters(STUDY.maker(output[0]))


def file(artefact, **wildcards):
    path = ARTEFACTS[artefact].pattern
    for name, value in wildcards.items():
        path = path.replace(f"{{{name}}}", value)
    return f"<results>/{path}"
