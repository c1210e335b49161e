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


def reads(rule, *names):
    """The inputs of these names, as far as the config needs them. Those of a finished job never rerun it."""

    def inputs(wildcards):
        job = STUDY.job(rule, **dict(wildcards.items()))
        counts = ancient if STUDY.state(job) == FRESH else str
        files = STUDY.read_by(job)
        if unnamed := files.keys() - set(names):
            raise ValueError(f"rule {rule} does not name its inputs {', '.join(sorted(unnamed))}")
        paths = {name: [counts(f"<results>/{path}") for path in several] for name, several in files.items()}
        return paths | {"outdated": counts(OUTDATED)}

    return inputs


def sized(rule):
    """Memory in megabytes and walltime in minutes, which grow with each attempt to run a job."""

    def times(attempt, estimate, wildcards):
        return attempt * estimate(STUDY, STUDY.job(rule, **dict(wildcards.items())))

    return {
        "mem_mb": lambda wildcards, attempt: times(attempt, resources.memory, wildcards),
        "runtime": lambda wildcards, attempt: times(attempt, resources.walltime, wildcards),
    }


def parameters(wildcards, output):
    return STUDY.told(STUDY.maker(output[0]))


def file(artefact, **wildcards):
    path = ARTEFACTS[artefact].pattern
    for name, value in wildcards.items():
        path = path.replace(f"{{{name}}}", value)
    return f"<results>/{path}"


def stem(artefact):
    """The path without its ending. The log and the benchmark of a job are called like its first output."""
    return ARTEFACTS[artefact].stem


def shown(artefact, category, **labels):
    path = file(artefact, **labels)
    return report(path, caption=f"../report/{artefact}.rst", category=category, labels=labels)
