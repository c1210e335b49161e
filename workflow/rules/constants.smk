rule average:
    input:
        tokens="<results>/models/{model}/corpora/{laid_out}/tokens.parquet",
        code=modules("average"),
    output:
        constants="<results>/models/{model}/corpora/{laid_out}/average.h5",
    log:
        "<results>/logs/models/{model}/corpora/{laid_out}/average.log",
    benchmark:
        "<results>/models/{model}/corpora/{laid_out}/average.benchmark.tsv"
    wildcard_constraints:
        laid_out=GRAPH.in_parts(False),
    priority: 3  # the longest chain of jobs begins early
    conda:
        "../envs/papa.yaml"
    threads: threads("encoder")
    resources:
        mem_mb=memory,
        runtime=walltime,
    params:
        settings=lambda wildcards: {"model": PARAMETERS.encoder(wildcards.model)},
    script:
        "../scripts/average.py"


# A corpus with shards: the sums over each, and all of them together.
rule average_part:
    input:
        tokens="<results>/models/{model}/corpora/{laid_out}/tokens.parquet",
        code=modules("average"),
    output:
        constants="<results>/models/{model}/corpora/{laid_out}/average/{part}.h5",
    log:
        "<results>/logs/models/{model}/corpora/{laid_out}/average/{part}.log",
    benchmark:
        "<results>/models/{model}/corpora/{laid_out}/average/{part}.benchmark.tsv"
    priority: 3
    conda:
        "../envs/papa.yaml"
    threads: threads("encoder")
    resources:
        mem_mb=memory,
        runtime=walltime,
    params:
        settings=lambda wildcards: {"model": PARAMETERS.encoder(wildcards.model), "part": wildcards.part},
    script:
        "../scripts/average.py"


rule merge_averages:
    input:
        parts=lambda wildcards: GRAPH.averages(wildcards.model, wildcards.laid_out),
        code=modules("merge_averages"),
    output:
        constants="<results>/models/{model}/corpora/{laid_out}/average.h5",
    log:
        "<results>/logs/models/{model}/corpora/{laid_out}/average.log",
    benchmark:
        "<results>/models/{model}/corpora/{laid_out}/average.benchmark.tsv"
    wildcard_constraints:
        laid_out=GRAPH.in_parts(True),
    priority: 3
    localrule: True
    conda:
        "../envs/papa.yaml"
    threads: 1
    resources:
        mem_mb=growing(4000),
        runtime=growing(30),
    script:
        "../scripts/merge_averages.py"
