# make demo · make test · make bench: each makes .venv itself if it is not there.
PYTHON ?= python3.12
VENV := .venv
BIN := $(VENV)/bin
DEMO ?= demo

.PHONY: setup demo test test-repo engines test-slow test-rest hostile gcs-emulator chromium quality format generate bench docs notebook notebook-run lock release-check clean

# .venv has the extras of setup.py that a target needs, in the versions of requirements.txt.
EXTRAS_demo := beam,maxtext,report
EXTRAS_notebook := $(EXTRAS_demo),examples
EXTRAS_dev := all,docs,dev
KERNELS_dev := --more
$(VENV)/.ready-%: setup.py requirements.txt
	@scripts/make_venv.sh "$(PYTHON)" "$(VENV)" "$(EXTRAS_$*)"
	@$(BIN)/python scripts/compile_kernels.py $(KERNELS_$*)
	@touch $@

# Tests start many processes, in environments of their own too: each module is compiled once, also
# where PYTHONDONTWRITEBYTECODE is set.
unexport PYTHONDONTWRITEBYTECODE
setup: $(VENV)/.ready-dev

# What make setup has installed is enough.
demo: $(or $(wildcard $(VENV)/.ready-dev),$(VENV)/.ready-demo)
	@$(BIN)/python scripts/demo.py $(DEMO)

PYTEST := $(BIN)/python -m pytest -n auto --dist worksteal

# Minutes, for every change. PKG=overlap runs the tests of one package, by its path below beam_pipeline,
# training or tests. CI also runs make test-rest, which is the three steps after this one together.
PKG ?=
TESTS = $(if $(PKG),$(wildcard tests/$(PKG) tests/beam_pipeline/$(PKG) tests/training/$(PKG)),tests)
QUICK = not slow and not flink and not spark and not prism and not browser
test: setup
	@test -n "$(TESTS)" || { echo "error: PKG=$(PKG) is not a package with tests" >&2; exit 1; }
	$(PYTEST) -m "$(QUICK)$(if $(PKG),, and not repo)" $(TESTS)

# Docs, benches, templates and examples; pages in a browser.
test-repo: setup
	$(PYTEST) -m "(repo or browser) and not slow" tests

# Builds the runners that are missing (Go, Java, Maven) and runs the tests that need one.
engines: setup
	CI=true $(PYTEST) -m "flink or spark or prism" tests

# Memory, kills, training runs, and every property with more examples; PROFILE=exhaustive has all.
PROFILE ?= thorough
test-slow: setup
	$(PYTEST) -m "(slow or property) and not flink and not spark and not prism" --hypothesis-profile=$(PROFILE) tests

# All that make test leaves out, in one session: engines, browsers and environments start once. These
# tests wait for other processes a third of their time, so that two cores run three.
test-rest: setup
	CI=true $(PYTEST) -n $$(($$(getconf _NPROCESSORS_ONLN) * 3 / 2)) -m "slow or property or repo or browser or flink or spark or prism" --hypothesis-profile=$(PROFILE) tests

# Hostile uses of every program (tests/hostile), as root on Linux: NUMBER=50 runs some of each kind.
NUMBER ?= 1000000
hostile: setup
	$(BIN)/python -m tests.hostile.campaign --number $(NUMBER) --results tests/hostile/results.json

# Builds the emulator of gs:// that the quick suite needs, so that Go's 100 CPU-seconds are not in its
# budget. Without this, the first test that needs it does.
gcs-emulator:
	@scripts/build_gcs_emulator.sh

# Installs the browser that pages are tested in, if there is none; needs apt and root, or sudo.
chromium:
	@scripts/install_chromium.sh

quality: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright --warnings

# Writes what is derived from code or results: template metadata, the manifest's schema, tables in the
# docs. PICTURES=1 also draws curves and takes screenshots.
generate: setup
	$(BIN)/python -m scripts.generate $(if $(PICTURES),--pictures)

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# A table of each job with wall and CPU seconds, here and now: SIZES="1m 10m 100m" ROUNDS=3 make bench
SIZES ?= 1m 10m
ROUNDS ?= 3
BENCH_FLAGS = --rounds $(ROUNDS) --results build/benchmarks/results
bench: setup
	$(BIN)/python -m benchmarks.grouping $(BENCH_FLAGS) --sizes $(SIZES)
	$(BIN)/python -m benchmarks.loading $(BENCH_FLAGS) --datasets mixed compact-8m-none \
		--loaders shards cache --num_workers 0 --num_threads 0 --step_ms 0
	$(BIN)/python -m benchmarks.bench_overlap $(BENCH_FLAGS) --parts peers --peer_mb 60 --lengths 13 \
		--contenders probeline joined

# The site of docs/, with every link checked: open build/site/index.html.
docs: setup
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo build/site/index.html

# The notebook of examples/ in a browser; notebook-run runs it and keeps what it prints.
notebook: $(VENV)/.ready-notebook
	$(BIN)/jupyter lab examples/first_model.ipynb

notebook-run: $(VENV)/.ready-notebook
	$(BIN)/jupyter execute --inplace examples/first_model.ipynb

# requirements.txt, and the versions on TPU hosts, whose packages cannot share an environment with
# those of gcp. Needs uv. A version changes only where it must; make lock UPGRADE=--upgrade takes the
# newest ones.
LOCK = PATH="$$PATH:$(BIN)" uv pip compile $(UPGRADE) --quiet --no-annotate --python-version 3.12 \
	--custom-compile-command "make lock" setup.py
lock:
	$(LOCK) --universal --extra all --extra docs --extra examples --extra dev --output-file requirements.txt
	$(LOCK) --python-platform x86_64-manylinux_2_31 --extra tpu --output-file templates/tpu/constraints.txt
	$(LOCK) --python-platform x86_64-manylinux_2_31 --constraint requirements.txt --output-file templates/worker_requirements.txt

# Sdist and wheel in build/release, and README's first page run from the wheel with each Python here.
release-check: setup
	$(BIN)/python scripts/release_check.py

clean:
	rm -rf $(VENV) $(DEMO) .engines build examples/first_model *.egg-info
