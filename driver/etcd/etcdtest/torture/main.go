//go:build linux

// Command torture injects random faults into an etcd cluster of three processes and its
// clients, and checks the guarantees of locks. Package campaign of testing/lab/torture says
// what is done and what is checked; besides, the leader is moved, and leases are revoked.
//
//	go -C driver/etcd run ./etcdtest/torture [-installed] [-duration 10m] [-seed 1]
//
// The servers are the newest etcd, or with -installed the command etcd of this machine. The
// command needs Linux.
package main

import (
	"flag"
	"os"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/driver/etcd"
	"github.com/lockpool/lockpool/testing/lab/torture/campaign"
)

var installed = flag.Bool("installed", false, "run the command etcd of this machine, which is an older one")

func main() {
	runMember()
	campaign.RunClient(engine)
	os.Exit(campaign.Main(engine))
}

var engine = campaign.Engine{Start: start, Open: open, Faults: faults}

const prefix = "torture"

func open(c campaign.Client, opts ...lockpool.Option) (*lockpool.Pool, error) {
	connector, err := etcd.NewConnector(etcd.Config{Endpoints: c.Servers, Prefix: prefix, TTL: c.Timeout})
	if err != nil {
		return nil, err
	}
	return lockpool.OpenConnector(connector, opts...)
}
