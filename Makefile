# Two commands do all the set-up on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# Tests start thousands of processes: each would compile all that it imports where the environment forbids to keep it.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo campaign docs dist screenshots all-output quick quick-covered frameworks-covered system-covered test test-all check format benchmarks install install-dev system clean

# About a minute, on a simulated node; the installation comes the first time only. Results go to joulelab-demo/.
demo: $(VENV)/installed-demo
	@$(BIN)/python examples/demo.py

# Three tiers (CONTRIBUTING.md): quick, then real servers and processes, then campaigns. No test is tried twice.
PYTEST := $(BIN)/python -m pytest --dist worksteal
QUICK := not system and not campaign

# Less than a minute on two quiet cores: no sleep, no process, no network.
quick: install-dev
	@$(PYTEST) -q -n 2 -m "$(QUICK)" --timeout=120

# What CI runs: four parts side by side, because most system tests wait for servers while the others compute. Each part
# prints when it ends, and keeps a coverage file of its own. Only two processes import torch. Tests are collected
# before, so that a fresh clone compiles them once, and not in each of the eight workers.
COVERED := $(VENV)/coverage.json
SYSTEM := system and not campaign
FRAMEWORKS := tests/workloads tests/integrations
test: install-dev system
	@rm -f .coverage*
	@echo "four parts run side by side, for about ten minutes; each prints its result when it ends"
	@for tier in "$(QUICK)" "$(SYSTEM)"; do $(PYTEST) --collect-only -qq -m "$$tier" > /dev/null 2>&1 & done; wait
	@$(MAKE) --no-print-directory -j 4 --keep-going --output-sync system-covered frameworks-covered quick-covered check
	@$(BIN)/coverage combine -q .coverage-*
	@$(BIN)/coverage json -q -o $(COVERED)
	@$(BIN)/python tests/coverage_floor.py $(COVERED)

quick-covered: install-dev
	@COVERAGE_FILE=$(CURDIR)/.coverage-quick $(PYTEST) -q -n 2 -m "$(QUICK)" --cov --cov-report=

frameworks-covered: install-dev
	@COVERAGE_FILE=$(CURDIR)/.coverage-frameworks $(PYTEST) -q -n 2 -m "$(SYSTEM)" $(FRAMEWORKS) --durations=5 --cov --cov-report=

system-covered: install-dev
	@COVERAGE_FILE=$(CURDIR)/.coverage-system $(PYTEST) -q -n 4 -m "$(SYSTEM)" $(FRAMEWORKS:%=--ignore=$(CURDIR)/%) --durations=10 --cov --cov-report=

# Kills, fuzzing, coverage of intervals, what needs real time to pass; and all of hypothesis' tests with new examples.
test-all: test
	@HYPOTHESIS_PROFILE=campaign $(PYTEST) -q -n 2 -m "campaign or hypothesis" --timeout=3600 --durations=10

# Kills, floods, hostile folders and fuzzers for MINUTES; counts go to campaign.jsonl and are printed as one table.
MINUTES ?= 10
campaign: install-dev
	@$(BIN)/python -m tests.campaign --minutes $(MINUTES)

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
  stress-ng dataset-fashion-mnist chromium openipmi openmpi-bin texlive-latex-recommended
system:
	@tests/install-packages $(PACKAGES)

# Help and default output of every command at 80 columns, checked, in all-output.txt; takes some minutes.
all-output: install-dev
	@$(BIN)/python -m tests.docs.all_output > all-output.txt

# The pictures of README and docs, of twins; needs chromium.
screenshots: install-dev system
	@$(BIN)/python -m tests.docs.screenshots

# The docs site, into .docs-site: `python -m http.server -d .docs-site` shows it, with search.
docs: install-dev
	@$(BIN)/python -m tests.docs.refresh reference
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "built .docs-site/index.html"

# Wheel and sdist, into dist/; tests/release installs them into an empty environment.
dist: install-dev
	@rm -rf dist
	@$(BIN)/python -m build --no-isolation --quiet --outdir dist
	@ls -l dist

clean:
	rm -rf $(VENV) .docs-site dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage*
