"""Means, intervals and relative drops."""

from papa.stage import stage

with stage(snakemake) as say:
    from papa.tables import summarise

    say(summarise(snakemake.input.table, snakemake.output.summary, snakemake.output.markdown))
