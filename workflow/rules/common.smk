from papa.config.artefacts import ARTEFACTS
from papa.config.settings import NAME
from papa.config.freshness import FRESH
from papa.config.variant import AVERAGED, CONSTANT, OF_CORPUS, OF_TASK, OF_TRAINED, ORDER, PART, WEIGHTS
from papa.errors import InputError
from papa.jobs import resources
from papa.jobs.start import begin, end, marked, started

try:
    STUDY = started(config, workflow.configfiles)
    # An input of every job: newer than an artefact that does not fit the config, and ancient for a job that is done.
    OUTDATED = marked(STUDY)
except InputError as error:
    raise SystemExit(f"Config error: {error}")


report: "../report/workflow.rst"


# Ctrl-C reaches a job only when it has a handler: before, Python would print where its imports were.
shell.prefix("set -euo pipefail; trap '' INT; ")


def job_of(rule, wildcards):
    return STUDY.job(rule, **dict(wildcards.items()))


def reads(rule, *names):
    """The inputs of these names, as far as the config needs them. Those of a finished job never rerun it."""

    def inputs(wildcards):
        job = job_of(rule, wildcards)
        counts, files = ancient if STUDY.state(job) == FRESH else str, STUDY.read_by(job)
        assert files.keys() <= set(names), f"{rule} does not name all its inputs: {', '.join(files)}"
        paths = {name: [counts(f"<results>/{path}") for path in several] for name, several in files.items()}
        return paths | {"outdated": counts(OUTDATED)}

    return inputs


def sized(rule):
    """Memory in megabytes and walltime in minutes, which grow with each attempt to run a job."""
    estimates = {"mem_mb": resources.memory, "runtime": resources.walltime}
    times = lambda estimate: lambda wildcards, attempt: attempt * estimate(STUDY, job_of(rule, wildcards))
    return {name: times(estimate) for name, estimate in estimates.items()}


def parameters(wildcards, output):
    return STUDY.parameters(STUDY.maker(output[0]))


def file(artefact, **wildcards):
    path = ARTEFACTS[artefact].pattern
    for name, value in wildcards.items():
        path = path.replace(f"{{{name}}}", value)
    return f"<results>/{path}"


def shown(artefact, category, **labels):
    return report(file(artefact, **labels), caption=f"../report/{artefact}.rst", category=category, labels=labels)
