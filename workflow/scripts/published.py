"""Our numbers beside the published ones."""

from papa.stage import stage

with stage(snakemake) as say:
    from papa.published import beside_published

    say(beside_published(snakemake.input.summary, **snakemake.output, **snakemake.params.settings))
