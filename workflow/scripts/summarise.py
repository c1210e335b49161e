"""Means, intervals and relative drops."""

from papa.jobs.stage import stage

with stage(snakemake) as say:
    from papa.results.tables import summarise

    say(summarise(snakemake.input.table, snakemake.output.summary, snakemake.output.markdown))
