# The two commands of a newcomer are `make demo` and `make test`; both create .venv when it is missing or outdated.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
# One worker runs all tests of a module: they share networks and lowered programs.
PYTEST_ARGS ?= -n auto --dist loadscope -q

.PHONY: help demo test exhaustive bench docs site lint format clean

help:
	@echo "make demo    compile and run a small network on a scratchpad machine"
	@echo "make test    the quick suite"
	@echo "make exhaustive  the large sweeps that the suite leaves out, and fresh examples of the property tests"
	@echo "make bench   the benchmarks"
	@echo "make docs    write docs/reference anew from docstrings"
	@echo "make site    docs/ as a site, in build/site"
	@echo "make lint    ruff and pyright"
	@echo "make format  rewrite the sources as ruff formats them"

# The stamp is younger than what it depends on exactly when the environment is complete.
$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

demo: $(INSTALLED)
	$(BIN)/python examples/digits/demo.py

test: $(INSTALLED)
	$(BIN)/python -m pytest $(PYTEST_ARGS) -m "not slow"

exhaustive: $(INSTALLED)
	$(BIN)/python -m pytest $(PYTEST_ARGS) -m "slow or hypothesis" --hypothesis-profile=exhaustive $(SAMPLE)

# Each benchmark is a module that can be run by itself, and says what it measures.
bench: $(INSTALLED)
	$(BIN)/python -m benchmarks.run
	$(BIN)/python -m benchmarks.layouts
	$(BIN)/python -m benchmarks.attention
	$(BIN)/python -m benchmarks.breadth
	$(BIN)/python -m benchmarks.planning
	$(BIN)/python -m benchmarks.spilling
	$(BIN)/python -m benchmarks.accel
	$(BIN)/python -m benchmarks.schedules
	$(BIN)/python -m benchmarks.operators
	$(BIN)/python -m benchmarks.llvm

docs: $(INSTALLED)
	$(BIN)/python -m docs.generator

site: $(INSTALLED)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

lint: $(INSTALLED)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright

format: $(INSTALLED)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean:
	rm -rf $(VENV) build dist src/*.egg-info .pytest_cache .ruff_cache
