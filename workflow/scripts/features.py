"""All hidden states of a corpus with some heads replaced."""

from papa.jobs.stage import stage

with stage(snakemake, threads="encoder") as say:
    from papa.method.features import extract_features

    say(
        extract_features(
            tokens=snakemake.input.tokens,
            constants=snakemake.input.get("constants") or None,
            order=snakemake.input.get("order"),
            **snakemake.output,
            **snakemake.params.settings,
        )
    )
