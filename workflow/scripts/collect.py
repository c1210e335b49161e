"""All runs as one long table."""

from papa.jobs.stage import stage

with stage(snakemake) as say:
    from papa.results.tables import collect_runs

    say(collect_runs(snakemake.input.runs, snakemake.output.table, **snakemake.params.settings))
