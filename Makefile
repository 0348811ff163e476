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
# Processes that run the tests, each with a Spark session of its own; a file of tests stays in one.
JOBS ?= 2
# PROFILE=no: the extensions are compiled without a profile of their use, as other compilers than GCC do by themselves.
PROFILE ?= yes
# Further arguments of pytest, e.g. ARGS="-k layers".
ARGS ?=
# What `make debug-quick` runs: tests of the extensions, and of the store over them.
DEBUG_TESTS := $(patsubst %,tests/test_%.py,backward budget changelog codec deletes documents file format gather key_blocks \
	key_codec key_ranges lsm_store memtable memtables merging partial_merge planes random_machines row_codec snapshot sst \
	sst_places wrong_content)

VENV ?= .venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/.stamps
EXTENSION_SOURCES := setup.py $(wildcard cython_ext/*.pyx cython_ext/*.pxd)
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
# What pyproject.toml names in build-system.requires; installed once, used for every build.
BUILD_REQUIREMENTS := "setuptools>=77" wheel "cython>=3.1" "blosc2>=4.5"
BUILD_EXT = $(BIN)/python setup.py --quiet build_ext --inplace --parallel 2
# Recorded once; older than the sources it still serves what has not changed. `make clean` removes it.
PROFILE_DIRECTORY := build/profile
PROFILE_RECORDED := $(PROFILE_DIRECTORY)/recorded
RELEASE := $(STAMPS)/$(if $(filter no,$(PROFILE)),plain,release)
USE_PROFILE = $(if $(filter no,$(PROFILE)),,LSMSTATE_PROFILE_USE="$$PWD/$(PROFILE_DIRECTORY)")
# Builds extensions that count, apart from the tree, and runs the load they count; fails, or leaves profiles.
RECORD_PROFILE = rm -rf $(PROFILE_DIRECTORY) && mkdir -p $(PROFILE_DIRECTORY) && { \
	LSMSTATE_PROFILE_RECORD=$(PROFILE_DIRECTORY) $(BIN)/python setup.py --quiet build --parallel 2 && \
	PYTHONPATH=$(PROFILE_DIRECTORY)/lib $(BIN)/python -m bench.build.pgo_training && \
	ls $(PROFILE_DIRECTORY)/*.gcda; \
	} >$(PROFILE_DIRECTORY)/log 2>&1

.DEFAULT_GOAL := help
.PHONY: help run kafka-demo test stress build profile debug debug-quick lint types bench figures peers wheel dist-check clean check-all \
	spark-releases
.NOTPARALLEL:

help:
	@echo "make run     the main job: four streams joined on Spark (SF=1 CAP=16m BATCHES=10 BACKEND=lsm JSON=)"
	@echo "make kafka-demo  the same from a Kafka broker of its own (SF=0.1 for a quick look)"
	@echo "make test    lint, types, then the tests (ARGS= goes to pytest)"
	@echo "make build   virtual environment and extensions      make debug   the same with assertions, and the tests of the store"
	@echo "make profile record anew what the compiler is told about the extensions' use (GCC; PROFILE=no builds without)"
	@echo "make stress  the slow tests                          make bench   benchmarks"
	@echo "make figures the UMJoin paper's figures 5 to 7    make peers   Spark's own joins beside ours (both SF=1; 10 minutes and more)"
	@echo "make lint    ruff                                    make types   mypy"
	@echo "make docs    the documents in build/site, strict     make docs-serve  the same on http://127.0.0.1:8000"
	@echo "make wheel   dist/: one wheel for CPython 3.11 and later, and the source distribution it is built from"
	@echo "make dist-check  the same from a clean copy, installed and tested in a virtual environment of its own"
	@echo "make spark-releases  the tests of SQL and DataFrames on each release of PySpark they are for"
	@echo "make clean   remove builds and caches (not $(VENV), not the data)"

run: check-all $(RELEASE) $(STAMPS)/installed
	@$(BIN)/lsmstate demo --scale $(SF) --memory $(CAP) --batches $(BATCHES) --backend $(BACKEND) $(if $(JSON),--json)

# The same from a Kafka broker that is started for it on loopback; it comes from Maven Central.
kafka-demo: check-all $(RELEASE) $(STAMPS)/installed
	@$(BIN)/lsmstate demo --kafka --scale $(SF) --memory $(CAP) --batches $(BATCHES) --backend $(BACKEND) $(if $(JSON),--json)

test: check-all build lint types
	@$(BIN)/python -m pytest --numprocesses $(JOBS) --dist loadfile $(ARGS)

# Shown at the end: what tests print, such as the seed and each kill, not what Spark does.
stress: check-all build
	@$(BIN)/python -m pytest -m stress -raP --show-capture=stdout $(ARGS)

bench: build
	@$(BIN)/python -m pytest bench --benchmark-only --benchmark-columns=min,median,max,rounds -p no:cacheprovider -o python_files='bench_*.py' $(ARGS)

# Images and runs.jsonl in bench/figures, tables on standard output; a run on file is not repeated.
figures: build
	@$(BIN)/python -m bench.joins.umjoin_figures --scale $(SF)

peers: check-all build
	@$(BIN)/python -m bench.spark.spark_joins --scale $(SF)

lint: $(STAMPS)/dev
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: build
	@$(BIN)/mypy
	@$(BIN)/python -m mypy.stubtest --mypy-config-file pyproject.toml --ignore-missing-stub cython_ext

# A link that leads nowhere fails the build. The warning is about a later release than the one installed.
.PHONY: docs docs-serve
docs: $(STAMPS)/docs
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --clean
	@echo "build/site/index.html"

docs-serve: $(STAMPS)/docs
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

# Compiled first, on two cores; the editable installation then finds nothing left to compile.
build: $(RELEASE) $(STAMPS)/dev

# Fails where `make build` would go on without a profile.
profile: | $(STAMPS)/runtime
	@echo "recording a profile of the extensions" >&2
	@$(RECORD_PROFILE) || { cat $(PROFILE_DIRECTORY)/log >&2; rm -f $(PROFILE_DIRECTORY)/*.gcda; exit 1; }
	@touch $(PROFILE_RECORDED)

# Assertions and bounds checks kept; the next `make build` compiles without them again.
# The installation, too, which else would compile the release build over it.
debug: export LSMSTATE_DEBUG := 1
debug: $(STAMPS)/debug $(STAMPS)/dev
	@$(BIN)/python -m pytest -m "not spark and not stress" --numprocesses $(JOBS) --dist loadfile $(ARGS)

# A minute of that, which .ci/run does before `make test`.
debug-quick: ARGS += $(DEBUG_TESTS)
debug-quick: debug

# The source distribution first, then the wheel out of it, both apart from this tree.
wheel: $(STAMPS)/dev $(if $(filter no,$(PROFILE)),,$(PROFILE_RECORDED))
	@rm -rf dist
	@$(USE_PROFILE) $(BIN)/python -m build --outdir dist >/dev/null
	@ls -l dist

dist-check: $(STAMPS)/dev
	@$(BIN)/python -m pytest -m stress tests/test_packaging.py $(ARGS)

# Each release lies in a directory of its own (400 MB) that stands in front of the installed one.
spark-releases: build
	@for release in $(SPARK_RELEASES); do \
		home=.run/pyspark-$$release; \
		test -d $$home/pyspark || $(PIP) install --target $$home pyspark==$$release || exit 1; \
		echo "PySpark $$release"; \
		PYTHONPATH=$$PWD/$$home $(BIN)/python -m pytest -q -o timeout=900 \
			tests/test_streaming_sql.py tests/test_streaming_groups.py tests/test_streaming_traps.py tests/test_random_sql.py \
			tests/test_catalyst.py tests/test_spark_decimals.py $(ARGS) || exit 1; \
	done

check-all:
	@.ci/preflight all >/dev/null

$(STAMPS)/tools:
	@.ci/preflight python >/dev/null
	@$$(.ci/preflight python) -m venv $(VENV)
	@$(PIP) install $(BUILD_REQUIREMENTS)
	@mkdir -p $(STAMPS) && touch $@

# What lsmstate imports, before anything is compiled with it.
$(STAMPS)/runtime: pyproject.toml | $(STAMPS)/tools
	@$(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["dependencies"], sep="\n")' >$@.txt
	@$(PIP) install --requirement $@.txt
	@touch $@

$(PROFILE_RECORDED): | $(STAMPS)/runtime
	@echo "recording a profile of the extensions, once (a minute; PROFILE=no goes without)" >&2
	@$(RECORD_PROFILE) || { rm -f $(PROFILE_DIRECTORY)/*.gcda; \
		echo "lsmstate: compiled without a profile, since none could be recorded: $$(tail -n 1 $(PROFILE_DIRECTORY)/log | sed 's/^lsmstate: //')" >&2; }
	@touch $@

# Builds of another kind are compiled over, and all with a profile that is new. Sources that do not compile
# are no reason to go on without one.
$(STAMPS)/release: $(EXTENSION_SOURCES) $(PROFILE_RECORDED) | $(STAMPS)/tools
	@echo "building the extensions" >&2
	@$(USE_PROFILE) $(BUILD_EXT) \
		$(if $(filter $(PROFILE_RECORDED),$?)$(wildcard $(STAMPS)/debug $(STAMPS)/plain),--force) >/dev/null || \
		{ ls $(PROFILE_DIRECTORY)/*.gcda >/dev/null 2>&1 || rm -f $(PROFILE_RECORDED); exit 1; }
	@rm -f $(STAMPS)/debug $(STAMPS)/plain && touch $@

$(STAMPS)/plain: $(EXTENSION_SOURCES) | $(STAMPS)/tools
	@echo "building the extensions without a profile" >&2
	@$(BUILD_EXT) $(if $(wildcard $(STAMPS)/debug $(STAMPS)/release),--force) >/dev/null
	@rm -f $(STAMPS)/debug $(STAMPS)/release && touch $@

$(STAMPS)/debug: $(EXTENSION_SOURCES) | $(STAMPS)/tools
	@echo "building the extensions with assertions" >&2
	@LSMSTATE_DEBUG=1 $(BUILD_EXT) --force >/dev/null
	@rm -f $(STAMPS)/release $(STAMPS)/plain && touch $@

$(STAMPS)/installed: pyproject.toml | $(STAMPS)/tools
	@echo "installing into $(VENV) (Spark is large: some minutes the first time)" >&2
	@$(PIP) install --no-build-isolation --editable '.[spark,rocksdb,demo]'
	@touch $@

# What tests and checks need beside that; the main job does not wait for it.
$(STAMPS)/dev: pyproject.toml | $(STAMPS)/tools
	@echo "installing into $(VENV), with what tests need (Spark is large: some minutes the first time)" >&2
	@$(PIP) install --no-build-isolation --editable '.[spark,rocksdb,demo,dev]'
	@touch $@ $(STAMPS)/installed

# What `make docs` needs; it reads sources, so nothing has to be compiled.
$(STAMPS)/docs: pyproject.toml | $(STAMPS)/tools
	@$(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"], sep="\n")' >$@.txt
	@$(PIP) install --requirement $@.txt
	@touch $@

clean:
	rm -rf build dist *.egg-info cython_ext/*.c cython_ext/*.so .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks
	rm -f $(STAMPS)/release $(STAMPS)/plain $(STAMPS)/debug
