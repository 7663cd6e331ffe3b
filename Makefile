# make demo | make test: each sets everything up by itself. See CONTRIBUTING.md for the rest.
PYTHON ?= python3
TORCH ?= torch==2.13.0
VENV := .venv
REGISTRY ?= torchrelay
TAG ?= 0.1.0
PUSH ?=
PIP := $(VENV)/bin/python -m pip --disable-pip-version-check
STAMP := $(VENV)/.installed

.PHONY: venv demo docs test test-all test-browser test-browser-core test-long attack prometheus e2e e2e-core e2e-core-where-built e2e-kind imitated-gpu test-imitated-gpu test-imitated-gpu-short lint fmt bench bench-check relay-score wild wild-cost soak gpu-check proto images images-where-possible pin-images clean

venv: $(STAMP)

$(STAMP): pyproject.toml constraints.txt scripts/setup_venv.sh
	PYTHON="$(PYTHON)" TORCH="$(TORCH)" sh scripts/setup_venv.sh $(VENV)
	@touch $@

demo: venv
	$(VENV)/bin/python examples/demo.py

# `make test` has the unit tests, and of the others those marked core: one or two of each kind. `make test-all` has all that take less
# than a minute. What measures nothing runs two at a time, faults too: a cell of theirs spends its time on imports. What watches the
# clock, or measures, has the machine to itself. The longest comes first, so that nobody waits for it at the end.
UNIT := tests/unit tests/integration/transparency
ALONE := tests/faults/machines/test_cut_off_leader.py tests/faults/failures/test_device_faults.py tests/faults/failures/test_hangs.py tests/integration/commands/test_dashboard.py tests/integration/commands/test_demo.py tests/integration/endurance/test_steady_state.py
FIRST := tests/faults/frameworks/test_relay_score.py
PAIRED := $(FIRST) $(filter-out $(UNIT:%=%/%) $(ALONE) $(FIRST), $(wildcard tests/faults/*/test_*.py tests/integration/*/test_*.py))

test: venv
	$(call stages,-m core)

test-all: venv
	$(call stages,)

define stages
@failed=0; \
$(VENV)/bin/python -m pytest -n 2 $(UNIT) || failed=1; \
$(VENV)/bin/python -m pytest -n 2 --dist worksteal --durations=60 --durations-min=8 $(1) $(PAIRED) || failed=1; \
$(VENV)/bin/python -m pytest --durations=60 --durations-min=4 $(1) $(ALONE) || failed=1; \
exit $$failed
endef

test-long: venv
	TORCHRELAY_TEST_ROUNDS=$${TORCHRELAY_TEST_ROUNDS:-50} $(VENV)/bin/python -m pytest -m slow -s

e2e: venv
	bash tests/e2e/run.sh $(E2E)

# Rules, dashboard and endpoints with a real Prometheus (20 s); says so, and does nothing, where it is missing and cannot be installed.
prometheus: venv
	@command -v prometheus promtool >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
		&& apt-get update -qq && apt-get install -y -qq --no-install-recommends prometheus; } \
		|| echo "prometheus is missing, and only root can install it: what needs it is SKIPPED"
	$(VENV)/bin/python -m pytest tests/prometheus

e2e-core: prometheus
	bash tests/e2e/run.sh --core

e2e-core-where-built: prometheus
	bash tests/e2e/run.sh --core-where-built

e2e-kind: venv
	bash tests/e2e/kind/run.sh $(E2E)

# The documentation as a site, in site/; an environment of its own, without torch.
DOCS := .venv-docs

docs: $(DOCS)/.installed
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict

$(DOCS)/.installed: scripts/site_requirements.txt
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python -m pip install --quiet --disable-pip-version-check -r scripts/site_requirements.txt
	touch $@

# The imitated GPU (tests/imitated_gpu/README.md), in an environment of its own.
IMITATED := .venv-imitated-gpu

imitated-gpu: $(IMITATED)/.installed
	@$(MAKE) --no-print-directory -j 2 -C tests/imitated_gpu VENV=$(CURDIR)/$(IMITATED)

$(IMITATED)/.installed: pyproject.toml constraints.txt tests/imitated_gpu/setup_venv.sh tests/imitated_gpu/requirements.py
	PYTHON="$(PYTHON)" sh tests/imitated_gpu/setup_venv.sh $(IMITATED)
	@touch $@

test-imitated-gpu: imitated-gpu
	$(IMITATED)/bin/python -m pytest --durations=20 tests/imitated_gpu

# A few cells of them, for whoever changes what knows NCCL: what torch has, a loss at each side of the gate, a stop, a move, waits.
IN_SHORT := tests/imitated_gpu/test_conformance.py tests/imitated_gpu/test_waits.py \
	'tests/imitated_gpu/test_migrations.py::test_a_rank_on_nccl_is_replaced_and_nothing_is_computed_otherwise[killed in backward]' \
	'tests/imitated_gpu/test_migrations.py::test_a_rank_on_nccl_is_replaced_and_nothing_is_computed_otherwise[moved]' \
	'tests/imitated_gpu/test_migrations.py::test_a_functional_collective_that_a_loss_ends_behind_the_gate_gives_no_garbage[kill:rank=1,step=9,phase=after-step]' \
	tests/imitated_gpu/test_migrations.py::test_a_rank_that_stops_while_a_device_waits_for_it_is_named_and_found_in_time

test-imitated-gpu-short: imitated-gpu
	$(IMITATED)/bin/python -m pytest --durations=0 --durations-min=1 $(IN_SHORT)

# The dashboard in a real browser, which has to be there (apt-get install chromium). They make the pictures of docs/dashboard.md.
test-browser: venv
	$(PIP) install --quiet -c constraints.txt "$(TORCH)" -e ".[browser]"
	TORCHRELAY_BROWSER_TESTS=docs/pictures $(VENV)/bin/python -m pytest tests/browser

# The same in CI, two at a time, without new pictures; says so, and does nothing, where there is no chromium and none can be installed.
test-browser-core: venv
	@command -v chromium >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
		&& apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium >/dev/null; } \
		|| { echo "the dashboard's tests in a browser are SKIPPED: chromium is missing, and only root can install it"; exit 0; }; \
	$(PIP) install --quiet -c constraints.txt "$(TORCH)" -e ".[browser]" && pictures=$$(mktemp -d) \
		&& { TORCHRELAY_BROWSER_TESTS=$$pictures $(VENV)/bin/python -m pytest -n 2 tests/browser; code=$$?; rm -rf $$pictures; exit $$code; }

lint: venv
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports --no-cache
	$(VENV)/bin/lint-imports --no-cache --config shim/layers.toml
	$(VENV)/bin/python scripts/generate_proto.py --check
	$(VENV)/bin/python scripts/generate_faults_page.py --check
	$(VENV)/bin/python scripts/generate_metrics_page.py --check
	$(VENV)/bin/python scripts/generate_messages_page.py --check
	$(VENV)/bin/python scripts/generate_schemas.py --check
	$(VENV)/bin/python scripts/generate_dashboard.py --check
	$(VENV)/bin/python scripts/generate_reference.py --check
	$(VENV)/bin/python scripts/render_deploy.py --check

fmt: venv
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .

proto: venv
	$(VENV)/bin/python scripts/generate_proto.py

# bench/results/<machine>.json, then where the time goes; half an hour on a quiet machine
bench: venv
	$(VENV)/bin/python bench/check.py --long --results bench/results
	$(VENV)/bin/python bench/step_overhead.py
	$(VENV)/bin/python bench/step_overhead.py --shape device
	$(VENV)/bin/python bench/transfer_rate.py

# What CI has: ratios of things measured side by side, against bench/bounds.toml
bench-check: venv
	$(VENV)/bin/python bench/check.py

# torch is named again, so that no framework can bring another one with it
relay-score: venv
	$(PIP) install --quiet -c constraints.txt "$(TORCH)" -e ".[corpus]"
	$(VENV)/bin/torchrelay bench relay-score --full --resume

# SOURCES: a folder with copies of the repositories that tests/wild/manifest.toml names
wild: venv
	$(VENV)/bin/python tests/wild/run.py --sources "$(SOURCES)" $(WILD)

# What a step of these programs costs with protection, in turns with torchrun: no other work beside it
wild-cost: venv
	$(VENV)/bin/python bench/wild_cost.py --sources "$(SOURCES)" $(WILD)

# ATTACK_SEED: repeats the draws; ATTACK: only these parts, of cluster, sides, orders and machine
attack: venv
	PYTHONPATH=tests $(VENV)/bin/python -m attack

# SOAK_S: for how many seconds faults come; SOAK_SEED: repeats their draws; SOAK_MACHINES=1 or 2, SOAK_MODE=spares or ladder: only these
soak: venv
	PYTHONPATH=tests $(VENV)/bin/python -m soak

gpu-check:
	@$(if $(wildcard $(VENV)/bin/python),$(VENV)/bin/python,$(PYTHON)) scripts/gpu_check $(GPU_CHECK)

# for both architectures, with whatever builder is there; nothing is pushed unless PUSH=--push
images:
	REGISTRY="$(REGISTRY)" TAG="$(TAG)" PUSH="$(PUSH)" scripts/build_images.sh

images-where-possible:
	REGISTRY="$(REGISTRY)" TAG="$(TAG)" scripts/build_images.sh --where-possible

# the digest of today's base into the Dockerfile; a registry has to be reached
pin-images:
	scripts/build_images.sh --pin

clean:
	rm -rf $(VENV) $(IMITATED) $(DOCS) site .mypy_cache .ruff_cache .pytest_cache demo-out
