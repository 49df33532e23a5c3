# make train: set up and run the main job.  make test: set up and pass the tests.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# A process for every core: a test uses one.
WORKERS := --numprocesses auto --dist worksteal

.PHONY: setup browser train test test-fast check format docs clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@echo "Installing into $(VENV). PyTorch for GPUs is several GB: the first time takes minutes."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --upgrade pip
	$(BIN)/pip install --constraint constraints.txt --editable ".[dev]"
	touch $@

# Chromium and its driver for the browser test, where there are none and Debian can give them.
browser:
	@if command -v chromedriver >/dev/null; then :; \
	elif command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then \
	  echo "Installing Chromium for the browser test."; \
	  apt-get update -q && DEBIAN_FRONTEND=noninteractive \
	  apt-get install -q --yes --no-install-recommends chromium chromium-driver; \
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
	$(BIN)/pyright --pythonpath $(BIN)/python

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# The documentation site, with warnings as errors.
docs: $(STAMP)
	$(BIN)/python -m sphinx --fail-on-warning --jobs auto docs build/docs

clean:
	rm -rf $(VENV)
