# Everything a newcomer needs: `make study` does the main job, `make test` checks the code. Both set themselves up.
# On a GPU machine: make TORCH=gpu …; another interpreter: make PYTHON=python3.12 …
PYTHON ?= python3
BIN := .venv/bin
# Bytecode is kept even where the environment says otherwise: processes that tests start would compile the package again.
PYTEST := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest
TYPES := $(BIN)/mypy && $(BIN)/lint-imports
WITH_BROWSER := tests/docs tests/report

.PHONY: help venv venv-test test quick lint style types study bench docs wheel soak clean

help:
	@echo "make study   the main job, on a CPU"
	@echo "make test    lint, types and every test"
	@echo "make quick   the usual loop: fast tests only"
	@echo "make lint    ruff, mypy, import-linter"
	@echo "make bench   what tracing costs on this machine, beside other programs"
	@echo "make docs    the documentation as a site, in site/"
	@echo "make wheel   build the wheel and try it in a fresh environment, dependencies from the package index"
	@echo "make soak    long stress: every combination, whole tutorials, kill and resume twenty times"

# Says what the machine lacks, and installs what is missing in .venv; done before, it takes no time.
venv:
	@$(PYTHON) .ci/set_up.py study

venv-test:
	@$(PYTHON) .ci/set_up.py test

lint: style types

style: venv-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: venv-test
	$(TYPES)

# Types and browser tests need a core each, so they run side by side; what mypy says is shown after the tests' own output.
test: style
	@mkdir -p .mypy_cache; ($(TYPES)) >.mypy_cache/said.txt 2>&1 & types=$$!; \
	$(PYTEST) -m "browser and not slow and not soak" $(WITH_BROWSER); browser=$$?; \
	wait $$types; types=$$?; cat .mypy_cache/said.txt; test $$browser = 0 && test $$types = 0
	$(PYTEST) -m "not soak and (slow or not browser)" -n 2 --dist worksteal --durations=25

quick: venv-test
	$(PYTEST) -n 2

study: venv
	$(BIN)/sinkscope study organisms --out study

bench: venv
	$(BIN)/python -m bench

docs: venv-test
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

wheel: venv-test
	$(BIN)/python -m build --wheel
	SINKSCOPE_FRESH_INSTALL=1 $(PYTEST) -m "" tests/packaging/test_wheel.py

soak: venv-test
	$(PYTEST) -m soak -n 2
	SINKSCOPE_KILLS=20 $(PYTEST) -m "" -k "kill"

clean:
	rm -rf .venv study site dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
