# make demo   two recommendations: one measured by training steps on this machine's CPU, one predicted for a recipe of 16 H100s
# make readme puts the present answer of the demo into README.md, and writes schemas and tables of docs/ anew
# make docs   the documentation as a site in build/site
# make test   the whole test suite; test-fast leaves out what starts Megatron, Ray or a browser
VENV ?= .venv
PYTHON ?= $(shell scripts/find_python)
BIN := $(VENV)/bin
PYTEST_ARGS ?=
WORKERS ?= 2
export OMP_NUM_THREADS ?= 1

.PHONY: demo test test-fast lint readme docs env clean

demo: env
	@! scripts/find_compiler || { set -x; $(BIN)/autotune run --recipe moonlight_tiny --mem-target 50MB; }
	$(BIN)/autotune run --recipe nemotron3nano --mem-target 75GB

test: env lint
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile $(PYTEST_ARGS)

test-fast: env lint
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile -m "not slow" $(PYTEST_ARGS)

lint: env
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

readme: env
	$(BIN)/python scripts/update_readme.py
	$(BIN)/python scripts/update_schemas.py
	$(BIN)/python scripts/update_pages.py

docs: env
	$(BIN)/python -m mkdocs build --quiet --strict

env:
	@test -n "$(PYTHON)" || { echo "autotune: needs Python 3.11 or newer (3.12 preferred); install one, or name it: make PYTHON=/path/to/python3.12" >&2; exit 2; }
	@scripts/make_env "$(PYTHON)" "$(VENV)"

clean:
	rm -rf $(VENV) .venv-* build .mypy_cache .ruff_cache .pytest_cache .hypothesis
