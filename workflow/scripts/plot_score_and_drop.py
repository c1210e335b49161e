"""Mean drop against mean original score."""

from papa.jobs.stage import stage

with stage(snakemake) as say:
    from papa.results.plots import plot_score_and_drop

    say(plot_score_and_drop(snakemake.input.table, **snakemake.output, **snakemake.params.settings))
