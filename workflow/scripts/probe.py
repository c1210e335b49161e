"""One probe, trained and scored."""

from papa.jobs.stage import stage

with stage(snakemake, threads="probe") as say:
    from papa.method.training import train_probe

    say(
        train_probe(
            **{name: snakemake.input[name] for name in ("tokens", "labels", "hidden", "index")},
            **snakemake.output,
            **snakemake.params.settings,
        )
    )
