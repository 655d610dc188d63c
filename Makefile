# Every target sets up what it needs, in a virtual environment of its own. Needs Python 3.11 or later and make.

PYTHON3 ?= python3
VENV    := .venv
RIVAL   := .venv-rival
PYTHON  := $(VENV)/bin/python
JOBS    ?= 2

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow lint format bench build docs docs-serve clean check-python

help:  ## this list
	@grep -hE '^[a-z][a-z-]*:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## */\t/' | expand -t 14

check-python:
	@command -v $(PYTHON3) >/dev/null 2>&1 || { echo "No '$(PYTHON3)' found. Install Python 3.11 or later, or name one: make PYTHON3=/path/to/python"; exit 1; }
	@$(PYTHON3) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Foretrace needs Python 3.11 or later, but '$(PYTHON3)' is `$(PYTHON3) --version 2>&1`. Name another: make PYTHON3=/path/to/python"; exit 1; }
	@$(PYTHON3) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "'$(PYTHON3)' cannot make virtual environments. On Debian and Ubuntu: apt install python3-venv"; exit 1; }

$(PYTHON): | check-python
	$(PYTHON3) -m venv $(VENV)
	$(PYTHON) -m pip install --quiet --upgrade pip

# One stamp per set of extras: a second run installs nothing until pyproject.toml changes.
$(VENV)/.installed-%: pyproject.toml | $(PYTHON)
	$(PYTHON) -m pip install --quiet --editable '.[$*]'
	@touch $@

demo: $(VENV)/.installed-viz,train  ## train a spiking network online, beside BPTT, and plot it
	$(PYTHON) -m foretrace demo

test: $(VENV)/.installed-test  ## run the tests
	$(PYTHON) -m pytest -q -n $(JOBS) --dist loadgroup

test-slow: $(VENV)/.installed-test  ## run every test, the slow ones too
	$(PYTHON) -m pytest -v -n $(JOBS) --dist loadgroup -m "slow or not slow"

lint: $(VENV)/.installed-lint  ## check format, style and types
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m ruff check .
	$(PYTHON) -m mypy

format: $(VENV)/.installed-lint  ## rewrite the sources in the house format
	$(PYTHON) -m ruff format .
	$(PYTHON) -m ruff check --fix .

$(RIVAL)/.installed: | check-python
	$(PYTHON3) -m venv $(RIVAL)
	$(RIVAL)/bin/python -m pip install --quiet --upgrade pip
	$(RIVAL)/bin/python -m pip install --quiet 'braintrace==0.2.6' numba
	@touch $@

bench: $(VENV)/.installed-all $(RIVAL)/.installed  ## measure compile time, speed, memory, rules and differences, beside braintrace
	$(PYTHON) benchmarks/compile_time.py --rival-python $(RIVAL)/bin/python $(ARGS)
	$(PYTHON) benchmarks/speed.py --rival-python $(RIVAL)/bin/python $(ARGS)
	$(PYTHON) benchmarks/memory.py $(ARGS)
	$(PYTHON) benchmarks/stream.py $(ARGS)
	$(PYTHON) benchmarks/rules.py $(ARGS)
	$(PYTHON) benchmarks/differences.py --rival-python $(RIVAL)/bin/python $(ARGS)

build: $(VENV)/.installed-build  ## build wheel and sdist, install them in fresh environments, run every command there
	rm -rf dist
	$(PYTHON) -m build
	$(PYTHON) .ci/check_install.py dist

docs: $(VENV)/.installed-docs  ## build the pages into site/
	NO_MKDOCS_2_WARNING=1 $(PYTHON) -m mkdocs build --strict

docs-serve: $(VENV)/.installed-docs  ## show the pages at http://localhost:8000
	NO_MKDOCS_2_WARNING=1 $(PYTHON) -m mkdocs serve

clean:  ## remove environments and everything that was built
	rm -rf $(VENV) $(RIVAL) site build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
