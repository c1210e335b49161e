# Requirements: make, Python >= 3.11 and a package index. All else is installed once, in .venv.

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
CORES ?= all
THREADS ?= 1
# further options of the demo
DEMO ?=
TORCH := 2.13.0
PYTHON ?= python3.11

PYTEST := THREADS=$(THREADS) $(BIN)/python -m pytest --durations 10

# The files that take longest come first, so that no worker waits for the others at the end. A third worker uses two cores
# while tests wait for SLURM, a browser or a signal.
SLOW ?= tests/workflow/test_faults.py tests/workflow/test_interrupted.py tests/slurm tests/docs tests/workflow tests

TEST_PACKAGES := nbclient pytest pytest-xdist scikit-learn seqeval
# CI adds docs, and so installs everything in one go.
EXTRAS ?= demo,slurm,dev

.PHONY: help demo test test-fast test-slow test-oldest test-newest lint fix docs constraints

help:
	@echo "make demo         run the demo, which writes tables and figures to results/demo/"
	@echo "make test         check the code and run the fast tests, 3 to 6 minutes on two cores; THREADS=2 gives each test two threads"
	@echo "make test-slow    run the slow tests (kills, full disks, SLURM, browser), 7 to 20 minutes on two cores; SLOW=tests/docs runs those of some files"
	@echo "make test-oldest  run the unit and parity tests with the lowest versions of all packages"
	@echo "make test-newest  run them with the newest versions; PYTHON=python3.13 chooses the Python of a new environment"
	@echo "make fix          format the code, and correct what is simple"
	@echo "make docs         update generated parts of the docs, run the notebook, and build the site in build/site"
	@echo "make constraints  update constraints.txt to the newest packages that work together"

demo: $(READY)
	@$(BIN)/papa demo --cores $(CORES) $(DEMO)

# Both at once, because mypy uses one core; each ends even if the other fails.
test: $(READY)
	@$(MAKE) --no-print-directory --jobs 2 --keep-going lint test-fast

test-fast: $(READY)
	@$(PYTEST) -m "not slow" -n 2 --dist loadfile

test-slow: $(READY)
	@$(PYTEST) -m slow -n 3 --dist loadfile --no-loadscope-reorder $(SLOW)

# Each has an environment in build/, and installs only what is missing there. CI has no time for these.
test-oldest: PINS := --constraint constraints-oldest.txt
test-newest: PINS := --upgrade --upgrade-strategy eager torch==$(TORCH)
test-oldest test-newest:
	@test -d build/$@ || $(PYTHON) -m venv build/$@
	@build/$@/bin/python -m pip install --quiet --disable-pip-version-check $(PINS) --editable '.[demo]' $(TEST_PACKAGES)
	@THREADS=$(THREADS) build/$@/bin/python -m pytest -m "not slow" -n 2 --dist loadfile tests/unit tests/parity

lint: $(READY)
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check .
	@$(BIN)/snakefmt --check Snakefile workflow
	@$(BIN)/mypy

fix: $(READY)
	@$(BIN)/ruff check --quiet --fix .
	@$(BIN)/ruff format --quiet .
	@$(BIN)/snakefmt Snakefile workflow

docs: $(READY)
	@$(BIN)/python docs/generated.py
	@PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -c "import nbclient, nbformat; \
	  page = nbformat.read('docs/notebook.ipynb', 4); \
	  nbclient.NotebookClient(page, record_timing=False).execute(); \
	  nbformat.write(page, 'docs/notebook.ipynb')"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	@$(BIN)/python docs/site.py

# Create a new environment only if .venv does not contain a suitable Python.
$(READY): pyproject.toml constraints.txt
	@fits() { "$$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }; \
	for python in $(BIN)/python python3.11 python3; do fits $$python && break; python=; done; \
	if [ -z "$$python" ]; then \
	  echo "papa needs Python 3.11 or newer as python3.11 or python3; install it and run make again." >&2; exit 1; \
	fi; \
	if [ "$$python" != $(BIN)/python ]; then echo "Making $(VENV) with $$python" && $$python -m venv --clear $(VENV) || exit 1; fi
	@echo "Installing papa and its tools in $(VENV) (the first time takes minutes)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[$(EXTRAS)]'
	@touch $@

# torch stays at the tested version, because its GPU builds pin their libraries.
constraints: $(READY)
	@rm -rf build/constraints && $(BIN)/python -m venv build/constraints
	@build/constraints/bin/python -m pip install --quiet --disable-pip-version-check '.[demo,slurm,dev]' torch==$(TORCH)
	@{ echo "# Every package that papa is tested with: \`make constraints\` writes this file from pyproject.toml, in a clean"; \
	   echo "# environment. Any build of torch fits its pin, for CPU or GPU."; \
	   build/constraints/bin/python -m pip freeze --all --exclude papa-attention --exclude pip | sed 's/+cpu$$//'; \
	 } > build/constraints.txt
	@mv build/constraints.txt constraints.txt && rm -rf build/constraints
	@echo "constraints.txt pins $$(grep -c == constraints.txt) packages"
