"""Score against the fraction of input-dependent heads."""

from papa.stage import stage

with stage(snakemake) as say:
    from papa.plots import plot_score_by_fraction

    say(plot_score_by_fraction(snakemake.input.summary, **snakemake.output, **snakemake.params.settings))
