# Only on request (papa run CONFIG fetch), where there is a network. It has no output, because no job depends on the
# place of data and models.
rule fetch:
    log:
        "<results>/logs/fetch.log",
    localrule: True
    conda:
        "../envs/papa.yaml"
    resources:
        runtime=240,
    params:
        parameters=lambda wildcards: STUDY.from_hub(),
    script:
        "../scripts/fetch.py"
