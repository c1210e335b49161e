"""Run one job: the function that its settings name."""

from papa.jobs.stage import run

run(snakemake)
