"""The summary as LaTeX."""

from papa.jobs.stage import stage

with stage(snakemake) as say:
    from papa.results.latex import write_latex

    say(write_latex(snakemake.input.summary, snakemake.output.latex))
