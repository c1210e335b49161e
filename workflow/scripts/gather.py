"""The table of one grid."""

from papa.jobs.stage import stage

with stage(snakemake) as say:
    from papa.results.analyses import gather

    say(gather(snakemake.input.summary, **snakemake.output, **snakemake.params.settings))
