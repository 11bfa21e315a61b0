# Commands for a fresh machine: `make demo`, `make check` and `make test`. Each sets up .venv by itself.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# The tests of a file share what is dear to make, so they go to one worker, in the order that conftest.py gives.
PYTEST := $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder
# Types are checked while tests run, and both must pass.
beside_types = $(BIN)/mypy & types=$$!; $(1); tests=$$?; wait $$types && exit $$tests
# Tests start hundreds of processes, none of which should compile what another has compiled.
unexport PYTHONDONTWRITEBYTECODE
# What `make test-busy` runs, and how often.
TESTS ?= tests src
TIMES ?= 1 2 3
# How many Flower deployments `make faults` kills: on a grid of functions, and as processes (a minute each).
FEDPROOF_KILLED_DEPLOYMENTS ?= 50
FEDPROOF_KILLED_PROCESSES ?= 8

.PHONY: demo check test test-busy lint docs bench fuzz faults audit sbom clean install

demo: $(STAMP)
	$(BIN)/fedproof demo --out runs/demo

# Format, lint, types and the fast tests; may take a minute on two idle cores.
check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(call beside_types,$(PYTEST) -m "not slow")

# All that must pass; may take eight. Two cores have three workers: one waits for a deployment most of its time.
test: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(call beside_types,$(PYTEST) -n 3 -m "not speed" --durations=15)

# The same while every core is busy, again and again, each time in another order that the first lines name.
test-busy: $(STAMP)
	for time in $(TIMES); do $(BIN)/python tools/busy.py $(PYTEST) -m "not speed" --shuffle=random $(TESTS) || exit 1; done

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# The user guide, in site/; a dead link or a forgotten page is an error.
docs: $(STAMP)
	$(BIN)/python docs/build.py
	$(BIN)/mkdocs build --strict

bench: $(STAMP)
	$(BIN)/fedproof bench --json
	FEDPROOF_SPEED_INPUTS=10000 $(BIN)/python -m pytest -s -m speed

# A million hostile inputs for all readers together, more than a million adversaries, tests and certificates, and
# twenty thousand hostile federations whose other models must not change by one bit.
fuzz: $(STAMP)
	FEDPROOF_ISOLATION_EXAMPLES=600 $(PYTEST) tests/rounds/test_isolation.py
	FEDPROOF_FUZZ_EXAMPLES=53000 $(PYTEST) tests/hostile
	FEDPROOF_FUZZ_TRIALS=100000 FEDPROOF_FUZZ_SEARCHES=6 $(PYTEST) --durations=15 \
		tests/adversary tests/certificates/test_attack_search.py

# A thousand trainings with each planted mistake: how many does the audit catch?
audit: $(STAMP)
	FEDPROOF_AUDIT_SEEDS=1000 $(PYTEST) tests/audit

# Runs, Flower deployments and, on real processes, a few more, each killed at random moments.
faults: $(STAMP)
	FEDPROOF_KILLED_RUNS=50 FEDPROOF_KILLED_DEPLOYMENTS=$(FEDPROOF_KILLED_DEPLOYMENTS) \
		FEDPROOF_KILLED_PROCESSES=$(FEDPROOF_KILLED_PROCESSES) $(BIN)/python -m pytest tests/faults

# Bill of materials and hashes of the tested set: after a change of constraints.txt, in the environment it gives.
sbom: $(STAMP)
	$(BIN)/python tools/sbom.py

install: $(STAMP)

# torch comes first and pinned: its CPU build must be in place before anything asks for "torch". pip would compile
# on one core what is installed; some packages hold templates that do not compile, and need not.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --no-compile torch==2.13.0
	$(BIN)/pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt -e '.[dev]'
	$(BIN)/python -m compileall -qq -j 0 $(VENV)/lib || true
	touch $(STAMP)

clean:
	rm -rf $(VENV) build dist runs site src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
