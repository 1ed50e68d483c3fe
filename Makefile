# make ablate   set up .venv, then run the main job: five arms, three seeds, a verdict
# make test     set up .venv, then lint, types, import contracts and every test

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: ablate test lint clean

ablate: $(STAMP)
	$(BIN)/attnres ablate

test: lint
	$(BIN)/python -m pytest -m alone
	$(BIN)/python -m pytest -m 'not alone' --numprocesses=auto --maxprocesses=8

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	@! grep -rnE '^(\S+ )?import click|^from click' attnres_cli variants tests  # Typer vendors its own

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("attnres needs Python 3.11 or newer, this is " + sys.version.split()[0] + ": make PYTHON=python3.11") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $(STAMP)

clean:
	rm -rf .venv build *.egg-info
