# flashmqtt. `make help` lists what there is; `make run` and `make test` set everything up themselves.
PYTHON ?= $(firstword $(foreach name,python3 python3.14 python3.13 python3.12 python3.11,$(shell command -v $(name))) python3)
VENV := .venv
PY := $(VENV)/bin/python
export PYTHONPATH := $(CURDIR):$(CURDIR)/firmware
export PYTHONDONTWRITEBYTECODE := 1

READINGS ?= 1000
CUTS ?= 20
LINKCUTS ?= 10
KILLS ?= 3
SEED ?=
BOARD ?= auto
PORT ?= auto
PYTEST_ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help setup run test check bench requirements dump \
	soak powercut faults hostile brokers fuzz clauses size vectors collect collector-kills pipeline cluster report dashboard verdict check-tables wire-audit compact forget sink \
	deploy monitor backup wipe wakes virtual-board powercut-board image format

help: ## List the targets, and in parentheses what they take, with the defaults
	@awk 'BEGIN {FS = ":.*## "} /^##@ / {printf "\n%s\n", substr($$0, 5)} /^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

##@ To begin with

run: setup ## The main job: a virtual board under power cuts, a real broker, Spark, the audit (READINGS=1000 CUTS=20 LINKCUTS=10 KILLS=3 SEED=)
	@$(PY) -m tools.proof.run --readings $(READINGS) --cuts $(CUTS) --link-cuts $(LINKCUTS) --collector-kills $(KILLS) $(if $(SEED),--seed $(SEED))

test: setup ## The tests, on CPython and on MicroPython, in several processes (PYTEST_ARGS="host_tests/docs -x"; "-n 0 ...": in one)
	@$(PY) -m pytest -n auto $(PYTEST_ARGS)

setup: ## Install what is needed, into .venv (the other targets do this themselves)
	@$(PYTHON) tools/bootstrap.py

##@ A board

deploy: setup ## Put it on a board and wait for its first reading (BOARD=auto: whichever it is, or BOARD_FILE=your/board.py; PORT=auto; DRY=1: only say what; YES=1: don't ask; PLAIN=1: no names shortened)
	@$(PY) -m tools.deploy deploy --board $(BOARD) $(if $(BOARD_FILE),--board-file "$(BOARD_FILE)") --port $(PORT) $(if $(DRY),--dry-run) $(if $(PLAIN),--plain) $(if $(YES),--yes)

monitor: setup ## Show what the board says, until Ctrl-C (PORT=auto; PLAIN=1: it was deployed so)
	@$(PY) -m tools.deploy monitor --port $(PORT) $(if $(PLAIN),--plain)

backup: setup ## Copy every file of the board, and the journal, into backups/ (PORT=auto)
	@$(PY) -m tools.deploy backup --port $(PORT)

wipe: setup ## Take everything of ours off the board, after asking (PORT=auto; YES=1: don't ask; JOURNAL=1: its stored messages too)
	@$(PY) -m tools.deploy wipe --port $(PORT) $(if $(YES),--yes) $(if $(JOURNAL),--journal)

dump: setup ## Show what is in a journal (FROM=auto: the board's; FROM=/dev/ttyACM0; or IMAGE=flash.bin)
	@$(PY) -m tools.journal dump $(if $(FROM),--board "$(FROM)",$(if $(IMAGE),"$(IMAGE)"))

virtual-board: setup ## A virtual Pico W on a serial port, for mpremote and deploy (WIFI=network:password that its radio finds; BOARD=esp32, pico2_w ...)
	@$(PY) -m tools.virtual_board.device $(if $(filter-out auto,$(BOARD)),--board $(BOARD)) $(if $(WIFI),--wifi "$(WIFI)")

image: setup ## A MicroPython image with flashmqtt frozen (BOARD=pico_w MICROPYTHON=path; boards/IMAGES.md tells of APP=1 JOURNAL=1 NODRIVERS=1 ROMFS=KB MANIFEST=file USER_C_MODULES=file OUT=folder)
	@$(PY) -m tools.deploy.image --board "$(BOARD)" --micropython "$(MICROPYTHON)" $(if $(APP),--app) $(if $(JOURNAL),--journal) $(if $(NODRIVERS),--no-drivers) $(if $(ROMFS),--romfs $(ROMFS)) $(if $(MANIFEST),--manifest "$(MANIFEST)") $(if $(USER_C_MODULES),--user-c-modules "$(USER_C_MODULES)") $(if $(OUT),--output "$(OUT)")

##@ Behind the broker

collect: setup ## Run the collector (ARGS="--host broker.local --landing landing"; ARGS=--help)
	@$(PY) -m tools.collector $(ARGS)

pipeline: setup ## Run the Spark pipeline (ARGS="--landing landing --out tables"; ARGS=--help)
	@$(PY) -m tools.pipeline.run $(ARGS)

report: setup ## Write the fleet's HTML page (OUT=tables)
	@$(PY) -m tools.pipeline.report --out $(OUT)

dashboard: setup ## Serve the page beside a run that follows; it refreshes itself (OUT=tables PORT=9106)
	@$(PY) -m tools.pipeline.dashboard --out $(OUT) $(if $(filter-out auto,$(PORT)),--port $(PORT))

verdict: setup ## Is every message in the tables, once? Without Spark, also beside a run that follows (OUT=tables)
	@$(PY) -m tools.pipeline.verdict --out $(OUT)

check-tables: setup ## Hold all rows of a pipeline's tables against the audit (OUT=tables)
	@$(PY) -m tools.pipeline.check --out $(OUT)

sink: setup ## The readings into a DuckDB file or PostgreSQL, each once (OUT=tables TO=readings.duckdb, TO=postgresql://user@host/database; ARGS="--follow 10")
	@$(PY) -m tools.pipeline.sink --out "$(OUT)" --to "$(TO)" $(ARGS)

compact: setup ## Join a pipeline's many small files (OUT=tables)
	@$(PY) -m tools.pipeline.compact --out $(OUT)

forget: setup ## Delete all that is known of a device, for good, and prove it (LANDING=landing OUT=tables DEVICE="NAME"; DRY=1: only look; YES=1: don't ask; ARGS="--devices FILE --search DIR")
	@$(PY) -m tools.pipeline.forget --landing "$(LANDING)" --out "$(OUT)" $(if $(DEVICE),--device "$(DEVICE)") $(if $(DRY),--dry-run) $(if $(YES),--yes) $(ARGS)

wire-audit: setup ## Audit captured MQTT traffic (ARGS="--captures DIR --out DIR")
	@$(PY) -m tools.proof.wire $(ARGS)

##@ The proofs

powercut: setup ## Cut the power at every flash operation, and again in the recovery; prints how many cuts (SHORT=1: a minute; REPLAY=id)
	@$(PY) -m tools.proof.powercut $(if $(SHORT),--short) $(if $(REPLAY),--replay "$(REPLAY)")
	@$(if $(REPLAY),,$(PY) -m host_tests.journal.flips $(if $(SHORT),29))

powercut-board: setup ## A board's whole life under power cuts (FLASHMQTT_UF2=image runs it on an emulated Pico, too)
	@FLASHMQTT_BOARD_CUTS=250 $(PY) -m pytest host_tests/flash/test_board_power_cuts.py

faults: setup ## Cut the link everywhere, kill broker and board everywhere; counts losses and duplicates (SHORT=1; REPLAY=id)
	@$(PY) -m tools.proof.faults $(if $(SHORT),--short) $(if $(REPLAY),--case "$(REPLAY)")

hostile: setup ## A broker that does every wrong thing at every moment (REPLAY=id)
	@$(PY) -m tools.proof.faults --hostile $(if $(REPLAY),--case "$(REPLAY)")

brokers: setup ## The same scenarios against every real broker that can be had; what each of them does (ONLY="mosquitto aedes"; REPLAY=id; KEEP=1: into its page)
	@$(PY) -m tools.proof.brokers $(if $(ONLY),--brokers $(ONLY)) $(if $(REPLAY),--case "$(REPLAY)") $(if $(KEEP),--keep)

fuzz: setup ## A million malformed streams through the decoder (CASES=1000000)
	@$(PY) -m tools.proof.fuzz $(if $(CASES),--cases $(CASES))

collector-kills: setup ## Kill the collector with -9 under load, again and again, then count (TIMES=100)
	@$(PY) -m tools.proof.collector_kills --kills $(or $(TIMES),100)

cluster: setup ## The pipeline on a standalone Spark cluster, killed with -9 again and again: the same tables
	@$(PY) -m tools.pipeline.cluster

wakes: setup ## 500 wakes of a sleeping board, half of them without a network
	@$(PY) -m tools.proof.wakes --wakes 500

soak: setup ## A fleet under every fault at once, through Spark to the audit; is memory flat, wear even? (MINUTES=60 BOARDS=10 SEED=)
	@$(PY) -m tools.proof.soak --minutes $(or $(MINUTES),60) --boards $(or $(BOARDS),10) $(if $(SEED),--seed $(SEED))

vectors: setup ## Check the packet vectors against a second implementation's codec (needs Node.js with npm)
	@$(PY) -m tools.proof.check.vectors --check

##@ What is proved, and how well it does

requirements: setup ## Which tests prove which rule (LIST=1: each test)
	@$(PY) -m tools.proof.check.requirements $(if $(LIST),--list)

clauses: setup ## Which normative statements of MQTT are obeyed where, and proved by which test (LIST=1: each)
	@$(PY) -m tools.proof.check.clauses $(if $(LIST),--list)

bench: setup ## Measure everything beside the peers; tables, bench.json (ONLY=journal for one area; KEEP=1: for the documents)
	@$(PY) -m tools.proof.bench $(if $(ONLY),--only $(ONLY)) $(if $(KEEP),--keep)

size: setup ## What the library weighs on a board, against the ledger, and what three programs load (FLASHMQTT_MICROPYTHON32=path, FLASHMQTT_FROZEN32=path)
	@$(PY) -m tools.proof.check.size --runs

##@ The house

release: setup ## Build what is published, reproducibly, into dist/: mip packages for every processor, sdist and wheel, checksums
	@$(PY) -m tools.deploy.release

check: setup ## What CI runs: format, lint, types, layers, mpy-cross, sizes, rules, clauses, tests
	@$(PY) -m tools.proof.check

format: setup ## Format all code
	@$(VENV)/bin/ruff format .
	@$(VENV)/bin/ruff check --fix --select I .
