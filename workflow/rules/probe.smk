# The probes of a variant, one for each seed. Probes of new seeds are added to the existing ones.
use rule tokenize as probe with:
    input:
        unpack(reads("probe", "tokens", "labels", "index", "hidden", "probes")),
    output:
        runs=update(file("runs")),
        outcomes=update(file("outcomes")),
        probes=update(file("probes")),
    pathvars:
        path=ARTEFACTS["runs"].stem,
    wildcard_constraints:
        task=STUDY.stored_tasks_pattern(),
        variant=variant.STORED_PATTERN,
    priority: 0
    threads: STUDY.config.threads
    resources:
        **sized("probe"),


# Probes whose hidden states are not stored: the model runs in every epoch.
use rule train_lambda as stream_probe with:
    input:
        unpack(reads("stream_probe", "tokens", "labels", "constants", "order", "probes")),
    output:
        runs=update(file("runs")),
        outcomes=update(file("outcomes")),
        probes=update(file("probes")),
    pathvars:
        path=ARTEFACTS["runs"].stem,
    wildcard_constraints:
        task=STUDY.streamed_tasks_pattern(),
    priority: 0
    resources:
        **sized("stream_probe"),
