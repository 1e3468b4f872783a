# The two commands: `make quickstart` distils a real teacher, `make test` checks everything. Both set up what they need.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help quickstart test lint study clean

help:  ## list the commands
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

quickstart: $(VENV)/.quickstart  ## distil all-MiniLM-L6-v2 into 3x384 and show what it bought (about five minutes)
	$(BIN)/limbeck quickstart --overwrite -o runs/quickstart

test: $(VENV)/.test lint  ## check style, types and every property
	$(BIN)/python -m pytest

lint: $(VENV)/.test  ## check style and types only
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

study: $(VENV)/.quickstart  ## make some of the results in benchmarks/results again (half an hour; LIMBECK_DATA names the data)
	$(BIN)/python benchmarks/bench_loss.py --output benchmarks/results/loss
	$(BIN)/python benchmarks/bench_step.py --output benchmarks/results/step
	$(BIN)/python benchmarks/quickstart_settings.py $(LIMBECK_DATA)/glue/STS-B --output benchmarks/results/quickstart-settings

clean:  ## remove the environment and caches
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

$(VENV)/.quickstart: $(BIN)/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[quickstart]"
	touch $@

$(VENV)/.test: $(BIN)/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[test]"
	touch $@ $(VENV)/.quickstart
