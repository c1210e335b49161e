"""The texts of a corpus in the slots of a model."""

from papa.jobs.stage import stage

with stage(snakemake) as say:
    from papa.data.tokenize import tokenize_corpus

    say(tokenize_corpus(texts=snakemake.input.texts, tokens=snakemake.output.tokens, **snakemake.params.settings))
