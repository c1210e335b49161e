# Only on request (snakemake fetch), where there is a network. It has no output: what is fetched is a place, and no job
# depends on it.
rule fetch:
    log:
        "<results>/logs/fetch.log",
    localrule: True
    conda:
        "../envs/papa.yaml"
    resources:
        runtime=240,
    params:
        told=lambda wildcards: STUDY.from_hub(),
    script:
        "../scripts/fetch.py"
