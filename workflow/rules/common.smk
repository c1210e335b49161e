import os
import re
import subprocess
import sys
from pathlib import Path

from snakemake.logging import logger
from snakemake.settings.enums import Quietness

import papa
from papa.jobs import dependencies, live, resources
from papa.config.settings import NAME, check_files, checked
from papa.config.grids import RUN
from papa.errors import InputError
from papa.config.graph import CONSTANT, CORPUS_VARIANTS, KEPT, ORDER, PART, TASK_VARIANTS, TRAINED_VARIANTS, Graph, setting
from papa.config.parameters import Parameters

try:
    config = checked(config, workflow.source_path("../schemas/config.schema.yaml"))
    check_files(config)
except InputError as error:
    raise SystemExit(f"Config error: {error}")
except OSError as error:  # snakemake keeps a copy of the schema in its cache
    raise SystemExit(f"{error.filename or 'The cache of snakemake'} could not be written or read ({error.strerror}).")


report: "../report/workflow.rst"


GRAPH, PARAMETERS = Graph(config), Parameters(config)
ROOT = os.path.relpath(Path(papa.__file__).parents[1])

# Jobs take papa from where this file took it, and the machine's places from the environment: they are in no parameter.
os.environ.update(
    PYTHONPATH=os.pathsep.join(filter(None, [os.path.abspath(ROOT), os.environ.get("PYTHONPATH")])),
    PAPA_MACHINE=PARAMETERS.machine(),
)

QUIET = workflow.output_settings.quiet or ()


def says_something(record):
    """Whether a message of snakemake tells more than that there is another job."""
    events = ("run_info", "resources_info", "job_finished", "progress")
    chatter = re.match("Select jobs|Execute [0-9]+ jobs|Using shell|Conda environments|Building DAG", str(record.msg))
    return workflow.dryrun or not (chatter or getattr(record, "event", None) in events)


# Where rules are quiet each job still leaves some lines; the view and the line of each stage stand for them.
if Quietness.RULES in QUIET:
    for handler in logger.handlers:
        handler.addFilter(says_something)

# Another workflow that has this one as a module keeps its own view.
if workflow.modifier.is_main_snakefile():
    live.watch(logger, quiet=not {Quietness.PROGRESS, Quietness.ALL}.isdisjoint(QUIET))


def modules(script):
    """The modules of papa that a script depends on, as input files."""
    return dependencies.modules_behind(workflow.source_path(f"../scripts/{script}.py"), ROOT)


def threads(kind):
    return config["threads"][kind]


def growing(amount):
    """A resource that grows with each attempt to run a job."""
    return lambda wildcards, attempt: amount * attempt


def hub_mirror():
    """The folder to fetch into; without one there is nothing to run."""
    if config["hub_mirror"] is None:
        raise SystemExit("Config error: fetch brings models and data into hub_mirror; add --config hub_mirror=FOLDER.")
    return config["hub_mirror"]


# Another workflow may give these rules names of its own: `use rule * from papa as papa_*`.
SIZED = {workflow.modifier.modify_rulename(rule): rule for rule in resources.SIZED}


def memory(wildcards, input, attempt, rulename, threads):
    """Megabytes of a job on a laid-out corpus; <TBD> in a dry run until the corpus is there."""
    work = resources.Work.of(config, SIZED[rulename], dict(wildcards.items()), threads)
    return attempt * resources.memory(work, resources.sizes_of(input.tokens))


def walltime(wildcards, input, attempt, rulename, threads):
    """Minutes of a job on a laid-out corpus, likewise."""
    work = resources.Work.of(config, SIZED[rulename], dict(wildcards.items()), threads)
    return attempt * resources.walltime(work, resources.sizes_of(input.tokens))


def memory_of_texts(wildcards, input, attempt):
    """Megabytes of a job that reads the files of a corpus; those from the hub are of sizes that are not known here."""
    return attempt * (resources.memory_of_files(*input.files) if input.files else 4000)


def check_results():
    """End where results cannot be written: snakemake itself would do so with a traceback."""
    folder = Path(f"results/{config['name']}").resolve()
    there = next(path for path in (folder, *folder.parents) if path.exists())
    if not os.access(there, os.W_OK | os.X_OK):
        raise SystemExit(f"Error: {there} cannot be written to; make it writable, or run in another folder.")


def show_summary():
    """Print the summary and where tables and figures are, where the run made them."""
    summary = f"results/{config['name']}/tables/summary.parquet"
    if os.path.exists(summary):
        subprocess.run([sys.executable, "-m", "papa.results.tables", summary], check=False)
