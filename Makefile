# Everything starts from a bare machine with Python 3.10 or newer and make.
PYTHON ?= python3
BIN := .venv/bin
OXLINT := oxlint@1.93.0
SCALE ?= 0.1

# The tests start some 70 processes; each would compile the package again, half a second, where bytecode is not kept.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo quick test attack hashed audit wheel browser test-lmeval test-ray reference notebooks images check format clean

demo: .venv/ready
	$(BIN)/unmask demo

# After every edit: tests that take under a minute on two cores; tests/conftest.py lists the slow ones.
quick: .venv/ready
	$(BIN)/python -m pytest -n auto --dist worksteal --quick

# Before a change lands: everything. Nothing is installed on the system; without Chromium its tests are skipped.
test: .venv/ready
	$(BIN)/python -m pytest -n auto --dist worksteal

# Minutes, not in CI (SCALE=1: hours): the hostile tests with more cases, and in a loop the equality of seeds under load.
attack: .venv/ready
	$(BIN)/python tests/attack.py --scale $(SCALE)

# The same versions, with every file checked against its hash; Linux on x86-64 with CPython 3.11. torch comes from where
# pip finds it, and with it what its build needs.
hashed:
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --only-binary :all: --require-hashes -r hashes.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	$(BIN)/python -m pip check
	touch .venv/ready

# Known vulnerabilities of the pinned versions, asked of the list that pip-audit downloads: it needs a network.
audit: .venv/ready
	grep -v '^#' hashes.txt | sed 's/ --hash.*//' > .venv/pinned.txt
	$(PYTHON) -m venv .venv/audit && .venv/audit/bin/python -m pip install --quiet --disable-pip-version-check pip-audit
	.venv/audit/bin/pip-audit --no-deps --disable-pip -r .venv/pinned.txt

# From the last commit alone: the same bytes wherever it is built, with the setuptools of constraints.txt.
wheel: .venv/ready
	rm -rf dist && mkdir -p dist/source
	git archive HEAD | (umask 022; tar -x --no-same-permissions -C dist/source)
	umask 022; SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(BIN)/python -m pip wheel --quiet --disable-pip-version-check \
	    --no-deps --no-build-isolation --wheel-dir dist dist/source
	rm -rf dist/source && sha256sum dist/*.whl

# Debian's Chromium, which the browser tests drive; it needs the rights of root.
browser:
	@command -v chromium >/dev/null || { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium; }

# The pictures in docs/img.
images: .venv/ready browser
	$(BIN)/python -m pytest tests/browser --images docs/img

# The pages in docs/reference.
reference: .venv/ready
	$(BIN)/python docs/reference/generate.py

# The outputs of docs/notebooks.
notebooks: .venv/ready
	$(BIN)/python docs/notebooks/run.py

# lm-eval brings 650 MB of other packages, so it has an environment of its own, over the other one; with Ray, 280 MB.
test-lmeval: .venv-lmeval/ready
	.venv-lmeval/bin/python -m pytest tests/test_lmeval.py

# Ray and Ray Serve bring 390 MB, so they have an environment of their own, too. Workers are killed, frozen and lost;
# under two minutes on two cores.
test-ray: .venv-ray/ready
	OMP_NUM_THREADS=1 .venv-ray/bin/python -m pytest -n 4 --dist loadfile tests/fleet \
	    tests/test_layers.py::test_ray_is_loaded_by_a_fleet_that_begins_and_by_nothing_else tests/test_wheel.py::test_the_development_set_is_pinned

check: .venv/ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	@if command -v npx >/dev/null; then npx --yes $(OXLINT) --deny-warnings src/unmask/report/web; \
	elif [ -n "$$CI" ]; then echo "the JavaScript lint needs Node.js (npx)" >&2; exit 1; \
	else echo "no Node.js: the JavaScript lint is skipped"; fi

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
	.venv-lmeval/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[lm-eval,ray]'
	touch $@

.venv-ray/ready: .venv/ready
	test -x .venv-ray/bin/python || $(BIN)/python -m venv .venv-ray
	$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
	    > "$$(.venv-ray/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/under.pth"
	.venv-ray/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[ray,ray-serve]'
	touch $@

clean:
	rm -rf .venv .venv-lmeval .venv-ray .pytest_cache .mypy_cache .ruff_cache build dist src/*.egg-info
