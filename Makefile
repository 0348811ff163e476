# Two commands from a bare machine: `make run` (the main job) and `make test`.
# A repeated call does only what changed: stamps stand in $(VENV)/.stamps.

# The main job: scale factor, cap of one worker, micro-batches, store (lsm, rocksdb, memory).
SF ?= 1
CAP ?= 16m
BATCHES ?= 10
BACKEND ?= lsm
# JSON=1: the last line of standard output is one JSON object.
JSON ?=
# Releases of PySpark that SQL and DataFrames are converted on; `make spark-releases` tests them.
SPARK_RELEASES ?= 4.0.5 4.1.4 4.2.1 4.3.0
# Processes that run the tests; a file of tests stays in one. Those with tests of Spark go to the first
# one, as long as it can take them (tests/support/one_spark.py).
JOBS ?= 2
DIST := --dist loadfile --no-loadscope-reorder
# Further arguments of pytest, e.g. ARGS="-k layers".
ARGS ?=
# Compiling goes on while pip installs, and beside mypy.
MAKEFLAGS += --jobs=2
# What `make debug-quick` runs: tests of the extensions, and of the store over them.
DEBUG_TESTS := tests/codecs tests/sstable $(patsubst %,tests/store/%.py,contract/test_random_machines \
	$(patsubst %,lsm/test_%,deletes lsm_store memtable memtables partial_merge snapshot))

VENV ?= .venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/.stamps
EXTENSION_SOURCES := setup.py $(shell find cython_ext -name '*.pyx' -o -name '*.pxd')
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
# Modules are compiled as they are imported, which most never are. PySpark comes as sources; the wheel
# that pip makes of them is unpacked at once, so it is not compressed.
PIP_INSTALL := $(PIP) install --no-compile --config-settings=--build-option=--compression=stored
BUILD_EXT := $(BIN)/python setup.py --quiet build_ext --inplace --parallel 2 >/dev/null

.DEFAULT_GOAL := help
.PHONY: help run data kafka-demo test stress build debug debug-quick lint types mypy stubtest docs docs-serve bench \
	figures peers wheel ui-test dist-check clean check-all spark-releases

help:
	@echo "make run     the main job: four streams joined on Spark (SF=1 CAP=16m BATCHES=10 BACKEND=lsm JSON=)"
	@echo "make kafka-demo  the same from a Kafka broker of its own (SF=0.1 for a quick look)"
	@echo "make test    lint, types, then the tests (ARGS= goes to pytest)"
	@echo "make build   virtual environment and extensions      make debug   the same with assertions, and the tests of the store"
	@echo "make stress  the slow tests, all random examples     make bench   benchmarks"
	@echo "make figures figures and tables of the papers       make peers   Spark's own joins beside ours (both SF=1; 10 minutes and more)"
	@echo "make lint    ruff                                    make types   mypy"
	@echo "make docs    the documents in build/site, strict     make docs-serve  the same on http://127.0.0.1:8000"
	@echo "make wheel   dist/: one wheel for CPython 3.11 and later, and the source distribution it is built from"
	@echo "make dist-check  the same from a clean copy, installed and tested in a virtual environment of its own"
	@echo "make ui-test  the web page in Chromium (apt-get install chromium), with its screenshots"
	@echo "make spark-releases  the tests of SQL and DataFrames on each release of PySpark they are for"
	@echo "make clean   remove builds and caches (not $(VENV), not the data)"

run: check-all $(STAMPS)/release data
	@$(BIN)/lsmstate demo --scale $(SF) --memory $(CAP) --batches $(BATCHES) --backend $(BACKEND) $(if $(JSON),--json)

# It needs no extension, so it is made while they are compiled.
data: $(STAMPS)/run
	@$(BIN)/python -m lsmstate.spark_integration.demo.tpcds .data --scale $(SF) --batches $(BATCHES)

# The same from a Kafka broker that is started for it on loopback; it comes from Maven Central.
kafka-demo: check-all $(STAMPS)/release data
	@$(BIN)/lsmstate demo --kafka --scale $(SF) --memory $(CAP) --batches $(BATCHES) --backend $(BACKEND) $(if $(JSON),--json)

test: check-all build lint types
	@$(BIN)/python -m pytest --numprocesses $(JOBS) $(DIST) $(ARGS)

# The slow tests, and those of hypothesis with all their examples. Shown at the end: what tests print,
# such as the seed and each kill, not what Spark does.
stress: check-all build
	@LSMSTATE_EXAMPLES=$${LSMSTATE_EXAMPLES:-1} LSMSTATE_CODEGEN=true $(BIN)/python -m pytest -m "stress or hypothesis" -raP --show-capture=stdout $(ARGS)

bench: build
	@$(BIN)/python -m pytest bench --benchmark-only --benchmark-columns=min,median,max,rounds -p no:cacheprovider -o python_files='bench_*.py' $(ARGS)

# Images and runs.jsonl in bench/joins/figures, tables on standard output; a run on file is not repeated.
figures: build
	@$(BIN)/python -m bench.joins.umjoin_figures --scale $(SF)
	@$(BIN)/python -m bench.joins.bistream_figures
	@$(BIN)/python -m bench.joins.ordered_protocol
	@$(BIN)/python -m bench.joins.thesis_tables

peers: check-all build
	@$(BIN)/python -m bench.spark.spark_joins --scale $(SF)

lint: $(STAMPS)/dev
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

# The first needs no extension: it goes on while they are compiled.
types: mypy stubtest

mypy: $(STAMPS)/dev
	@$(BIN)/mypy

stubtest: build
	@$(BIN)/python -m mypy.stubtest --mypy-config-file pyproject.toml --ignore-missing-stub lsmstate.cython_ext

# A link that leads nowhere fails the build. The warning is about a later release than the one installed.
docs: $(STAMPS)/dev
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --clean
	@echo "build/site/index.html"

docs-serve: $(STAMPS)/dev
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

build: $(STAMPS)/dev $(STAMPS)/release

# Assertions and bounds checks kept; the next `make build` compiles without them again.
debug: $(STAMPS)/dev $(STAMPS)/debug
	@$(BIN)/python -m pytest -m "not spark and not stress and not browser" --numprocesses $(JOBS) $(DIST) $(ARGS)

# A minute of that, which .ci/run does before `make test`.
debug-quick: override ARGS += $(DEBUG_TESTS)
debug-quick: debug

# The source distribution first, then the wheel out of it, both apart from this tree.
wheel: $(STAMPS)/dev
	@rm -rf dist
	@$(BIN)/python -m build --outdir dist >/dev/null
	@$(BIN)/python .ci/wheel-policy dist
	@ls -l dist

# Screenshots go to docs/guide. CHROMIUM names another browser.
ui-test: check-all build
	@$(BIN)/python -m pytest -m browser tests/ui $(ARGS)

dist-check: $(STAMPS)/dev
	@$(BIN)/python -m pytest -m stress tests/project/test_packaging.py $(ARGS)

# Each release lies in a directory of its own (400 MB) that stands in front of the installed one.
spark-releases: build
	@for release in $(SPARK_RELEASES); do \
		home=.run/pyspark-$$release; \
		test -d $$home/pyspark || $(PIP) install --target $$home pyspark==$$release || exit 1; \
		echo "PySpark $$release"; \
		PYTHONPATH=$$PWD/$$home $(BIN)/python -m pytest -q -o timeout=900 \
			tests/spark/sql/test_streaming_sql.py tests/spark/sql/test_streaming_groups.py \
			tests/spark/sql/test_streaming_traps.py tests/spark/sql/test_random_sql.py \
			tests/spark/sql/test_streaming_aggregates.py tests/spark/sql/test_random_aggregates.py \
			tests/spark/sql/test_catalyst.py tests/spark/sql/test_sql_distances.py \
			tests/spark/state/test_spark_state.py tests/spark/operator/test_spark_decimals.py $(ARGS) || exit 1; \
	done

check-all:
	@.ci/preflight all >/dev/null

$(VENV)/bin/python:
	@.ci/preflight python >/dev/null
	@$$(.ci/preflight python) -m venv $(VENV)

# What compiles the extensions comes first, and little it is: compiling goes on while pip installs.
$(STAMPS)/compile: pyproject.toml | $(VENV)/bin/python
	@echo "installing into $(VENV) (Spark is large: some minutes the first time)" >&2
	@mkdir -p $(STAMPS)
	@$(BIN)/python .ci/requirements --build >$(STAMPS)/compile.txt
	@$(PIP_INSTALL) --requirement $(STAMPS)/compile.txt
	@touch $@

# All other packages in one call of pip, so that they are resolved once; then lsmstate itself in place,
# which needs no compiler: the extensions are compiled into the tree.
define install
	@$(BIN)/python .ci/requirements $(1) >$(STAMPS)/requirements.txt
	@$(PIP_INSTALL) --requirement $(STAMPS)/requirements.txt
	@LSMSTATE_NO_EXTENSIONS=1 $(PIP) install --no-build-isolation --no-deps --editable .
endef

$(STAMPS)/run: $(STAMPS)/compile setup.py
	$(call install,spark rocksdb demo)
	@touch $@

# What tests, checks and documents need beside that; the main job does not wait for it.
$(STAMPS)/dev: $(STAMPS)/compile setup.py
	$(call install,spark rocksdb demo docs dev)
	@touch $@ $(STAMPS)/run

# Each kind has a directory below build/, so both are compiled once; the tree holds one of them.
take_out = test ! -e $(STAMPS)/$(1) || { find cython_ext -name '*.so' -delete; rm $(STAMPS)/$(1); }

$(STAMPS)/release: $(STAMPS)/compile $(EXTENSION_SOURCES)
	@echo "building the extensions" >&2
	@$(call take_out,debug)
	@$(BUILD_EXT)
	@touch $@

$(STAMPS)/debug: $(STAMPS)/compile $(EXTENSION_SOURCES)
	@echo "building the extensions with assertions" >&2
	@$(call take_out,release)
	@LSMSTATE_DEBUG=1 $(BUILD_EXT)
	@touch $@

clean:
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks
	find cython_ext -name '*.so' -delete
	rm -f $(STAMPS)/release $(STAMPS)/debug
