"""Original scores beside what is lost without input-dependent attention."""

from papa.stage import stage

with stage(snakemake) as say:
    from papa.drops import score_and_drop

    say(score_and_drop(snakemake.input.grid, **snakemake.output))
