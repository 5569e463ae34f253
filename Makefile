# Two commands do all the set-up on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# Tests start thousands of processes: each would compile all that it imports where the environment forbids to keep it.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo screenshots test test-all check collected format benchmarks install system clean

# About a minute, on a simulated node; the installation comes the first time only. Results go to joulelab-demo/.
demo: $(VENV)/installed-demo
	@$(BIN)/python examples/demo.py

# Most tests wait for servers and processes, so three at once fit on two cores; the files that take longest come first
# (tests/conftest.py). Some race them on a busy machine: one that fails is tried again, twice at most, and listed as RERUN.
COVERED := $(VENV)/coverage.json
SIDE_BY_SIDE := -n 3 --dist loadfile --no-loadscope-reorder --reruns 2 --reruns-delay 2 -r R

test: install-dev system
	@$(MAKE) --no-print-directory -j 2 check collected
	@$(BIN)/python -m pytest -m "not long" $(SIDE_BY_SIDE) --durations=20 --cov --cov-report=json:$(COVERED)
	@$(BIN)/python tests/coverage_floor.py $(COVERED)

# While mypy has one core, the other compiles the tests and what they import, once instead of in every worker.
collected: install-dev
	@$(BIN)/python -m pytest --collect-only -qq >/dev/null || true  # the tests themselves say what is wrong

test-all: install-dev system
	@$(MAKE) --no-print-directory check
	@$(BIN)/python -m pytest --timeout=1800

check: install-dev
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .
	$(BIN)/mypy
	$(BIN)/lint-imports --config pyproject.toml
	$(BIN)/deptry src
	$(BIN)/vulture

format: install-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

benchmarks: install-dev
	@$(BIN)/python -m benchmarks

# The stamps are younger than pyproject.toml once everything in it is installed.
install: $(VENV)/installed
install-dev: $(VENV)/installed-dev

$(VENV)/installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "joulelab needs Python 3.11 or later; set PYTHON=..."; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing joulelab into $(VENV) ..."
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --editable .
	@touch $@

# What the demo's meters and pictures need, and no more. What else comes once is done here too, so that the demo itself
# takes a minute from its first time on: to compile our modules, and to look for fonts.
$(VENV)/installed-demo: $(VENV)/installed
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --editable '.[demo]'
	@$(BIN)/python -m compileall -q src/joulelab
	@$(BIN)/python -c 'import matplotlib.font_manager'
	@touch $@

# Most of this group's 20,000 modules are never imported; to compile them all takes longer than to install them.
$(VENV)/installed-dev: $(VENV)/installed
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --upgrade "pip>=25.1"
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --no-compile --group dev
	@touch $@

# Debian packages that some tests use; without root those tests skip and say what to install.
PACKAGES := gcc libc6-dev snmpd snmp ipmitool freeipmi-tools mosquitto prometheus victoria-metrics \
  slurm-wlm slurmdbd slurm-wlm-mysql-plugin slurm-wlm-ipmi-plugins mariadb-server munge libfreeipmi-dev \
  stress-ng dataset-fashion-mnist chromium
system:
	@tests/install-packages $(PACKAGES)

# The pictures of README and docs, of twins; needs chromium.
screenshots: install-dev system
	@$(BIN)/python -m tests.docs.screenshots

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage*
