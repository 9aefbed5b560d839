package main

// This file has faults in several steps, each at a moment that makes the next step
// dangerous.

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/lockpool/lockpool/testing/zktest"
)

// chain is a fault in several steps, at the moments when the longest holder of a lock has
// just learned that the session lives.
type chain struct {
	*instance
	step
	session int64
	over    bool
	heals   []func()
}

// series is a fault of such steps, each calling the next one. The steps are over when the
// fault is.
func series(steps ...func(c *chain, next func())) func(b *bubble, s step) (string, func()) {
	return func(b *bubble, s step) (string, func()) {
		s.Holder = true
		c := &chain{instance: b.target(s), step: s}
		if c.session = c.conn().Session; c.session == 0 {
			return c.name + ", which has no session", nil
		}
		begin := func() {}
		for _, do := range slices.Backward(steps) {
			next := begin
			begin = func() { do(c, next) }
		}
		begin()
		b.later(4*c.timeout(), c.heal)
		return c.name, c.heal
	}
}

func (c *chain) heal() {
	for _, heal := range c.heals {
		heal()
	}
	c.over, c.heals = true, nil
}

// after goes on when the process has been answered some requests.
func (c *chain) after(count int, next func(), ops ...zktest.Op) {
	f := c.server.Inject(zktest.Rule{
		Match: zktest.Match{Selector: zktest.Selector{Session: c.session}, Ops: ops}, Times: count, Do: zktest.Pass(),
	})
	c.delayed.Go(func() { // ends when the fault is over, at the latest
		defer f.Remove()
		ctx, cancel := context.WithTimeout(context.Background(), c.Lasts)
		defer cancel()
		if f.Wait(ctx) != nil {
			return
		}
		time.Sleep(time.Nanosecond) // until the answer is on the way
		c.faulting.Lock()
		defer c.faulting.Unlock()
		if !c.over {
			next()
		}
	})
}

var writes = slices.Concat(zktest.Creates, []zktest.Op{zktest.OpDelete, zktest.OpMulti})

func (c *chain) afterWrite(next func()) { c.after(1, next, writes...) }
func (c *chain) afterSyncs(next func()) { c.after(3, next, zktest.OpSync) } // a write follows

// afterProofs goes on when the lease rests on a proof from after a pause of the leader,
// before the leader's next ping.
func (c *chain) afterProofs(next func()) {
	c.after(4, next, slices.Concat(writes, []zktest.Op{zktest.OpSync})...)
}

func (c *chain) afterConnect(next func()) { c.after(1, next, zktest.OpConnect) }

func (c *chain) reset(next func()) {
	next() // before the process connects again
	c.server.Reset(c.selector())
}

// silence keeps the leader from hearing of the process. The process still gets the answers
// on the way.
func (c *chain) silence(func()) {
	c.server.Partition(c.selector(), zktest.Inbound)
	c.heals = append(c.heals, func() { c.server.HealOnly(c.selector(), zktest.Inbound) })
	if n := c.conn().Member; n != 0 && n != c.server.Leader() {
		c.heals = append(c.heals, isolate(c.bubble, c.step, n))
	}
}

// pauseLeader pauses the leader, whose next ping is then late.
func (c *chain) pauseLeader(next func()) {
	resume := pause(c.bubble, c.step, leader(c.bubble, c.step)[0])
	c.heals = append(c.heals, resume)
	c.later(c.share(c.step, 8), func() { resume(); next() })
}

// slow delays answers, but not enough to make the process leave the server.
func (c *chain) slow(next func()) { c.delayAnswers(c.share(c.step, 8)); next() }

// slowWrites delays the answers to writes, in half of the cases.
func (c *chain) slowWrites(next func()) {
	if c.Amount > 0.5 {
		c.delayAnswers(c.share(c.step, 4), writes...)
	}
	next()
}

func (c *chain) delayAnswers(d time.Duration, ops ...zktest.Op) {
	f := c.server.Inject(zktest.Rule{
		Match: zktest.Match{Selector: zktest.Selector{Session: c.session}, Ops: ops}, Times: zktest.Always, Do: zktest.DelayReply(d),
	})
	c.heals = append(c.heals, f.Remove)
}

// joinLeader makes the process connect to the leader, by cutting the process off from the
// others.
func (c *chain) joinLeader(next func()) {
	old := leader(c.bubble, c.step)[0]
	for n := range c.Members {
		if sel := (zktest.Selector{Host: c.host, Member: n + 1}); n+1 != old {
			c.server.Partition(sel, zktest.Both)
			c.heals = append(c.heals, func() { c.server.HealOnly(sel, zktest.Both) })
			c.server.Reset(sel)
		}
	}
	next()
}

// replaceLeader cuts the leader off from the others, who notice at once. The old leader
// notices only later.
func (c *chain) replaceLeader(func()) {
	old := leader(c.bubble, c.step)[0]
	c.heals = append(c.heals, isolate(c.bubble, c.step, old))
	for n := range c.Members {
		if n+1 != old {
			_ = c.server.StopMember(n + 1)
			_ = c.server.StartMember(n + 1)
		}
	}
}

// conn returns a connection of the process, or none.
func (i *instance) conn() (conn zktest.Conn) {
	for _, c := range i.server.State().Conns {
		if strings.HasPrefix(c.Addr, i.host+":") {
			conn = c
		}
	}
	return conn
}

// timeout returns the timeout of the process's sessions.
func (i *instance) timeout() time.Duration { return min(i.client.Timeout, i.Longest) }

// share returns less than one of n equal parts of the process's session timeout.
func (i *instance) share(s step, n int) time.Duration {
	return time.Duration(0.95 * s.Amount * float64(i.timeout()) / float64(n))
}
