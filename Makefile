# What a contributor runs. `make help` lists it.

SHELL       := bash
.SHELLFLAGS := -eu -o pipefail -c
MAKEFLAGS   += --no-print-directory

GO         ?= go
PKG        ?= work
TEST_FLAGS ?=
TIMEOUT    ?= 20m
BENCH      ?= .
BENCHTIME  ?= 1s
ROUNDS     ?= 5
FUZZTIME   ?= 10s
KEEP       ?= 0
RUNS       ?= 1
RUN        ?= 60s
CONFIG     ?=
ONLY       ?=
SEEDS      ?= 1000
VERSION    ?=
FROM       ?= 1

# How often make kills kills.
KILLS          ?= 500
DATABASE_KILLS ?= 100

# How many doubts make doubts settles, and how many a second.
DOUBTS ?= 100000
RATE   ?= 250

# Which runs of the model, and which deliberate faults. MUTANT_FLAGS=-quick needs no server.
MODEL        ?=
MUTANT       ?=
MUTANT_FLAGS ?=


# What make load measures.
C        ?= 1,8,64,256
DELAY    ?= 0s
CASES    ?=
ENSEMBLE ?= 3
WINDOW   ?= 2s
RECORDS  ?= 2000000
PROFILE  ?=
PLOT     ?= bin/load.svg

# Pinned, so that a lint verdict does not depend on the day. Built from source
# into ./bin by the Go toolchain that builds the project, which it has to match:
# no download from outside the module mirror, and after the first time nothing
# is left to do. `go run …@version` builds the same thing and then asks the go
# command on every call; a tool directive in go.mod would add its hundreds of
# dependencies to everybody's module graph.
GOLANGCI_VERSION    := v2.15.0
GOVULNCHECK_VERSION := v1.9.0
ACTIONLINT_VERSION  := v1.7.12
ACTIONLINT          := bin/actionlint-$(ACTIONLINT_VERSION)
GOLANGCI            := bin/golangci-lint-$(GOLANGCI_VERSION)
CYCLONEDX_VERSION   := v1.10.0
CYCLONEDX           := bin/cyclonedx-gomod-$(CYCLONEDX_VERSION)
BUF_VERSION         := v1.66.1
BUF                 := bin/buf-$(BUF_VERSION)
GOTESTSUM_VERSION   := v1.13.0
GOTESTSUM           := bin/gotestsum-$(GOTESTSUM_VERSION)
GORELEASER_VERSION  := v2.15.1
GREMLINS_VERSION    := v0.6.0
APIDIFF_VERSION     := v0.0.0-20261014143641-f0251eb4aa3e

# scripts/modules.txt says what these are. `work` is the go command's word for all packages of the modules in go.work.
PUBLISHED := $(shell awk '$$1 == "published" { print $$2 }' scripts/modules.txt)
WORKSPACE := $(shell awk '$$1 ~ /^(published|internal)$$/ { print $$2 }' scripts/modules.txt)
BESIDE    := $(shell awk '$$1 == "beside" { print $$2 }' scripts/modules.txt)
FOLDERS   := . $(if $(filter work,$(PKG)),$(BESIDE))

# These take longest, so that make test begins with them.
LONGEST := ./tests/sqlstore ./tests/faults ./tests/clients ./tests/chaos ./tests/idemctl ./tokenstore/redis

# What make cover looks at: the library without its drivers of tests and its generated code.
CORE  ?= ./idem ./tokenstore/... ./tokenstore/sql/pgx ./lock/... ./middleware/... ./sweeper ./fence
# Their tests with drivers are modules of their own.
OF_CORE := ./tests/sqlstore ./tests/sqllock ./tests/fence ./tests/sealed ./tests/console ./lock/zookeeper/histories
LEAST ?= 92

.DEFAULT_GOAL := help

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{ printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "  PKG=./idem TEST_FLAGS='-run Begin' BENCH=GRPC BENCHTIME=1x ROUNDS=1 FUZZTIME=1m KEEP=20 RUNS=20 RUN=60s CONFIG=joined SEEDS=1000 FROM=1 narrow them down."
	@echo "  DELAY=1ms C=64 CASES=plain,idemkeeper-zookeeper ENSEMBLE=1 WINDOW=2s RECORDS=0 PROFILE=bin/service.pprof PLOT=file.svg do so for make load."
	@echo "  IDEMKEEPER_TEST_ZOOKEEPER=host:port,…, IDEMKEEPER_TEST_REDIS=redis://…, IDEMKEEPER_TEST_POSTGRES=postgres://…, IDEMKEEPER_TEST_MARIADB=mysql://… and IDEMKEEPER_TEST_MYSQL=mysql://… name servers to use."
	@echo "  IDEMKEEPER_TEST_ROOT=/path/.matrix/mysql-9.7 names a server that make matrix has unpacked, to start."

# gotestsum prints the results, and scripts/count.awk counts them. The race detector needs cgo. A lazier garbage collector
# saves the compiler and the tests about a seventh of the time, and make lint has go vet.
.PHONY: test
test: servers $(GOTESTSUM) ## run every test with the race detector; the last line counts them
	@GOGC=400 CGO_ENABLED=1 GO=$(GO) GOTESTSUM=$(GOTESTSUM) scripts/test.sh $(if $(filter work,$(PKG)),-first '$(LONGEST)') $(addprefix -C ,$(FOLDERS)) -- -race -vet=off -p 2 -count=1 -timeout $(TIMEOUT) $(TEST_FLAGS) $(PKG)

# The workspace has newer versions, because the programs and the tests require them. -vet=off, as above.
.PHONY: minimum
minimum: servers $(GOTESTSUM) ## run the tests of the library, tokenstore/sql/pgx and observe on the oldest versions that they require; the last line counts them
	@GOGC=400 CGO_ENABLED=1 GO=$(GO) GOTESTSUM=$(GOTESTSUM) GOWORK=$(CURDIR)/scripts/minimum.work scripts/test.sh -C . -- -race -vet=off -p 2 -count=1 -timeout $(TIMEOUT) $(TEST_FLAGS) work

# The script adds -short, under which testserver skips each test that asks for a server.
.PHONY: quick
quick: $(GOTESTSUM) ## run the tests that need no server, in two minutes on two cores once they are compiled; the last line counts them and those left out
	@GOGC=400 GO=$(GO) GOTESTSUM=$(GOTESTSUM) scripts/test.sh -quick $(addprefix -C ,$(FOLDERS)) -- -p 6 -count=1 -timeout $(TIMEOUT) $(TEST_FLAGS) $(PKG)

.PHONY: bench
bench: servers ## measure it beside its peers: tables, and lines "RATIO name value goal"
	@cd bench && GOWORK=off $(GO) run ./cmd/compare -rounds $(ROUNDS) -benchtime $(BENCHTIME) -bench '$(BENCH)' -timeout $(TIMEOUT)

.PHONY: load
load: servers ## measure one Gin route under load beside its peers: a table, and lines "RATIO name value goal verdict"
	@mkdir -p bin
	@cd bench/load && GOWORK=off $(GO) test -count=1 -timeout 0 -run '^TestLoad$$' -args -connections '$(C)' -cases '$(CASES)' -delay '$(DELAY)' \
		-ensemble $(ENSEMBLE) -rounds $(ROUNDS) -warmup 500ms -window $(WINDOW) -keys 10000 -records $(RECORDS) \
		-json $(CURDIR)/bin/load.json -plot '$(abspath $(PLOT))' -profile '$(if $(PROFILE),$(abspath $(PROFILE)))'

.PHONY: microbench
microbench: ## run the benchmarks of the packages, ROUNDS times
	$(GO) test -run '^$$' -bench '$(BENCH)' -benchmem -benchtime $(BENCHTIME) -count $(ROUNDS) -timeout $(TIMEOUT) \
		$(if $(filter work,$(PKG)),$$(git grep -l '^func Benchmark' -- '*_test.go' $(BESIDE:%=':!%') | xargs dirname | sort -u | sed 's|^|./|'),$(PKG))

.PHONY: chaos
chaos: servers ## break real processes and servers under load, RUNS times for RUN in each configuration (CONFIG=name picks some); lines "FIGURE name value"
	@IDEMKEEPER_CHAOS_RUNS=$(RUNS) IDEMKEEPER_CHAOS_RUN=$(RUN) $(GO) test -count=1 -timeout 0 -v -run '^TestChaos$$/$(if $(CONFIG),^($(CONFIG)))' ./tests/chaos

.PHONY: api
api: servers ## validate the sample's answers against its openapi.json, and run its collection of requests, with grpcurl too
	cd tests/api && GOWORK=off $(GO) test -count=1 -tags grpcurl .

.PHONY: kills
kills: servers ## kill services and connections (KILLS times) and databases (DATABASE_KILLS times) while joined payments run, and misuse transactions; lines "FIGURE name value"
	@IDEMKEEPER_KILLS=$(KILLS) IDEMKEEPER_DATABASE_KILLS=$(DATABASE_KILLS) $(GO) test -count=1 -timeout 0 -v \
		-run '^TestJoined(PaysOnceWhile(InstancesAre|TheDatabaseIs)Killed|PaysOnceWhileConnectionsAreCut|MisuseNeverPaysTwice)$$' ./tests/sqlstore

.PHONY: doubts
doubts: servers ## export and settle DOUBTS outcomes in doubt at RATE a second while payments run, on PostgreSQL and Redis; lines "FIGURE name value"
	@IDEMKEEPER_DOUBTS=$(DOUBTS) IDEMKEEPER_DOUBTS_RATE=$(RATE) $(GO) test -count=1 -timeout 0 -v -run '^TestDoubtsByTheThousand$$' ./cmd/idemctl

.PHONY: crashtest
crashtest: servers ## break the sample and examples/ownhandlers at every step of a payment, in every mode and with every fault (ONLY=joined picks some); tables
	@IDEMKEEPER_CRASHTEST=full $(GO) test -count=1 -timeout 0 -v -run '^TestSampleSurvives$$/$(ONLY)' ./example-payments
	$(if $(ONLY),,@cd examples/ownhandlers && IDEMKEEPER_CRASHTEST=full GOWORK=off $(GO) test -count=1 -timeout 0 -v -run 'Survive|AreFound' .)

.PHONY: matrix
matrix: servers $(GOTESTSUM) ## run the tests of stores, locks and joined mode on servers of several generations (ONLY=valkey picks some), which it unpacks; a table, and the last line counts
	@CGO_ENABLED=1 GO=$(GO) GOTESTSUM=$(GOTESTSUM) TIMEOUT=$(TIMEOUT) scripts/matrix.sh '$(ONLY)'

# The older build is the last tag, and before the first tag a commit from which on tables, scripts and records have not changed.
OLDER ?= $(or $(shell git describe --tags --abbrev=0 2>/dev/null),46394dad)

.PHONY: rolling
rolling: servers ## replace instances of the commit OLDER=v0.1.0 by those of this one, and the other way around, while clients pay
	@rm -rf bin/older && mkdir -p bin/older && git archive $(OLDER) | tar -x -C bin/older
	@cd bin/older && $(GO) build -o ../older-sample ./example-payments
	@rm -r bin/older
	@IDEMKEEPER_OLDER_SAMPLE=$(CURDIR)/bin/older-sample $(GO) test -count=1 -v -run '^TestRollingUpgradeUnderLoad$$' ./tests/rolling

.PHONY: simulate
simulate: ## run SEEDS simulations of whole systems under faults, from seed FROM on; prints what fails and a line "FIGURE simulate"
	@$(GO) test -count=1 -timeout 0 -v -run '^TestSimulate$$' ./tests/simulate -args -seeds $(SEEDS) -from $(FROM) -failures 3

.PHONY: model
model: servers ## check the protocol's model in every reachable state, and that deliberate faults break it; MODEL=name picks runs
	@model/run.sh '$(MODEL)'

.PHONY: mutants
mutants: servers ## put deliberate faults into copies, one after the other, and show that a test catches each; MUTANT=text picks some
	@$(GO) run ./internal/tools/mutants -only '$(MUTANT)' $(MUTANT_FLAGS)

.PHONY: gremlins
gremlins: servers ## make small changes to PKG=./idem/driver/rules, one at a time, and name those that its own tests do not notice
	$(GO) run github.com/go-gremlins/gremlins/cmd/gremlins@$(GREMLINS_VERSION) unleash $(PKG)

# `go tool cover -html bin/cover.out` shows the lines that no test reaches. CI does not run it, because it
# would run these tests twice.
.PHONY: cover
cover: servers ## run the tests of the core packages, and print the share of statements that they reach; it fails below LEAST=92
	@rm -rf bin/cover && mkdir -p bin/cover
	@core=$$($(GO) list $(CORE) | grep -Ev '/(exchangetest|grpctest|zktest|recipetest|testproto/.*|proto/.*)$$'); \
		$(GO) test -count=1 -timeout $(TIMEOUT) -cover -coverpkg $$(echo $$core | tr ' ' ,) $$core $(OF_CORE) ./idem/idemtest ./cmd/idemctl \
		-args -test.gocoverdir=$(CURDIR)/bin/cover | sed -E 's/\tcoverage: .*//'
	@$(GO) tool covdata textfmt -i bin/cover -o bin/cover.out
	@$(GO) tool covdata percent -i bin/cover | grep -o '[^[:space:]]*[[:space:]]*coverage: [0-9.]*%' | awk -v least=$(LEAST) \
		'{ low = $$3 + 0 < least; bad += low; print "COVER " $$3 "  " $$1 (low ? "  BELOW " least : "") } END { exit !NR || bad > 0 }'

.PHONY: sbom
sbom: $(CYCLONEDX) ## write the modules of the library to bin/sbom.json and those in the programs to bin/sbom-idemctl.json and bin/sbom-example-payments.json, in CycloneDX
	GOWORK=off $(CYCLONEDX) mod -json -licenses -std -type library -output bin/sbom.json
	@for program in cmd/idemctl example-payments; do \
		name=$${program##*/} && $(GO) build -o bin/build/$$name ./$$program && \
		$(CYCLONEDX) bin -json -licenses -std -output bin/sbom-$$name.json bin/build/$$name && rm -r bin/build || exit; done

.PHONY: fuzz
fuzz: ## run every fuzz target for FUZZTIME; KEEP=20 keeps so many inputs of each that reached new code
	@GO=$(GO) scripts/fuzz.sh $(FUZZTIME) $(KEEP)

.PHONY: lint
lint: ## formatting, linters (go vet is one), import rules, known vulnerabilities, workflows: all of them, then the verdict
	@$(MAKE) -k format-check golangci imports vulncheck workflows

.PHONY: format-check
format-check:
	@unformatted="$$(gofmt -s -l .)"; if [[ -n $$unformatted ]]; then \
		echo "gofmt -s would change:"; echo "$$unformatted"; exit 1; fi

.PHONY: golangci-lint
golangci-lint: $(GOLANGCI)

.PHONY: golangci
golangci: golangci-lint
	@for module in $(WORKSPACE); do (cd $$module && set -x && $(CURDIR)/$(GOLANGCI) run ./...) || exit; done
	@for module in $(BESIDE); do (cd $$module && set -x && GOWORK=off $(CURDIR)/$(GOLANGCI) run ./...) || exit; done

.PHONY: imports
imports:
	$(GO) test tests/repository/imports_test.go # the one file, because the package takes long to build

.PHONY: workflows
workflows: $(ACTIONLINT)
	$(ACTIONLINT)

.PHONY: vulncheck
vulncheck:
	@GO=$(GO) scripts/vulncheck.sh $(GOVULNCHECK_VERSION) $(WORKSPACE:%=./%/...)

.PHONY: apicheck
apicheck: ## compare the exported Go names with those of the last tag
	@GO=$(GO) scripts/apicheck.sh $(APIDIFF_VERSION)

.PHONY: release
release: ## check that VERSION=v0.1.0 can be tagged, and prove it with modules from zips; it prints the tags and makes none
	@$(GO) run ./internal/tools/release -version '$(VERSION)'

.PHONY: versions
versions: ## have the modules of the workspace require VERSION=v0.1.0 of each other
	@sed -i -E 's|^(.*github.com/idemkeeper/idemkeeper[^ ]*) v[0-9][^ ]*|\1 $(VERSION)|' go.work scripts/minimum.work $(WORKSPACE:%=%/go.mod)

.PHONY: releasecheck
releasecheck: ## check .goreleaser.yaml with goreleaser, and build the crash kit for Windows, which compiles for minutes the first time
	GOOS=windows $(GO) build ./crashtest/... ./crashtest/pgx
	$(GO) run github.com/goreleaser/goreleaser/v2@$(GORELEASER_VERSION) check

.PHONY: generate
generate: $(BUF) ## check the protobuf files, and generate their code and that of examples/sql
	@for dir in example-payments/proto middleware/grpc/proto middleware/grpc/internal/testproto; do \
		(cd $$dir && $(CURDIR)/$(BUF) lint && $(CURDIR)/$(BUF) generate); done
	cd examples/sql && GOWORK=off $(GO) generate ./...

.PHONY: tidy
tidy: ## run go mod tidy in every module
	@GO=$(GO) scripts/tidy.sh

.PHONY: format
format: ## let gofmt rewrite the code
	gofmt -s -w .

.PHONY: servers
servers: ## find or install ZooKeeper, Redis, PostgreSQL, PgBouncer, MariaDB, nginx, HAProxy, Chromium, spin, faketime, a C compiler, and the languages of examples/clients
	@scripts/servers.sh

.PHONY: clean
clean: ## remove what was built here
	rm -rf bin

$(GOLANGCI):
	GOBIN=$(CURDIR)/bin/build CGO_ENABLED=0 $(GO) install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_VERSION)
	mv bin/build/golangci-lint $@ && rmdir bin/build

$(ACTIONLINT):
	GOBIN=$(CURDIR)/bin/build CGO_ENABLED=0 $(GO) install github.com/rhysd/actionlint/cmd/actionlint@$(ACTIONLINT_VERSION)
	mv bin/build/actionlint $@ && rmdir bin/build

$(BUF):
	GOBIN=$(CURDIR)/bin/build CGO_ENABLED=0 $(GO) install github.com/bufbuild/buf/cmd/buf@$(BUF_VERSION)
	mv bin/build/buf $@ && rmdir bin/build

$(CYCLONEDX):
	GOBIN=$(CURDIR)/bin/build CGO_ENABLED=0 $(GO) install github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod@$(CYCLONEDX_VERSION)
	mv bin/build/cyclonedx-gomod $@ && rmdir bin/build

$(GOTESTSUM):
	GOBIN=$(CURDIR)/bin/build CGO_ENABLED=0 $(GO) install gotest.tools/gotestsum@$(GOTESTSUM_VERSION)
	mv bin/build/gotestsum $@ && rmdir bin/build
