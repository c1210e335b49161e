"""Score against the fraction of input-dependent heads."""

from papa.jobs.stage import stage

with stage(snakemake) as say:
    from papa.results.plots import plot_grid

    say(plot_grid(snakemake.input.table, **snakemake.output, **snakemake.params.settings))
