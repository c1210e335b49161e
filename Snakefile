from snakemake.utils import min_version

min_version("9.23")

# --configfile replaces the default config; --config key=value without it changes keys of the default.
if not workflow.configfiles:

    configfile: "config/config.yaml"


include: "workflow/rules/common.smk"


pathvars:
    results=str(STUDY.results),


wildcard_constraints:
    model=NAME_PATTERN,
    corpus=NAME_PATTERN,
    task=NAME_PATTERN,
    laid_out=f"{NAME_PATTERN}(/slots-[0-9]+)?",
    owner=f"(corpora|tasks)/{NAME_PATTERN}",
    averaged="|".join(variant.AVERAGED),
    constant=variant.CONSTANT_PATTERN,
    order=variant.ORDER_PATTERN,
    weights=variant.WEIGHTS_PATTERN,
    variant=variant.VARIANT_PATTERN,
    seed="[0-9]+",


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
