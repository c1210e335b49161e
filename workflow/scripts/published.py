"""Our numbers beside the published ones."""

from papa.jobs.stage import stage

with stage(snakemake) as say:
    from papa.results.published import beside_published

    say(beside_published(snakemake.input.summary, **snakemake.output, **snakemake.params.settings))
