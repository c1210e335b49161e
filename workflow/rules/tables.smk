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
    localrule: True
    conda:
        "../envs/papa.yaml"
    threads: 1
    resources:
        mem_mb=growing(2000),
        runtime=growing(10),
    params:
        settings=PARAMETERS.titles(),
    script:
        "../scripts/collect.py"


rule summarise:
    input:
        table="<results>/tables/runs.parquet",
        code=modules("summarise"),
    output:
        summary="<results>/tables/summary.parquet",
        markdown=report(
            "<results>/tables/summary.md",
            caption="../report/summary.rst",
            category="Tables",
            labels={"table": "summary"},
        ),
    log:
        "<results>/logs/tables/summary.log",
    benchmark:
        "<results>/tables/summary.benchmark.tsv"
    localrule: True
    conda:
        "../envs/papa.yaml"
    threads: 1
    resources:
        mem_mb=growing(2000),
        runtime=growing(10),
    script:
        "../scripts/summarise.py"


rule latex:
    input:
        summary="<results>/tables/summary.parquet",
        code=modules("latex"),
    output:
        latex="<results>/tables/summary.tex",
    log:
        "<results>/logs/tables/summary.tex.log",
    benchmark:
        "<results>/tables/latex.benchmark.tsv"
    localrule: True
    conda:
        "../envs/papa.yaml"
    threads: 1
    resources:
        mem_mb=growing(2000),
        runtime=growing(10),
    script:
        "../scripts/latex.py"


# What one grid asked for, laid out like the paper's tables.
rule gather:
    input:
        summary="<results>/tables/summary.parquet",
        code=modules("gather"),
    output:
        table="<results>/tables/{grid}.parquet",
        markdown=report(
            "<results>/tables/{grid}.md",
            caption="../report/grid_table.rst",
            category="Tables",
            labels={"table": "{grid}"},
        ),
        latex="<results>/tables/{grid}.tex",
    log:
        "<results>/logs/tables/{grid}.log",
    benchmark:
        "<results>/tables/{grid}.benchmark.tsv"
    localrule: True
    conda:
        "../envs/papa.yaml"
    threads: 1
    resources:
        mem_mb=growing(2000),
        runtime=growing(10),
    params:
        settings=lambda wildcards: PARAMETERS.grid(wildcards.grid),
    script:
        "../scripts/gather.py"


rule score_and_drop:
    input:
        grid=f"<results>/tables/{RUN}.parquet",
        code=modules("score_and_drop"),
    output:
        table="<results>/tables/score_and_drop.parquet",
        markdown=report(
            "<results>/tables/score_and_drop.md",
            caption="../report/score_and_drop_table.rst",
            category="Tables",
            labels={"table": "score_and_drop"},
        ),
        latex="<results>/tables/score_and_drop.tex",
    log:
        "<results>/logs/tables/score_and_drop.log",
    benchmark:
        "<results>/tables/score_and_drop.benchmark.tsv"
    localrule: True
    conda:
        "../envs/papa.yaml"
    threads: 1
    resources:
        mem_mb=growing(2000),
        runtime=growing(10),
    script:
        "../scripts/score_and_drop.py"


# Our numbers beside those that the paper prints.
rule published:
    input:
        summary="<results>/tables/summary.parquet",
        code=modules("published"),
    output:
        table="<results>/tables/published.parquet",
        markdown=report(
            "<results>/tables/published.md",
            caption="../report/published.rst",
            category="Tables",
            labels={"table": "published"},
        ),
        latex="<results>/tables/published.tex",
    log:
        "<results>/logs/tables/published.log",
    benchmark:
        "<results>/tables/published.benchmark.tsv"
    localrule: True
    conda:
        "../envs/papa.yaml"
    threads: 1
    resources:
        mem_mb=growing(2000),
        runtime=growing(10),
    params:
        settings=PARAMETERS.published(),
    script:
        "../scripts/published.py"


# How many heads look along the diagonal, at special tokens, or at one slot.
rule patterns:
    input:
        tokens="<results>/models/{model}/corpora/{corpus}/tokens.parquet",
        constants="<results>/models/{model}/corpora/{corpus}/average.h5",
        code=modules("patterns"),
    output:
        table="<results>/models/{model}/corpora/{corpus}/patterns.parquet",
        markdown=report(
            "<results>/models/{model}/corpora/{corpus}/patterns.md",
            caption="../report/patterns_table.rst",
            category="Averaged attention",
            labels={"model": "{model}", "texts": "{corpus}", "form": "table"},
        ),
        latex="<results>/models/{model}/corpora/{corpus}/patterns.tex",
    log:
        "<results>/logs/models/{model}/corpora/{corpus}/patterns.log",
    benchmark:
        "<results>/models/{model}/corpora/{corpus}/patterns.benchmark.tsv"
    localrule: True
    conda:
        "../envs/papa.yaml"
    threads: 1
    resources:
        mem_mb=growing(2000),
        runtime=growing(10),
    script:
        "../scripts/patterns.py"
