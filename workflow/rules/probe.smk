# The probes of a variant, one for each seed. A further seed is trained beside those that are there.
use rule tokenize as probe with:
    input:
        unpack(needs("probe")),
    output:
        runs=update(made("runs")),
        outcomes=update(made("outcomes")),
        probes=update(made("probes")),
    log:
        log("runs"),
    benchmark:
        benchmark("runs")
    wildcard_constraints:
        task=STUDY.stored(),
        variant=f"{OF_CORPUS}|{OF_TASK}",
    priority: 0
    threads: STUDY.config.threads.probe
    resources:
        **sized("probe"),
    params:
        told=told("probe"),


# A probe whose hidden states are not stored: the model runs in every epoch.
use rule train_lambda as stream_probe with:
    input:
        unpack(needs("stream_probe")),
    output:
        runs=update(made("runs")),
        outcomes=update(made("outcomes")),
        probes=update(made("probes")),
    log:
        log("runs"),
    benchmark:
        benchmark("runs")
    priority: 0
    resources:
        **sized("stream_probe"),
    params:
        told=told("stream_probe"),


ruleorder: probe > stream_probe
