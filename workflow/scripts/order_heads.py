"""Heads in an order that needs no data."""

from papa.jobs.stage import stage

with stage(snakemake) as say:
    from papa.method.ranking import order_heads

    say(order_heads(order=snakemake.output.order, **snakemake.params.settings))
