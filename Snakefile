from snakemake.utils import min_version

min_version("9.20")

# --configfile replaces the default config; --config key=value without it changes keys of the default.
if not workflow.configfiles:

    configfile: "config/config.yaml"


include: "workflow/rules/common.smk"


pathvars:
    results=str(STUDY.results),


wildcard_constraints:
    model=NAME,
    corpus=NAME,
    task=NAME,
    laid_out=f"{NAME}(/slots-[0-9]+)?",
    owner=f"(corpora|tasks)/{NAME}",
    averaged="|".join(AVERAGED),
    constant=CONSTANT,
    order=ORDER,
    weights=WEIGHTS,
    variant=f"{OF_CORPUS}|{OF_TASK}|{OF_TRAINED}",
    seed="[0-9]+",
    part=PART,


include: "workflow/rules/fetch.smk"
include: "workflow/rules/prepare.smk"
include: "workflow/rules/encode.smk"
include: "workflow/rules/probe.smk"
include: "workflow/rules/results.smk"


rule all:
    default_target: True
    input:
        [f"<results>/{path}" for job in STUDY.targets() for path in job.outputs.values()],


onstart:
    begin(STUDY)


onsuccess:
    end(STUDY)
