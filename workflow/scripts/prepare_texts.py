"""The texts of a corpus as one table."""

from papa.jobs.stage import stage

with stage(snakemake) as say:
    from papa.data.prepare import prepare_texts

    say(prepare_texts(texts=snakemake.output.texts, **snakemake.params.settings))
