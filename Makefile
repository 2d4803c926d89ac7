# fleetmend's tasks. `make help` lists them; each makes its own .venv first.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

# Arguments for the program behind a task: make demo ARGS="--once", make test ARGS="-k rights -n 0".
ARGS ?=
# Tests run in this many processes, each with a lab of its own; the tests of one file stay together. -n 0 = in one process.
SIDE_BY_SIDE := --dist loadfile --no-loadscope-reorder
# Where a shell forbids Python its caches, each test process would rewrite and compile all tests again (9 s of CPU each).
unexport PYTHONDONTWRITEBYTECODE
# The interpreter that makes .venv: the newest found that is new enough, or the one given.
ifndef PYTHON
PYTHON := $(shell for p in python3.14 python3.13 python3.12 python3.11 python3 python; do \
	command -v $$p >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& command -v $$p && break; done)
endif

VENV := .venv
BIN := $(VENV)/bin
# A .venv is whole when its stamp names this lock, these dependencies and this interpreter.
KEY := $(shell { cat requirements.lock pyproject.toml; $(or $(PYTHON),true) -VV 2>&1; } | cksum | tr ' ' -)
STAMP := $(VENV)/.whole-$(KEY)
# Where the lab keeps its programs once they are built (go is needed only for that).
PROGRAMS = $${KUBEBUILDER_ASSETS:-$$(ls -d "$${FLEETMEND_CACHE:-$${XDG_CACHE_HOME:-$$HOME/.cache}/fleetmend}"/bin-* 2>/dev/null | head -n 1)}

.PHONY: help demo test test-long lint bench lock clean venv tools python programs

help: ## list the tasks
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | while IFS=$$'\t' read -r task what; do \
		printf '  make %-10s %s\n' "$$task" "$$what"; done

demo: programs ## show faults on simulated nodes go through a real control plane (ARGS="--once" ends by itself)
	@$(BIN)/fleetmend demo $(ARGS)

test: programs ## run the tests, all but the long ones
	@# Twice the 2 cores they are sized for: a test mostly waits for others (a boot, a lease).
	@$(BIN)/python -m pytest -n 4 $(SIDE_BY_SIDE) $(ARGS)

# pytest's exit 5 means that no test was picked (ARGS="-k ..."), which is no failure here.
test-long: programs ## run outages, kills, installations and the full matrices
	@# One more than the 2 cores: most load a core each, and with four of those nodes get no time to beat.
	@$(BIN)/python -m pytest -n 3 -m long $(SIDE_BY_SIDE) $(ARGS) || [ $$? -eq 5 ]

lint: $(STAMP) ## check style, types and import directions
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

bench: programs ## measure, print a table and write build/bench.json
	@mkdir -p build
	@$(BIN)/python -m pytest -m bench -s tests/bench $(ARGS)

lock: ## pin the newest versions that pyproject.toml allows in requirements.lock (needs uv)
	@command -v uv >/dev/null || { echo "make lock needs uv: install it with pipx install uv" >&2; exit 1; }
	@uv pip compile -q --universal --generate-hashes --python-version 3.11 --extra lab --extra dev \
		--no-header --no-emit-index-url --no-annotate pyproject.toml -o requirements.lock

clean: ## remove what tasks leave here, .venv too (the lab's built programs stay in the user's cache)
	@rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis $(VENV)
	@find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +

venv: $(STAMP) ## make or repair .venv

# The lab's programs, Karpenter and helm among them, built before anything waits for them.
programs: tools $(STAMP)
	@$(BIN)/python -m workers.lab.controlplane

# One line that says what is missing and how to get it.
python:
	@[ -n "$(PYTHON)" ] || \
		{ echo "missing: python >= 3.11 (apt-get install python3 python3-venv, or give PYTHON=PATH)" >&2; exit 1; }

tools:
	@missing=(); \
	[ -n "$(PYTHON)" ] || missing+=("python >= 3.11 (apt-get install python3 python3-venv)"); \
	command -v cc >/dev/null || missing+=("cc (apt-get install gcc)"); \
	[ -n "$(PROGRAMS)" ] || command -v kube-apiserver >/dev/null || command -v go >/dev/null || \
		missing+=("go >= 1.21 (your system's package, for Debian golang-go from backports, or set KUBEBUILDER_ASSETS)"); \
	[ $${#missing[@]} -eq 0 ] || { line=$$(printf '; %s' "$${missing[@]}"); echo "missing: $${line:2}" >&2; exit 1; }

# A .venv that is sound but made for another lock is brought up to date; one that was left half-made (.making still
# stands, or its pip or its packages don't work) is made anew.
$(STAMP): requirements.lock pyproject.toml | python
	@if [ -e $(VENV)/.making ] || ! $(BIN)/python -m pip --version >/dev/null 2>&1 \
			|| [ "$$($(BIN)/python -VV)" != "$$("$(PYTHON)" -VV)" ]; then \
		echo "making $(VENV) with $(PYTHON)" >&2; \
		"$(PYTHON)" -m venv --clear $(VENV) || \
			{ echo "missing: the venv module of $(PYTHON) (apt-get install python3-venv)" >&2; exit 1; }; \
	fi
	@rm -f $(VENV)/.whole-*
	@touch $(VENV)/.making
	@echo "installing the packages of requirements.lock into $(VENV)" >&2
	@$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --require-hashes -r requirements.lock
	@$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .
	@$(BIN)/python -m pip check -q --disable-pip-version-check
	@rm $(VENV)/.making
	@touch $@
