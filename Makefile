# make ablate     set up .venv, then run the main job: two arms, seven seeds, a verdict
# make test       set up .venv, then lint, types, import contracts and every quick test
# make slow       the tests marked slow
# make test-all   both
# EXTRAS=dev,lm-eval,oracle installs what more tests need than [dev] brings; CI runs them
# make pictures   draw the pictures of docs/images again (of STUDY=attnres.db)

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
STUDY ?= attnres.db
EXTRAS ?= dev

# Typer vendors its own Click, so that nothing may import another one
LINT := $(BIN)/ruff format --check . && $(BIN)/ruff check . && $(BIN)/mypy && $(BIN)/lint-imports \
	&& ! grep -rnE '^(\S+ )?import click|^from click' attnres_cli variants tests
TESTS := $(BIN)/python -m pytest --numprocesses=auto --maxprocesses=8 --dist=worksteal

.PHONY: ablate test slow test-all lint pictures clean

ablate: $(STAMP)
	$(BIN)/attnres ablate

test: $(STAMP)
	failed=0; ($(LINT)) || failed=1; $(TESTS) -m 'not slow' || failed=1; exit $$failed

slow: $(STAMP)
	$(TESTS) -m slow

test-all: $(STAMP)
	failed=0; $(MAKE) test || failed=1; $(MAKE) slow || failed=1; exit $$failed

lint: $(STAMP)
	$(LINT)

pictures: $(STAMP)
	$(BIN)/python benchmarks/pictures.py $(STUDY)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("attnres needs Python 3.11 or newer, this is " + sys.version.split()[0] + ": make PYTHON=python3.11") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$(EXTRAS)]'
	touch $(STAMP)

clean:
	rm -rf .venv build *.egg-info
