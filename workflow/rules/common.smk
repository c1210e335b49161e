from papa.config.artefacts import ARTEFACTS
from papa.config.settings import NAME
from papa.config.study import FRESH
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


def needs(rule):
    def inputs(wildcards):
        job = job_of(rule, wildcards)
        counts = ancient if STUDY.state(job) == FRESH else str
        paths = {name: [counts(f"<results>/{path}") for path in own] for name, own in STUDY.read_by(job).items()}
        return paths | {"outdated": counts(OUTDATED)}

    return inputs


def told(rule):
    return lambda wildcards: STUDY.told(job_of(rule, wildcards))


def sized(rule):
    """Memory in megabytes and walltime in minutes, which grow with each attempt to run a job."""
    return {
        "mem_mb": lambda wildcards, attempt: attempt * resources.memory(STUDY, job_of(rule, wildcards)),
        "runtime": lambda wildcards, attempt: attempt * resources.walltime(STUDY, job_of(rule, wildcards)),
    }


def made(artefact):
    return f"<results>/{ARTEFACTS[artefact].pattern}"


def log(artefact):
    return f"<results>/{ARTEFACTS[artefact].log}"


def benchmark(artefact):
    return f"<results>/{ARTEFACTS[artefact].benchmark}"


def shown(artefact, category, **labels):
    return report(made(artefact), caption=f"../report/{artefact}.rst", category=category, labels=labels)
