# make demo | make test: each sets everything up by itself. See CONTRIBUTING.md for the rest.
PYTHON ?= python3
TORCH ?= torch==2.13.0
VENV := .venv
PIP := $(VENV)/bin/python -m pip --disable-pip-version-check
STAMP := $(VENV)/.installed

.PHONY: venv demo test test-long lint fmt bench relay-score gpu-check proto clean

venv: $(STAMP)

$(STAMP): pyproject.toml constraints.txt scripts/setup_venv.sh
	PYTHON="$(PYTHON)" TORCH="$(TORCH)" sh scripts/setup_venv.sh $(VENV)
	@touch $@

demo: venv
	$(VENV)/bin/python examples/demo.py

# What measures nothing and shares nothing runs two at a time; faults and what watches the clock have the machine to themselves.
SIDE_BY_SIDE := tests/unit $(wildcard tests/integration/test_transparency*.py)

test: venv
	@failed=0; \
	$(VENV)/bin/python -m pytest -n 2 $(SIDE_BY_SIDE) || failed=1; \
	$(VENV)/bin/python -m pytest --durations=60 --durations-min=4 $(SIDE_BY_SIDE:%=--ignore=%) || failed=1; \
	exit $$failed

test-long: venv
	TORCHRELAY_TEST_ROUNDS=$${TORCHRELAY_TEST_ROUNDS:-50} $(VENV)/bin/python -m pytest -m slow -s

lint: venv
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports --no-cache
	$(VENV)/bin/python scripts/generate_proto.py --check
	$(VENV)/bin/python scripts/generate_faults_page.py --check

fmt: venv
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .

proto: venv
	$(VENV)/bin/python scripts/generate_proto.py

bench: venv
	$(VENV)/bin/python bench/step_overhead.py
	$(VENV)/bin/python bench/step_overhead.py --shape device
	$(VENV)/bin/python bench/transfer_rate.py

# torch is named again, so that no framework can bring another one with it
relay-score: venv
	$(PIP) install --quiet -c constraints.txt "$(TORCH)" -e ".[corpus]"
	$(VENV)/bin/torchrelay bench relay-score --full --resume

gpu-check: venv
	$(VENV)/bin/python scripts/gpu_eyes_check.py
	$(VENV)/bin/python scripts/gpu_check.py

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache demo-out
