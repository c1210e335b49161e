"""Heads in the order in which they are replaced."""

from papa.jobs.stage import stage

with stage(snakemake) as say:
    from papa.method.ranking import rank_heads

    say(rank_heads(snakemake.input.lambdas, snakemake.output.order, **snakemake.params.settings))
