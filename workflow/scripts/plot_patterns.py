"""Pictures of the averaged attention of some heads."""

from papa.jobs.stage import stage

with stage(snakemake) as say:
    from papa.results.heatmaps import plot_heads

    say(plot_heads(snakemake.input.constants, **snakemake.output, **snakemake.params.settings))
