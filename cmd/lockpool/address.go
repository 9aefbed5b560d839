package main

// This file finds the addresses of other clients, whose nodes may say nothing of the owner.

import (
	"context"
	"regexp"
	"sync"
	"time"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/driver/zookeeper"
)

// addresses are the addresses of clients, as the servers have told.
type addresses struct {
	bySession map[string]string
	asked     time.Time
}

// locate asks the servers about new sessions, every ten seconds at most, and names the contenders.
func (a *addresses) locate(ctx context.Context, c *connection, queues ...lockpool.Queue) {
	if a.name(queues...) || time.Since(a.asked) < 10*time.Second {
		return
	}
	if s, err := c.service(); err == nil && s.addresses != nil {
		a.bySession, a.asked = s.addresses(ctx), time.Now()
		a.name(queues...)
	}
}

// name adds the addresses to contenders that say nothing of the owner, and reports whether all
// are known.
func (a *addresses) name(queues ...lockpool.Queue) (all bool) {
	all = true
	for _, q := range queues {
		for i := range q.Contenders {
			if c := &q.Contenders[i]; c.Host == "" && c.PID == 0 {
				c.Host = a.bySession[c.Session]
				all = all && c.Host != ""
			}
		}
	}
	return all
}

var connectionLine = regexp.MustCompile(`(?m)^ /([^\[\n]+)\[.*[(,]sid=(0x[0-9a-f]+),`)

// addressesOf returns the addresses of clients by session. ZooKeeper's servers tell if they allow
// the four letter word cons (4lw.commands.whitelist).
func addressesOf(ctx context.Context, cfg zookeeper.Config) map[string]string {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	d := &doctor{cfg: cfg}
	answers := make([]string, len(cfg.Servers))
	var asked sync.WaitGroup
	for i, server := range cfg.Servers {
		asked.Go(func() { answers[i], _ = d.ask(ctx, server, "cons") })
	}
	asked.Wait()
	found := map[string]string{}
	for _, answer := range answers {
		for _, m := range connectionLine.FindAllStringSubmatch(answer, -1) {
			found[m[2]] = m[1]
		}
	}
	return found
}
