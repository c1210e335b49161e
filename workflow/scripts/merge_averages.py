"""The averages of all parts of a corpus as one."""

from papa.jobs.stage import stage

with stage(snakemake) as say:
    from papa.method.averages import merge_averages

    say(merge_averages(snakemake.input.parts, snakemake.output.constants))
