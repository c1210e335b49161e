"""The averages of all parts of a corpus as one."""

from papa.stage import stage

with stage(snakemake) as say:
    from papa.constants import merge_averages

    say(merge_averages(snakemake.input.parts, snakemake.output.constants))
