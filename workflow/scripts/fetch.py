"""What the config takes from the hub, in the mirror folder."""

from papa.stage import stage

with stage(snakemake, online=True) as say:
    from papa.fetch import fetch

    say(fetch(mirror=snakemake.params.mirror, **snakemake.params.settings))
