"""Everything on one page."""

from papa.stage import stage

with stage(snakemake) as say:
    from papa.report import write_report

    say(write_report(**snakemake.output, **snakemake.params.settings))
