# The commands of this repository. `make test` needs Debian or Ubuntu, and Go. It
# installs everything else that the tests need with apt-get.

.PHONY: test test-root test-root-plain test-root-real test-behavior-real test-driver test-driver-real test-laws-real test-programs test-waiting test-etcd test-versions differential torture torture-zookeeper torture-etcd simulate bugs fuzz vet tidy release-check bench bench-etcd deps help

# Tests run in networks of their own, which some of them need, and none sees the networks of others.
own_network := -exec $(CURDIR)/.ci/own-network

DURATION ?= 10m
SEED ?= 1
DRIVER ?= zookeeper
YEARS ?= 0.001

# The root package, and the driver, measure how long something takes, so nothing that keeps
# the processors busy runs beside them but each other: the tests of the driver mostly wait.
# The race detector would sleep for a second at the end of every process. Without it,
# package recipe walks more interleavings, bench compares docs/scale.md with a server's counts
# in a fifth of the time, and the programs of insights and metrics take much less. Collecting
# garbage less often saves a tenth of the processor time, which is what the tests lack. On real
# servers, the race detector would see the code that it sees on embedded ones, in twice the
# time; test-versions uses it there.
timed := . ./driver/zookeeper
programs := ./cmd/lockpool/insights ./examples/metrics
waiting := ./testing/ensemble ./driver/etcd ./driver/memory
go_test := GORACE=atexit_sleep_ms=10 GOGC=400 go test $(own_network) -race -timeout 15m

# Real servers are the installed ZooKeeper, or the newer one: test has the driver on the newer one
# and the rest on the installed one, test-versions the other way round.
newer := ZOOKEEPER_HOME=$$(./.ci/newer-zookeeper)

test: deps ## all tests, with the race detector, on embedded and on real ZooKeeper servers
	$(MAKE) --no-print-directory -j 2 -O test-root test-driver
	$(MAKE) --no-print-directory -j 5 -O test-root-plain test-root-real test-driver-real test-behavior-real test-laws-real test-waiting test-programs
	$(go_test) -p 4 -parallel 4 ./cmd/lockpool $$(go list work | grep -vxF "$$(go list $(timed) $(programs) $(waiting) ./bench ./cmd/lockpool)" | sort -r) # the longest begin first

test-root:
	$(go_test) -skip '^TestEveryFaultAtEveryRequest$$' .

# Users do not run the race detector, with which a bubble uses one processor. The fault table
# runs here alone: the race detector triples its time. Tests on real servers mostly wait, one
# after the other, so the longest are processes of their own.
test-root-plain:
	GOGC=400 go test $(own_network) -timeout 15m .
	GOGC=400 go test -run Interleaving ./recipe
	GOGC=400 go test ./bench

test-programs: # this and test-waiting begin when others have ended
	GOGC=400 go test $(programs)

test-waiting:
	$(go_test) -p 3 -parallel 4 $(waiting)

test-root-real:
	GOGC=400 go test $(own_network) -timeout 15m -parallel 4 -skip '^TestBehavior$$' . -server real

test-behavior-real:
	GOGC=400 go test $(own_network) -timeout 15m -run '^TestBehavior$$' . -server real

test-driver:
	$(go_test) ./driver/zookeeper

test-etcd: deps ## the tests of driver/etcd, on the newest etcd and on the one that is installed, and its vet and staticcheck; 9 minutes
	GORACE=atexit_sleep_ms=10 GOGC=400 go -C driver/etcd test -race -timeout 15m ./... ./etcdtest/...
	go -C driver/etcd vet ./... ./etcdtest/...
	GOWORK=off go -C tools build -o ../bin/ honnef.co/go/tools/cmd/staticcheck
	cd driver/etcd && ../../bin/staticcheck . ./etcdtest/...

test-driver-real:
	$(newer) GOGC=400 go test $(own_network) -timeout 15m -parallel 4 -skip '^TestLaws$$' ./driver/zookeeper -server real

test-laws-real:
	$(newer) GOGC=400 go test $(own_network) -timeout 15m -run '^TestLaws$$' ./driver/zookeeper -server real

test-versions: deps ## the tests on real servers with the race detector, each with the version of ZooKeeper that make test leaves out; 10 minutes
	$(go_test) -parallel 4 ./driver/zookeeper -server real
	$(newer) $(go_test) -parallel 4 . -server real
	$(newer) $(go_test) ./testing/ensemble ./testing/interop
	$(newer) $(go_test) ./testing/zktest -run 'TestReal|TestFaults'
	$(newer) $(MAKE) torture DURATION=2m

differential: deps ## DURATION of random programs, which must get the same replies from both kinds of servers
	go test -timeout 0 -run TestDifferential ./testing/zktest -differential $(DURATION)

torture: deps ## DURATION of random faults, from SEED, on three real servers of DRIVER (zookeeper or etcd): locks must stay exclusive
	@$(MAKE) --no-print-directory torture-$(DRIVER)

torture-zookeeper:
	go run $(own_network) ./testing/lab/torture -duration $(DURATION) -seed $(SEED)

torture-etcd:
	go -C driver/etcd run ./etcdtest/torture -duration $(DURATION) -seed $(SEED)

simulate: ## YEARS of virtual time, from SEED, of random faults on embedded ensembles: locks must keep their guarantees
	go run ./testing/lab/simulate -years $(YEARS) -seed $(SEED) $(if $(STATE),-state $(STATE))

bugs: YEARS = 0.01
bugs: ## each planted bug in turn: the laws, the tests of behavior, or the simulation in YEARS of virtual time must find it
	go test -timeout 30m ./driver/drivertest ./testing/behavior -run TestBugsAreFound -all
	go run ./testing/lab/simulate/bugs -years $(YEARS) -seed $(SEED)

fuzz: ## DURATION of arbitrary bytes for the embedded server, and as much again for its decoder
	go test -run '^$$' -fuzz FuzzDecoder -fuzztime $(DURATION) ./testing/zktest
	go test -run '^$$' -fuzz FuzzConnection -fuzztime $(DURATION) ./testing/zktest

vet: ## gofmt, go vet and staticcheck
	@test -z "$$(gofmt -l .)" || { echo "not gofmt-ed:"; gofmt -l .; exit 1; }
	go vet work
	GOWORK=off go -C tools vet ./...
	GOWORK=off go -C tools build -o ../bin/ honnef.co/go/tools/cmd/staticcheck
	bin/staticcheck work

tidy: ## go mod tidy in every module, with the version of the library that go.work names
	GOWORK=off go -C tools run ./release tidy
	go work sync
	go mod download

release-check: ## the modules as users get them: go get, go install and go vet outside the workspace
	GOWORK=off go -C tools run ./release check

bench: deps ## the tables in README.md and docs/performance.md; takes an hour on an idle machine
	go run ./bench -write
	$(MAKE) bench-etcd

bench-etcd: ## the table of driver/etcd beside etcd's own Mutex, which is printed; a minute, and the time to compile etcd
	go -C driver/etcd run ./etcdtest/bench

deps: ## install the packages that the tests need and the machine lacks
	@./.ci/deps
	@./.ci/newer-zookeeper >/dev/null

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-14s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
