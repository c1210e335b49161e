rule prepare_texts:
    input:
        files=lambda wildcards: GRAPH.files(wildcards.corpus),
        code=modules("prepare_texts"),
    output:
        texts="<results>/corpora/{corpus}/texts.parquet",
    log:
        "<results>/logs/corpora/{corpus}/texts.log",
    benchmark:
        "<results>/corpora/{corpus}/texts.benchmark.tsv"
    localrule: True
    conda:
        "../envs/papa.yaml"
    threads: 1
    resources:
        mem_mb=memory_of_texts,
        runtime=growing(30),
    params:
        settings=lambda wildcards: {"corpus": PARAMETERS.corpus(wildcards.corpus)},
    script:
        "../scripts/prepare_texts.py"


rule prepare_labels:
    input:
        files=lambda wildcards: GRAPH.files(GRAPH.corpus_of(wildcards.task)),
        texts=lambda wildcards: GRAPH.texts(wildcards.task),
        code=modules("prepare_labels"),
    output:
        labels="<results>/tasks/{task}/labels.parquet",
    log:
        "<results>/logs/tasks/{task}/labels.log",
    benchmark:
        "<results>/tasks/{task}/labels.benchmark.tsv"
    localrule: True
    conda:
        "../envs/papa.yaml"
    threads: 1
    resources:
        mem_mb=memory_of_texts,
        runtime=growing(30),
    params:
        settings=lambda wildcards: PARAMETERS.labels(wildcards.task),
    script:
        "../scripts/prepare_labels.py"
