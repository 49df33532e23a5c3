# make train: set up and run the main job.  make test: set up and pass the tests.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# A process for every core: a test uses one.
WORKERS := --numprocesses auto --dist worksteal

.PHONY: setup browser train test test-fast check format clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@

# Chromium and its driver for the browser test, where there are none and Debian can give them.
browser:
	@if command -v chromedriver >/dev/null; then :; \
	elif command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
	  apt-get install -qq --no-install-recommends chromium chromium-driver >/dev/null; \
	else echo "no browser here, and no way to install one: the browser test will be skipped"; fi

train: $(STAMP)
	$(BIN)/python -m examples.unlock_pickup

test: $(STAMP)
	$(BIN)/python -m pytest $(WORKERS)

test-fast: $(STAMP)
	$(BIN)/python -m pytest $(WORKERS) -m "not slow"

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV)
