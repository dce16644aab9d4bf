# Everything a newcomer or a contributor runs. Each target does its own set-up: it needs a python3
# of 3.11 or newer, pip, git and make, and nothing else. Another Python: make PYTHON=python3.12 test

PYTHON ?= python3
VENV ?= .venv
ARGS ?=
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt

# Stamps are written last, so an install that was interrupted is done again by the next make.
MADE := $(VENV)/.made
BASE := $(VENV)/.installed
DEV := $(VENV)/.installed-dev

# Tests run in one process a core; more threads in each would only get in each other's way.
export OMP_NUM_THREADS ?= 1

.NOTPARALLEL:
.PHONY: help setup demo test check fix bench docs sanitize clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' Makefile

demo: $(BASE) ## Install what running needs; compare six wirings at 12+12 layers (four minutes)
	$(BIN)/addnorm compare --demo -o demo
	@echo "The page that shows why: demo/report.html"

test: $(DEV) ## Install what testing needs; run the tests (make test ARGS='-k b2t')
	$(BIN)/python -m pytest --numprocesses auto --maxprocesses 8 $(ARGS)

setup: $(DEV) ## Install everything a contributor needs
	@echo "Ready. To check before every commit: $(BIN)/pre-commit install"

check: $(DEV) ## Format, lint, types, and the quickest tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/core tests/test_house.py src/addnorm/core

fix: $(DEV) ## Repair format and lint where a program can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(DEV) ## Measure; the results that count stand in LEDGER.md
	$(BIN)/python benchmarks/import_time.py
	$(BIN)/python benchmarks/build_time.py
	$(BIN)/python benchmarks/monitor_overhead.py
	$(BIN)/addnorm bench

docs: $(DEV) ## Make again what is generated: pictures and tables of the README
	@mkdir -p docs
	$(BIN)/addnorm draw post_ln pre_ln b2t -o docs/blocks.svg
	$(BIN)/addnorm draw post_ln pre_ln b2t --theme dark -o docs/blocks-dark.svg
	$(BIN)/python tools/readme.py

# The native kernels without torch or Python, first under AddressSanitizer and
# UndefinedBehaviorSanitizer, then under ThreadSanitizer. The latter needs plain pthreads, because it
# reports libgomp's barriers as races. ROWS_AT_ONCE=2 halves the time to compile.
SANITIZE := $(CC) -std=gnu11 -O1 -g -DROWS_AT_ONCE=2 -Inative -fno-math-errno
DRIVERS := $(wildcard native/*/driver.c)
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

clean: ## Remove what was made, but not .venv
	rm -rf build dist demo .pytest_cache .mypy_cache .ruff_cache .hypothesis src/*.egg-info
	find src tests benchmarks tools -name __pycache__ -type d -prune -exec rm -rf {} +

$(MADE):
	@command -v "$(PYTHON)" > /dev/null || { \
		echo "addnorm: no '$(PYTHON)' here; wanted Python 3.11 or newer; try make PYTHON=..." >&2; \
		exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "addnorm: '$(PYTHON)' is $$("$(PYTHON)" --version 2>&1);" \
			"wanted Python 3.11 or newer; try make PYTHON=python3.11" >&2; \
		exit 1; }
	"$(PYTHON)" -m venv $(VENV)
	@touch $@

NATIVE := setup.py $(wildcard native/*/*)

$(BASE): $(MADE) pyproject.toml constraints.txt $(NATIVE)
	@echo "Installing into $(VENV); the first time takes some minutes"
	$(PIP) $$(grep '^torch==' constraints.txt)
	$(PIP) -e .
	@touch $@

$(DEV): $(MADE) pyproject.toml constraints.txt $(NATIVE)
	@echo "Installing into $(VENV); the first time takes some minutes"
	$(PIP) $$(grep '^torch==' constraints.txt)
	$(PIP) -e '.[dev]'
	@touch $(BASE) $@
