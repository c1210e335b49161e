"""What patterns the averaged attention of each head has."""

from papa.jobs.stage import stage

with stage(snakemake) as say:
    from papa.method.patterns import describe_patterns

    say(describe_patterns(snakemake.input.constants, snakemake.input.tokens, **snakemake.output))
