# make ablate               set up .venv, then run the main job: two arms, seven seeds, a verdict
# make test                 set up .venv, then lint, types, import contracts and every quick test
# make test FILES=tests/... these tests only
# make quick                the tests that your changes since the last `make quick` can affect
# make test-all             lint and all tests that CI runs
# make nightly              what takes longer: exhaustive products, random kills, places broken on purpose
# make pictures             draw the pictures of docs/images again (of STUDY=attnres.db)
# EXTRAS=ci                 installs what the tests of integrations need, with every tool; CI uses it

PYTHON ?= python3
BIN := .venv/bin
STUDY ?= attnres.db
EXTRAS ?= dev
USER_STAMP := .venv/.installed
DEV_STAMP := .venv/.installed-$(EXTRAS)
INSTALL = $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e

# Typer vendors its own Click, so that nothing may import another one
LINT := $(BIN)/ruff format --check . && $(BIN)/ruff check . && $(BIN)/mypy && $(BIN)/lint-imports \
	&& ! grep -rnE '^(\S+ )?import click|^from click' attnres_cli variants tests
PYTEST := $(BIN)/python -m pytest
ALL_CORES := --numprocesses=auto --maxprocesses=8 --dist=worksteal

# Lint runs beside the tests, and prints after them: one failure does not hide the other
BESIDE_LINT = ($(LINT)) > .lint.log 2>&1 & lint=$$!; failed=0; \
	$(PYTEST) $(ALL_CORES) -m $(1) || failed=1; \
	wait $$lint || failed=1; cat .lint.log; exit $$failed

.PHONY: ablate test quick test-all nightly lint pictures clean

ablate: $(USER_STAMP)
	$(BIN)/attnres ablate

ifdef FILES
test: $(DEV_STAMP)
	$(PYTEST) $(FILES)
else
test: $(DEV_STAMP)
	$(call BESIDE_LINT,'not slow and not nightly')
endif

quick: $(DEV_STAMP)
	$(PYTEST) $(ALL_CORES) --testmon --testmon-forceselect -m 'not slow and not nightly'

test-all: $(DEV_STAMP)
	$(call BESIDE_LINT,'not nightly')

nightly: $(DEV_STAMP)
	failed=0; HYPOTHESIS_PROFILE=nightly $(PYTEST) $(ALL_CORES) -m 'nightly' || failed=1; \
	$(BIN)/python tests/broken.py --marks 'not nightly' || failed=1; exit $$failed

lint: $(DEV_STAMP)
	$(LINT)

pictures: $(USER_STAMP)
	$(BIN)/python benchmarks/pictures.py $(STUDY)

$(USER_STAMP): .venv/pyvenv.cfg pyproject.toml constraints.txt
	$(INSTALL) .
	touch $@

$(DEV_STAMP): .venv/pyvenv.cfg pyproject.toml constraints.txt
	$(INSTALL) '.[$(EXTRAS)]'
	touch $@ $(USER_STAMP)

.venv/pyvenv.cfg:
	$(PYTHON) -c 'import sys; sys.exit("attnres needs Python 3.11 or newer, this is " + sys.version.split()[0] + ": make PYTHON=python3.11") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv .venv

clean:
	rm -rf .venv build *.egg-info
