rule prepare_texts:
    input:
        unpack(needs("prepare_texts")),
    output:
        texts=made("texts"),
    log:
        log("texts"),
    benchmark:
        benchmark("texts")
    localrule: True
    conda:
        "../envs/papa.yaml"
    resources:
        **sized("prepare_texts"),
    params:
        told=told("prepare_texts"),
    script:
        "../scripts/job.py"


use rule prepare_texts as prepare_labels with:
    input:
        unpack(needs("prepare_labels")),
    output:
        labels=made("labels"),
    log:
        log("labels"),
    benchmark:
        benchmark("labels")
    priority: 4  # a column that is not there is found before anything is computed
    localrule: True
    resources:
        **sized("prepare_labels"),
    params:
        told=told("prepare_labels"),


use rule prepare_texts as prepare_subsets with:
    input:
        unpack(needs("prepare_subsets")),
    output:
        subsets=made("subsets"),
    log:
        log("subsets"),
    benchmark:
        benchmark("subsets")
    priority: 4
    localrule: True
    resources:
        **sized("prepare_subsets"),
    params:
        told=told("prepare_subsets"),


rule tokenize:
    input:
        unpack(needs("tokenize")),
    output:
        tokens=made("tokens"),
    log:
        log("tokens"),
    benchmark:
        benchmark("tokens")
    priority: 3  # the longest chain of jobs begins early
    conda:
        "../envs/papa.yaml"
    resources:
        **sized("tokenize"),
    params:
        told=told("tokenize"),
    script:
        "../scripts/job.py"
