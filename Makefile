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
.PHONY: help setup run test check bench requirements dump powercut-board format

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

requirements: setup ## Which tests prove which rule
	@$(PY) -m tools.requirements $(if $(LIST),--list)

dump: setup ## Show what is in a journal (IMAGE=flash.bin or BOARD=/dev/ttyACM0)
	@$(PY) -m tools.journal dump $(if $(BOARD),--board $(BOARD),$(IMAGE))

powercut-board: setup ## A board's whole life under power cuts (FLASHMQTT_UF2=image runs it on an emulated Pico W, too)
	@FLASHMQTT_BOARD_CUTS=250 $(PY) -m pytest host_tests/flash/test_board_power_cuts.py

format: setup ## Format all code
	@$(VENV)/bin/ruff format .
	@$(VENV)/bin/ruff check --fix --select I .
