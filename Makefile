# Every target needs only Go, except: `race` and `stress` a C compiler, `python` Python 3.10, `model` Spin and gcc.
# tools/go.mod pins the tools.

GO       ?= go
TOOL     := $(GO) tool -modfile=tools/go.mod

# Packages with tests of concurrency; stress repeats them.
CONCURRENT := ./ringbuf ./shmstore/... ./actors ./bus ./bus/host ./bus/node ./internal/wire ./internal/peer ./internal/process ./internal/host/...

FUZZTIME ?= 5s      # for each fuzz target
COUNT    ?= 5       # repetitions of a stress run
SOAK     ?= 1000000 # requests of the soak test
LOAD     ?= 60m     # time in which cells of the load matrix begin
KILLS    ?= 1000    # processes killed while they hold payloads
MODEL    ?= full    # size of the models: small or full
ARCHS    ?= amd64 arm64 # that gpu-build builds for
BENCH    ?= .
BENCHTIME ?= 1s
PEERS    ?= .       # rows of bench-peers
ROUNDS   ?= 9       # of bench-peers and bench-keyed
PYTHON   ?= python3 # of bench-keyed
BUSY     ?= 0       # processes that load the processors during bench-peers
RESULT   ?= bench/results/peers # .json and .svg: where bench-peers puts its figures and their plot

.DEFAULT_GOAL := help
.PHONY: help build test python vllm-caches race stress soak chaos load model fuzz-smoke mutants lockcheck cover lint bench bench-peers bench-keyed check gpu-build gpu-check

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## compile everything
	$(GO) build ./...
	$(GO) -C bench build ./...

test: ## run all tests
	$(GO) test ./...
	$(GO) -C bench test ./...

python: ## run the tests of the Python client
	PYTHONPATH=clients/python/src python3 -m unittest discover -s clients/python/tests

vllm-caches: ## test the client's caches with vLLM's own classes, for which it installs 6 GB
	scripts/vllm-caches.sh

race: ## run all tests with the race detector
	$(GO) test -race -short ./...

stress: ## repeat the concurrent packages with the race detector on 1, 2 and 4 processors (COUNT)
	$(GO) test -race -short -count=$(strip $(COUNT)) -cpu=1,2,4 -timeout=10m $(CONCURRENT)

soak: ## send SOAK requests through one bus
	$(GO) test ./bus -run='^TestSoak$$' -count=1 -timeout=30m -v -soak.requests=$(strip $(SOAK))

chaos: ## kill KILLS processes under load; every promise must hold
	$(GO) test ./internal/chaos -run='^(TestChaos|TestChaosDirect|TestChaosDirectPython|TestChaosDrops|TestChaosGPU|TestHostKilled)$$' -count=1 -timeout=90m -v -chaos.kills=$(strip $(KILLS)) -chaos.direct=$(strip $(KILLS)) -chaos.gpu=$(strip $(KILLS)) -chaos.hosts=50

load: ## run pipelines under load for LOAD, and the long cases in full; none may hang or give a wrong result
	$(GO) test ./internal/load -run='^(TestLoad|TestLong)$$' -count=1 -timeout=0 -v -load.for=$(strip $(LOAD)) -load.long

model: ## check the protocol's models with Spin (MODEL)
	scripts/model.sh $(strip $(MODEL))

fuzz-smoke: ## run every fuzz target for FUZZTIME
	scripts/fuzz-smoke.sh $(strip $(FUZZTIME))

mutants: ## break the code on purpose; a test must fail each time
	$(GO) run ./internal/mutants

lockcheck: ## check the order of locks in the tests, and over KILLS processes killed under load
	scripts/lockcheck.sh
	$(MAKE) chaos GOFLAGS='$(GOFLAGS) -tags=lockcheck'

cover: ## print the coverage of each package
	scripts/cover.sh

lint: ## golangci-lint, gofumpt, vet for every system, tidy modules
	scripts/lint.sh

bench: ## run the benchmarks (BENCH, BENCHTIME)
	$(GO) test ./... -run='^$$' -bench='$(strip $(BENCH))' -benchtime=$(strip $(BENCHTIME)) -benchmem

bench-peers: ## measure omnibus beside gRPC, NATS, sockets, vLLM-Omni and others: a table, its JSON, a plot (PEERS, ROUNDS, BUSY, RESULT)
	mkdir -p $(dir $(RESULT))
	$(GO) -C bench run ./cmd/omnibus-bench --run '$(strip $(PEERS))' --rounds $(strip $(ROUNDS)) --busy $(strip $(BUSY)) --save $(abspath $(RESULT)).json
	$(GO) -C bench run ./cmd/omnibus-bench plot $(abspath $(RESULT)).json >$(strip $(RESULT)).svg

bench-keyed: ## measure the client's objects under keys beside vLLM's storage, whose source OMNIBUS_VLLM names (ROUNDS, PYTHON)
	PYTHONPATH=clients/python/src $(strip $(PYTHON)) bench/python_keyed.py --rounds $(strip $(ROUNDS))

gpu-build: ## build the programs of scripts/gpu-check.sh for a machine with a GPU, into bin/gpu (ARCHS)
	GO=$(GO) scripts/gpu-build.sh bin/gpu $(strip $(ARCHS))

gpu-check: gpu-build ## check and measure the GPU lane on this machine; without a GPU, on an emulated one
	scripts/gpu-check.sh

check: ## run the steps of CI
	.ci/run
