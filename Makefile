# Everything a newcomer needs: `make study` does the main job, `make test` checks the code. Both set themselves up.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: help venv test quick lint study bench soak clean

help:
	@echo "make study   the main job, on a CPU"
	@echo "make test    lint, types and every test"
	@echo "make quick   the usual loop: fast tests only"
	@echo "make lint    ruff and mypy"
	@echo "make bench   how much tracing costs on this machine"
	@echo "make soak    long stress: the whole policy matrix, kill and resume twenty times"

venv: $(READY)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[test]"
	touch $(READY)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "browser and not slow and not soak"
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not soak and (slow or not browser)" -n 2 --dist worksteal --durations=25

quick: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

study: $(READY)
	$(BIN)/sinkscope study organisms --out study

bench: $(READY)
	$(BIN)/sinkscope bench

soak: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m soak -n 2
	SINKSCOPE_KILLS=20 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "" -k "kill"

clean:
	rm -rf .venv study dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
