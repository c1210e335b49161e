"""What the config takes from the hub, in the mirror folder."""

from papa.jobs.stage import run

run(snakemake, online=True)
