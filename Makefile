# One verb, one line. CI calls these and nothing else. PYTHON=3.13 picks another interpreter for a new .venv.

export VENV ?= .venv
BIN := $(VENV)/bin
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help setup runtime run test check fmt e2e bench cases fresh crds chart lock image cluster-up cluster-down e2e-cluster

help: ## say what there is
	@sed -n 's/^\([a-z0-9-]*\):[^#]*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 16

setup: ## install what run and tests need
	@tests/setup.sh tests

runtime:
	@tests/setup.sh run

run: runtime ## the basic example, keyless, on http://127.0.0.1:8484
	@exec $(BIN)/kubeharness dev -f docs/examples/basic $(ARGS)

test: setup ## every test that needs no node tier
	@$(BIN)/python -m pytest $(ARGS)

check: setup ## format, lint, types, import contracts, generated files without drift
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m kubeharness.kinds.crdgen --check
	$(BIN)/python tests/leafmap.py --check

fmt: setup ## format, and mend what the linter can
	@$(BIN)/ruff format . && $(BIN)/ruff check --fix .

e2e: setup ## the whole product on a real API server
	@$(BIN)/python -m pytest tests/e2e $(ARGS)

bench: setup ## measure; nothing here passes or fails
	@PYTHONPATH=tests $(BIN)/python -m benchmarks $(ARGS)

cases: setup ## field case -> test -> result: make cases ISSUE=3
	@$(BIN)/python tests/cases.py $(ISSUE)

fresh: ## the README's two commands in a clone with empty HOME and caches
	@tests/fresh.sh

crds: runtime ## generate crds/ and the chart kubeharness-crds from the models
	@$(BIN)/python -m kubeharness.kinds.crdgen

chart: setup ## lint the charts and write their golden renders
	@PYTHONPATH=tests $(BIN)/python -m charts

lock: ## compile the locks anew: make lock ARGS=--upgrade
	@tests/setup.sh uv && tests/lock.sh $(ARGS)

image: runtime ## the container image, by Docker or else buildah: make image ARGS='--commit v0.1.0'
	@PYTHONPATH=tests $(BIN)/python -m cluster.images $(ARGS)

e2e-cluster: setup ## install, use, upgrade and uninstall it on a real node, ingress included
	@tests/apt-packages.sh cluster
	@$(BIN)/python -m pytest -s --timeout 180 tests/image
	@$(BIN)/python -m pytest tests/node
	@$(BIN)/python -m pytest -s tests/e2e_cluster $(ARGS)

cluster-up: setup ## a cluster of one node with a router and a Postgres, until cluster-down
	@tests/apt-packages.sh cluster && PYTHONPATH=tests $(BIN)/python -m cluster up

cluster-down: setup ## end it, and what killed runs left
	@PYTHONPATH=tests $(BIN)/python -m cluster down
