"""The average attention of every head over a corpus."""

from papa.stage import stage

with stage(snakemake, threads="encoder") as say:
    from papa.constants import average_corpus

    say(
        average_corpus(tokens=snakemake.input.tokens, constants=snakemake.output.constants, **snakemake.params.settings)
    )
