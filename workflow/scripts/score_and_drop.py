"""Original scores beside what is lost without input-dependent attention."""

from papa.jobs.stage import stage

with stage(snakemake) as say:
    from papa.results.drops import score_and_drop

    say(score_and_drop(snakemake.input.grid, **snakemake.output))
