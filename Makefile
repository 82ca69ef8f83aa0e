# Everything is run from here, and CI runs the same targets. `make` alone lists them.
SHELL := /bin/bash
VENV  := .venv
PY    := $(VENV)/bin/python
JARS  := .jars
OLDER := .versions/spark-3_5
YARN  := .yarn
DOCS  := .venv-docs
PEERS := .venv-peers
AIRFLOW := .venv-airflow
MYSQL := .mysql/bin/mysqld
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
export PYSPARK_PYTHON := $(CURDIR)/$(PY)

.PHONY: help run check test test-all test-slow test-rest coverage lint services browser proof short-campaign a-few-versions simulate mutate model bench bench-delta-fence bench-frames bench-job bench-class-archive bench-warm-standby bench-crowd bench-peers test-faults test-variants test-zombies test-warm-standby test-contained test-mysql mysql campaign campaign-report airflow airflow-drill test-airflow setup jars older versions yarn docs docs-pictures test-versions dist clean
SEEDS ?= 2000
# What `make test` leaves to `make test-all` (tests/support/tiers.py).
LATER := matrix or cluster or slow
# Of tests/versions: the oldest, what most clusters have, and the newest.
A_FEW := delta-3_2 spark-3_5 spark-4_3
# What `make check` runs.
CHECKED := config election monitoring/test_history.py monitoring/test_events.py testing simulation \
  stores/test_contract.py stores/test_registry.py stores/folders/test_file.py cli/test_main.py
PARALLEL := $(if $(SPARK_LEASE_TEST_PG_URL),,-n auto --dist loadgroup --no-loadscope-reorder)
# Two processes, each of which may have a Spark.
TWO := $(subst auto,2,$(PARALLEL))
ON_MYSQL = $(PY) -m pytest -n 0 -m "mariadb and (mysql or not spark) and not (mariadb_alone or fault)"
PYTEST = $(PY) -m pytest $(PARALLEL) $(if $(CI),--durations=30)
help:           ## list the targets
	@sed -n 's/^\([a-z-]*\): .*## \(.*\)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

run: export SPARK_LEASE_URL := $(or $(URL),$(SPARK_LEASE_URL))
run: export SPARK_LEASE_LOCKER := $(or $(LOCKER),$(SPARK_LEASE_LOCKER),lease)
run: jars       ## the failover drill: two submissions, one is killed (ARGS=--pause: frozen; URL=… LOCKER=… its lease)
	@$(PY) -m jobs.drill $(ARGS)

check: lint     ## for every save, a minute: lint, policy, configuration, command line, simulator; SQLite and files only
	@$(PYTEST) -q -m "not ($(LATER) or spark or postgres or mariadb)" $(addprefix tests/,$(CHECKED)) $(ARGS)

test: services  ## every promise on the real thing, minutes; what this machine has not is left out (ARGS=… for pytest)
	@$(PYTEST) -m "not ($(LATER))" $(ARGS)

test-all: test test-slow test-rest ## everything: for CI, and before a release

test-slow: services yarn browser out/site/index.html ## tests that take minutes: real Spark, clusters, every combination
	@$(PY) -m pytest $(TWO) $(if $(CI),--durations=30) -m "($(LATER)) and not fault" $(ARGS)

test-rest: services yarn browser ## the simulator, a short campaign of faults, other versions of Spark, Airflow
	@$(MAKE) --no-print-directory $(if $(CI),-j4 short-campaign) proof a-few-versions test-mysql
	@$(MAKE) --no-print-directory test-airflow
	@$(MAKE) --no-print-directory airflow-drill ARGS='--days 2'

coverage: services ## which lines the tests reach, subprocesses too (ARGS='-m "slow or not slow"' for all tests)
	@rm -rf out/coverage && mkdir -p out/coverage
	@$(PY) -m coverage run -m pytest $(PARALLEL) -m "not ($(LATER))" $(ARGS) || echo "some tests failed: the report is of those that ran"
	@$(PY) -m coverage combine -q
	@$(PY) -m coverage html -q
	@$(PY) -m coverage report --skip-covered --sort=cover
	@echo "each line: out/coverage/html/index.html"

lint: setup     ## ruff, mypy --strict, spelling, and the rules of the layers (imports only go down, one clock)
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/mypy
	@$(VENV)/bin/codespell *.md docs spark_lease jobs conf
	@$(PY) -m pytest -q -p no:randomly tests/test_house.py

# One after the other, and behind whatever else runs.
proof: setup
	@nice $(MAKE) --no-print-directory -j1 simulate mutate model

a-few-versions: services
	@$(PY) -m tests.versions $(A_FEW)

# It mostly waits.
short-campaign: services
	@$(PY) -m tests.faults.campaign --minutes 5 --side-by-side 2

simulate: setup ## the policy under thousands of schedules of faults, on a virtual clock (SEEDS=10000)
	@$(PY) -m tests.simulation --seeds $(SEEDS)

mutate: setup   ## faults put into the policy, each of which the simulator has to find
	@$(PY) -m tests.simulation.mutations --seeds $(SEEDS)

model: setup    ## every order of events in a small model of the lease (a minute)
	@$(PY) -m tests.simulation.model

bench: services ## the speeds that the README names, as ratios measured in one run
	@failed=0; for each in renewal start handover contain keeper delta fences; do $(PY) -m tests.benchmarks.$$each || failed=1; done; exit $$failed

bench-delta-fence: jars ## what the Delta fence costs a write, and the claims at a takeover (minutes)
	@$(PY) -m tests.benchmarks.delta_fence

bench-frames: jars ## write_sql of all flights against Spark's JDBC writer (minutes)
	@$(PY) -m tests.benchmarks.frames

bench-job: jars ## what a guard costs the flights job, in interleaved runs (a quarter of an hour)
	@$(PY) -m tests.benchmarks.guard

bench-class-archive: jars ## how much sooner a driver starts with its classes in a file (three minutes)
	@$(PY) -m tests.benchmarks.class_archive

bench-warm-standby: jars ## from a crash to the next master's first commit, cold and warm (six minutes)
	@$(PY) -m tests.benchmarks.warm_standby

bench-crowd: setup ## a thousand leases with two contenders each on one PostgreSQL (six minutes; ARGS='--leases 200')
	@$(PY) -m tests.benchmarks.crowd $(ARGS)

bench-peers: $(PEERS)/.installed ## take-overs and lost sessions, beside advisory locks, tooz, flock, … (ROUNDS=5)
	@$(PY) -m tests.benchmarks.peers $(or $(ROUNDS),5)
$(PEERS)/.installed: pyproject.toml | $(VENV)/.installed
	@python3 -m venv $(PEERS)
	@uv pip install -q --python $(PEERS)/bin/python -e '.[postgres]' 'tooz==9.*' 'sqlalchemy-dlock==0.9.*' 'filelock==4.*'
	@touch $@

test-faults: services ## the drills and faults again and again (TIMES=30 ONLY=keeper)
	@$(PY) -m tests.faults.repeat $(TIMES) $(ONLY)

test-variants: services older yarn ## each fault with every victim and on every store, once (half an hour)
	@$(PY) -m pytest $(TWO) -m fault $(ARGS)

test-mysql: export SPARK_LEASE_TEST_MARIADBD := $(CURDIR)/$(MYSQL)
test-mysql: mysql ## the tests of MariaDB's stores, fences and commands, on MySQL 8 (five minutes)
	@$(ON_MYSQL) $(ARGS)$(if $(CI), || $(ON_MYSQL) --last-failed)

test-zombies: services ## masters frozen amid their writes, a hundred for each fence, and without it (ROUNDS=100 ONLY=delta)
	@$(PY) -m tests.faults.zombies $(or $(ROUNDS),100) $(ONLY)

test-warm-standby: jars ## masters frozen amid their commits, whose next is a warm standby (half an hour; ROUNDS=100)
	@$(PY) -m tests.faults.warm_standby $(or $(ROUNDS),100)

test-contained: services ## hostile jobs in a PID namespace, killed and frozen, and the same outside of one (ROUNDS=100 ONLY=submit)
	@$(PY) -m tests.faults.contained $(or $(ROUNDS),100) $(ONLY)

campaign: services ## random faults on two sites and a database, ten minutes (root; ARGS='--minutes 120 --store MariaDB')
	@$(PY) -m tests.faults.campaign $(ARGS)

campaign-report: setup ## what the campaigns so far have found, into docs/explanation/campaign.md
	@$(PY) -m tests.faults.campaign.report

airflow: setup $(AIRFLOW)/.installed ## Airflow in an environment of its own, without Spark
$(AIRFLOW)/.installed: pyproject.toml tests/airflow/constraints.txt
	@echo "setting up $(AIRFLOW), a minute ..."
	@python3 -m venv $(AIRFLOW)
	@$(AIRFLOW)/bin/python -m pip install -q uv
	@$(AIRFLOW)/bin/uv pip install -q --python $(AIRFLOW)/bin/python -e '.[airflow,postgres]' \
	  -c tests/airflow/constraints.txt pytest pytest-timeout pytest-randomly pytest-xdist
	@touch $@

airflow-drill: airflow jars ## two Airflows fire the same days, one task is killed (ARGS='--days 6')
	@$(PY) -m jobs.airflow.drill $(ARGS)

test-airflow: airflow jars ## the tests of spark_lease.airflow, in Airflow's environment (ARGS=… for pytest)
	@$(AIRFLOW)/bin/python -m pytest -n 2 --dist loadfile -W default --confcutdir=tests/airflow tests/airflow $(ARGS)

setup: $(VENV)/.installed ## the environment of the project, in .venv
$(VENV)/.installed: pyproject.toml
	@python3 -c 'import sys; sys.exit("spark_lease needs Python 3.11 or newer, this is " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	@echo "setting up $(VENV): Python packages, PySpark among them (two minutes the first time) ..."
	@python3 -m venv $(VENV)
	@command -v uv >/dev/null || $(PY) -m pip install -q uv
	@uv pip install -q --python $(PY) -e '.[dev]'
	@uv pip install -q --python $(PY) --target $(VENV)/sqlalchemy20 'sqlalchemy>=2.0,<2.1'
	@touch $@

jars: $(JARS)/.resolved ## Delta's jars and PostgreSQL's JDBC driver, in .jars
$(JARS)/.resolved: jobs/jars.py | $(VENV)/.installed
	@$(PY) -m jobs.jars $(JARS)
	@$(PY) -m jobs.jars $(JARS)/jdbc org.postgresql:postgresql:42.7.7 'org.postgresql_*.jar'
	@$(PY) -m jobs.jars --archive $(JARS)
	@touch $@

services: setup ## what the tests need besides: jars, MariaDB, PgBouncer. What cannot be had is said, and the rest goes on
	@! $(PY) -m jobs.jars --check-java || $(MAKE) --no-print-directory -s jars || echo "so the tests that need Spark are left out"
	@$(PY) -m tests.services.mariadb || true
	@$(PY) -m tests.services.pgbouncer || true
	@$(PY) -m tests.services.bindfs || true

mysql: $(MYSQL)
$(MYSQL): tests/services/mysql.py | services
	@$(PY) -m tests.services.mysql && touch $@

browser: setup
	@$(PY) -m tests.services.browser || test -z "$$CI"

older: $(OLDER)/.archived ## Spark 3.5 with Delta 3.3, for the tests of the Delta fence
$(OLDER)/.archived: jobs/jars.py tests/versions/versions.toml | services
	@$(PY) -m tests.versions --build spark-3_5
	@PATH="$(CURDIR)/$(OLDER)/bin:$$PATH" $(OLDER)/bin/python -m jobs.jars --archive $(OLDER)/jars
	@touch $@

versions: setup ## the environments of the versions that `make test-all` tries
	@$(PY) -m tests.versions --build $(A_FEW)

yarn: $(YARN)/.resolved ## YARN in one process, for the tests of cluster mode
$(YARN)/.resolved: tests/services/yarn.py | services
	@$(PY) -m tests.services.yarn $(YARN)
	@touch $@

docs: $(DOCS)/.installed ## the documentation as a site, in out/site; rewrites what it says of the code
	@$(PY) docs/generate.py
	@$(PY) docs/pictures.py
	@$(DOCS)/bin/python -m sphinx -q -W --keep-going -b html docs out/site
	@echo "open out/site/index.html"
out/site/index.html: | $(DOCS)/.installed
	@$(DOCS)/bin/python -m sphinx -q -W --keep-going -b html docs out/site
$(DOCS)/.installed: pyproject.toml | $(VENV)/.installed
	@echo "setting up $(DOCS), half a minute ..."
	@python3 -m venv $(DOCS)
	@uv pip install -q --python $(DOCS)/bin/python -e '.[docs]'
	@touch $@

docs-pictures: docs browser ## screenshots of the history page, of watch and of demo and drill as they go (four minutes)
	@$(PY) -m tests.docs.screenshots

test-versions: services ## every Spark, Delta and Python of tests/versions/versions.toml, a minute each (ONLY=spark-3_5)
	@$(PY) -m tests.versions $(ONLY)

dist: setup     ## the guard as one zip, for --py-files
	@$(PY) -m spark_lease.submit.bundle dist/spark_lease.zip

clean:          ## remove what the targets above made
	rm -rf $(VENV) $(AIRFLOW) $(YARN) $(DOCS) $(PEERS) .versions $(JARS) out build dist .mypy_cache .pytest_cache .ruff_cache
