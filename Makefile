# `make help` lists the targets. Everything runs from a clean clone: what is missing is installed or built first.
# As root on Debian or Ubuntu nothing has to be there but make; elsewhere see CONTRIBUTING.md.

SHELL := bash
.DELETE_ON_ERROR:
.SHELLFLAGS := -euo pipefail -c

VENV := .venv
PY := $(VENV)/bin/python
# Which extras the virtual environment has; a change of pyproject.toml installs anew.
INSTALLED := $(VENV)/.installed
PYTEST := $(PY) -m pytest
# MLServer pins older libraries than the tests use, so the demo's server has an environment of its own. (No METAINFER_ name:
# the operator refuses those it does not know, also when a test starts it.)
SERVER_VENV := .venv-server
export DEMO_SERVER_PYTHON := $(CURDIR)/$(SERVER_VENV)/bin/python
IMAGES := $(addprefix localhost/meta-infer/,operator:dev probe:dev demo-server:dev)
# Extra arguments for pytest, for example: make unit ARGS="-k baseline -x"
ARGS ?=
BENCH ?= latency
SCENARIO ?=
SEED ?= 1

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: demo
demo: venv ## bring up a cluster on this machine, install the operator, adapt two real models, show why; SCENARIO=slow-card: what comes after
	$(PY) hack/demo/$(if $(SCENARIO),scenario $(SCENARIO),run) $(ARGS)

.PHONY: scenarios
scenarios: venv ## every scenario after the first placement, then again with the operator killed in each step (root; about an hour and a half)
	$(PY) hack/demo/scenario --all $(ARGS)

.PHONY: test
test: venv $(SERVER_VENV)/.installed lab ## install what is missing, bring up a cluster on this machine, run every test
	$(PYTEST) $(ARGS)

.PHONY: check
check: venv ## formatting, lint, types, layers, generated files, budgets
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/mypy --scripts-are-modules hack/generate hack/verify
	$(VENV)/bin/mypy hack/demo/*.py hack/demo/scenarios/*.py
	$(VENV)/bin/lint-imports --no-logo
	$(PY) hack/verify

.PHONY: unit
unit: venv ## tests that need nothing but Python
	$(PYTEST) tests/unit $(ARGS)

.PHONY: apiserver
apiserver: venv ## tests against a real etcd and kube-apiserver (no root; built on first use)
	$(PYTEST) tests/apiserver tests/chart $(ARGS)

.PHONY: e2e
e2e: venv lab ## tests of the whole operator on the local cluster (root)
	$(PYTEST) tests/e2e $(ARGS)

# The tests would do the same by themselves, but nobody would see it build. Without root they are skipped, each with the reason.
.PHONY: lab
lab: ## the local cluster with this checkout's images on its nodes (root; nothing with KUBECONFIG set); down: hack/cluster/down
	@if [[ -n "$${KUBECONFIG:-}" ]]; then echo "using the cluster of KUBECONFIG: images must be reachable from it"; \
	elif [[ $$(id -u) != 0 ]]; then echo "not root: tests that need the local cluster will be skipped"; \
	else hack/cluster/up && hack/images/build && hack/cluster/load $(IMAGES); fi

# Figures quoted in the docs; each script's first lines say what it needs and how it is read.
.PHONY: bench
bench: venv ## one benchmark: make bench BENCH=latency (or decision, damping, probe, footprint, fleet, collect, predictor, replay, pool_scale; ARGS=…)
	PYTHONPATH=operator:probes $(PY) hack/bench/$(BENCH) $(ARGS)

.PHONY: chaos
chaos: venv ## kill, freeze and disturb the operator on a real API server: make chaos SEED=7
	PYTHONPATH=operator:probes $(PY) -m tests.chaos.run --seed $(SEED)

.PHONY: generate
generate: venv ## write the generated files: CRDs, their copies in the chart, references
	$(PY) hack/generate

.PHONY: format
format: venv ## format the Python code
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix-only .

.PHONY: venv
venv: $(INSTALLED) ## the Python environment with everything that operator, probe and tests need

$(INSTALLED): pyproject.toml
	hack/venv $(VENV)
	touch $@

$(SERVER_VENV)/.installed: pyproject.toml | venv
	$(PY) -m venv --clear $(SERVER_VENV)
	$(SERVER_VENV)/bin/python -m pip install --quiet --editable '.[probe]' mlserver==1.7.1
	touch $@

.PHONY: clean
clean: ## remove what was built here (the cluster's cached binaries stay; hack/cluster/down ends the cluster)
	rm -rf build dist $(VENV) $(SERVER_VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
