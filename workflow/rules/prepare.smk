# Rules below take log, benchmark, environment, parameters and script from these two.
rule prepare_texts:
    input:
        unpack(reads("prepare_texts")),
    output:
        texts=file("texts"),
    log:
        "<results>/logs/<path>.log",
    benchmark:
        "<results>/<path>.benchmark.tsv"
    pathvars:
        path=stem("texts"),
    localrule: True
    conda:
        "../envs/papa.yaml"
    resources:
        **sized("prepare_texts"),
    params:
        parameters=parameters,
    script:
        "../scripts/job.py"


rule tokenize:
    input:
        unpack(reads("tokenize", "texts")),
    output:
        tokens=file("tokens"),
    log:
        "<results>/logs/<path>.log",
    benchmark:
        "<results>/<path>.benchmark.tsv"
    pathvars:
        path=stem("tokens"),
    priority: 3  # the longest chain of jobs begins early
    conda:
        "../envs/papa.yaml"
    resources:
        **sized("tokenize"),
    params:
        parameters=parameters,
    script:
        "../scripts/job.py"


use rule prepare_texts as prepare_labels with:
    input:
        unpack(reads("prepare_labels", "texts")),
    output:
        labels=file("labels"),
    pathvars:
        path=stem("labels"),
    priority: 4  # a missing column is noticed before anything is computed
    localrule: True
    resources:
        **sized("prepare_labels"),


use rule prepare_texts as prepare_subsets with:
    input:
        unpack(reads("prepare_subsets", "texts")),
    output:
        subsets=file("subsets"),
    pathvars:
        path=stem("subsets"),
    priority: 4
    localrule: True
    resources:
        **sized("prepare_subsets"),
