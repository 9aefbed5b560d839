package main

// This file has the commands for injecting faults.

import (
	"context"
	"errors"
	"maps"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/lockpool/lockpool/testing/zktest"
)

// fault is an injected rule.
type fault struct {
	number int
	rule   zktest.Rule
	*zktest.Fault
}

// actions are the actions of package zktest by name, except Call, because a Call runs code.
var actions = map[string]func(*arguments) zktest.Action{
	"Pass":              plain(zktest.Pass),
	"DropBeforeApply":   plain(zktest.DropBeforeApply),
	"ResetBeforeApply":  plain(zktest.ResetBeforeApply),
	"DropAfterApply":    plain(zktest.DropAfterApply),
	"ResetAfterApply":   plain(zktest.ResetAfterApply),
	"ResetAfterReply":   plain(zktest.ResetAfterReply),
	"Swallow":           plain(zktest.Swallow),
	"HoldApply":         plain(zktest.HoldApply),
	"HoldReply":         plain(zktest.HoldReply),
	"ExpireBeforeApply": plain(zktest.ExpireBeforeApply),
	"ExpireAfterApply":  plain(zktest.ExpireAfterApply),
	"Freeze":            plain(zktest.Freeze),
	"DelayApply":        timed(zktest.DelayApply),
	"DelayReply":        timed(zktest.DelayReply),
	"TruncateReply": func(a *arguments) zktest.Action {
		a.require("bytes")
		return zktest.TruncateReply(a.integer("bytes", 0, 0, math.MaxInt32))
	},
	"FailWith": func(a *arguments) zktest.Action {
		a.require("code")
		return zktest.FailWith(zktest.Code(a.integer("code", 0, math.MinInt32, -1)))
	},
}

func plain(f func() zktest.Action) func(*arguments) zktest.Action {
	return func(*arguments) zktest.Action { return f() }
}

func timed(f func(time.Duration) zktest.Action) func(*arguments) zktest.Action {
	return func(a *arguments) zktest.Action {
		a.require("duration")
		return f(a.duration("duration", 0))
	}
}

const injectParams = selectorParams + " [op=NAME]... [prefix=PATH] [skip=NUMBER] [times=NUMBER|always] action=NAME [duration=DURATION] [bytes=NUMBER] [code=NUMBER]"

func injectDoes() string {
	return "do something to matching requests: by default to the next one of any kind. The answer has the number of the fault. op is\n" +
		"    the operation, such as create2 or getData, connect for handshakes, event for watch events; creates and lists stand for all\n" +
		"    of a kind. skip matching requests pass first, then times (default 1) are hit. DelayApply and DelayReply\n" +
		"    need a duration, TruncateReply bytes, and FailWith a code, such as -4 (connection loss) or -101 (no node). The actions are:\n" +
		"    " + actionNames()
}

func actionNames() string { return strings.Join(slices.Sorted(maps.Keys(actions)), ", ") }

func inject(c *control, a *arguments) action {
	rule := zktest.Rule{
		Match: zktest.Match{Selector: a.selector(), Ops: a.ops(), Prefix: a.path("prefix")},
		Skip:  a.integer("skip", 0, 0, math.MaxInt32),
	}
	if a.text("times") == "always" {
		rule.Times = zktest.Always
	} else {
		rule.Times = a.integer("times", 1, 1, math.MaxInt32)
	}
	a.require("action")
	name := a.text("action")
	if newAction, ok := actions[name]; ok {
		rule.Do = newAction(a)
		if err := rule.Validate(); err != nil {
			a.fail(http.StatusBadRequest, "%w", err)
		}
	} else {
		a.known["duration"], a.known["bytes"], a.known["code"] = true, true, true // of the intended action
		a.fail(http.StatusBadRequest, "action=%s: the actions are %s", name, actionNames())
	}
	return func(context.Context) (any, error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		f := &fault{len(c.faults) + 1, rule, c.server.Inject(rule)}
		c.faults = append(c.faults, f)
		return f.json(), nil
	}
}

// ops returns the operations in the parameter "op".
func (a *arguments) ops() (ops []zktest.Op) {
	for _, name := range a.list("op") {
		switch name {
		case "creates":
			ops = append(ops, zktest.Creates...)
		case "lists":
			ops = append(ops, zktest.Lists...)
		default:
			op, err := zktest.ParseOp(name)
			if err != nil {
				a.fail(http.StatusBadRequest, "op=%s: %w", name, err)
			}
			ops = append(ops, op)
		}
	}
	return ops
}

type faultJSON struct {
	Fault int    `json:"fault"`
	Rule  string `json:"rule"`
	Times int    `json:"times"` // -1 stands for always
	Fired int    `json:"fired"`
}

func (f *fault) json() faultJSON {
	return faultJSON{f.number, f.rule.String(), f.rule.Times, f.Fired()}
}

func faults(c *control, _ *arguments) action {
	return func(context.Context) (any, error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		all := []faultJSON{}
		for _, f := range c.faults {
			all = append(all, f.json())
		}
		return all, nil
	}
}

func wait(_ *control, a *arguments) action {
	f, timeout := a.fault(), a.duration("timeout", 10*time.Second)
	return func(ctx context.Context) (any, error) {
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		if err := f.Wait(ctx); errors.Is(err, context.DeadlineExceeded) {
			return nil, status{http.StatusGatewayTimeout, err}
		} else if err != nil {
			return nil, err
		}
		return f.json(), nil
	}
}

// onFault is a prepare for an injected fault.
func onFault(do func(*zktest.Fault)) func(*control, *arguments) action {
	return func(_ *control, a *arguments) action {
		f := a.fault()
		return func(context.Context) (any, error) { do(f.Fault); return nil, nil }
	}
}
