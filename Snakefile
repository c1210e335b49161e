from snakemake.utils import min_version

min_version("9.20")

# A config given by --configfile stands alone; --config key=value alone changes keys of the default.
if not workflow.overwrite_configfiles:

    configfile: "config/config.yaml"


include: "workflow/rules/common.smk"


pathvars:
    results=f"results/{config['name']}",


wildcard_constraints:
    model=NAME,
    corpus=NAME,
    task=NAME,
    laid_out=f"{NAME}(/slots-[0-9]+)?",
    constant=CONSTANT,
    order=ORDER,
    seed="[0-9]+",
    part=PART,
    grid="|".join(GRAPH.grids),


include: "workflow/rules/fetch.smk"
include: "workflow/rules/prepare.smk"
include: "workflow/rules/layout.smk"
include: "workflow/rules/constants.smk"
include: "workflow/rules/ranking.smk"
include: "workflow/rules/features.smk"
include: "workflow/rules/probes.smk"
include: "workflow/rules/tables.smk"
include: "workflow/rules/plots.smk"
include: "workflow/rules/report.smk"


rule all:
    default_target: True
    input:
        GRAPH.artefacts(),
        GRAPH.analyses(),
        "<results>/tables/runs.parquet",
        "<results>/tables/summary.parquet",
        "<results>/tables/summary.md",
        "<results>/tables/summary.tex",
        "<results>/report/index.html",


onstart:
    check_results()


onsuccess:
    show_summary()
