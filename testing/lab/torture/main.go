//go:build linux

// Command torture injects random faults into a real ensemble of three ZooKeeper servers and
// its clients, and checks the guarantees of locks. Every other client uses the layout for
// kazoo. Package campaign says what is done and what is checked.
//
//	go run ./testing/lab/torture [-duration 10m] [-seed 1]
//
// The command needs Linux, and what zktest needs to start real servers and to separate them.
package main

import (
	"context"
	"fmt"
	"math"
	"os"
	"strings"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/driver/zookeeper"
	"github.com/lockpool/lockpool/testing/lab/torture/campaign"
	"github.com/lockpool/lockpool/testing/zktest"
)

func main() {
	campaign.RunClient(engine)
	os.Exit(campaign.Main(engine))
}

var engine = campaign.Engine{Start: start, Open: open}

const (
	chroot = "/torture"
	// syncLimit is the number of ticks after which members notice that they have lost each
	// other. It is longer than session timeouts, so that a follower cut off from the leader
	// goes on serving while sessions expire: leases are made for this case.
	syncLimit = "8"
)

// layouts are the layouts of the clients, in turn. They all exclude each other.
var layouts = []zookeeper.Layout{zookeeper.LayoutCurator, zookeeper.LayoutKazoo}

func open(c campaign.Client, opts ...lockpool.Option) (*lockpool.Pool, error) {
	return lockpool.Open("zookeeper", fmt.Sprintf("%s%s?session_timeout=%s&layout=%s",
		strings.Join(c.Servers, ","), chroot, c.Timeout, layouts[c.Process%len(layouts)]), opts...)
}

func start(ctx context.Context) (campaign.Cluster, error) {
	e, err := zktest.RunRealEnsemble(ctx, campaign.Members, zktest.Separated(), zktest.TickTime(campaign.Tick), zktest.MaxClientConns(0),
		zktest.Properties(map[string]string{"syncLimit": syncLimit}))
	if err != nil {
		return nil, err
	}
	return ensemble{e}, nil
}

type ensemble struct{ *zktest.RealEnsemble }

func (e ensemble) Addr(member int) string   { return e.Member(member).Addr() }
func (e ensemble) Kill(member int) error    { return e.Member(member).Kill() }
func (e ensemble) Restart(member int) error { return e.Member(member).Start(context.Background()) }
func (e ensemble) Pause(member int) error   { return e.Member(member).Pause() }
func (e ensemble) Resume(member int) error  { return e.Member(member).Resume() }

func (e ensemble) Leader(ctx context.Context) (int, error) {
	leader, err := e.RealEnsemble.Leader(ctx)
	for i := range e.Len() {
		if e.Member(i) == leader {
			return i, err
		}
	}
	return -1, err
}

func (e ensemble) Link(member int, connected func()) (campaign.Link, error) {
	p, err := zktest.RunProxy(e.Member(member).Addr())
	if err != nil {
		return nil, err
	}
	p.Inject(zktest.Rule{
		Match: zktest.Match{Ops: []zktest.Op{zktest.OpConnect}}, Times: math.MaxInt,
		Do: zktest.Call(func(zktest.Request) { connected() }),
	})
	return link{p}, nil
}

type link struct{ *zktest.Proxy }

// all selects every connection.
var all zktest.Selector

func (l link) Reset()    { l.Proxy.Reset(all) }
func (l link) HalfOpen() { l.Proxy.HalfOpen(all) }

func (l link) Hold(requests, replies bool) {
	direction := zktest.Both
	switch {
	case !replies:
		direction = zktest.Inbound
	case !requests:
		direction = zktest.Outbound
	}
	l.Partition(all, direction)
}
