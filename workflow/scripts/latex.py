"""The summary as LaTeX."""

from papa.stage import stage

with stage(snakemake) as say:
    from papa.latex import write_latex

    say(write_latex(snakemake.input.summary, snakemake.output.latex))
