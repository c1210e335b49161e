# The probes of a variant, one for each seed. A further seed is trained next to those that exist.
use rule tokenize as probe with:
    input:
        unpack(reads("probe", "tokens", "labels", "index", "hidden")),
    output:
        runs=update(file("runs")),
        outcomes=update(file("outcomes")),
        probes=update(file("probes")),
    pathvars:
        path=ARTEFACTS["runs"].stem,
    wildcard_constraints:
        task=STUDY.stored(),
        variant=f"{OF_CORPUS}|{OF_TASK}",
    priority: 0
    threads: STUDY.config.threads.probe
    resources:
        **sized("probe"),


# A probe whose hidden states are not stored: the model runs in every epoch. Snakemake also asks for its inputs where
# they are stored (`index`), before it takes the rule `probe`.
use rule train_lambda as stream_probe with:
    input:
        unpack(reads("stream_probe", "tokens", "labels", "constants", "order", "index")),
    output:
        runs=update(file("runs")),
        outcomes=update(file("outcomes")),
        probes=update(file("probes")),
    pathvars:
        path=ARTEFACTS["runs"].stem,
    priority: 0
    resources:
        **sized("stream_probe"),


ruleorder: probe > stream_probe
