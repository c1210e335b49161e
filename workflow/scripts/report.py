"""Everything on one page."""

from papa.jobs.stage import stage

with stage(snakemake) as say:
    from papa.results.page import write_report

    say(write_report(**snakemake.output, **snakemake.params.settings))
