# `make demo` and `make test` are all that a newcomer needs; both create .venv when it is missing or outdated.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Stamps: the package with what it needs, which is enough for the demo, and the tools of development beside it.
INSTALLED := $(VENV)/.installed
DEVELOPED := $(VENV)/.developed
PIP := $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt
# One worker runs all tests of a module: they share networks and lowered programs.
PYTEST_ARGS ?= -n auto --dist loadscope -q

# Bytecode, and the code that tests compile, are kept here for the other processes of a run and for the next one.
unexport PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX := $(CURDIR)/build/bytecode
test test-docs test-cpu smoke exhaustive hunt: export PENSTOCK_CACHE := $(CURDIR)/build/cache

.PHONY: help demo test test-docs test-cpu smoke exhaustive hunt sanitize bench science docs site lint format clean

help:
	@echo "make demo    compile and run a small network on a scratchpad machine"
	@echo "make test    the quick suite"
	@echo "make test-docs  the examples of the README and of docs/, and the wheel"
	@echo "make test-cpu  tests of native code, compiled for narrower CPUs than the one at hand"
	@echo "make smoke   a fixed part of the sweeps that the suite leaves out"
	@echo "make exhaustive  the large sweeps that the suite leaves out, and fresh examples of the property tests"
	@echo "make hunt SEED=1 MINUTES=10  all random searches from a seed, as far as they come in that time"
	@echo "make sanitize  tests with all C compiled under the sanitizers of addresses and undefined behaviour"
	@echo "make bench   the benchmarks"
	@echo "make science figures of papers beside ours"
	@echo "make docs    write docs/reference anew from docstrings"
	@echo "make site    docs/ as a site, in build/site"
	@echo "make lint    ruff and pyright"
	@echo "make format  rewrite the sources as ruff formats them"

# A stamp is younger than what it depends on exactly when the environment is complete.
$(INSTALLED): pyproject.toml constraints.txt
	@echo "Penstock and the seven packages that it needs are installed into $(VENV)."
	$(PYTHON) -m venv $(VENV)
	$(PIP) -e .
	touch $@

$(DEVELOPED): $(INSTALLED)
	@echo "What the suite, the linters and the site need is installed into $(VENV): a minute or two."
	$(PIP) -e '.[dev]'
	touch $@

demo: $(INSTALLED)
	$(BIN)/penstock demo -o build/demo

APART := tests/docs tests/packaging
test: $(DEVELOPED)
	$(BIN)/python -m pytest $(PYTEST_ARGS) -m "not slow" $(addprefix --ignore=,$(APART))

test-docs: $(DEVELOPED)
	$(BIN)/python -m pytest $(PYTEST_ARGS) -m "not slow" $(APART)

# What runs native code of every kind. A CPU whose code does not run here is left out, and why is said.
HOST_TILES := test_vectors_of_columns_are_for_rows_that_they_fill_and_that_lie_together \
	test_the_sums_of_nested_loops_share_the_registers
CPU_TESTS := tests/unit/test_to_c.py tests/unit/test_row_tiles.py tests/property/test_to_c.py \
	tests/property/test_byte_products.py $(addprefix tests/unit/test_host_tiles.py::,$(HOST_TILES))
test-cpu: $(DEVELOPED)
	set -e; here=" $$($(BIN)/python -c 'from penstock.dialects.cpu import *; print(*(c.name for c in runnable_cpus()))') "; \
	for cpu in sse2 avx2 neon; do case "$$here" in \
		*" $$cpu "*) echo "native code for $$cpu:"; \
			PENSTOCK_CPU=$$cpu $(BIN)/python -m pytest $(PYTEST_ARGS) -m "not slow" $(CPU_TESTS) ;; \
		*) echo "code for $$cpu does not run on this CPU" ;; \
	esac; done

# Always the same one of so many parts of the sweeps, with always the same examples.
smoke: $(DEVELOPED)
	$(BIN)/python -m pytest $(PYTEST_ARGS) -m slow --share 0/64

exhaustive: $(DEVELOPED)
	$(BIN)/python -m pytest $(PYTEST_ARGS) -m "slow or hypothesis" --hypothesis-profile=exhaustive $(SAMPLE)

SEED ?= 1
MINUTES ?= 10
hunt: $(DEVELOPED)
	$(BIN)/python -m tests.hunt --seed $(SEED) --minutes $(MINUTES)

# Bounds of all buffers, and what C leaves undefined, are checked in all C that the tests compile: a fault ends the process.
# TESTS are files or options of pytest; what is compiled is counted.
TESTS ?= tests/unit tests/property tests/networks -m "not slow"
SANITIZER := -fsanitize=address,undefined -fno-sanitize-recover=all
sanitize: $(DEVELOPED)
	cache=$$(mktemp -d) && trap 'rm -rf "$$cache"' EXIT && \
	env CC='cc $(SANITIZER)' LD_PRELOAD="$$(cc -print-file-name=libasan.so)" ASAN_OPTIONS=detect_leaks=0 \
		PENSTOCK_CACHE="$$cache" $(BIN)/python -m pytest $(PYTEST_ARGS) $(TESTS) && \
	echo "$$(find "$$cache" -name '*.so' | wc -l) libraries of C under sanitizers"

# Each benchmark is a module that can be run by itself, and says what it measures.
bench: $(DEVELOPED)
	$(BIN)/python -m benchmarks.run
	$(BIN)/python -m benchmarks.layouts
	$(BIN)/python -m benchmarks.attention
	$(BIN)/python -m benchmarks.breadth
	$(BIN)/python -m benchmarks.planning
	$(BIN)/python -m benchmarks.spilling
	$(BIN)/python -m benchmarks.loops
	$(BIN)/python -m benchmarks.accel
	$(BIN)/python -m benchmarks.schedules
	$(BIN)/python -m benchmarks.operators
	$(BIN)/python -m benchmarks.llvm

# Figures of papers, beside ours; `python -m benchmarks.science --long` has what takes most of an hour, too.
science: $(DEVELOPED)
	$(BIN)/python -m benchmarks.science

docs: $(DEVELOPED)
	$(BIN)/python -m docs.generator

site: $(DEVELOPED)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

lint: $(DEVELOPED)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright

format: $(DEVELOPED)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean:
	rm -rf $(VENV) build dist src/*.egg-info .pytest_cache .ruff_cache
