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
