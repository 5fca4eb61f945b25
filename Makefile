# Everything starts from a bare machine: each target makes what it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
comma := ,
EXTRAS := dev$(if $(CI),$(comma)docs)

.PHONY: demo test test-all lowest lint docs links tables bench clean

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable ".[$(EXTRAS)]"
	# bytecode on all cores, where pip has one; a file of a package that is no Python is no fault
	$(BIN)/python -m compileall -qq -j 0 $(VENV)/lib || true
	touch $(STAMP)

demo: $(STAMP)
	rm -rf runs/demo
	$(BIN)/fokker train toy --data 2spirals --steps 700 --batch 512 --width 128 --rate 3e-3 --evaluate 175 --out runs/demo

test: $(STAMP)
	$(BIN)/python -m pytest --numprocesses auto --dist loadfile -m "not slow"

# with the slow ones, and the lines that no test reaches
test-all: $(STAMP)
	$(BIN)/python -m pytest --numprocesses auto --dist loadfile --cov=fokker --cov-report=term:skip-covered --cov-fail-under=90

# with every dependency at its lower bound, in an environment of its own; TORCH=2.13.0 for another torch
lowest: $(STAMP)
	$(BIN)/python studies/trust/lowest.py $(if $(TORCH),--torch $(TORCH))

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

$(VENV)/.documented: $(STAMP)
	$(if $(CI),,$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[docs]") # CI has them
	touch $@

SPHINX := $(BIN)/sphinx-build --fail-on-warning --keep-going --nitpicky

# runs every cell of the pages
docs: $(VENV)/.documented
	$(SPHINX) docs docs/_build/html

# the same without the cells, which the tests run
links: $(VENV)/.documented
	$(SPHINX) --quiet --define nb_execution_mode=off docs docs/_build/links

tables: $(STAMP)
	$(BIN)/fokker tables

bench: $(STAMP)
	$(BIN)/fokker bench

clean:
	rm -rf $(VENV) runs out build dist docs/_build docs/api/generated
