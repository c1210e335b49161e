"""A task's labels, row by row beside the texts."""

from papa.jobs.stage import stage

with stage(snakemake) as say:
    from papa.data.prepare import prepare_labels

    say(prepare_labels(texts=snakemake.input.texts, labels=snakemake.output.labels, **snakemake.params.settings))
