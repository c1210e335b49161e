use rule tokenize as average with:
    input:
        unpack(reads("average", "tokens")),
    output:
        constants=file("average"),
    pathvars:
        path=ARTEFACTS["average"].stem,
    threads: STUDY.config.threads
    resources:
        **sized("average"),


use rule tokenize as train_lambda with:
    input:
        unpack(reads("train_lambda", "tokens", "labels", "constants")),
    output:
        lambdas=file("lambda"),
    pathvars:
        path=ARTEFACTS["lambda"].stem,
    priority: 2
    threads: STUDY.config.threads
    resources:
        **sized("train_lambda"),


# Weights of heads other than λ.
use rule train_lambda as weigh_heads with:
    input:
        unpack(reads("weigh_heads", "tokens", "labels", "constants", "index", "hidden")),
    output:
        weights=file("weights"),
    pathvars:
        path=ARTEFACTS["weights"].stem,
    resources:
        **sized("weigh_heads"),


use rule prepare_texts as rank with:
    input:
        unpack(reads("rank", "lambdas")),
    output:
        order=file("order"),
    pathvars:
        path=ARTEFACTS["order"].stem,
    localrule: True
    resources:
        **sized("rank"),


use rule prepare_texts as order_heads with:
    input:
        unpack(reads("order_heads")),
    output:
        order=file("heads_in_order"),
    pathvars:
        path=ARTEFACTS["heads_in_order"].stem,
    localrule: True
    resources:
        **sized("order_heads"),


use rule train_lambda as hidden_states with:
    input:
        unpack(reads("hidden_states", "tokens", "constants", "order")),
    output:
        index=file("index"),
        hidden=file("hidden") if STUDY.config.keep_hidden_states else temp(file("hidden")),
    pathvars:
        path=ARTEFACTS["index"].stem,
    # compute temporary hidden states only after probes have read the existing ones
    priority: 1 if STUDY.config.keep_hidden_states else -1
    resources:
        **sized("hidden_states"),


# Only on request (snakemake prune): delete stored hidden states, which are rebuilt when a job needs them, and
# checkpoints of killed jobs.
rule prune:
    log:
        "<results>/logs/prune.log",
    localrule: True
    conda:
        "../envs/papa.yaml"
    params:
        models=STUDY.results / "models",
    shell:
        "[ ! -d {params.models} ] || find {params.models} '(' -name '*.hidden' -o -name '.*.checkpoint*' ')' -print -delete > {log}"
