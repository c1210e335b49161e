"""What the config takes from the hub, in the mirror folder."""

from papa.jobs.stage import stage

with stage(snakemake, online=True) as say:
    from papa.data.fetch import fetch

    say(fetch(mirror=snakemake.params.mirror, **snakemake.params.settings))
