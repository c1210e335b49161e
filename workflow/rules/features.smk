# Hidden states that depend on texts alone: nothing replaced, or every head.
rule features_of_corpus:
    input:
        tokens="<results>/models/{model}/corpora/{corpus}/tokens.parquet",
        constants=lambda wildcards: GRAPH.constants(
            wildcards.model, wildcards.corpus, setting(wildcards.variant)["constant"]
        ),
        code=modules("features"),
    output:
        train="<results>/models/{model}/corpora/{corpus}/features/{variant}/train.hidden",
        validation="<results>/models/{model}/corpora/{corpus}/features/{variant}/validation.hidden",
        index="<results>/models/{model}/corpora/{corpus}/features/{variant}/index.json",
    log:
        "<results>/logs/models/{model}/corpora/{corpus}/features/{variant}.log",
    benchmark:
        "<results>/models/{model}/corpora/{corpus}/features/{variant}/benchmark.tsv"
    wildcard_constraints:
        variant=CORPUS_VARIANTS,
    conda:
        "../envs/papa.yaml"
    threads: threads("encoder")
    resources:
        mem_mb=memory,
        runtime=walltime,
    params:
        settings=lambda wildcards: PARAMETERS.hidden(wildcards.model, wildcards.variant),
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
        train="<results>/models/{model}/tasks/{task}/features/{constant}/{order}/{kept}/train.hidden",
        validation="<results>/models/{model}/tasks/{task}/features/{constant}/{order}/{kept}/validation.hidden",
        index="<results>/models/{model}/tasks/{task}/features/{constant}/{order}/{kept}/index.json",
    log:
        "<results>/logs/models/{model}/tasks/{task}/features/{constant}/{order}/{kept}.log",
    benchmark:
        "<results>/models/{model}/tasks/{task}/features/{constant}/{order}/{kept}/benchmark.tsv"
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
        ),
    script:
        "../scripts/features.py"


# Only on request (snakemake prune): what is deleted is made again by the first job that reads it.
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
        "find {params.models} -name '*.hidden' -print -delete > {log}"
