rule tokenize:
    input:
        texts="<results>/corpora/{corpus}/texts.parquet",
        code=modules("tokenize"),
    output:
        tokens="<results>/models/{model}/corpora/{corpus}/tokens.parquet",
    log:
        "<results>/logs/models/{model}/corpora/{corpus}/tokens.log",
    benchmark:
        "<results>/models/{model}/corpora/{corpus}/tokens.benchmark.tsv"
    priority: 3  # the longest chain of jobs begins early
    conda:
        "../envs/papa.yaml"
    threads: 1
    resources:
        mem_mb=growing(4000),
        runtime=growing(60),
    params:
        settings=lambda wildcards: GRAPH.layout(wildcards.model, wildcards.corpus),
    script:
        "../scripts/tokenize.py"
