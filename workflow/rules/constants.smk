rule average:
    input:
        tokens="<results>/models/{model}/corpora/{corpus}/tokens.parquet",
        code=modules("average"),
    output:
        constants="<results>/models/{model}/corpora/{corpus}/average.h5",
    log:
        "<results>/logs/models/{model}/corpora/{corpus}/average.log",
    benchmark:
        "<results>/models/{model}/corpora/{corpus}/average.benchmark.tsv"
    priority: 3  # the longest chain of jobs begins early
    conda:
        "../envs/papa.yaml"
    threads: threads("encoder")
    resources:
        mem_mb=growing(8000),
        runtime=growing(240),
    params:
        settings=lambda wildcards: {"model": GRAPH.model(wildcards.model)},
    script:
        "../scripts/average.py"
