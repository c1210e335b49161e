"""One job: the function that its settings name makes its outputs of its inputs."""

from papa.jobs.stage import run

run(snakemake)
