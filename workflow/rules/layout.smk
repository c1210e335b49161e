rule tokenize:
    input:
        texts=lambda wildcards: GRAPH.texts_behind(wildcards.laid_out),
        code=modules("tokenize"),
    output:
        tokens="<results>/models/{model}/corpora/{laid_out}/tokens.parquet",
    log:
        "<results>/logs/models/{model}/corpora/{laid_out}/tokens.log",
    benchmark:
        "<results>/models/{model}/corpora/{laid_out}/tokens.benchmark.tsv"
    priority: 3  # the longest chain of jobs begins early
    conda:
        "../envs/papa.yaml"
    threads: 1
    resources:
        mem_mb=growing(1000),
        runtime=lambda wildcards, input, attempt: attempt * resources.walltime_of_files(input.texts),
    params:
        settings=lambda wildcards: PARAMETERS.layout(wildcards.model, wildcards.laid_out),
    script:
        "../scripts/tokenize.py"
