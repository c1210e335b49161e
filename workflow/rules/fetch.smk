# Only on request (papa run CONFIG fetch), on a machine with a network. It has no output, because no job depends on the
# location of data and models.
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
