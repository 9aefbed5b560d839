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

// locate adds the addresses of the sessions to contenders that say nothing of the owner, as far
// as the servers tell.
func (c *connection) locate(ctx context.Context, queues ...lockpool.Queue) {
	var strangers []*lockpool.Contender
	for _, q := range queues {
		for i := range q.Contenders {
			if s := &q.Contenders[i]; s.Host == "" && s.PID == 0 {
				strangers = append(strangers, s)
			}
		}
	}
	if s, err := c.service(); err == nil && s.addresses != nil && len(strangers) > 0 {
		found := s.addresses(ctx)
		for _, stranger := range strangers {
			stranger.Host = found[stranger.Session]
		}
	}
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
