"""The average attention of every head over a corpus."""

from papa.jobs.stage import stage

with stage(snakemake, threads="encoder") as say:
    from papa.method.averages import average_corpus

    say(
        average_corpus(tokens=snakemake.input.tokens, constants=snakemake.output.constants, **snakemake.params.settings)
    )
