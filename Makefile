# The commands of this repository. `make test` needs Debian (or Ubuntu) and Go;
# it installs what else the tests need with apt-get.

.PHONY: test vet bench deps

test: deps ## everything, with the race detector, on real ZooKeeper servers
	go test -race -p 1 -timeout 15m work

vet: ## formatting, go vet and staticcheck
	@test -z "$$(gofmt -l .)" || { echo "not gofmt-ed:"; gofmt -l .; exit 1; }
	go vet work
	GOWORK=off go -C tools build -o ../bin/ honnef.co/go/tools/cmd/staticcheck
	bin/staticcheck work

bench: deps ## the table of the README; takes about ten minutes, alone on the machine
	go run ./bench

deps: # ZooKeeper, Java and a C compiler, unless they are there
	@./.ci/deps
