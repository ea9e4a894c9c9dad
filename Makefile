# Everything that a fresh machine needs: Python 3.11 or newer, and make.

PYTHON ?= python3
VENV = .venv
BIN = $(VENV)/bin
RUN = $(BIN)/python -m
PIP = $(RUN) pip install --quiet --disable-pip-version-check --constraint constraints.txt
INSTALL = $(PIP) 'setuptools>=77,<83' && $(PIP) --no-build-isolation --editable
DEMO = results/demo
MEASURED = round-robin,steelyard
COMPARED = round-robin,region-aware,latency-weighted,steelyard
COMPILED = .venv-compiled
FUZZ = .venv-fuzz
DOCS = .venv-docs
MINUTES ?= 10
SEEDS ?= 10000

# pip compiles no modules to bytecode, of which most are never imported; of an option that begins with `no`, it expects
# the value of the option without it.
export PIP_NO_COMPILE = no

# Tests draw the same examples in every run. FRESH=1 draws a seed for others, SEED=… repeats one.
ifdef FRESH
SEED ?= $(shell $(PYTHON) -c 'from secrets import randbelow; print(randbelow(1 << 40))')
endif
SEED := $(SEED)
SEEDED = $(if $(SEED),--seed=$(SEED))

# A checkout that was moved or copied takes its virtual environment along, which then leads back to the old place.
ifneq "$(shell cat $(VENV)/checkout 2>/dev/null)" "$(CURDIR)"
STALE = stale
endif

# A compiled build belongs to one interpreter. It is built again for another PYTHON, and kept if none is given.
ifneq "$(origin PYTHON)" "file"
ifneq "$(shell cat $(COMPILED)/made-with 2>/dev/null)" "$(PYTHON)"
RECOMPILE = stale
endif
endif

# `benchmarks` is not installed. Last on the path, the checkout adds it and hides nothing that is installed.
CHECKOUT_LAST = $(1)/python -c 'import sys, sysconfig; from pathlib import Path; \
  Path(sysconfig.get_path("purelib"), "steelyard-checkout.pth").write_text(sys.argv[1] + "\n")' "$(CURDIR)"

.DEFAULT_GOAL := help
.PHONY: help demo test test-all lint style serve compiled wheels bench fuzz faultsim docs pictures clean stale

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' Makefile

demo: $(VENV)/installed ## install, measure two policies once on real processes, then simulate four to a verdict
	@rm -rf $(DEMO)
	@echo "1 of 2: two policies on real processes, one run each, which shows that it works; half a minute"
	$(RUN) experiments run region-brownout --policies $(MEASURED) --quick --out $(DEMO)/measured
	@echo
	@echo "2 of 2: four policies simulated, eight runs each, which decide; half a minute"
	$(RUN) experiments run region-brownout --policies $(COMPARED) --simulated --blocks 8 --out $(DEMO)/simulated

test: style ## install, then lint, types and the first tier of the tests: what every change must pass
	$(RUN) tests.parts first $(SEEDED)

test-all: test ## the same, then peers, coverage, the compiled build, real experiments and images; FRESH=1 for new seeds
	.ci/peers
	$(RUN) tests.parts second $(SEEDED)

lint: style ## style, formatting and types
	$(RUN) mypy

style: $(VENV)/installed-dev
	$(RUN) ruff check .
	$(RUN) ruff format --check .

serve: $(VENV)/installed-dev ## the balancer before three emulated regions, on $PORT or 5000
	PATH="$(CURDIR)/$(BIN):$$PATH" $(RUN) honcho start

compiled: $(COMPILED)/installed ## a second environment, .venv-compiled, with the hot path compiled (needs a C compiler)

wheels: $(VENV)/checkout ## compiled wheels for CPython 3.11 to 3.13 and the source in dist/, by cibuildwheel (needs docker)
	$(PIP) build cibuildwheel twine
	rm -rf dist
	$(RUN) build --sdist
	$(RUN) cibuildwheel --output-dir dist
	$(RUN) twine check --strict dist/*

bench: compiled ## benchmarks of Steelyard itself with the compiled build: CPU per request, or BENCH='storm --check'
	$(COMPILED)/bin/python -P -m benchmarks $(or $(BENCH),cost)

fuzz: $(FUZZ)/installed ## look for what breaks the data path, ten minutes or MINUTES=…, in a third environment, .venv-fuzz
	for side in client worker http2-client http2-worker; do \
	  $(FUZZ)/bin/python -m tests.fuzz $$side --seconds $$(($(MINUTES) * 15)) || exit 1; done

faultsim: $(VENV)/installed-dev ## seeded faults against the data path in virtual time, 10000 fresh seeds or SEEDS=…
	$(RUN) tests.faultsim --seeds $(SEEDS)

docs: $(VENV)/checkout ## the documentation as a site in results/site; a link that leads nowhere is an error
	test -x $(DOCS)/bin/mkdocs || "$(PYTHON)" -m venv --clear $(DOCS)
	$(DOCS)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt mkdocs-material
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --quiet
	@echo "open results/site/index.html, or: $(DOCS)/bin/mkdocs serve"

pictures: $(VENV)/installed-dev ## those of the README and docs/, taken of a campaign and of the live page; needs Chromium
	$(RUN) tests.support.pictures

clean: ## remove the virtual environment, caches and the demo's results
	rm -rf $(VENV) .venv-* $(DEMO) results/fuzz build *.egg-info .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache .coverage.*

$(VENV)/checkout: $(STALE)
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "steelyard needs Python 3.11 or newer, and '$(PYTHON)' is not: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@echo "making the virtual environment $(VENV)"
	"$(PYTHON)" -m venv --clear $(VENV)
	@printf '%s' "$(CURDIR)" > $@

# Without the compilers of the build, which an editable installation does not use.
$(VENV)/installed: $(VENV)/checkout pyproject.toml constraints.txt
	@echo "installing into $(VENV), about half a minute"
	$(INSTALL) '.[lab]'
	@touch $@

$(VENV)/installed-dev: $(VENV)/checkout pyproject.toml constraints.txt
	@echo "installing into $(VENV), about a minute"
	$(INSTALL) '.[dev]'
	$(call CHECKOUT_LAST,$(BIN))
	@touch $(VENV)/installed $@

# An editable install first, for the dependencies of tests and benchmarks; then the build, where a failure is an error.
$(COMPILED)/installed: BIN = $(COMPILED)/bin
$(COMPILED)/installed: $(RECOMPILE) $(VENV)/checkout setup.py pyproject.toml constraints.txt $(wildcard */*.py */*/*.py */*/*/*.py) $(wildcard balancer/http/h2/*)
	"$(PYTHON)" -m venv --clear $(COMPILED)
	$(INSTALL) '.[dev]' cython
	$(RUN) pip uninstall --quiet --yes steelyard
	STEELYARD_COMPILE=all $(PIP) --no-build-isolation --no-deps .
	$(call CHECKOUT_LAST,$(BIN))
	@printf '%s' "$(PYTHON)" > $(COMPILED)/made-with
	@touch $@

# atheris carries libFuzzer with it and has wheels for Linux alone; `make test` does not need it.
$(FUZZ)/installed: $(VENV)/checkout pyproject.toml constraints.txt
	"$(PYTHON)" -m venv --clear $(FUZZ)
	$(FUZZ)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt \
	  --editable '.[lab]' h11 hpack 'atheris>=3,<4'
	@touch $@
