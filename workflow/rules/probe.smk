# The probes of a variant, one for each seed. Probes of new seeds are added to the existing ones.
use rule tokenize as probe with:
    input:
        unpack(reads("probe", "tokens", "labels", "index", "hidden", "folds", "probes")),
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
    threads: STUDY.config.threads.probe
    resources:
        **sized("probe"),


# Probes whose hidden states are not stored: the model runs in every epoch.
use rule train_lambda as stream_probe with:
    input:
        unpack(reads("stream_probe", "tokens", "labels", "constants", "order", "folds", "probes")),
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


# Scores of probes on inner folds of the training rows, from which learning rates and context-free floors are chosen.
use rule probe as folds with:
    input:
        unpack(reads("folds", "tokens", "labels", "index", "hidden")),
    output:
        folds=file("folds"),
    pathvars:
        path=ARTEFACTS["folds"].stem,
    resources:
        **sized("folds"),


use rule stream_probe as stream_folds with:
    input:
        unpack(reads("stream_folds", "tokens", "labels", "constants", "order")),
    output:
        folds=file("folds"),
    pathvars:
        path=ARTEFACTS["folds"].stem,
    resources:
        **sized("stream_folds"),
