# The commands of this repository. `make test` needs Debian (or Ubuntu) and Go;
# it installs what else the tests need with apt-get.

.PHONY: test differential torture fuzz vet bench deps

# Tests make networks, which takes root, if only of a namespace.
as_root := $(if $(filter-out 0,$(shell id -u)),-exec $(CURDIR)/.ci/own-network)

test: deps ## everything, with the race detector; locks on an embedded and on a real ZooKeeper
	go test $(as_root) -race -p 1 -timeout 15m work
	go test $(as_root) -race -timeout 15m . -server real

DURATION ?= 10m
SEED ?= 1

differential: deps ## random programs on the embedded and the real server: must be the same
	go test -timeout 0 -run TestDifferential ./testing/zktest -differential $(DURATION)

torture: deps ## faults of servers, clients and the network, on a real ensemble: locks must stay exclusive
	go run $(as_root) ./testing/torture -duration $(DURATION) -seed $(SEED)

fuzz: ## anything, sent to the embedded server
	go test -run '^$$' -fuzz FuzzDecoder -fuzztime $(DURATION) ./testing/zktest
	go test -run '^$$' -fuzz FuzzConnection -fuzztime $(DURATION) ./testing/zktest

vet: ## formatting, go vet and staticcheck
	@test -z "$$(gofmt -l .)" || { echo "not gofmt-ed:"; gofmt -l .; exit 1; }
	go vet work
	GOWORK=off go -C tools build -o ../bin/ honnef.co/go/tools/cmd/staticcheck
	bin/staticcheck work

bench: deps ## the table of the README; takes about ten minutes, alone on the machine
	go run ./bench

deps: # ZooKeeper, Java and a C compiler, unless they are there
	@./.ci/deps
