# Both can train a probe; the encoder runs along only where no stored hidden states will do.
ruleorder: probe > probe_through_encoder


rule probe:
    input:
        unpack(lambda wildcards: GRAPH.features(wildcards.model, wildcards.task, wildcards.variant)),
        tokens=lambda wildcards: GRAPH.tokens(wildcards.model, wildcards.task),
        labels="<results>/tasks/{task}/labels.parquet",
        code=modules("probe"),
    output:
        run="<results>/models/{model}/tasks/{task}/runs/{variant}/seed-{seed}.json",
        probe="<results>/models/{model}/tasks/{task}/runs/{variant}/seed-{seed}.safetensors",
    log:
        "<results>/logs/models/{model}/tasks/{task}/runs/{variant}/seed-{seed}.log",
    benchmark:
        "<results>/models/{model}/tasks/{task}/runs/{variant}/seed-{seed}.benchmark.tsv"
    wildcard_constraints:
        task=GRAPH.stored(),
        variant=f"{CORPUS_VARIANTS}|{TASK_VARIANTS}",
    priority: 1  # before further hidden states, so that what is stored can be pruned early
    conda:
        "../envs/papa.yaml"
    threads: threads("probe")
    resources:
        mem_mb=memory,
        runtime=walltime,
    params:
        settings=lambda wildcards: PARAMETERS.probe(wildcards.model, wildcards.task, wildcards.variant, wildcards.seed),
    script:
        "../scripts/probe.py"


# What is not stored, or cannot be: constants are trained with the probe, texts are masked anew in every epoch, or the
# encoder's dropout is on.
rule probe_through_encoder:
    input:
        unpack(lambda wildcards: GRAPH.behind(wildcards.model, wildcards.task, wildcards.variant)),
        tokens=lambda wildcards: GRAPH.tokens(wildcards.model, wildcards.task),
        labels=lambda wildcards: GRAPH.labels(wildcards.task),
        code=modules("probe_through_encoder"),
    output:
        run="<results>/models/{model}/tasks/{task}/runs/{variant}/seed-{seed}.json",
        probe="<results>/models/{model}/tasks/{task}/runs/{variant}/seed-{seed}.safetensors",
    log:
        "<results>/logs/models/{model}/tasks/{task}/runs/{variant}/seed-{seed}.log",
    benchmark:
        "<results>/models/{model}/tasks/{task}/runs/{variant}/seed-{seed}.benchmark.tsv"
    wildcard_constraints:
        variant=f"{CORPUS_VARIANTS}|{TASK_VARIANTS}|{TRAINED_VARIANTS}",
    conda:
        "../envs/papa.yaml"
    threads: threads("encoder")
    resources:
        mem_mb=memory,
        runtime=walltime,
    params:
        settings=lambda wildcards: PARAMETERS.probe_through_encoder(
            wildcards.model, wildcards.task, wildcards.variant, wildcards.seed
        ),
    script:
        "../scripts/probe_through_encoder.py"
