import shlex
import sys

from snakemake.utils import min_version

min_version("9.23")

# --configfile replaces the default config; --config key=value without it changes keys of the default.
if not workflow.configfiles:

    configfile: "config/config.yaml"


from papa.errors import InputError
from papa.files import KEY_DIGITS
from papa.jobs.start import end, planned

try:
    # The main process plans; a job on a cluster reads the plan that it wrote.
    STUDY = planned(config, workflow.configfiles, workflow.is_main_process)
except InputError as error:
    raise SystemExit(f"Error: {error}")

THREADS = STUDY.threads
MAKE = f"trap '' INT; {shlex.quote(sys.executable)} -P -m papa.plan.execute {STUDY.folder} {{wildcards.file:q}} {{threads}} {{log}}"


def waits(wildcards):
    return STUDY.batches[wildcards.file[-KEY_DIGITS:]]["waits"]


def request(megabytes, minutes):
    """Memory and walltime of a job; one that failed gets twice as much, and resumes at its last checkpoint."""
    return {
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
        STUDY.wanted,


onsuccess:
    end(STUDY)


# One rule for each stage, in the order of the paper. The input of a rule are the jobs of the plan that have to run before;
# a file that exists needs no job. Outputs are `update`, so Snakemake never deletes a file that another run has made.


rule tokenize:
    input:
        waits,
    output:
        update("results/cache/tokenize/{file}.parquet"),
    log:
        f"{STUDY.folder}/logs/tokenize-{{file}}.log",
    priority: 3
    resources:
        **LIGHT,
    shell:
        MAKE


rule average:
    input:
        waits,
    output:
        update("results/cache/average/{file}.h5"),
    log:
        f"{STUDY.folder}/logs/average-{{file}}.log",
    priority: 3
    threads: THREADS
    resources:
        **ENCODER,
    shell:
        MAKE


rule learn_lambda:
    input:
        waits,
    output:
        update("results/cache/learn_lambda/{file}.parquet"),
    log:
        f"{STUDY.folder}/logs/learn_lambda-{{file}}.log",
    priority: 2
    threads: THREADS
    resources:
        **ENCODER,
    shell:
        MAKE


# Small states of several variants are one job. Unless `keep_hidden_states` is set, their last reader deletes them.
rule hidden_states:
    input:
        waits,
    output:
        update(f"{STUDY.folder}/states/{{file}}.hidden"),
    log:
        f"{STUDY.folder}/logs/hidden_states-{{file}}.log",
    priority: -1  # first read the states that are there
    threads: THREADS
    resources:
        **ENCODER,
    shell:
        MAKE


rule probe:
    input:
        waits,
    output:
        update("results/cache/probe/{file}.parquet"),
    log:
        f"{STUDY.folder}/logs/probe-{{file}}.log",
    threads: THREADS
    resources:
        **LIGHT,
    shell:
        MAKE


# Probes that read no stored states: trained constants, masked tokens, log-likelihoods, dropout of the published code.
rule probe_encoder:
    input:
        waits,
    output:
        update("results/cache/probe_encoder/{file}.parquet"),
    log:
        f"{STUDY.folder}/logs/probe_encoder-{{file}}.log",
    threads: THREADS
    resources:
        **ENCODER,
    shell:
        MAKE


rule report:
    input:
        waits,
    output:
        update(f"{STUDY.folder}/report/{{file}}.json"),
    log:
        f"{STUDY.folder}/logs/report-{{file}}.log",
    localrule: True
    resources:
        **LIGHT,
    shell:
        MAKE
