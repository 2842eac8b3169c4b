# `make` lists the targets. What they need beside Go is checked, and on Debian installed, by `make deps`.

GO          ?= go
STATICCHECK ?= honnef.co/go/tools/cmd/staticcheck@v0.8.2

# What `samovar version` says.
VERSION     ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)

# How the demo is told; one line, so that it is easy to change.
DEMO        ?= ./bin/samovar demo

# `make sim SEEDS=20000 SEED_BASE=1` runs that many worlds; without SEEDS it runs the fixed set that CI runs.
SEEDS       ?=
SEED_BASE   ?= 1

FUZZ_TIME      ?= 3s
E2E_PACKAGES   ?= ./internal/e2e/...
BENCH_PACKAGES ?= ./internal/wire ./internal/store ./internal/nbd

# Packages that have stages of their own.
SEPARATE := internal/simulation,internal/e2e
# The race detector finds nothing in code without goroutines. internal/architecture keeps the pure packages so; the
# simulator runs each world in one goroutine, and takes five times as long with it.
RACE_EXCLUDE := $(SEPARATE),internal/replication,internal/bitmap,internal/placement,internal/volume,internal/fault,internal/architecture,tools

RUNTESTS := bin/runtests

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help go-version deps build test unit race lint fuzz-smoke sim e2e demo bench clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

go-version:
	@tools/goversion "$(GO)" 1 26

deps: ## check for the programs that tests use; install what is missing (Debian, root) or say how
	@tools/deps

build: go-version ## build bin/samovar
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '-X main.version=$(VERSION)' -o bin/samovar ./cmd/samovar

test: go-version $(RUNTESTS) ## everything that CI runs, with a summary
	@tools/deps || true
	@$(RUNTESTS) stages -make "$(MAKE)" build! lint unit race sim fuzz-smoke e2e

unit: go-version $(RUNTESTS) ## tests of all packages but the simulator's and the end-to-end ones
	@$(RUNTESTS) test -stage unit -exclude $(SEPARATE) ./... -timeout 10m

race: go-version $(RUNTESTS) ## the same with the race detector, shortened, where there are goroutines
	@$(RUNTESTS) test -stage race -exclude $(RACE_EXCLUDE) ./... -race -short -timeout 15m

lint: go-version ## gofmt, go vet, staticcheck
	@bad=$$(gofmt -l .); if [ -n "$$bad" ]; then echo "not formatted (gofmt -w does it):"; echo "$$bad"; exit 1; fi
	$(GO) vet ./...
	$(GO) run $(STATICCHECK) ./...

fuzz-smoke: go-version $(RUNTESTS) ## each fuzz target for a few seconds (FUZZ_TIME=3s)
	@$(RUNTESTS) fuzz -stage fuzz-smoke -time $(FUZZ_TIME) ./internal/...

sim: go-version $(RUNTESTS) ## the simulator: the set of CI, or SEEDS=20000 [SEED_BASE=1]
ifeq ($(SEEDS),)
	@$(RUNTESTS) test -stage sim ./internal/simulation -timeout 15m
else
	$(GO) test ./internal/simulation -count=1 -timeout 0 -v -run '^TestSeeds$$' -sim.seeds=$(SEEDS) -sim.base=$(SEED_BASE)
endif

e2e: build $(RUNTESTS) ## real processes, real clients, real failures
	@SAMOVAR_BINARY=$(CURDIR)/bin/samovar $(RUNTESTS) test -stage e2e $(E2E_PACKAGES) -count=1 -timeout 15m

demo: build ## three nodes on this machine, one of them killed under load
	$(DEMO)

bench: go-version ## micro-benchmarks of the data path
	$(GO) test -run '^$$' -bench . -benchmem -p 1 $(BENCH_PACKAGES)

clean: ## remove what was built, and cached test results
	rm -rf bin dist
	$(GO) clean -testcache

$(RUNTESTS): go-version $(wildcard tools/runtests/*.go) go.mod
	@$(GO) build -o $@ ./tools/runtests
