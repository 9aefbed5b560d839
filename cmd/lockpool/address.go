package main

// This file finds the addresses of other clients, whose nodes may say nothing of the owner.

import (
	"context"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/driver/zookeeper"
)

// addresses are the addresses of clients, as the servers have told.
type addresses struct {
	bySession map[string]string
	asked     time.Time
	took      time.Duration
}

// locate adds the addresses of the sessions to contenders that say nothing of the owner, as far
// as the servers tell. The servers are asked again after ten seconds if a session is unknown, and
// after a minute if not, as addresses change. They may be silent, which takes two seconds.
func (a *addresses) locate(ctx context.Context, c *connection, queues ...lockpool.Queue) {
	strangers, age := a.name(queues...), time.Since(a.asked)
	unknown := slices.ContainsFunc(strangers, func(s *lockpool.Contender) bool { return s.Host == "" })
	if len(strangers) == 0 || age < max(10*time.Second, 30*a.took) || !unknown && age < time.Minute {
		return
	}
	if s, err := c.service(); err == nil && s.addresses != nil {
		a.asked = time.Now()
		a.bySession = s.addresses(ctx)
		a.took = time.Since(a.asked)
		for _, stranger := range strangers {
			stranger.Host = a.bySession[stranger.Session]
		}
	}
}

// name adds the addresses that are known, and returns the contenders that say nothing of the owner.
func (a *addresses) name(queues ...lockpool.Queue) (strangers []*lockpool.Contender) {
	for _, q := range queues {
		for i := range q.Contenders {
			if c := &q.Contenders[i]; c.Host == "" && c.PID == 0 {
				c.Host = a.bySession[c.Session]
				strangers = append(strangers, c)
			}
		}
	}
	return strangers
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
