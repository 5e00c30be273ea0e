# Everything starts from a bare machine with Python 3.10 or newer and make.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test check format clean

demo: .venv/ready
	$(BIN)/unmask demo

test: .venv/ready
	$(BIN)/python -m pytest -n auto

check: .venv/ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: .venv/ready
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "unmask needs Python 3.10 or newer: make PYTHON=/path/to/python")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache build dist src/*.egg-info
