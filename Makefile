# Two commands: `make demo` runs the main job on this machine, `make test` passes the tests.
# Each makes its own environment in .venv from a bare Python 3.11 or newer.

VENV ?= .venv
BIN := $(VENV)/bin
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)

.PHONY: help demo test check unit format docs clean

help:
	@echo "make demo    train a conv net, then a table of a million rows: 2 workers, 2 shards, on this machine"
	@echo "make test    format, lint, types, import layers, tests"
	@echo "make check   the same without the tests"
	@echo "make unit    the tests alone;  ARGS='-k store' passes arguments to pytest"
	@echo "make format  write the code in its format"
	@echo "make docs    build the documentation into site/, the reference from the code"
	@echo "make clean   remove $(VENV) and what tools left behind"

demo: $(VENV)/.demo
	@$(BIN)/python examples/demo.py

# Side by side: mypy has one thread, and tests wait for processes.
test: $(VENV)/.dev
	@$(MAKE) --no-print-directory --jobs=2 check unit

check: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Tests start hundreds of Pythons: each would compile weft anew where an environment forbids to keep what was compiled.
unexport PYTHONDONTWRITEBYTECODE

# Tests wait as often as they compute, so all of them run on all cores, and one more process than there are cores;
# tests/conftest.py says which stay together.
PROCESSES = $(shell $(PYTHON) -c 'import os; print(min(os.cpu_count() + 1, 8))')
SPREAD = --quiet --numprocesses $(PROCESSES) --dist loadfile --no-loadscope-reorder

unit: $(VENV)/.compiled
ifeq ($(ARGS),)
	$(BIN)/pytest $(SPREAD)
else
	$(BIN)/pytest $(ARGS)
endif

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# mkdocs-material says at each build that it will end one day.
docs: $(VENV)/.dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

# Once, before several processes import the same modules at the same time: each would compile all of them.
$(VENV)/.compiled: $(VENV)/.dev
	@$(BIN)/pytest --quiet --collect-only >/dev/null || true # whose errors the tests themselves will tell
	@touch $@

# A stamp for each set of extras; a change of pyproject.toml makes it again. Modules are compiled as they are imported,
# which most of what PyTorch and JAX bring never are.
$(VENV)/.%: pyproject.toml
	@test -n "$(PYTHON)" || { echo "weft needs Python 3.11 or newer; none is on the PATH (PYTHON=... names one)"; exit 1; }
	@test -x $(BIN)/python || { echo "Making $(VENV) with $(PYTHON)"; $(PYTHON) -m venv $(VENV); }
	@echo "Installing weft[$*] into $(VENV), once; a minute or less where packages are cached"
	@$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check --editable '.[$*]'
	@touch $@

clean:
	rm -rf $(VENV) site .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
