# pg_test/setup makes all that these need, under target/, but for Rust and Debian packages.
SHELL := bash
PG ?= 15
PG_CONFIG ?= pg_config
SECONDS ?= 600
MAJORS := 15 16 17 18

.PHONY: help demo test test-all soak bench install lint clean

help: ## this list
	@sed -nE 's/^([a-z-]+): ## (.*)/make \1\t\2/p' Makefile | expand -t 18

demo: ## consumers compete for one stream and share the partitions of another, and are killed, stopped and released
	@bash demo/run

test: ## all tests on one major of PostgreSQL (PG=15)
	@pg_test/setup 15 $(PG)
	@pg_test/run $(PG)

test-all: ## all tests on 15, 16, 17 and 18
	@pg_test/setup $(MAJORS)
	@pg_test/run $(MAJORS)

soak: ## clients come, fail and go at random, and all that they were answered is checked (PG=15 SECONDS=600 SEED=...)
	@pg_test/setup 15 $(PG)
	@pg_test/soak $(PG) $(SECONDS) $(SEED)

bench: ## benchmarks, side by side
	@bash bench/run

install: ## a release build for, and into, the server of PG_CONFIG=/path/to/pg_config
	@pg_test/setup
	@config=$$(realpath -e "$$(command -v $(PG_CONFIG))") || { echo "no such pg_config: $(PG_CONFIG)" >&2; exit 1; }; \
		. pg_test/env 15 && export CARGO_TARGET_DIR=target/install PGRX_PG_CONFIG_PATH=$$config && \
		if [ -w "$$($$config --pkglibdir)" ]; then sudo=; else sudo=--sudo; fi && \
		cargo pgrx install --release --pg-config $$config $$sudo

lint: ## rustfmt, clippy, rustdoc and shellcheck
	@pg_test/setup $(PG)
	@pg_test/lint $(PG)

clean: ## remove target/, and with it all that was set up
	rm -rf target
