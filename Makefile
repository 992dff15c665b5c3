# Everything a developer runs. `make` alone lists the targets; `make check` is what CI does, in its order.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

# The oldest supported Python; the lock is made with it, since newer ones may take a newer JAX than it can.
OLDEST     := 3.11
LOCK_FLAGS ?=
NEWEST     ?= $(firstword $(foreach python,python3.12 python3.13 $(wildcard $(HOME)/.pyenv/versions/3.12.*/bin/python),$(shell $(python) -c 'import sys; print(sys.executable)' 2>/dev/null)))
ROOMS_ON_NEWEST := $(addprefix tests/,ops spmd program plan nn models decode errors programs properties)

.DEFAULT_GOAL := help
.PHONY: help venv demo smoke test test-all test-whole test-newest test-random fuzz faults accept check format-check lint types architecture format bench bench-ops docs lock clean
.NOTPARALLEL:

help: ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

venv: $(STAMP) ## create or update .venv/ from requirements.lock (PYTHON=python3.12 chooses the Python)

$(STAMP): pyproject.toml requirements.lock
	@test -x $(BIN)/python || { $(call require_python,$(PYTHON)) && $(PYTHON) -m venv $(VENV); }
	@$(call require_python,$(BIN)/python)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	PYTHONWARNINGS=ignore::UserWarning \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

demo: $(STAMP) ## plan a small Transformer, train it on Python's own library, and let it write
	@rm -rf runs/demo
	$(BIN)/weft plan configs/demo.toml --hardware this
	$(BIN)/weft train configs/demo.toml --run runs/demo
	$(BIN)/weft plot runs/demo --terminal --out runs/demo/curve.png
	$(BIN)/weft generate runs/demo --prompt "$$(printf 'import os\nimport sys\n\ndef ')" --tokens 600 --temperature 0.9

# One file runs in one process, which compiles for it once; tests/conftest.py puts the longest files first. Three processes: some
# tests wait for processes they start, which left two cores idle a tenth of the time.
PYTEST := pytest -n 3 --dist loadfile --no-loadscope-reorder

smoke: $(STAMP) ## the quick part of every room, for the inner loop: under 90 seconds
	$(BIN)/$(PYTEST) -m "not slow" --smoke

test: $(STAMP) ## run the tests, without the slow ones
	$(BIN)/$(PYTEST) -m "not slow"

test-all: test-whole test-newest ## run all tests, the whole tables included, and the language on the newest JAX

test-whole: $(STAMP)
	$(BIN)/$(PYTEST)

# The newest JAX needs a newer Python than the oldest supported: tested where there is one.
test-newest:
	@if [ -z "$(NEWEST)" ]; then echo "there is no Python 3.12: the newest JAX is not tested"; \
	else $(MAKE) .venv-newest/.installed && .venv-newest/bin/$(PYTEST) -m "not slow" $(ROOMS_ON_NEWEST); fi

.venv-newest/.installed: pyproject.toml
	$(NEWEST) -m venv .venv-newest
	.venv-newest/bin/python -m pip install --quiet --disable-pip-version-check --upgrade --editable '.[all,dev]'
	@touch $@

test-random: $(STAMP) ## random programs x layouts in many processes (N=20000 pairs; SEED=, the commit's own; WORKERS=, all cores)
	$(BIN)/python -m tests.properties.run --pairs $(or $(N),20000) --out $(or $(OUT),runs/random) \
	  $(if $(SEED),--seed $(SEED)) $(if $(WORKERS),--workers $(WORKERS))

fuzz: $(STAMP) ## 100,000 changed inputs for every parser (FUZZ="--count 1000 --seed 7 --parser toml" chooses)
	$(BIN)/python -m tests.fuzz $(FUZZ)

faults: $(STAMP) ## put each of some 200 wrong lines into a copy of the tree: a test must see it (FAULTS="--only take --whole", "--report FILE" to go on later)
	$(BIN)/python -m tests.faults --workers 2 $(FAULTS)

accept: $(STAMP) ## write the printed programs in tests/goldens/ anew, where a change to them is meant
	$(BIN)/pytest tests/test_goldens.py --accept

check: format-check lint types architecture test ## everything CI checks, in its order

format-check: $(STAMP) ## fail where `make format` would change a file
	$(BIN)/ruff format --check .

lint: $(STAMP) ## ruff's rules
	$(BIN)/ruff check .

types: $(STAMP) ## mypy on weft/
	$(BIN)/mypy

architecture: $(STAMP) ## the import direction and the size of the rooms
	$(BIN)/pytest tests/architecture

format: $(STAMP) ## sort the imports and format every Python file
	$(BIN)/ruff check --fix-only --quiet --select I .
	$(BIN)/ruff format .

bench: $(STAMP) ## measure what weft adds to plain JAX
	$(BIN)/python benchmarks/overhead.py

bench-ops: $(STAMP) ## compare each operation over a split dim with its hand-written form (OPS="--only conv" chooses)
	$(BIN)/python benchmarks/ops.py $(OPS)

docs: $(STAMP) .venv-docs/.installed ## build the site into site/ (`python3 -m http.server -d site` shows it, with its search)
	$(BIN)/python -m docs.site.stage build/site-pages
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --strict
	$(BIN)/python -m docs.site.stage --check site

.venv-docs/.installed: pyproject.toml
	$(PYTHON) -m venv .venv-docs
	.venv-docs/bin/python -m pip install --quiet --disable-pip-version-check \
	  $$($(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"])')
	@touch $@

lock: $(STAMP) ## rewrite requirements.lock from pyproject.toml (LOCK_FLAGS=--upgrade takes newer versions)
	@$(BIN)/python -c 'import sys; sys.exit("%d.%d" % sys.version_info[:2] != "$(OLDEST)")' \
	  || { echo "the lock is made with Python $(OLDEST), the oldest supported; fix: rm -r $(VENV) && make lock PYTHON=python$(OLDEST)" >&2; exit 1; }
	PIP_CONFIG_FILE=/dev/null PIP_EXTRA_INDEX_URL= PIP_FIND_LINKS= CUSTOM_COMPILE_COMMAND="make lock" \
	$(BIN)/pip-compile --quiet --generate-hashes --allow-unsafe --extra train --extra hf --extra dev --no-strip-extras \
	  --no-emit-index-url --no-emit-find-links --no-emit-trusted-host $(LOCK_FLAGS) \
	  --output-file requirements.lock pyproject.toml

clean: ## remove caches and build products; .venv/ stays
	rm -rf build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +

# $(call require_python,COMMAND): a shell test that COMMAND is a Python weft runs on, with a message where it is not.
define require_python
$(1) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
  || { echo "weft needs Python >= $(OLDEST); \`$(1)\` is `$(1) --version 2>&1 || true`. fix: rm -rf $(VENV) && make venv PYTHON=python3.12" >&2; exit 1; }
endef
