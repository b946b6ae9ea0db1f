# Everything starts here: each target sets up what it needs. `make PYTHON=python3.12 ...` picks another Python.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
TORCH := $(shell sed -n 's/^torch==//p' constraints.txt)
# Python compiles what it imports, a fifth of what is installed; the rest would take most of a minute.
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --no-compile --constraint constraints.txt
export PYTHONDONTWRITEBYTECODE := # else each of hundreds of processes compiles it anew
# Tests that hold milliseconds to a promise.
ALONE := tests/worker/mgpu tests/tools/test_bench_controller.py tests/end_to_end/test_import_time.py
export PROMPT ?=
TESTS ?=
REPORT ?=
SEED ?= 1

.PHONY: demo test check format browser bench bench-controller bench-queue bench-service chaos overnight clean install

demo: $(INSTALLED)
	@$(BIN)/h3render demo $(if $(PROMPT),-- "$$PROMPT")

# Three at a time, for most tests wait for something; then those that need the machine alone.
test: $(INSTALLED)
ifeq ($(strip $(TESTS)),)
	@OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder $(addprefix --ignore ,$(ALONE))
	@$(BIN)/pytest $(ALONE)
else
	@$(BIN)/pytest $(TESTS)
endif

check: $(INSTALLED)
	@$(BIN)/ruff format --check
	@$(BIN)/ruff check
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: $(INSTALLED)
	@$(BIN)/ruff format
	@$(BIN)/ruff check --fix

# A Chromium for the tests of the page, from the system's packages; nothing if there is one (H3_BROWSER names another).
browser:
	@for name in "$$H3_BROWSER" chromium chromium-browser google-chrome google-chrome-stable; do \
		test -z "$$name" || ! command -v "$$name" >/dev/null || exit 0; \
	done; \
	if command -v apt-get >/dev/null && test "$$(id -u)" = 0; then \
		apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium >/dev/null; \
	else \
		echo "the page's tests need Chromium: install it (apt-get install chromium), or name one in H3_BROWSER" >&2; \
		exit 1; \
	fi

# What a render is made of, on this machine: the published sizes beside diffusers where there is a GPU, else a toy's.
bench: SIZE := $(shell command -v nvidia-smi >/dev/null || echo --tiny)
bench: $(INSTALLED)
	@$(BIN)/h3render bench step $(SIZE) --peer diffusers
	@$(BIN)/h3render bench quality $(SIZE) $(if $(SIZE),--shape 96x64x39 --steps 3)
	@$(BIN)/h3render bench decode $(SIZE) --peer diffusers
	@$(BIN)/h3render bench transport --world-size $(if $(SIZE),2,$$($(BIN)/python -c 'import torch; print(torch.cuda.device_count())'))
	@$(BIN)/h3render bench load $(SIZE)
	@$(BIN)/h3render bench end-to-end $(SIZE)

# The controller's overhead and failure latencies on this machine, against their goals. REPORT=FILE.json keeps them.
bench-controller: $(INSTALLED)
	@$(BIN)/python tools/bench_controller $(REPORT)

# What queue, lease, events and uploads add to a render on this machine, against its goals. REPORT=FILE.json keeps it.
bench-queue: $(INSTALLED)
	@$(BIN)/python tools/bench_queue $(REPORT)

# The HTTP service under 200 clients that poll and 50 that stream, for a minute with one restart of Redis in it: no event
# lost or doubled, no answer but right ones and a clear 503. REPORT=FILE.json keeps the outcome.
bench-service: $(INSTALLED)
	@$(BIN)/python tools/bench_service $(REPORT)

# 200 short jobs on four workers, while these, their ranks, Redis and the store are killed, stopped and ended at random
# moments: nothing may be lost, doubled or wrong. SEED=N draws other moments, REPORT=FILE.json keeps the outcome.
chaos: $(INSTALLED)
	@$(BIN)/python tools/chaos --seed $(SEED) $(REPORT)

# A batch of 300 rows overnight, in a minute or two: two workers, one killed twice, wrong rows, jobs that die; then every
# number of the morning's report is recomputed from the raw records. REPORT=FILE.json keeps the outcome.
overnight: $(INSTALLED)
	@$(BIN)/python tools/overnight $(REPORT)

install: $(INSTALLED)

# Without a GPU the CUDA build of torch is gigabytes of nothing: take a CPU build where the package index has one.
$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "h3render needs Python 3.11 or newer: make PYTHON=python3.12 ...")'
	@echo "installing into $(VENV) (once)"
	@$(PYTHON) -m venv $(VENV)
	@command -v nvidia-smi >/dev/null || $(PIP) torch==$(TORCH)+cpu 2>/dev/null || true
	@$(PIP) torch==$(TORCH)
	@$(PIP) --editable '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
