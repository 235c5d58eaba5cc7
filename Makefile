# Everything a newcomer needs: `make study` does the main job, `make test` checks the code. Both set themselves up.
# On a GPU machine: make TORCH=gpu …; another interpreter: make PYTHON=python3.12 …
PYTHON ?= python3
BIN := .venv/bin
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest
WITH_BROWSER := tests/docs tests/report

.PHONY: help venv venv-test test quick lint study bench docs wheel soak clean

help:
	@echo "make study   the main job, on a CPU"
	@echo "make test    lint, types and every test"
	@echo "make quick   the usual loop: fast tests only"
	@echo "make lint    ruff, mypy, import-linter"
	@echo "make bench   how much tracing costs on this machine"
	@echo "make docs    the documentation as a site, in site/"
	@echo "make wheel   build the wheel and try it in a fresh environment, dependencies from the package index"
	@echo "make soak    long stress: the whole policy matrix, kill and resume twenty times"

# Says what the machine lacks, and installs what is missing in .venv; done before, it takes no time.
venv:
	@$(PYTHON) .ci/set_up.py study

venv-test:
	@$(PYTHON) .ci/set_up.py test

lint: venv-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: lint
	$(PYTEST) -m "browser and not slow and not soak" $(WITH_BROWSER)
	$(PYTEST) -m "not soak and (slow or not browser)" -n 2 --dist worksteal --durations=25

quick: venv-test
	$(PYTEST) -n 2

study: venv
	$(BIN)/sinkscope study organisms --out study

bench: venv
	$(BIN)/sinkscope bench

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
