# Everything starts from a bare machine with Python 3.10 or newer and make.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-lmeval chromium images check format clean

demo: .venv/ready
	$(BIN)/unmask demo

test: .venv/ready chromium
	$(BIN)/python -m pytest -n auto

# The browser tests drive Debian's Chromium, which is installed where that is allowed.
chromium:
	@command -v chromium >/dev/null || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null \
	    && { apt-get install -y -qq --no-install-recommends chromium || { apt-get update -qq \
	    && apt-get install -y -qq --no-install-recommends chromium; }; } >/dev/null 2>&1; } \
	    || echo "no chromium, and it cannot be installed here: the browser tests are skipped"

# The pictures in docs/img.
images: .venv/ready chromium
	$(BIN)/python -m pytest tests/browser --images docs/img

# lm-eval brings 650 MB of other packages, so it has an environment of its own, over the other one.
test-lmeval: .venv-lmeval/ready
	.venv-lmeval/bin/python -m pytest tests/test_lmeval.py

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

.venv-lmeval/ready: .venv/ready
	test -x .venv-lmeval/bin/python || $(BIN)/python -m venv .venv-lmeval
	$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
	    > "$$(.venv-lmeval/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/under.pth"
	.venv-lmeval/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[lm-eval]'
	touch $@

clean:
	rm -rf .venv .venv-lmeval .pytest_cache .mypy_cache .ruff_cache build dist src/*.egg-info
