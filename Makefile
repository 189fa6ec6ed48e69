# make demo: a first study, from nothing to a report.   make test: lint, types and tests, from nothing.
# Both may be repeated: what is installed or trained already is not done again.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
OUT ?= runs/quick

.PHONY: demo test lint types unit clean

demo: $(VENV)/installed
	$(BIN)/depthbench run quick --out $(OUT)
	@echo
	@echo "The report: $(OUT)/report/loss_vs_aspect_ratio.html (also .png, .pdf), results.csv, summary.json"

test: lint types unit

lint: $(VENV)/installed-test
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(VENV)/installed-test
	$(BIN)/mypy

unit: $(VENV)/installed-test
	$(BIN)/pytest -n auto

$(VENV)/installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "DepthBench needs Python 3.11 or newer: make PYTHON=python3.12")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable .
	@touch $@

$(VENV)/installed-test: $(VENV)/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[test]'
	@touch $@

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache
