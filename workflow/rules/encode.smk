use rule tokenize as average with:
    input:
        unpack(needs("average")),
    output:
        constants=made("average"),
    log:
        log("average"),
    benchmark:
        benchmark("average")
    wildcard_constraints:
        laid_out=STUDY.in_parts(False),
    threads: STUDY.config.threads.encoder
    resources:
        **sized("average"),
    params:
        told=told("average"),


# A corpus with shards: the sums over each of them, and all of them together.
use rule average as average_part with:
    input:
        unpack(needs("average_part")),
    output:
        constants=made("average_part"),
    log:
        log("average_part"),
    benchmark:
        benchmark("average_part")
    wildcard_constraints:
        laid_out=STUDY.in_parts(True),
    resources:
        **sized("average_part"),
    params:
        told=told("average_part"),


rule merge_averages:
    input:
        unpack(needs("merge_averages")),
    output:
        constants=made("average"),
    log:
        log("average"),
    benchmark:
        benchmark("average")
    wildcard_constraints:
        laid_out=STUDY.in_parts(True),
    localrule: True
    conda:
        "../envs/papa.yaml"
    resources:
        **sized("merge_averages"),
    params:
        told=told("merge_averages"),
    script:
        "../scripts/job.py"


use rule average as resample with:
    input:
        unpack(needs("resample")),
    output:
        constants=made("resample"),
    log:
        log("resample"),
    benchmark:
        benchmark("resample")
    wildcard_constraints:
        laid_out=f"{NAME}(/slots-[0-9]+)?",
    resources:
        **sized("resample"),
    params:
        told=told("resample"),


rule train_lambda:
    input:
        unpack(needs("train_lambda")),
    output:
        lambdas=made("lambda"),
    log:
        log("lambda"),
    benchmark:
        benchmark("lambda")
    priority: 2
    conda:
        "../envs/papa.yaml"
    threads: STUDY.config.threads.encoder
    resources:
        **sized("train_lambda"),
    params:
        told=told("train_lambda"),
    script:
        "../scripts/job.py"


# λ on a part of the training texts, to tell how stable the order is.
use rule train_lambda as half_lambda with:
    input:
        unpack(needs("half_lambda")),
    output:
        lambdas=made("lambda_half"),
    log:
        log("lambda_half"),
    benchmark:
        benchmark("lambda_half")
    resources:
        **sized("half_lambda"),
    params:
        told=told("half_lambda"),


# What heads weigh by other measures than λ.
use rule train_lambda as weigh_heads with:
    input:
        unpack(needs("weigh_heads")),
    output:
        weights=made("weights"),
    log:
        log("weights"),
    benchmark:
        benchmark("weights")
    resources:
        **sized("weigh_heads"),
    params:
        told=told("weigh_heads"),


use rule prepare_texts as rank with:
    input:
        unpack(needs("rank")),
    output:
        order=made("order"),
    log:
        log("order"),
    benchmark:
        benchmark("order")
    localrule: True
    resources:
        **sized("rank"),
    params:
        told=told("rank"),


use rule prepare_texts as order_heads with:
    input:
        unpack(needs("order_heads")),
    output:
        order=made("heads_in_order"),
    log:
        log("heads_in_order"),
    benchmark:
        benchmark("heads_in_order")
    localrule: True
    resources:
        **sized("order_heads"),
    params:
        told=told("order_heads"),


use rule train_lambda as hidden_states with:
    input:
        unpack(needs("hidden_states")),
    output:
        index=made("index"),
        hidden=made("hidden") if STUDY.config.keep_hidden_states else temp(made("hidden")),
    log:
        log("index"),
    benchmark:
        benchmark("index")
    # hidden states that do not stay wait for the probes of those that are there
    priority: 1 if STUDY.config.keep_hidden_states else -1
    resources:
        **sized("hidden_states"),
    params:
        told=told("hidden_states"),


# Only on request (snakemake prune): stored hidden states, which are made again if a job reads them, and what killed jobs
# left.
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
