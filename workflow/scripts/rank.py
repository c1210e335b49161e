"""Heads in the order in which they are replaced."""

from papa.stage import stage

with stage(snakemake) as say:
    from papa.ranking import rank_heads

    say(rank_heads(snakemake.input.lambdas, snakemake.output.order, **snakemake.params.settings))
