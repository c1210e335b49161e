# All other rules inherit log, benchmark, environment, parameters and script from these two. Each sets its own `path`,
# after which the log and the benchmark are named.
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
        path=ARTEFACTS["texts"].stem,
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
        path=ARTEFACTS["tokens"].stem,
    priority: 3  # start the longest chain of jobs early
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
        path=ARTEFACTS["labels"].stem,
    priority: 4  # detect a missing column before anything expensive runs
    localrule: True
    resources:
        **sized("prepare_labels"),


use rule prepare_texts as prepare_subsets with:
    input:
        unpack(reads("prepare_subsets", "texts")),
    output:
        subsets=file("subsets"),
    pathvars:
        path=ARTEFACTS["subsets"].stem,
    priority: 4
    localrule: True
    resources:
        **sized("prepare_subsets"),


use rule prepare_texts as prepare_clusters with:
    input:
        unpack(reads("prepare_clusters", "texts")),
    output:
        clusters=file("clusters"),
    pathvars:
        path=ARTEFACTS["clusters"].stem,
    priority: 4
    localrule: True
    resources:
        **sized("prepare_clusters"),
