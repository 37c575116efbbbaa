# pg_test/setup makes all that these targets need under target/; only Rust must be there, and Debian packages go into the system.
SHELL := bash
PG ?= 15
PG_CONFIG ?= pg_config
SECONDS ?= 600
MAJORS := 15 16 17 18 19

.PHONY: help all demo quick test test-all test-ends test-clients test-deb soak bench install deb oci dist release sql lint clean

help: ## this list
	@sed -nE 's/^([a-z-]+): ## (.*)/make \1\t\2/p' Makefile | expand -t 18

demo: ## consumers compete for one stream and share the partitions of another, and are killed, stopped and drained
	@bash demo/run

quick: ## lint, unit, regress and isolation, and the main paths of e2e (PG=15)
	@pg_test/setup $(PG)
	@pg_test/run --quick $(PG)

test: ## all tests on one major of PostgreSQL (PG=15)
	@pg_test/setup 15 $(PG)
	@pg_test/run $(PG)

test-all: ## all tests on 15, 16, 17, 18 and 19
	@pg_test/setup $(MAJORS)
	@pg_test/run $(MAJORS)

test-ends: ## all tests on 15 and 19; on 16, 17 and 18 what depends on the major, without e2e
	@pg_test/setup $(MAJORS)
	@pg_test/run --ends $(MAJORS)

test-clients: LANGUAGES ?= python typescript go java rust
test-clients: ## the client libraries, each alone and all of them mixed (LANGUAGES='python go')
	@pg_test/setup 15
	@LANGUAGES='$(LANGUAGES)' KIT=all pg_test/run 15 clients

soak: ## clients come, fail and go at random, and all that they were answered is checked (PG=15 SECONDS=600 SEED=...)
	@pg_test/setup 15 $(PG)
	@pg_test/soak $(PG) $(SECONDS) $(SEED)

bench: ## benchmarks, side by side
	@bash bench/run

# A release build: for the server of PG_CONFIG, whose path is put into `config`; put where packaging/install puts it.
find_config = config=$$(realpath -e "$$(command -v "$(PG_CONFIG)")" 2>/dev/null) || { echo "no such pg_config: $(PG_CONFIG)" >&2; exit 1; }
build = pg_test/setup && export CARGO_TARGET_DIR=target/install &&
below = $(if $(DESTDIR),--root "$(DESTDIR)")

all: ## a release build for the server of PG_CONFIG, which install then only has to put there
	@$(find_config); $(build) packaging/built "$$config" packaging/install "$$config" --root target/install/root --release

install: ## a release build for, and into, the server of PG_CONFIG=/path/to/pg_config, or below DESTDIR
	@$(find_config); if packaging/built "$$config"; then packaging/install "$$config" $(below) --built; \
		else $(build) packaging/install "$$config" $(below) --release; fi

deb: ## Debian packages: of the command eskit-lease, and for the server of Debian's packages, into target/deb/ (PG=15)
	@pg_test/setup
	@packaging/deb/command
	@packaging/deb/build $(PG)

oci: PG = 18
oci: ## the extension as a layer of a container image, and a Dockerfile, into target/oci/ (PG=18)
	@packaging/oci/build $(PG)

dist: ## the sources as PGXN takes them, into target/dist/
	@packaging/pgxn/build

release: ## cut this version: date CHANGELOG.md, tag, and what users pick up, into target/release-VERSION/; pushes nothing (REPOSITORY=https://..)
	@packaging/release $(MAJORS)

test-deb: ## what deb and dist make, and what apt does with the package in a clean Debian (PG=15)
	@pg_test/setup $(PG)
	@pg_test/package $(PG)

sql: ## the declarations of the functions, from the code into sql/declarations.sql
	@pg_test/setup 15
	@pg_test/declarations >target/declarations.sql && mv target/declarations.sql sql/

lint: ## rustfmt, clippy, rustdoc, shellcheck, and the other rules of the sources
	@pg_test/setup $(PG)
	@pg_test/lint $(PG)

clean: ## remove target/, and with it all that was set up
	rm -rf target
