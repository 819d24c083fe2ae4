# flashmqtt. `make help` lists the targets; each target sets up what it needs.
ifeq ($(wildcard tools/bootstrap.py),)
$(error This Makefile needs its own folder: use `make -C FOLDER TARGET` instead of `make -f`)
endif
PYTHON ?= $(firstword $(foreach name,python3 python3.14 python3.13 python3.12 python3.11,$(shell command -v $(name))) python3)
VENV := .venv
# exec: Python replaces the shell of a recipe, so that a signal for that shell reaches Python.
PY := exec $(VENV)/bin/python
export PYTHONPATH := $(CURDIR):$(CURDIR)/firmware
export PYTHONDONTWRITEBYTECODE := 1

# Recipes take a value from the environment, as "$$NAME": make puts there what it was given. So a value may have blanks, quotes,
# and what a shell would run. ARGS, ONLY (of brokers), AREAS and PYTEST_ARGS are words for the shell.

.DEFAULT_GOAL := help
.PHONY: help setup run test check bench requirements dump \
	soak powercut faults hostile brokers fuzz mutation clauses size vectors collect collector-kills pipeline cluster report dashboard verdict check-tables wire-audit compact forget sink \
	deploy monitor backup wipe release wakes virtual-board powercut-board image format

help: ## List the targets; their variables are in parentheses, each with a default or an example
	@awk 'BEGIN {FS = ":.*## "} /^##@ / {printf "\n%s\n", substr($$0, 5)} /^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

##@ First steps

run: setup ## The whole path: a virtual board under power cuts, a real broker, the collector, Spark, the audit (READINGS=1000 CUTS=20 LINKCUTS=10 KILLS=3 SEED=)
	@$(PY) -m tools.proof.run $(if $(READINGS),--readings "$$READINGS") $(if $(CUTS),--cuts "$$CUTS") $(if $(LINKCUTS),--link-cuts "$$LINKCUTS") $(if $(KILLS),--collector-kills "$$KILLS") $(if $(SEED),--seed "$$SEED")

test: setup ## Run the tests on CPython and MicroPython, in several processes (PYTEST_ARGS="host_tests/docs -x"; "-n 0 ...": one process)
	@$(PY) -m pytest -n auto $(PYTEST_ARGS)

setup: ## Install everything into .venv (the other targets do this themselves)
	@$(PYTHON) tools/bootstrap.py

##@ A board

deploy: setup ## Install the application on a board and wait for its first reading (BOARD=auto: ask the board, or BOARD_FILE=your/board.py; PORT=auto; DRY=1: only show what would be done; YES=1: don't ask; PLAIN=1: keep all names)
	@$(PY) -m tools.deploy deploy $(if $(BOARD),--board "$$BOARD") $(if $(BOARD_FILE),--board-file "$$BOARD_FILE") $(if $(PORT),--port "$$PORT") $(if $(DRY),--dry-run) $(if $(PLAIN),--plain) $(if $(YES),--yes)

monitor: setup ## Show the board's output until Ctrl-C (PORT=auto; PLAIN=1, BOARD_FILE=your/board.py: if it was deployed with them)
	@$(PY) -m tools.deploy monitor $(if $(BOARD_FILE),--board-file "$$BOARD_FILE") $(if $(PORT),--port "$$PORT") $(if $(PLAIN),--plain)

backup: setup ## Copy all files and the journal of the board into backups/ (PORT=auto)
	@$(PY) -m tools.deploy backup $(if $(PORT),--port "$$PORT")

wipe: setup ## Remove flashmqtt's files from the board, after asking (PORT=auto; YES=1: don't ask; JOURNAL=1: also the stored messages)
	@$(PY) -m tools.deploy wipe $(if $(PORT),--port "$$PORT") $(if $(YES),--yes) $(if $(JOURNAL),--journal)

dump: setup ## Show the contents of a journal: of the board (PORT=auto), of an image or a backup (IMAGE=flash.bin); ALL=1: also finished messages
	@$(PY) -m tools.journal dump $(if $(IMAGE),"$$IMAGE") $(if $(PORT),--board "$$PORT") $(if $(ALL),--all)

virtual-board: setup ## Start a virtual Pico W on a serial port, for mpremote and deploy (WIFI=network:password that its radio finds; BOARD=esp32, pico2_w ...; DIR=build/board: its flash, for each board another folder)
	@$(PY) -m tools.virtual_board.device $(if $(DIR),--directory "$$DIR") $(if $(filter-out auto,$(BOARD)),--board "$$BOARD") $(if $(WIFI),--wifi "$$WIFI")

image: setup ## Build a MicroPython image with flashmqtt frozen (BOARD=pico_w MICROPYTHON=path; see boards/IMAGES.md for APP=1 JOURNAL=1 NODRIVERS=1 ROMFS=KB MANIFEST=file USER_C_MODULES=file OUT=folder)
	@$(PY) -m tools.deploy.image --board "$$BOARD" --micropython "$$MICROPYTHON" $(if $(APP),--app) $(if $(JOURNAL),--journal) $(if $(NODRIVERS),--no-drivers) $(if $(ROMFS),--romfs "$$ROMFS") $(if $(MANIFEST),--manifest "$$MANIFEST") $(if $(USER_C_MODULES),--user-c-modules "$$USER_C_MODULES") $(if $(OUT),--output "$$OUT")

##@ Behind the broker

collect: setup ## Run the collector (ARGS="--host broker.local --landing landing"; ARGS=--help)
	@$(PY) -m tools.collector $(ARGS)

pipeline: setup ## Run the Spark pipeline (ARGS="--landing landing --out tables"; ARGS=--help)
	@$(PY) -m tools.pipeline.run $(ARGS)

report: setup ## Write the fleet's HTML page (OUT=tables)
	@$(PY) -m tools.pipeline.report --out $(if $(OUT),"$$OUT")

dashboard: setup ## Serve the page while the pipeline runs; the page refreshes itself (OUT=tables PORT=9106)
	@$(PY) -m tools.pipeline.dashboard --out $(if $(OUT),"$$OUT") $(if $(filter-out auto,$(PORT)),--port "$$PORT")

verdict: setup ## Check that every message is in the tables exactly once; needs no Spark, works while the pipeline runs (OUT=tables; ARGS="--accept quarantine")
	@$(PY) -m tools.pipeline.verdict --out $(if $(OUT),"$$OUT") $(ARGS)

check-tables: setup ## Compare all rows of a pipeline's tables with the audit (OUT=tables)
	@$(PY) -m tools.pipeline.check --out $(if $(OUT),"$$OUT")

sink: setup ## Copy the readings into a DuckDB file or PostgreSQL, each exactly once (OUT=tables TO=readings.duckdb, TO=postgresql://user@host/database; ARGS="--follow 10")
	@$(PY) -m tools.pipeline.sink --out "$$OUT" --to "$$TO" $(ARGS)

compact: setup ## Merge a pipeline's many small files (OUT=tables)
	@$(PY) -m tools.pipeline.compact --out $(if $(OUT),"$$OUT")

forget: setup ## Delete all data of a device permanently, and check that it is gone (LANDING=landing OUT=tables DEVICE="NAME"; DRY=1: delete nothing; YES=1: don't ask; ARGS="--devices FILE --mapping FILE --search DIR")
	@$(PY) -m tools.pipeline.forget --landing "$$LANDING" --out "$$OUT" $(if $(DEVICE),--device="$$DEVICE") $(if $(DRY),--dry-run) $(if $(YES),--yes) $(ARGS)

wire-audit: setup ## Audit captured MQTT traffic (ARGS="--captures DIR --out DIR")
	@$(PY) -m tools.proof.wire $(ARGS)

##@ The proofs

powercut: setup ## Cut the power at every flash operation, and again during the recovery; print the number of cuts (SHORT=1: some minutes; REPLAY=id)
	@$(PY) -m tools.proof.powercut $(if $(SHORT),--short) $(if $(REPLAY),--replay "$$REPLAY")
	@$(if $(REPLAY),,$(PY) -m host_tests.journal.flips $(if $(SHORT),29))

powercut-board: setup ## Cut the power of a virtual board with the journal in its file system (FLASHMQTT_UF2=image: also on an emulated Pico)
	@FLASHMQTT_BOARD_CUTS=250 $(PY) -m pytest host_tests/flash/test_board_power_cuts.py

faults: setup ## Cut the link and kill broker and board at every point of every flow; count losses and duplicates (SHORT=1; REPLAY=id)
	@$(PY) -m tools.proof.faults $(if $(SHORT),--short) $(if $(REPLAY),--case "$$REPLAY")

hostile: setup ## Run the client against a broker that breaks every rule at every point (REPLAY=id)
	@$(PY) -m tools.proof.faults --hostile $(if $(REPLAY),--case "$$REPLAY")

brokers: setup ## Run the same scenarios against every available broker, and compare the brokers (ONLY="mosquitto aedes"; REPLAY=id; KEEP=1: update the page)
	@$(PY) -m tools.proof.brokers $(if $(ONLY),--brokers $(ONLY)) $(if $(REPLAY),--case "$$REPLAY") $(if $(KEEP),--keep)

fuzz: setup ## Feed a million malformed streams to the decoder (CASES=1000000)
	@$(PY) -m tools.proof.fuzz $(if $(CASES),--cases "$$CASES")

collector-kills: setup ## Kill the collector with SIGKILL under load, many times, then count losses and duplicates (TIMES=100)
	@$(PY) -m tools.proof.collector_kills $(if $(TIMES),--kills "$$TIMES")

cluster: setup ## Kill the pipeline's processes on a standalone Spark cluster with SIGKILL; the tables must be the same
	@$(PY) -m host_tests.pipeline.cluster

wakes: setup ## Wake a sleeping board 500 times, half of them without a network
	@$(PY) -m tools.proof.wakes --wakes 500

soak: setup ## Run a fleet under all faults at once, up to the audit; check that memory is flat and flash wear even (MINUTES=60 BOARDS=10 SEED=)
	@$(PY) -m tools.proof.soak $(if $(MINUTES),--minutes "$$MINUTES") $(if $(BOARDS),--boards "$$BOARDS") $(if $(SEED),--seed "$$SEED")

mutation: setup ## Change one place of the code at a time: does a test fail? Prints the changes that no test notices (SAMPLE=40 of each area; SEED= AREAS="session journal codec application pipeline")
	@$(PY) -m tools.proof.mutation $(if $(SAMPLE),--sample "$$SAMPLE") $(if $(SEED),--seed "$$SEED") $(if $(AREAS),--areas $(AREAS))

vectors: setup ## Check the packet vectors against a second implementation's codec (needs Node.js with npm)
	@$(PY) -m tools.proof.check.vectors --check

##@ Coverage and figures

requirements: setup ## List the project's rules and the tests that prove them (LIST=1: each test)
	@$(PY) -m tools.proof.check.proved rules $(if $(LIST),--list)

clauses: setup ## List MQTT's normative statements: the code that obeys and the test that proves each (LIST=1: each)
	@$(PY) -m tools.proof.check.proved clauses $(if $(LIST),--list)

bench: setup ## Measure flashmqtt and its peers; writes tables and bench.json (ONLY=journal: one area; KEEP=1: update the documents)
	@$(PY) -m tools.proof.bench $(if $(ONLY),--only "$$ONLY") $(if $(KEEP),--keep)

size: setup ## Compare the library's size on a board with the ledger; show what three programs load (FLASHMQTT_MICROPYTHON32=path, FLASHMQTT_FROZEN32=path)
	@$(PY) -m tools.proof.check.size --runs

##@ Development

release: setup ## Build the release into dist/, reproducibly: mip packages for every processor, sdist, wheel, checksums
	@$(PY) -m tools.deploy.release

check: setup ## Run all checks of CI: format, lint, types, layers, mpy-cross, sizes, rules, clauses, tests
	@$(PY) -m tools.proof.check

format: setup ## Format all code
	@$(VENV)/bin/ruff format .
	@$(VENV)/bin/ruff check --fix --select I .
