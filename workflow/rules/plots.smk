rule plot_grid:
    input:
        table="<results>/tables/{grid}.parquet",
        code=modules("plot_grid"),
    output:
        svg=report(
            "<results>/figures/{grid}.svg",
            caption="../report/grid.rst",
            category="Figures",
            labels={"figure": "{grid}"},
        ),
        png="<results>/figures/{grid}.png",
        html="<results>/figures/{grid}.html",
    log:
        "<results>/logs/figures/{grid}.log",
    benchmark:
        "<results>/figures/{grid}.benchmark.tsv"
    localrule: True
    conda:
        "../envs/papa.yaml"
    threads: 1
    resources:
        mem_mb=growing(2000),
        runtime=growing(10),
    params:
        settings={"style": config["plots"]},
    script:
        "../scripts/plot_grid.py"


rule plot_score_and_drop:
    input:
        table="<results>/tables/score_and_drop.parquet",
        code=modules("plot_score_and_drop"),
    output:
        svg=report(
            "<results>/figures/score_and_drop.svg",
            caption="../report/score_and_drop.rst",
            category="Figures",
            labels={"figure": "score_and_drop"},
        ),
        png="<results>/figures/score_and_drop.png",
        html="<results>/figures/score_and_drop.html",
    log:
        "<results>/logs/figures/score_and_drop.log",
    benchmark:
        "<results>/figures/score_and_drop.benchmark.tsv"
    localrule: True
    conda:
        "../envs/papa.yaml"
    threads: 1
    resources:
        mem_mb=growing(2000),
        runtime=growing(10),
    params:
        settings={"style": config["plots"]},
    script:
        "../scripts/plot_score_and_drop.py"


rule plot_patterns:
    input:
        constants="<results>/models/{model}/corpora/{corpus}/average.h5",
        code=modules("plot_patterns"),
    output:
        svg=report(
            "<results>/figures/patterns/{model}/{corpus}.svg",
            caption="../report/patterns.rst",
            category="Averaged attention",
            labels={"model": "{model}", "texts": "{corpus}", "form": "figure"},
        ),
        png="<results>/figures/patterns/{model}/{corpus}.png",
        html="<results>/figures/patterns/{model}/{corpus}.html",
    log:
        "<results>/logs/figures/patterns/{model}/{corpus}.log",
    benchmark:
        "<results>/figures/patterns/{model}/{corpus}.benchmark.tsv"
    localrule: True
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
