"""How much every head needs its own attention, learned with a probe."""

from papa.jobs.stage import stage

with stage(snakemake, threads="encoder") as say:
    from papa.method.ranking import train_lambda

    say(
        train_lambda(
            tokens=snakemake.input.tokens,
            labels=snakemake.input.labels or None,
            constants=snakemake.input.constants or None,
            lambdas=snakemake.output.lambdas,
            **snakemake.params.settings,
        )
    )
