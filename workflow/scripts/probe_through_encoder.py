"""One probe, trained through the encoder because what it reads cannot be stored, and scored."""

from papa.jobs.stage import stage

with stage(snakemake, threads="encoder") as say:
    from papa.method.streaming import train_probe_through_encoder

    say(
        train_probe_through_encoder(
            tokens=snakemake.input.tokens,
            labels=snakemake.input.labels or None,
            constants=snakemake.input.get("constants"),
            order=snakemake.input.get("order"),
            **snakemake.output,
            **snakemake.params.settings,
        )
    )
