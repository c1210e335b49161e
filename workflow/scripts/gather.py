"""The table of one grid."""

from papa.stage import stage

with stage(snakemake) as say:
    from papa.analyses import gather

    say(gather(snakemake.input.summary, **snakemake.output, **snakemake.params.settings))
