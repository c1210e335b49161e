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
    priority: 3  # the longest chain of jobs begins early
    conda:
        "../envs/papa.yaml"
    threads: threads("encoder")
    resources:
        mem_mb=memory,
        runtime=walltime,
    params:
        settings=lambda wildcards: {"model": PARAMETERS.model(wildcards.model)},
    script:
        "../scripts/average.py"
