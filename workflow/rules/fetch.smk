# Only on request (papa run CONFIG fetch), on a machine with network access. It has no output, because no job depends on
# where data and models are.
rule fetch:
    log:
        "<results>/logs/fetch.log",
    localrule: True
    conda:
        "../envs/papa.yaml"
    resources:
        runtime=240,
    params:
        parameters=lambda wildcards: STUDY.parameters(STUDY.job("fetch")),
    script:
        "../scripts/fetch.py"
