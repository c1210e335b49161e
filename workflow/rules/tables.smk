rule collect:
    input:
        runs=GRAPH.runs(),
        code=modules("collect"),
    output:
        table="<results>/tables/runs.parquet",
    log:
        "<results>/logs/tables/runs.log",
    benchmark:
        "<results>/tables/runs.benchmark.tsv"
    conda:
        "../envs/papa.yaml"
    threads: 1
    resources:
        mem_mb=growing(2000),
        runtime=growing(10),
    params:
        settings=GRAPH.titles(),
    script:
        "../scripts/collect.py"


rule summarise:
    input:
        table="<results>/tables/runs.parquet",
        code=modules("summarise"),
    output:
        summary="<results>/tables/summary.parquet",
        markdown="<results>/tables/summary.md",
    log:
        "<results>/logs/tables/summary.log",
    benchmark:
        "<results>/tables/summary.benchmark.tsv"
    conda:
        "../envs/papa.yaml"
    threads: 1
    resources:
        mem_mb=growing(2000),
        runtime=growing(10),
    script:
        "../scripts/summarise.py"
