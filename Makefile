# Every target sets up what it needs in .venv: with uv where it is there, else with Python's own venv, into which pip
# installs uv, for pip itself takes five times as long for all the rest.

PY := .venv/bin/python
STAMP := .venv/.installed
RIVALS := .venv/.rivals
SITE := .venv/.site
CREWAI := .venv/.crewai/.installed

# Has a recipe find a uv that is in .venv alone, and that one ask the index that pip asks.
UV_AS_PIP := PATH="$$PATH:$(CURDIR)/.venv/bin"; \
	index="$${UV_DEFAULT_INDEX:-$${UV_INDEX_URL:-$${PIP_INDEX_URL:-$$($(PY) -m pip config get global.index-url 2>/dev/null)}}}"; \
	if [ -n "$$index" ]; then export UV_DEFAULT_INDEX="$$index"; fi; \
	if [ -n "$$PIP_CERT" ]; then export SSL_CERT_FILE="$${SSL_CERT_FILE:-$$PIP_CERT}"; fi;

.DEFAULT_GOAL := help
.PHONY: help test lint demo picture bench chaos coherence history-model failpoints mutants steps sync docs wheel clean

help:  ## Show these targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo '  ARGS="…" goes to what is run, as in: make test ARGS="-n 0 -k keys"'

# Tests start hundreds of processes: where each would compile what it imports, an eighth of the CPU goes into that.
test: $(STAMP) $(CREWAI)  ## Run the tests, four at a time: most of them wait
	@env -u PYTHONDONTWRITEBYTECODE $(PY) -m pytest -n 4 $(ARGS)

lint: $(STAMP)  ## Check style, layout, types and what is generated
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy
	@$(PY) -m tests.generators.unasync --check
	@$(PY) -m tests.generators.generated --check

demo: $(STAMP)  ## Watch agents at work while everything is killed, then audit the result
	@.venv/bin/statecache demo $(ARGS)

picture: $(STAMP)  ## Run the demo and record its last screen, which the README shows
	@$(PY) -m tests.generators.demo_picture && $(PY) -m tests.generators.generated

bench: $(RIVALS)  ## Measure against hand-written code (JSON=path, RUNS=path, ONLY="commit lag", ROUNDS=9)
	@$(PY) -m tests.benchmarks $(ARGS)

chaos: $(STAMP)  ## Break everything for a while, then check every promise (SECONDS=60 SEED=7 PROFILE=roles)
	@$(PY) -m tests.simulation.chaos --seconds $(or $(SECONDS),60) $(if $(SEED),--seed $(SEED)) \
	  --profile $(or $(PROFILE),chaos) $(ARGS)

coherence: $(STAMP)  ## Part readers from the server in every way: none may see what is too old (SEED=7 SECONDS=20)
	@$(PY) -m tests.simulation.coherence $(if $(SECONDS),--seconds $(SECONDS)) $(if $(SEED),--seed $(SEED)) $(ARGS)

history-model: $(STAMP)  ## Play random histories, and compare all that is read with a plain model (SEED=7 SECONDS=40)
	@$(PY) -m tests.simulation.history_model $(if $(SECONDS),--seconds $(SECONDS)) $(if $(SEED),--seed $(SEED)) $(ARGS)

failpoints: $(STAMP)  ## Let every command boundary of client and worker meet every fault (ARGS="--only commit")
	@$(PY) -m tests.simulation.failpoints $(ARGS)

mutants: $(STAMP)  ## Take out what holds the promises, one thing at a time: each has to be noticed (TIMES=5)
	@$(PY) -m tests.simulation.mutants $(if $(TIMES),--times $(TIMES)) $(ARGS)

steps: $(STAMP)  ## Kill agents in the middle of their steps, and count the effects (TIMES=100 SEED=7)
	@$(PY) -m tests.acceptance.step_kills --times $(or $(TIMES),100) $(if $(SEED),--seed $(SEED)) $(ARGS)

sync: $(STAMP)  ## Generate the synchronous client from the asynchronous one, and pages from the code
	@$(PY) -m tests.generators.unasync
	@$(PY) -m tests.generators.generated

docs: $(SITE)  ## Build the documentation site into build/site
	@NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --strict --quiet $(ARGS) && echo 'the site is in build/site'

wheel: $(STAMP)  ## Build the wheel into dist, install it into an empty environment and run its demo there
	@rm -rf dist build/wheel && $(PY) -m hatchling build -t wheel -d dist
	@if command -v uv >/dev/null 2>&1; \
	then uv venv -q --python $(PY) build/wheel \
	  && uv pip install -q --python build/wheel/bin/python -c constraints.txt "$$(echo dist/*.whl)[cli,embedded]"; \
	else $(PY) -m venv build/wheel \
	  && build/wheel/bin/python -m pip install -q -c constraints.txt "$$(echo dist/*.whl)[cli,embedded]"; fi
	@cd build/wheel && bin/statecache version && bin/statecache demo $(ARGS)

clean:  ## Remove the environment, caches and build output
	@rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# An environment that was copied here from another checkout would run that checkout's code.
ifneq "$(shell cat $(STAMP) 2>/dev/null)" "$(CURDIR)"
.PHONY: $(STAMP)
endif

# Several commands named python3.x may stand on PATH and not run: each is tried. One that lacks venv or ensurepip
# (Debian splits them off) serves uv but not pip. Where uv cannot reach its index, pip may know another. It takes a
# minute: a terminal is shown what is installed meanwhile.
$(STAMP): pyproject.toml constraints.txt
	@say() { echo "setup: $$*" >&2; }; \
	quiet=-q; if [ -t 2 ]; then quiet=; fi; \
	runs() { "$$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' >/dev/null 2>&1; }; \
	if command -v uv >/dev/null 2>&1; then \
	  say 'installing into .venv with uv'; \
	  rm -rf .venv; \
	  if uv venv -q --python '>=3.11,<3.15' .venv \
	    && uv pip install $$quiet --python $(PY) -c constraints.txt -e '.[dev]'; \
	  then pwd -P >$@; exit 0; fi; \
	  say 'uv could not; trying venv and pip'; \
	fi; \
	found=; \
	for python in python3 python3.13 python3.12 python3.11 python3.14 python; do \
	  runs $$python || continue; \
	  found=$$python; \
	  $$python -c 'import ensurepip, venv' >/dev/null 2>&1 || continue; \
	  say "installing into .venv with $$python and pip"; \
	  rm -rf .venv; \
	  pip="$(PY) -m pip install --disable-pip-version-check -c constraints.txt"; \
	  $$python -m venv .venv \
	    && { { $$pip -q uv && $(UV_AS_PIP) \
	      uv pip install $$quiet --python $(PY) -c constraints.txt -e '.[dev]'; } \
	      || { say 'uv could not; trying pip alone'; $$pip $$quiet -e '.[dev]'; }; } \
	    && pwd -P >$@ && exit 0; \
	  say 'the installation failed: the lines above say why'; exit 1; \
	done; \
	if [ -n "$$found" ]; \
	then say "$$found has no venv or ensurepip: install uv, or on Debian and Ubuntu the package python3-venv"; \
	else say 'no Python from 3.11 to 3.14 runs here: install one of them, or uv'; fi; \
	exit 1

# Only `make bench` needs the libraries that it measures against; where they cannot be had, their rows are left out.
$(RIVALS): $(STAMP)
	@$(UV_AS_PIP) echo 'setup: installing what is measured against' >&2; \
	if command -v uv >/dev/null 2>&1 \
	  && uv pip install -q --python $(PY) -c constraints.txt -e '.[bench]'; then touch $@; \
	elif $(PY) -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[bench]'; then touch $@; \
	else echo 'setup: they could not be installed; the rows that need them are left out' >&2; fi

# Only `make docs` needs what builds the site.
$(SITE): $(STAMP)
	@$(UV_AS_PIP) echo 'setup: installing what builds the site' >&2; \
	if command -v uv >/dev/null 2>&1 \
	  && uv pip install -q --python $(PY) -c constraints.txt -e '.[docs]'; then touch $@; \
	else $(PY) -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[docs]' && touch $@; fi

# CrewAI and what else the tests need exclude one another, so it has an environment beside, of what its flows import.
$(CREWAI): tests/crewai/requirements.txt $(STAMP)
	@$(UV_AS_PIP) if $(PY) -c 'import sys; sys.exit(sys.version_info < (3, 14))'; \
	then echo 'setup: CrewAI has no release for this Python; its tests are left out' >&2; mkdir -p $(@D); touch $@; exit 0; fi; \
	echo 'setup: installing CrewAI into an environment beside' >&2; \
	rm -rf $(@D); \
	if command -v uv >/dev/null 2>&1 && uv venv -q --python $(PY) $(@D) \
	  && uv pip install -q --no-deps --python $(@D)/bin/python -r $<; then touch $@; \
	else rm -rf $(@D) && $(PY) -m venv $(@D) \
	  && $(@D)/bin/python -m pip install -q --disable-pip-version-check --no-deps -r $< && touch $@; fi
