# Two commands do all the set-up on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test test-all check format benchmarks install system clean

demo: install
	@$(BIN)/joulelab twin -- $(BIN)/joulelab run --name demo -- $(BIN)/python examples/cpu_load.py

# Most tests wait for servers and processes, so three at once fit on two cores; the files that take longest come first
# (tests/conftest.py). Some race them on a busy machine: one that fails is tried again, twice at most, and listed as RERUN.
COVERED := $(VENV)/coverage.json
SIDE_BY_SIDE := -n 3 --dist loadfile --no-loadscope-reorder --reruns 2 --reruns-delay 2 -r R

test: install-dev system
	@$(MAKE) --no-print-directory check
	@$(BIN)/python -m pytest -m "not long" $(SIDE_BY_SIDE) --durations=20 --cov --cov-report=json:$(COVERED)
	@$(BIN)/python tests/coverage_floor.py $(COVERED)

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

$(VENV)/installed-dev: $(VENV)/installed
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --upgrade "pip>=25.1"
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --group dev
	@touch $@

# Debian packages that some tests use; without root those tests skip and say what to install.
PACKAGES := gcc libc6-dev snmpd snmp ipmitool freeipmi-tools mosquitto prometheus victoria-metrics \
  slurm-wlm slurmdbd slurm-wlm-mysql-plugin slurm-wlm-ipmi-plugins mariadb-server munge libfreeipmi-dev \
  stress-ng dataset-fashion-mnist
system:
	@tests/install-packages $(PACKAGES)

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage*
