# make demo · make test · make bench: each makes .venv itself if it is not there.
PYTHON ?= python3.12
VENV := .venv
BIN := $(VENV)/bin
DEMO ?= demo

.PHONY: setup demo test test-repo engines test-slow chromium quality format bench docs notebook notebook-run clean

setup: $(VENV)/.ready

# pip is asked for what setup.py names; requirements.txt pins what it gets.
$(VENV)/.ready: setup.py requirements.txt
	@scripts/make_venv.sh "$(PYTHON)" "$(VENV)"
	@touch $@

demo: setup
	@$(BIN)/python scripts/demo.py $(DEMO)

PYTEST := $(BIN)/python -m pytest -n auto --dist worksteal

# Minutes, for every change; the steps below, which CI runs too, have the rest.
test: setup
	$(PYTEST) -m "not slow and not flink and not prism and not browser and not repo" tests

# Docs, benches, templates and examples; pages in a browser.
test-repo: setup
	$(PYTEST) -m "(repo or browser) and not slow" tests

# Builds the runners that are missing (Go, Java, Maven) and runs the tests that need one.
engines: setup
	CI=true $(PYTEST) -m "flink or prism" tests

# Memory, kills, training runs, and every property with all its examples.
test-slow: setup
	$(PYTEST) -m "(slow or property) and not flink and not prism" --hypothesis-profile=thorough tests

# Installs the browser that pages are tested in, if there is none; needs apt and root, or sudo.
chromium:
	@scripts/install_chromium.sh

quality: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright --warnings

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# SIZES="1m 10m 100m" ROUNDS=3 make bench
SIZES ?= 1m 10m
ROUNDS ?= 3
bench: setup
	$(BIN)/python -m benchmarks.grouping --sizes $(SIZES) --rounds $(ROUNDS)
	$(BIN)/python -m benchmarks.table

# The site of docs/, with every link checked: open build/site/index.html.
docs: setup
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo build/site/index.html

# The notebook of examples/ in a browser; notebook-run runs it and keeps what it prints.
notebook: setup
	$(BIN)/pip install --quiet --requirement requirements.txt --editable '.[examples]'
	$(BIN)/jupyter lab examples/first_model.ipynb

notebook-run: setup
	$(BIN)/jupyter execute --inplace examples/first_model.ipynb

clean:
	rm -rf $(VENV) $(DEMO) .engines build examples/first_model *.egg-info
