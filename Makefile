# Two commands matter: `make run` and `make test`. Both prepare what they need, from nothing, and again only when
# pyproject.toml or constraints.txt changed.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/stamps
# Twice quiet: pip's warnings are about the machine it runs on; its errors still show.
PIP := PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore $(BIN)/python -m pip -qq --no-input

DATA ?= ./data
ARGS ?=
# Two workers suit the two cores that continuous integration has.
WORKERS ?= 2

.PHONY: help setup run demo test test-ways check bench bench-scale clean distclean

help: ## show this
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

setup: $(STAMPS)/run ## make .venv with laneway in it
	@echo "laneway: ready, try $(BIN)/laneway --help"

run: $(STAMPS)/run ## serve from ./data; DATA=dir, ARGS="--http 127.0.0.1:9090 --amqp off"
	@exec $(BIN)/laneway serve --data $(DATA) $(ARGS)

demo: $(STAMPS)/pipeline ## a server, an hour's traffic in a minute, the jobs and their report; ARGS="--seconds 30s --no-open"
	@tools/services.sh pipeline
	@exec $(BIN)/laneway demo $(ARGS)

test: $(STAMPS)/test check ## everything that must pass: make check, then all tests; ARGS="-k name"
	@tools/services.sh test
	@echo "laneway: pytest with $(WORKERS) workers"
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

test-ways: $(STAMPS)/test ## all tests of the front ends, in all ways to reach a partition; ARGS="-k name"
	@tools/services.sh test
	@for way in local socket edge processes; do \
		echo "laneway: front ends, $$way"; \
		files="tests/rest tests/amqp tests/amqp_clients tests/sqs tests/test_protocols_agree.py"; \
		if [ $$way = processes ]; then files=tests/amqp_clients; fi; \
		LANEWAY_TEST_BROKER=$$way $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $$files $(ARGS); \
	done

check: $(STAMPS)/test ## ruff, mypy --strict, the import layers
	@echo "laneway: ruff check"; $(BIN)/ruff check --quiet .
	@echo "laneway: ruff format --check"; $(BIN)/ruff format --check --quiet . || \
		{ echo "laneway: these are not formatted; $(BIN)/ruff format . does it:"; $(BIN)/ruff format --check . | grep -v '^ *|' | head -40; exit 1; }
	@echo "laneway: mypy --strict"; $(BIN)/mypy --strict --no-error-summary src
	@echo "laneway: import layers"; $(BIN)/python -m pytest tests/test_layers.py tests/test_dependencies.py

bench: $(STAMPS)/bench ## throughput and latency beside Starlette, PostgreSQL, PgQueuer, RabbitMQ and moto; ARGS="--quick --part amqp"
	@tools/services.sh bench
	@$(BIN)/python -m benchmarks $(ARGS)

bench-scale: $(STAMPS)/bench ## deep queues, many leases, queues, connections; ARGS="--only connections"
	@$(BIN)/python -m benchmarks.scale $(ARGS)

clean: ## remove caches and builds, keep .venv and ./data
	@rm -rf build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .schemathesis
	@find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +

distclean: clean ## also remove .venv; ./data stays
	@rm -rf $(VENV)

# A stamp a level, so that `make run` waits only for what serving needs.

$(VENV)/bin/python:
	@python=$$(tools/find-python.sh); \
	echo "laneway: making $(VENV) with $$($$python --version)"; \
	$$python -m venv $(VENV)

$(STAMPS)/run: EXTRAS :=
$(STAMPS)/pipeline: EXTRAS := [pipeline]
$(STAMPS)/test: EXTRAS := [test,dev,pipeline]
$(STAMPS)/bench: EXTRAS := [bench,pipeline]

$(STAMPS)/run $(STAMPS)/pipeline $(STAMPS)/test $(STAMPS)/bench: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "laneway: installing packages$(if $(EXTRAS), $(EXTRAS))"
	@mkdir -p $(STAMPS)
	@$(PIP) install -c constraints.txt setuptools
	@$(PIP) install -c constraints.txt --no-build-isolation -e '.$(EXTRAS)'
	@touch $@
