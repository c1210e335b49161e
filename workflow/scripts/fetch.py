"""Download the models and data of the config from the hub to the mirror folder."""

from papa.jobs.stage import run

run(snakemake, online=True)
