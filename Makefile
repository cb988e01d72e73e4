# Everything a developer does here, each as one command. `make` alone lists them.

# A pipe fails with any of its parts.
SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -c
.DEFAULT_GOAL := help

TARGET := $(or $(CARGO_TARGET_DIR),target)
LIBRARY := libredis_lock.$(if $(filter Darwin,$(shell uname -s)),dylib,so)
VERSION = $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
PLATFORM = $(shell uname -s | tr '[:upper:]' '[:lower:]')-$(shell uname -m)
PACKAGE = redis-lock-$(VERSION)-$(PLATFORM)
# The time that all files of a package carry: that of the last commit, and not of the build.
SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || echo 0)

.PHONY: help run quorum build test test-clients lint servers torture valgrind package clean

help: ## List what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: ## Build the module, start a server with it and play a short tour on it
	scripts/install-deps
	$(MAKE) --no-print-directory build
	scripts/tour $(TARGET)/release/$(LIBRARY)

quorum: ## Build the module and show a lock over five servers, one of which is killed
	scripts/install-deps
	$(MAKE) --no-print-directory build
	scripts/quorum $(TARGET)/release/$(LIBRARY)

build: ## Build the module for use
	cargo build --release --locked

# Cargo builds a cdylib only when asked to build it, not for the tests that load it.
test: servers ## Run all tests against all servers
	cargo build --locked
	cargo test --locked

# CLIENTS="redis-py node-redis" runs only these.
test-clients: servers ## Run the examples of each client against real servers
	scripts/install-deps --clients
	$(MAKE) --no-print-directory build
	python3 tests/clients/run.py $(TARGET)/release/$(LIBRARY) $(CLIENTS)

lint: ## Check the format, the Rust code and the scripts, with warnings as errors
	scripts/install-deps --lint
	cargo fmt --all --check
	cargo clippy --all-targets --locked -- -D warnings
	shellcheck scripts/* .ci/run examples/redis-cli/*

servers: ## Fetch the servers that the tests run against
	scripts/install-deps --test
	scripts/fetch-servers

# REDIS_LOCK_OPERATIONS says for how long, REDIS_LOCK_SEED repeats the choices of a run, and
# REDIS_LOCK_RESULTS names a file that gets a line for each class of faults and each server.
torture: export REDIS_LOCK_OPERATIONS ?= 100000
torture: servers ## Run many clients against all servers while faults are made
	cargo build --release --locked
	cargo test --release --locked --test servers faults:: -- --test-threads=1 --nocapture

# This server allocates with libc, so that valgrind sees each allocation for itself.
valgrind: servers ## Run the tests of one server under valgrind
	scripts/install-deps --valgrind
	cargo build --locked
	REDIS_LOCK_VALGRIND=1 cargo test --locked valkey_9_1 -- --test-threads=2

# The library keeps its execute permission, since a server refuses a module without it. The
# owner, the order and the time are fixed, so that the same files give the same package.
package: build ## Pack the module, an example configuration and the licence into dist/
	rm -rf dist/$(PACKAGE)
	install -d -m 755 dist/$(PACKAGE)
	install -m 755 $(TARGET)/release/$(LIBRARY) dist/$(PACKAGE)/
	install -m 644 redis.conf.example LICENSE README.md dist/$(PACKAGE)/
	tar --sort=name --owner=0 --group=0 --numeric-owner --mtime=@$(SOURCE_DATE_EPOCH) \
	  -C dist -cf - $(PACKAGE) | gzip -n >dist/$(PACKAGE).tar.gz
	rm -r dist/$(PACKAGE)

clean: ## Remove what was built (the fetched servers stay)
	cargo clean
	rm -rf dist
