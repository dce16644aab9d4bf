# Commands for users and contributors. Each target installs what it needs into .venv; the machine needs
# only Python 3.11 or newer, pip, git and make. (The package itself supports 3.10, the pinned tools do
# not.) To use another Python: make PYTHON=python3.12 test

PYTHON ?= python3
VENV ?= .venv
ARGS ?=
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt

# Stamp files are written last, so the next make repeats an interrupted installation.
MADE := $(VENV)/.made
BASE := $(VENV)/.installed
DEV := $(VENV)/.installed-dev

# Tests run in one process per core; more threads per process would only compete for the cores.
export OMP_NUM_THREADS ?= 1

.NOTPARALLEL:
.PHONY: help setup demo test torture check fix bench docs docs-zip dist pins sanitize clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' Makefile

demo: $(BASE) ## Install, then compare six wirings at 12+12 layers (four minutes)
	$(BIN)/addnorm compare --demo -o demo
	@echo "Report: demo/report.html"

test: $(DEV) ## Install, then run the tests (make test ARGS='-k b2t')
	$(BIN)/python -m pytest --numprocesses auto --maxprocesses 8 $(ARGS)

# A new seed each time; the header of the output shows it. To repeat: make torture TORTURE_SEED=1234
TORTURE_SEED ?= $(shell od -An -N2 -tu2 /dev/urandom | tr -d ' ')
TORTURE_CASES ?= 3
torture: $(DEV) ## Run the long campaign of hostile cases: signals, kills, damage, odd arguments
	TORTURE_SEED=$(TORTURE_SEED) TORTURE_CASES=$(TORTURE_CASES) \
		$(BIN)/python -m pytest tests/torture -m 'slow or not slow' $(ARGS)

setup: $(DEV) ## Install everything for development
	@echo "Done. To run the checks before every commit: $(BIN)/pre-commit install"

check: $(DEV) ## Format, lint, types, and the quickest tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/core tests/test_architecture.py tests/test_docstrings.py tests/test_build.py \
		tests/test_docs.py::test_index_of_members_is_up_to_date src/addnorm/core

fix: $(DEV) ## Repair format and lint automatically
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(DEV) ## Run the benchmarks; LEDGER.md records the results
	$(BIN)/python benchmarks/import_time.py
	$(BIN)/python benchmarks/build_time.py
	$(BIN)/addnorm bench

docs: $(DEV) ## Regenerate README tables and docs/catalogue, then build the site in build/site
	$(BIN)/addnorm draw post_ln pre_ln b2t -o docs/images/blocks.svg
	$(BIN)/addnorm draw post_ln pre_ln b2t --theme dark -o docs/images/blocks-dark.svg
	$(BIN)/python tools/docs.py
	$(BIN)/python -m tools.docs_site build/site
	@echo "Documentation: build/site/index.html"

docs-zip: docs ## Pack the site into build/addnorm-docs.zip, for a release
	$(BIN)/python -m zipfile -c build/addnorm-docs.zip build/site
	@echo "Archive: build/addnorm-docs.zip"

# Without isolation: an isolated build would download its tools again.
dist: $(DEV) ## Build the wheel and the source distribution in dist, and check both
	rm -rf dist
	$(BIN)/python -m build --no-isolation --outdir dist . > /dev/null
	$(BIN)/twine check --strict dist/*
	$(BIN)/check-wheel-contents dist/*.whl

pins: $(DEV) ## Record new names in tests/pins.json and the doctor's signatures
	$(BIN)/python tools/pins.py
	$(BIN)/python tools/signatures.py

# The native kernels without torch or Python, first under AddressSanitizer and
# UndefinedBehaviorSanitizer, then under ThreadSanitizer. The latter needs plain pthreads, because it
# reports libgomp's barriers as races. ROWS_AT_ONCE=2 halves the time to compile.
SANITIZE := $(CC) -std=gnu11 -O1 -g -DROWS_AT_ONCE=2 -Inative -fno-math-errno
DRIVERS := $(wildcard native/*/sanitizer_driver.c)
LEVELS := portable:
ifeq ($(shell uname -m),x86_64)
LEVELS += avx2:-mavx2,-mfma avx512:-mavx512f,-mavx512bw,-mavx512dq,-mavx512vl,-mavx2,-mfma
X86 := -DADDNORM_X86
endif

sanitize: ## Run the native kernels under the compiler's sanitizers
	@mkdir -p build
	@for mode in "memory -fsanitize=address,undefined -fno-sanitize-recover -fopenmp" \
			"races -fsanitize=thread -DADDNORM_PTHREADS -pthread"; do \
		set -e; set -- $$mode; name=build/$$1; shift; \
		for driver in $(DRIVERS); do \
			operator=$$(basename $$(dirname $$driver)); objects=; \
			for level in $(LEVELS); do \
				object=$$name-$$operator-$${level%%:*}.o; objects="$$objects $$object"; \
				$(SANITIZE) $$* -DLEVEL=$${level%%:*} $$(echo $${level#*:} | tr , ' ') \
					-c native/$$operator/kernels.c -o $$object; \
			done; \
			$(SANITIZE) $$* $(X86) $$objects native/common/*.c native/$$operator/$$operator.c \
				$$driver -lm -o $$name-$$operator; \
			echo $$name-$$operator && $$name-$$operator; \
		done; \
	done

clean: ## Remove generated files, but not .venv
	rm -rf build dist demo .pytest_cache .mypy_cache .ruff_cache .hypothesis src/*.egg-info
	find src tests benchmarks tools -name __pycache__ -type d -prune -exec rm -rf {} +

$(MADE):
	@command -v "$(PYTHON)" > /dev/null || { \
		echo "addnorm: expected Python 3.11 or newer, found no '$(PYTHON)'; try make PYTHON=..." >&2; \
		exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "addnorm: expected Python 3.11 or newer, got $$("$(PYTHON)" --version 2>&1)" \
			"('$(PYTHON)'); try make PYTHON=python3.11" >&2; \
		exit 1; }
	"$(PYTHON)" -m venv $(VENV)
	@touch $@

NATIVE := setup.py $(wildcard native/*/*)

$(BASE): $(MADE) pyproject.toml constraints.txt $(NATIVE)
	@echo "Installing into $(VENV); this takes a few minutes the first time"
	$(PIP) $$(grep '^torch==' constraints.txt)
	$(PIP) -e .
	@touch $@

$(DEV): $(MADE) pyproject.toml constraints.txt $(NATIVE)
	@echo "Installing into $(VENV); this takes a few minutes the first time"
	$(PIP) $$(grep '^torch==' constraints.txt)
	$(PIP) -e '.[dev]'
	@touch $(BASE) $@
