import shlex
import sys
from pathlib import Path

from snakemake.utils import min_version

min_version("9.23")

# --configfile replaces the default config; --config key=value without it changes keys of the default.
if not workflow.configfiles:

    configfile: "config/config.yaml"


try:
    from papa.errors import InputError, missing_extra
except ModuleNotFoundError:
    raise SystemExit("Error: the workflow needs papa: pip install 'papa-attention[workflow]'.")
if missing := missing_extra("workflow", "The workflow"):
    raise SystemExit(f"Error: {missing}")
from papa.run.start import end, planned

# Snakemake adds the prefix of a module to the paths of rules.
PREFIX = workflow.modifier.path_modifier.prefix or ""
CACHE = "results/cache"
if any(path.startswith(f"{PREFIX}{CACHE}/") for rule in workflow.rules for path in rule.output):
    raise SystemExit(
        "Error: this workflow has two modules of papa, whose files have the same paths; give each module a `prefix:`."
    )

try:
    # The main process plans; a job on a cluster reads only the file that it wrote for the job.
    STUDY = planned(config, workflow)
except InputError as error:
    raise SystemExit(f"Error: {error}")

THREADS = STUDY.threads
RESULTS = STUDY.folder.removeprefix(PREFIX)
MADE_FROM = STUDY.report.removeprefix(PREFIX)
LOGS = f"{RESULTS}/logs"
CAPTION = "workflow/report.rst"
MAKE = f"trap '' INT; {shlex.quote(sys.executable)} -P -m papa.run.execute {shlex.quote(STUDY.folder)} {{output[0]:q}} {{threads}} {{log:q}}"


def without_prefix(paths):
    return [path.removeprefix(PREFIX) for path in paths]


def needs(name):
    """What the plan has as the input of this name, for the file that a rule makes."""
    return lambda wildcards: without_prefix(
        STUDY.needs(getattr(wildcards, "file", MADE_FROM), name)
    )


def reported(folder):
    """The files of the report in one of its folders; plain `report` outputs would be deleted before they are made again."""
    paths = [path for path in without_prefix(STUDY.files) if Path(path).parent.name == folder]
    return [update(report(path, caption=CAPTION, category=folder)) for path in paths]


# All running jobs share a limit such as `--resources disk_mb=500000`, also on a cluster.
resource_scopes:
    disk_mb="global",


def request(megabytes, minutes):
    """What a job needs; one that failed gets twice the memory and walltime, and resumes at its last checkpoint."""
    return {
        "disk_mb": lambda wildcards: STUDY.disk_mb(getattr(wildcards, "file", MADE_FROM)),
        "mem_mb": lambda wildcards, attempt: attempt * megabytes,
        "runtime": lambda wildcards, attempt: attempt * minutes,
    }


# Without a model, for tables and probes; with one, for Python with transformers, a batch of texts, and weights four times.
LIGHT, ENCODER = request(2000, 60), request(3000 + 4 * STUDY.weights_mb, 240)


# NAME-KEY as one wildcard: Snakemake refuses values that repeat their end, which names may do, but digests do not.
wildcard_constraints:
    file="[^/]+",


rule all:
    default_target: True
    input:
        without_prefix(STUDY.wanted),


onsuccess:
    end(STUDY)


# One rule for each stage, in the order of the paper. The plan knows which files a job reads. A file that exists is never
# made again, and outputs are `update`, so Snakemake deletes no file that another study needs.


rule tokenize:
    output:
        update("results/cache/tokenize/{file}.parquet"),
    log:
        f"{LOGS}/tokenize-{{file}}.log",
    priority: 3
    resources:
        **LIGHT,
    shell:
        MAKE


rule average:
    input:
        tokens=needs("tokens"),
    output:
        update("results/cache/average/{file}.h5"),
    log:
        f"{LOGS}/average-{{file}}.log",
    priority: 3
    threads: THREADS
    resources:
        **ENCODER,
    shell:
        MAKE


# λ of every head, or its gradient, which is computed from hidden states.
rule learn_lambda:
    input:
        tokens=needs("tokens"),
        averages=needs("averages"),
        states=needs("states"),
    output:
        update("results/cache/learn_lambda/{file}.parquet"),
    log:
        f"{LOGS}/learn_lambda-{{file}}.log",
    priority: 2
    threads: THREADS
    resources:
        **ENCODER,
    shell:
        MAKE


# Small states of several variants are one job, whose output is an empty file. Unless `keep_hidden_states` is set, their
# last reader deletes the states, but not this file.
rule hidden_states:
    input:
        tokens=needs("tokens"),
        averages=needs("averages"),
        order=needs("order"),
    output:
        update(f"{RESULTS}/states/{{file}}.stored"),
    log:
        f"{LOGS}/hidden_states-{{file}}.log",
    priority: -1  # first read the states that are there
    threads: THREADS
    resources:
        **ENCODER,
    shell:
        MAKE


# All seeds and samples of a variant are one job. Snakemake knows only the file that is written last.
rule probe:
    input:
        tokens=needs("tokens"),
        states=needs("states"),
    output:
        update("results/cache/probe/{file}.parquet"),
    log:
        f"{LOGS}/probe-{{file}}.log",
    threads: THREADS
    resources:
        **LIGHT,
    shell:
        MAKE


# Probes that read no stored states: trained constants, masked tokens, log-likelihoods, dropout of the published code.
rule probe_encoder:
    input:
        tokens=needs("tokens"),
        averages=needs("averages"),
        order=needs("order"),
    output:
        update("results/cache/probe_encoder/{file}.parquet"),
    log:
        f"{LOGS}/probe_encoder-{{file}}.log",
    threads: THREADS
    resources:
        **ENCODER,
    shell:
        MAKE


# The name of the file that is written last has the key of the report, so another config of this name makes a new report.
rule report:
    input:
        tokens=needs("tokens"),
        averages=needs("averages"),
        order=needs("order"),
        predictions=needs("predictions"),
    output:
        made_from=update(MADE_FROM),
        page=reported("report"),
        tables=reported("tables"),
        figures=reported("figures"),
    log:
        f"{LOGS}/report.log",
    localrule: True
    resources:
        **LIGHT,
    params:
        key=Path(MADE_FROM).stem,
    shell:
        MAKE
