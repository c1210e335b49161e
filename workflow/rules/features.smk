# Hidden states that depend on texts alone: nothing replaced, or every head.
rule features_of_corpus:
    input:
        tokens="<results>/models/{model}/corpora/{corpus}/tokens.parquet",
        constants=lambda wildcards: GRAPH.constants(
            wildcards.model, wildcards.corpus, setting(wildcards.variant)["constant"]
        ),
        code=modules("features"),
    output:
        hidden="<results>/models/{model}/corpora/{corpus}/features/{variant}/{part}.hidden",
        index="<results>/models/{model}/corpora/{corpus}/features/{variant}/{part}.json",
    log:
        "<results>/logs/models/{model}/corpora/{corpus}/features/{variant}/{part}.log",
    benchmark:
        "<results>/models/{model}/corpora/{corpus}/features/{variant}/{part}.benchmark.tsv"
    wildcard_constraints:
        variant=CORPUS_VARIANTS,
    conda:
        "../envs/papa.yaml"
    threads: threads("encoder")
    resources:
        mem_mb=memory,
        runtime=walltime,
    params:
        settings=lambda wildcards: PARAMETERS.hidden(wildcards.model, wildcards.variant) | {"part": wildcards.part},
    script:
        "../scripts/features.py"


# Hidden states with heads replaced in a task's own order.
rule features_of_task:
    input:
        unpack(
            lambda wildcards: GRAPH.behind(
                wildcards.model, wildcards.task, f"{wildcards.constant}/{wildcards.order}/{wildcards.kept}"
            )
        ),
        tokens=lambda wildcards: GRAPH.tokens(wildcards.model, wildcards.task),
        code=modules("features"),
    output:
        hidden="<results>/models/{model}/tasks/{task}/features/{constant}/{order}/{kept}/{part}.hidden",
        index="<results>/models/{model}/tasks/{task}/features/{constant}/{order}/{kept}/{part}.json",
    log:
        "<results>/logs/models/{model}/tasks/{task}/features/{constant}/{order}/{kept}/{part}.log",
    benchmark:
        "<results>/models/{model}/tasks/{task}/features/{constant}/{order}/{kept}/{part}.benchmark.tsv"
    wildcard_constraints:
        constant=CONSTANT,
        kept=KEPT,
    conda:
        "../envs/papa.yaml"
    threads: threads("encoder")
    resources:
        mem_mb=memory,
        runtime=walltime,
    params:
        settings=lambda wildcards: PARAMETERS.hidden(
            wildcards.model, f"{wildcards.constant}/{wildcards.order}/{wildcards.kept}"
        )
        | {"part": wildcards.part},
    script:
        "../scripts/features.py"


# Only on request (snakemake prune): stored hidden states, which the first job that reads them makes again, and where
# killed jobs were.
rule prune:
    log:
        "<results>/logs/prune.log",
    localrule: True
    conda:
        "../envs/papa.yaml"
    threads: 1
    resources:
        mem_mb=500,
        runtime=growing(10),
    params:
        models=f"results/{config['name']}/models",
    shell:
        "find {params.models} '(' -name '*.hidden' -o -name '.*.checkpoint*' ')' -print -delete > {log}"
