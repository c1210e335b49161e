rule plot_score_by_fraction:
    input:
        summary="<results>/tables/summary.parquet",
        code=modules("plot_score_by_fraction"),
    output:
        svg="<results>/figures/score_by_fraction.svg",
        png="<results>/figures/score_by_fraction.png",
        html="<results>/figures/score_by_fraction.html",
    log:
        "<results>/logs/figures/score_by_fraction.log",
    benchmark:
        "<results>/figures/score_by_fraction.benchmark.tsv"
    conda:
        "../envs/papa.yaml"
    threads: 1
    resources:
        mem_mb=growing(2000),
        runtime=growing(10),
    params:
        settings={"style": config["plots"]},
    script:
        "../scripts/plot_score_by_fraction.py"


rule plot_patterns:
    input:
        constants="<results>/models/{model}/corpora/{corpus}/average.h5",
        code=modules("plot_patterns"),
    output:
        svg="<results>/figures/patterns/{model}/{corpus}.svg",
        png="<results>/figures/patterns/{model}/{corpus}.png",
        html="<results>/figures/patterns/{model}/{corpus}.html",
    log:
        "<results>/logs/figures/patterns/{model}/{corpus}.log",
    benchmark:
        "<results>/figures/patterns/{model}/{corpus}.benchmark.tsv"
    conda:
        "../envs/papa.yaml"
    threads: 1
    resources:
        mem_mb=growing(2000),
        runtime=growing(10),
    params:
        settings=PARAMETERS.heads_drawn(),
    script:
        "../scripts/plot_patterns.py"
