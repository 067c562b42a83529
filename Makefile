# Everything a newcomer needs: `make demo` shows it, `make check` is what a change must pass.

PYTHON ?= python3
PYTEST_WORKERS ?= auto
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.stamp
JAVA := $(VENV)/.java
BROWSER := $(VENV)/.browser
# A thousand quick tests start a server, and wait for a disk's fsync each: 45 s in memory, 67 s on a disk.
IN_MEMORY := $(if $(wildcard /dev/shm/.),TMPDIR=/dev/shm)
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet install --constraint constraints.txt

.DEFAULT_GOAL := help
.PHONY: help setup docs demo demo-pubsub run-flight test test-spark-matrix test-tansu soak check bench bench-connect bench-jobs bench-pubsub bench-queue bench-spark bench-topics bench-typed planted fmt clean

help:  ## list these targets
	@sed -nE 's/^([a-z-]+):[^#]*## (.*)/  make \1|\2/p' $(firstword $(MAKEFILE_LIST)) | \
	    while IFS='|' read -r target words; do printf '%-24s %s\n' "$$target" "$$words"; done

setup: $(STAMP) $(JAVA) $(BROWSER)  ## make .venv with penstock and its tools (once, again when a pin changes)
	@echo "ready; to have penstock on the PATH: . $(BIN)/activate"

demo: $(STAMP) $(JAVA)  ## see it work: the whole way of a dataset, in one script
	@$(BIN)/python scripts/demo.py

demo-pubsub: $(STAMP) $(JAVA)  ## see a Pub/Sub subscription stream, on Google's emulator
	@$(BIN)/python scripts/demo_pubsub.py

docs: $(STAMP)  ## build the pages of docs/ as a site: build/site/index.html
	@$(BIN)/zensical build --clean --strict
	@echo "open build/site/index.html; its search needs a web server: python3 -m http.server --directory build/site"

run-flight: $(STAMP)  ## run a server here (ARGS="--listen grpc://127.0.0.1:8815" and others)
	@$(BIN)/penstock serve $(ARGS)

# A thousand servers and drivers start in the tests, 0.2 s sooner with bytecode.
test test-spark-matrix test-tansu soak check planted: export PYTHONDONTWRITEBYTECODE :=

test: $(STAMP) $(JAVA) $(BROWSER)  ## run every test (ARGS="-k name" for some)
	@$(BIN)/python -m pytest -q -n $(PYTEST_WORKERS) $(ARGS)

test-tansu: $(STAMP)  ## run the tests of queues on Tansu, a Kafka broker without transactions (cargo builds it, once)
	@$(BIN)/python scripts/tansu_broker.py --build
	@$(BIN)/python -m pytest -q -m soak tests/kafka/test_tansu.py $(ARGS)

test-spark-matrix: $(STAMP) $(JAVA)  ## run the Spark tests on Spark 3.5 to 4.3 (ARGS="3.5 4.3" for some)
	@$(BIN)/python scripts/spark_matrix.py $(ARGS)

soak: $(STAMP) $(JAVA)  ## run the long tests, for hours: far examples, repeated faults, chaos (SEEDS="4 5"), every Spark
	@$(BIN)/python -m pytest -q -n $(PYTEST_WORKERS) -m soak
	@$(IN_MEMORY) $(BIN)/python -m pytest -q -n $(PYTEST_WORKERS) --dist load --hypothesis-profile=long --timeout=3600 \
	    -m "not process and not spark"
	@$(BIN)/python -m tests.chaos.run $(or $(SEEDS),1 2 3 4 5 6 7 8)
	@$(BIN)/python -m tests.chaos.run queue $(or $(SEEDS),1 2 3)
	@$(BIN)/python -m tests.chaos.run jobs $(or $(SEEDS),1 2 6 9 10 11)
	@$(BIN)/python -m tests.chaos.run subscription $(or $(SEEDS),1 2 3 4)
	@$(BIN)/python -m tests.chaos.run publish $(or $(SEEDS),1 2 3)
	@$(BIN)/python scripts/planted/run.py
	@PENSTOCK_CHAOS_ROWS=60000 $(BIN)/python scripts/planted/run.py \
	    $$(basename -s .patch $$(grep -l '^Tests: tests/chaos/' scripts/planted/*.patch))
	@$(BIN)/python scripts/spark_matrix.py

check: $(STAMP)  ## lint, format, types and the quick tests: in under a minute
	@echo "ruff check"; $(BIN)/ruff check --quiet
	@echo "ruff format"; $(BIN)/ruff format --check --quiet || { echo "make fmt mends it; these differ:"; $(BIN)/ruff format --check; exit 1; }
	@echo "mypy, and pytest without the tests of processes, faults and Spark"
	@said=$$(mktemp); trap 'rm -f "$$said"' EXIT; $(BIN)/mypy >"$$said" & \
	$(IN_MEMORY) $(BIN)/python -m pytest -q -n $(PYTEST_WORKERS) --dist load -o tmp_path_retention_policy=failed \
	    -m "not process and not faults and not spark"; tests=$$?; \
	wait $$!; types=$$?; cat "$$said"; exit $$((tests | types))

bench: $(STAMP)  ## measure puts and gets beside plain pyarrow (ARGS="--against REV": beside another revision)
	@$(BIN)/python -m scripts.bench flight $(ARGS)

bench-connect: $(STAMP) $(JAVA)  ## measure results of Spark Connect beside pyspark's own client
	@$(BIN)/python -m scripts.bench connect $(ARGS)

bench-jobs: $(STAMP)  ## measure jobs beside a pool and Ray Data, queues on Kafka, stores of Ray
	@$(BIN)/python -m scripts.bench jobs $(ARGS)

bench-pubsub: $(STAMP) $(JAVA)  ## measure the way in from Pub/Sub beside Google's subscriber and bare loops
	@$(BIN)/python -m scripts.bench pubsub $(ARGS)

bench-queue: $(STAMP) $(JAVA)  ## measure queues of work beside bare SQLite, Ray and the driver
	@$(BIN)/python -m scripts.bench queue $(ARGS)

bench-spark: $(STAMP) $(JAVA)  ## measure Spark's way out and in beside its own floors, Parquet and the driver
	@$(BIN)/python -m scripts.bench spark $(ARGS)

bench-topics: $(STAMP) $(JAVA)  ## measure topics and streams beside Kafka
	@$(BIN)/python -m scripts.bench topics $(ARGS)

bench-typed: $(STAMP) $(JAVA)  ## measure typed rows and publishing beside Kafka, pyarrow.json and Google's publisher
	@$(BIN)/python -m scripts.bench typed $(ARGS)

planted: $(STAMP)  ## plant known faults in copies of the code: the tests must find each
	@$(IN_MEMORY) $(BIN)/python scripts/planted/run.py $(ARGS)

fmt: $(STAMP)  ## format, and mend what the linter can
	@$(BIN)/ruff check --fix-only --quiet
	@$(BIN)/ruff format --quiet

clean:  ## remove what these targets made, .venv included
	@rm -rf $(VENV) .venv-spark .venv-bench build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .cache .coverage .coverage.* htmlcov
	@find penstock tests scripts -name __pycache__ -type d -prune -exec rm -rf {} +

# pip comes from the venv itself or, on a system that splits it off, from the python that made the venv.
$(STAMP): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { \
	    echo "no $(PYTHON) here: install Python 3.11 or newer, or name it: make setup PYTHON=/path/to/python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "$(PYTHON) is $$($(PYTHON) -V 2>&1), penstock needs 3.11 or newer; name one: make setup PYTHON=python3.12" >&2; exit 1; }
	@echo "making $(VENV) with $$($(PYTHON) -V), then installing penstock and its tools, Spark too (two minutes)"
	@if $(PYTHON) -c 'import venv, ensurepip' 2>/dev/null; then \
	    $(PYTHON) -m venv --clear $(VENV); \
	elif $(PYTHON) -c 'import venv, pip' 2>/dev/null; then \
	    $(PYTHON) -m venv --clear --without-pip $(VENV) && \
	    $(PYTHON) -m pip --disable-pip-version-check --quiet --python $(BIN)/python install pip; \
	else \
	    echo "$(PYTHON) has no venv or ensurepip; on Debian and Ubuntu: apt install python3-venv, then make setup again" >&2; exit 1; \
	fi
	@$(PIP) setuptools
	@$(PIP) --no-build-isolation --use-pep517 --editable '.[dev]'
	@touch $@

# Without Java, or a browser, all else works, so this goes on, and looks again the next time.
$(JAVA) $(BROWSER): $(VENV)/.%: | $(STAMP)
	@if sh scripts/$*.sh; then touch $@; fi
