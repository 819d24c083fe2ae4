# flashmqtt. `make help` lists what there is; `make run` and `make test` set everything up themselves.
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
export PYTHONPATH := $(CURDIR):$(CURDIR)/firmware
export PYTHONDONTWRITEBYTECODE := 1

READINGS ?= 1000
CUTS ?= 20
LINKCUTS ?= 10
KILLS ?= 3
SEED ?=
PYTEST_ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help setup run test check bench format

help: ## List the targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

setup: ## Install what is needed, into .venv (the other targets do this themselves)
	@$(PYTHON) tools/bootstrap.py

run: setup ## The main job: a virtual board under power cuts, a real broker, Spark, the audit (READINGS=1000 CUTS=20 LINKCUTS=10 KILLS=3 SEED=)
	@$(PY) -m tools.run --readings $(READINGS) --cuts $(CUTS) --link-cuts $(LINKCUTS) --collector-kills $(KILLS) $(if $(SEED),--seed $(SEED))

test: setup ## The tests, on CPython and on MicroPython
	@$(PY) -m pytest $(PYTEST_ARGS)

check: setup ## What CI runs: format, lint, types, layers, mpy-cross, tests
	@$(PY) -m tools.check

bench: setup ## Measure everything beside the peers; prints tables, writes bench.json (ONLY=journal for one area)
	@$(PY) -m tools.bench $(if $(ONLY),--only $(ONLY))

format: setup ## Format all code
	@$(VENV)/bin/ruff format .
	@$(VENV)/bin/ruff check --fix --select I .
