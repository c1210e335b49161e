"""Score against the fraction of input-dependent heads."""

from papa.stage import stage

with stage(snakemake) as say:
    from papa.plots import plot_grid

    say(plot_grid(snakemake.input.table, **snakemake.output, **snakemake.params.settings))
