rule train_lambda:
    input:
        tokens=lambda wildcards: GRAPH.tokens(wildcards.model, wildcards.task),
        labels=lambda wildcards: GRAPH.labels(wildcards.task),
        constants=lambda wildcards: GRAPH.constants(
            wildcards.model, GRAPH.corpus_of(wildcards.task), wildcards.constant
        ),
        code=modules("train_lambda"),
    output:
        lambdas="<results>/models/{model}/tasks/{task}/{constant}/lambda.parquet",
    log:
        "<results>/logs/models/{model}/tasks/{task}/{constant}/lambda.log",
    benchmark:
        "<results>/models/{model}/tasks/{task}/{constant}/lambda.benchmark.tsv"
    priority: 2  # the longest chain of jobs begins early
    conda:
        "../envs/papa.yaml"
    threads: threads("encoder")
    resources:
        mem_mb=memory,
        runtime=walltime,
    params:
        settings=lambda wildcards: PARAMETERS.ranking(wildcards.model, wildcards.task, wildcards.constant),
    script:
        "../scripts/train_lambda.py"


rule rank:
    input:
        lambdas="<results>/models/{model}/tasks/{task}/{constant}/lambda.parquet",
        code=modules("rank"),
    output:
        order="<results>/models/{model}/tasks/{task}/{constant}/{order}/order.parquet",
    log:
        "<results>/logs/models/{model}/tasks/{task}/{constant}/{order}/order.log",
    benchmark:
        "<results>/models/{model}/tasks/{task}/{constant}/{order}/order.benchmark.tsv"
    localrule: True
    conda:
        "../envs/papa.yaml"
    threads: 1
    resources:
        mem_mb=growing(2000),
        runtime=growing(10),
    params:
        settings=lambda wildcards: {"kind": wildcards.order},
    script:
        "../scripts/rank.py"


# Orders that need no data, and so no task.
rule order_heads:
    input:
        code=modules("order_heads"),
    output:
        order="<results>/models/{model}/orders/{order}.parquet",
    log:
        "<results>/logs/models/{model}/orders/{order}.log",
    benchmark:
        "<results>/models/{model}/orders/{order}.benchmark.tsv"
    localrule: True
    conda:
        "../envs/papa.yaml"
    threads: 1
    resources:
        mem_mb=growing(2000),
        runtime=growing(10),
    params:
        settings=lambda wildcards: PARAMETERS.ordering(wildcards.model, wildcards.order),
    script:
        "../scripts/order_heads.py"
