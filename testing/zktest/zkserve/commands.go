package main

// This file has the commands of the control interface.

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/lockpool/lockpool/testing/zktest"
)

// command is a command of the control interface.
type command struct {
	method, path string
	params       string // names and values, for the list
	does         string
	example      string // parameters

	// prepare reads the parameters and returns the action. The action's result is text, or
	// is answered as JSON.
	prepare func(*control, *arguments) action
}

type action func(context.Context) (any, error)

// do is a command's prepare without parameters.
func do(f func(*zktest.Server, context.Context) error) func(*control, *arguments) action {
	return func(c *control, _ *arguments) action {
		return func(ctx context.Context) (any, error) { return nil, f(c.server, ctx) }
	}
}

// connections is a prepare for selected connections, at least one.
func connections(f func(*zktest.Server, zktest.Selector)) func(*control, *arguments) action {
	return func(c *control, a *arguments) action {
		sel := a.connected()
		return func(context.Context) (any, error) { f(c.server, sel); return nil, nil }
	}
}

// ports is a prepare for the given members, or for all if none are given.
func ports(f func(*zktest.Server, ...int) error) func(*control, *arguments) action {
	return func(c *control, a *arguments) action {
		members := a.members("member")
		return func(context.Context) (any, error) { return nil, f(c.server, members...) }
	}
}

// member is a prepare for one member.
func member(f func(*zktest.Server, int) error) func(*control, *arguments) action {
	return func(c *control, a *arguments) action {
		a.require("member")
		n := a.member("member")
		return func(context.Context) (any, error) { return nil, f(c.server, n) }
	}
}

// allOr is a prepare for one member if one is given, and otherwise for all of them
// together.
func allOr(all func(*zktest.Server, context.Context) error, one func(*zktest.Server, int) error) func(*control, *arguments) action {
	return func(c *control, a *arguments) action {
		n := a.member("member")
		return func(ctx context.Context) (any, error) {
			if n != 0 {
				return nil, one(c.server, n)
			}
			return nil, all(c.server, ctx)
		}
	}
}

// read is a prepare for a command answered with a part of the server's state.
func read[T any](f func(*zktest.State) []T) func(*control, *arguments) action {
	return func(c *control, _ *arguments) action {
		return func(context.Context) (any, error) { return append([]T{}, f(c.server.State())...), nil }
	}
}

// commands returns the table of the commands, in the order of the list.
func commands() []command {
	const get, post = http.MethodGet, http.MethodPost
	return []command{
		{get, "/", "", "this list", "", list},

		{get, "/members", "", "the members, their addresses, and which one leads", "", members},
		{get, "/sessions", "", "the sessions, their timeouts, connections and ephemerals", "", read(sessions)},
		{get, "/connections", "", "the connections, their members and sessions", "", read(conns)},
		{get, "/watches", "", "the watches of clients", "", read(watches)},
		{get, "/nodes", "[prefix=PATH]", "the nodes whose paths begin with the prefix", "prefix=/locks", nodes},
		{get, "/trace", "", "the latest requests, replies, events and expiries, as text", "", trace},

		{post, "/stop", "[member=NUMBER]", "close all connections and ports, of a member or of all; nodes and sessions are kept, and while all are stopped no session expires", "", allOr((*zktest.Server).Stop, (*zktest.Server).StopMember)},
		{post, "/start", "[member=NUMBER]", "continue after stop; if all were stopped, every session has its full timeout again", "", allOr((*zktest.Server).Start, (*zktest.Server).StartMember)},
		{post, "/restart", "[down=DURATION]", "stop all, wait, and start again", "down=2s", restart},
		{post, "/pause", "[member=NUMBER]", "freeze a member, or all: connections stay open, and nothing is answered; while all are paused no session expires", "", allOr(func(s *zktest.Server, _ context.Context) error { return s.Pause() }, (*zktest.Server).PauseMember)},
		{post, "/resume", "[member=NUMBER]", "continue after pause", "", allOr(func(s *zktest.Server, _ context.Context) error { return s.Resume() }, (*zktest.Server).ResumeMember)},
		{post, "/isolate", "member=NUMBER", "cut a member off from all other members; clients still reach every member", "member=1", member((*zktest.Server).Isolate)},
		{post, "/separate", "member=NUMBER member=NUMBER", "cut two members off from each other", "member=1&member=2", separate},
		{post, "/heal-members", "", "undo every isolate and separate", "", do(func(s *zktest.Server, _ context.Context) error { s.HealMembers(); return nil })},
		{post, "/slow", "member=NUMBER delay=DURATION", "delay the messages between a member and the others, in each direction; 0s ends that", "member=1&delay=200ms", slow},
		{post, "/reap", "", "delete empty containers and expired TTL nodes now", "", do(func(s *zktest.Server, _ context.Context) error { s.ReapContainers(); return nil })},
		{post, "/sequence", "path=PATH next=NUMBER", "set the number that the next sequential child of a node gets", "path=/locks&next=2147483647", sequence},

		{post, "/expire", "session=ID|all", "expire a session, or all, as if the timeout had passed", "session=0x100012ab", expire},
		{post, "/lag", "member=NUMBER", "make a member lag behind the others until it handles a write or a sync", "member=1", member((*zktest.Server).Lag)},
		{post, "/catch-up", "member=NUMBER", "end the lag of a member", "member=1", member((*zktest.Server).CatchUp)},

		{post, "/cut", selectorParams, "close the selected connections, by default all (FIN)", "session=0x100012ab", connections((*zktest.Server).Cut)},
		{post, "/reset", selectorParams, "reset the selected connections, by default all (RST)", "conn=3", connections((*zktest.Server).Reset)},
		{post, "/half-open", selectorParams, "forget the selected connections, by default all; their clients are not told", "conn=3", connections((*zktest.Server).HalfOpen)},
		{post, "/deafen", selectorParams, "discard what the clients of the selected connections send, by default all", "conn=3", connections((*zktest.Server).Deafen)},
		{post, "/partition", selectorParams + " [direction=both|in|out]", "hold up the data of the selected connections, by default all, also of later ones; in is from clients to servers", "member=1&direction=in", partition},
		{post, "/heal", "", "end all partitions; what was held up is delivered", "", do(func(s *zktest.Server, _ context.Context) error { s.Heal(); return nil })},
		{post, "/throttle", selectorParams + " bytes=NUMBER [pause=DURATION]", "write to the selected connections, by default all, also to later ones, in pieces of that many bytes; 0 ends that", "bytes=100&pause=10ms", throttle},

		{post, "/refuse", "[member=NUMBER]...", "close the ports of members, by default all; open connections stay open", "member=1", ports((*zktest.Server).RefuseConnections)},
		{post, "/reject", "[member=NUMBER]...", "close new connections to members, by default all, as soon as they are accepted", "member=1", ports((*zktest.Server).RejectConnections)},
		{post, "/hang", "[member=NUMBER]...", "accept new connections to members, by default all, and never answer", "member=1", ports((*zktest.Server).HangConnections)},
		{post, "/accept", "[member=NUMBER]...", "end refuse, reject and hang", "member=1", ports((*zktest.Server).AcceptConnections)},

		{post, "/inject", injectParams, injectDoes(), "op=create&prefix=/locks&action=DropAfterApply", inject},
		{get, "/faults", "", "the injected faults, and how often each has happened", "", faults},
		{get, "/wait", "fault=NUMBER [timeout=DURATION]", "wait until a fault has happened as often as it should; the status is 504 after the timeout, by default 10s", "fault=1&timeout=30s", wait},
		{post, "/release", "fault=NUMBER", "release what a fault with HoldApply or HoldReply holds", "fault=1", onFault((*zktest.Fault).Release)},
		{post, "/remove", "fault=NUMBER", "end a fault; what it holds stays held until release", "fault=1", onFault((*zktest.Fault).Remove)},
	}
}

func list(c *control, _ *arguments) action {
	return func(context.Context) (any, error) {
		var b strings.Builder
		fmt.Fprintf(&b, "zkserve runs a ZooKeeper for tests at %s. Its commands are:\n", c.server.ConnectString())
		for _, cmd := range commands() {
			url, curl := c.url+cmd.path, "curl"
			if cmd.method == http.MethodPost {
				curl += " -X POST"
			}
			if cmd.example != "" {
				url = "'" + url + "?" + cmd.example + "'"
			}
			fmt.Fprintf(&b, "\n%s\n    %s\n    %s %s\n", strings.TrimSpace(cmd.method+" "+cmd.path+" "+cmd.params), cmd.does, curl, url)
		}
		b.WriteString("\nParameters are in the URL or in a form (curl -d). Durations are written like 500ms or 2s.\n")
		return b.String(), nil
	}
}

func members(c *control, _ *arguments) action {
	type memberJSON struct {
		Member  int    `json:"member"`
		Address string `json:"address"`
		Leader  bool   `json:"leader"`
	}
	return func(context.Context) (any, error) {
		var all []memberJSON
		leader := c.server.Leader()
		for i, addr := range c.server.Members() {
			all = append(all, memberJSON{i + 1, addr, i+1 == leader})
		}
		return all, nil
	}
}

// sessionID is the id of a session as text: programs in some languages cannot read
// such large numbers from JSON.
type sessionID int64

func (id sessionID) MarshalText() ([]byte, error) {
	if id == 0 {
		return nil, nil
	}
	return fmt.Appendf(nil, "0x%x", uint64(id)), nil
}

type sessionJSON struct {
	Session    sessionID `json:"session"`
	TimeoutMS  int64     `json:"timeout_ms"`
	ExpiresMS  int64     `json:"expires_in_ms"` // if the client sends nothing
	Conn       int       `json:"conn"`          // 0 without a connection
	Ephemerals []string  `json:"ephemerals"`
}

func sessions(st *zktest.State) (all []sessionJSON) {
	for _, ss := range st.Sessions {
		all = append(all, sessionJSON{
			sessionID(ss.ID), ss.Timeout.Milliseconds(), ss.ExpiresIn.Milliseconds(), ss.Conn, append([]string{}, ss.Ephemerals...),
		})
	}
	return all
}

type connJSON struct {
	Conn    int       `json:"conn"`
	Member  int       `json:"member"`
	Session sessionID `json:"session"` // "" before the handshake
	Client  string    `json:"client"`  // address
}

func conns(st *zktest.State) (all []connJSON) {
	for _, c := range st.Conns {
		all = append(all, connJSON{c.Number, c.Member, sessionID(c.Session), c.Addr})
	}
	return all
}

type watchJSON struct {
	Path       string    `json:"path"`
	Children   bool      `json:"children"` // a watch on the list of children
	Persistent bool      `json:"persistent"`
	Conn       int       `json:"conn"`
	Session    sessionID `json:"session"`
}

func watches(st *zktest.State) (all []watchJSON) {
	for _, w := range st.Watches {
		all = append(all, watchJSON{w.Path, w.Children, w.Persistent, w.Conn, sessionID(w.Session)})
	}
	return all
}

type nodeJSON struct {
	Path      string    `json:"path"`
	Data      string    `json:"data,omitempty"`
	Binary    []byte    `json:"data_base64,omitempty"` // instead of Data, for anything but text
	Version   int32     `json:"version"`
	Ephemeral sessionID `json:"ephemeral_owner"` // "" of any other node
	Czxid     int64     `json:"czxid"`
	Mzxid     int64     `json:"mzxid"`
	Children  []string  `json:"children"`
}

func nodes(c *control, a *arguments) action {
	prefix := a.path("prefix")
	return func(context.Context) (any, error) {
		all := []nodeJSON{}
		for path, n := range c.server.State().Nodes {
			if !strings.HasPrefix(path, prefix) {
				continue
			}
			node := nodeJSON{
				Path: path, Version: n.Stat.Version, Ephemeral: sessionID(n.Stat.EphemeralOwner),
				Czxid: n.Stat.Czxid, Mzxid: n.Stat.Mzxid, Children: append([]string{}, n.Children...),
			}
			if utf8.Valid(n.Data) {
				node.Data = string(n.Data)
			} else {
				node.Binary = n.Data
			}
			all = append(all, node)
		}
		slices.SortFunc(all, func(a, b nodeJSON) int { return strings.Compare(a.Path, b.Path) })
		return all, nil
	}
}

func trace(c *control, _ *arguments) action {
	return func(context.Context) (any, error) {
		var b strings.Builder
		for _, r := range c.server.Trace() {
			fmt.Fprintln(&b, r)
		}
		return b.String(), nil
	}
}

func restart(c *control, a *arguments) action {
	down := a.duration("down", 0)
	return func(ctx context.Context) (any, error) {
		// The server stays down for the whole time even if the client does not wait.
		return nil, c.server.Restart(context.WithoutCancel(ctx), down)
	}
}

func separate(c *control, a *arguments) action {
	members := a.members("member")
	if len(members) != 2 || members[0] == members[1] {
		a.fail(http.StatusBadRequest, "two different members are needed: member=1&member=2")
	}
	return func(context.Context) (any, error) { return nil, c.server.Separate(members[0], members[1]) }
}

func slow(c *control, a *arguments) action {
	a.require("member")
	a.require("delay")
	n, delay := a.member("member"), a.duration("delay", 0)
	return func(context.Context) (any, error) { return nil, c.server.SlowMember(n, delay) }
}

func sequence(c *control, a *arguments) action {
	a.require("path")
	a.require("next")
	path, next := a.path("path"), a.integer("next", 0, 0, math.MaxInt32)
	return func(context.Context) (any, error) {
		err := c.server.SetSequence(path, int32(next))
		if errors.Is(err, zktest.ErrNoNode) {
			err = status{http.StatusNotFound, err}
		}
		return nil, err
	}
}

func expire(c *control, a *arguments) action {
	a.require("session")
	if a.text("session") == "all" {
		return func(context.Context) (any, error) { return nil, c.server.ExpireAll() }
	}
	id := a.session("session")
	return func(context.Context) (any, error) { return nil, c.server.ExpireSession(id) }
}

func partition(c *control, a *arguments) action {
	sel := a.selector()
	text := a.text("direction")
	direction, ok := map[string]zktest.Direction{"": zktest.Both, "both": zktest.Both, "in": zktest.Inbound, "out": zktest.Outbound}[text]
	if !ok {
		a.fail(http.StatusBadRequest, "direction=%s: the directions are both, in (from clients to servers) and out", text)
	}
	return func(context.Context) (any, error) { c.server.Partition(sel, direction); return nil, nil }
}

func throttle(c *control, a *arguments) action {
	a.require("bytes")
	sel, bytes, pause := a.selector(), a.integer("bytes", 0, 0, math.MaxInt32), a.duration("pause", 0)
	return func(context.Context) (any, error) { c.server.Throttle(sel, bytes, pause); return nil, nil }
}
