# Only on request (snakemake fetch), where there is a network. It has no output: what is fetched is a place, and no job
# depends on it.
rule fetch:
    log:
        "<results>/logs/fetch.log",
    localrule: True
    conda:
        "../envs/papa.yaml"
    threads: 1
    resources:
        mem_mb=2000,
        runtime=growing(240),
    params:
        settings=lambda wildcards: PARAMETERS.from_hub(),
        mirror=lambda wildcards: hub_mirror(),
    script:
        "../scripts/fetch.py"
