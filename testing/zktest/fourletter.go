package zktest

// This file has the four letter words.

import (
	"cmp"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"time"
)

// version is the reported version.
const version = "3.8.0-zktest, built on 2022-03-01 00:00 UTC"

// banner begins the replies to srvr and stat.
func (s *Server) banner() string {
	if s.conf.keeper {
		return keeperBanner
	}
	return "Zookeeper version: " + version + "\n"
}

// fourLetterCommands are ZooKeeper's commands for administrators, its "four letter
// words". After the reply the connection ends.
var fourLetterCommands = map[string]func(*Server, *replica) string{
	"conf": (*Server).fourLetterConf,
	"cons": (*Server).fourLetterCons,
	"isro": (*Server).fourLetterIsro,
	"mntr": (*Server).fourLetterMntr,
	"ruok": func(*Server, *replica) string { return "imok" },
	"srvr": func(s *Server, rep *replica) string { return s.banner() + s.summary(rep) },
	"stat": (*Server).fourLetterStat,
	"wchc": (*Server).fourLetterWchc,
	"wchp": (*Server).fourLetterWchp,
	"wchs": (*Server).fourLetterWchs,
}

// answersWithoutService are the commands answered by a member even when not serving
// clients.
var answersWithoutService = []string{"isro", "ruok"}

// fourLetterReply returns the reply of a member to a four letter command. It reports false
// if there is no such command.
func (s *Server) fourLetterReply(rep *replica, word string) (string, bool) {
	reply, ok := fourLetterCommands[word]
	if !ok {
		return "", false
	}
	if s.conf.whitelist != nil && !s.conf.whitelist[word] {
		return word + " is not executed because it is not in the whitelist.\n", true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !rep.serves() && !slices.Contains(answersWithoutService, word) {
		return "This ZooKeeper instance is not currently serving requests\n", true
	}
	return reply(s, rep), true
}

// packetCounts returns the numbers of packets, including the command itself.
func (s *Server) packetCounts() (received, sent int64) {
	return s.network.received.Load() + 1, s.network.sent.Load()
}

// mode is a member's own description of what it does.
func (s *Server) mode(rep *replica) string {
	if !s.isEnsemble() {
		return "standalone"
	}
	return rep.role.String()
}

func (s *Server) fourLetterIsro(rep *replica) string {
	if rep.serves() {
		return "rw"
	}
	return "null"
}

func (s *Server) summary(rep *replica) string {
	received, sent := s.packetCounts()
	text := fmt.Sprintf("Latency min/avg/max: 0/0.0/0\nReceived: %d\nSent: %d\nConnections: %d\nOutstanding: 0\nZxid: 0x%x\nMode: %s\nNode count: %d\n",
		received, sent, len(s.connsAt(rep)), rep.zxid, s.mode(rep), len(rep.tree)+1) // ZooKeeper counts the root twice
	if s.mode(rep) == "leader" {
		text += "Proposal sizes last/min/max: -1/-1/-1\n"
	}
	return text
}

func (s *Server) fourLetterConf(rep *replica) string {
	_, port, _ := net.SplitHostPort(rep.listener.address())
	text := fmt.Sprintf("clientPort=%s\nsecureClientPort=-1\ndataDir=\ndataDirSize=0\ndataLogDir=\ndataLogSize=0\n"+
		"tickTime=%d\nmaxClientCnxns=%d\nminSessionTimeout=%d\nmaxSessionTimeout=%d\nclientPortListenBacklog=-1\n",
		port, s.conf.tick.Milliseconds(), s.conf.maxClientConns, s.conf.minTimeout.Milliseconds(), s.conf.maxTimeout.Milliseconds())
	if !s.isEnsemble() {
		return text + "serverId=0\n"
	}
	return text + fmt.Sprintf("serverId=%d\ninitLimit=20\nsyncLimit=%d\nelectionAlg=3\nelectionPort=%d\nquorumPort=%d\npeerType=0\nmembership: \n%s",
		rep.number, syncLimit, electionPort+rep.number, quorumPort+rep.number, s.tree["/zookeeper/config"].data)
}

// The ports of the first member for other members, less one. They are only names here.
const quorumPort, electionPort = 2887, 3887

// ensembleConfig returns the data of /zookeeper/config. Clients such as Curator take the
// addresses after the semicolons.
func (s *Server) ensembleConfig() []byte {
	var b strings.Builder
	for _, rep := range s.replicas {
		host, _, _ := net.SplitHostPort(rep.listener.address())
		fmt.Fprintf(&b, "server.%d=%s:%d:%d:participant;%s\n", rep.number, host, quorumPort+rep.number, electionPort+rep.number, rep.listener.address())
	}
	return []byte(b.String() + "version=0")
}

// statLine returns the beginning of a connection's line in stat, cons and dump.
func (c *conn) statLine() string {
	return fmt.Sprintf(" /%s[1](queued=0,recved=%d,sent=%d", c.client.conn.RemoteAddr(), c.client.received.Load(), c.client.sent.Load())
}

func (s *Server) fourLetterCons(rep *replica) string {
	var b strings.Builder
	for _, c := range s.connsAt(rep) {
		b.WriteString(c.statLine())
		if ss := c.session; ss != nil {
			// The latest request is not recorded: as on a real server after crst.
			fmt.Fprintf(&b, ",sid=0x%x,lop=NA,est=%d,to=%d,lzxid=0xffffffffffffffff,lresp=0,llat=0,minlat=0,avglat=0,maxlat=0",
				ss.id, c.opened.UnixMilli(), ss.timeout.Milliseconds())
		}
		b.WriteString(")\n")
	}
	return b.String() + "\n"
}

func (s *Server) fourLetterStat(rep *replica) string {
	var b strings.Builder
	b.WriteString(s.banner() + "Clients:\n")
	for _, c := range s.connsAt(rep) {
		b.WriteString(c.statLine() + ")\n")
	}
	return b.String() + "\n" + s.summary(rep)
}

// dataWatches returns the data watches at the member. ZooKeeper does not report child
// watches.
func (rep *replica) dataWatches() (bySession map[int64][]string, byPath map[string][]int64, total int) {
	bySession, byPath = map[int64][]string{}, map[string][]int64{}
	rep.data.each(func(path string, c *conn, _ watchMode) {
		id := c.client.session.Load()
		bySession[id] = append(bySession[id], path)
		byPath[path] = append(byPath[path], id)
		total++
	})
	return bySession, byPath, total
}

func (s *Server) fourLetterWchs(rep *replica) string {
	bySession, byPath, total := rep.dataWatches()
	return fmt.Sprintf("%d connections watching %d paths\nTotal watches:%d\n", len(bySession), len(byPath), total)
}

func (s *Server) fourLetterWchc(rep *replica) string {
	bySession, _, _ := rep.dataWatches()
	return formatLists(bySession, func(id int64) string { return fmt.Sprintf("0x%x", id) }, func(path string) string { return path })
}

func (s *Server) fourLetterWchp(rep *replica) string {
	_, byPath, _ := rep.dataWatches()
	return formatLists(byPath, func(path string) string { return path }, func(id int64) string { return fmt.Sprintf("0x%x", id) })
}

// formatLists formats keys, each with the values below.
func formatLists[K, V cmp.Ordered](lists map[K][]V, key func(K) string, value func(V) string) string {
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(lists)) {
		b.WriteString(key(k) + "\n")
		for _, v := range slices.Sorted(slices.Values(lists[k])) {
			b.WriteString("\t" + value(v) + "\n")
		}
	}
	return b.String() + "\n"
}

func (s *Server) fourLetterMntr(rep *replica) string {
	received, sent := s.packetCounts()
	watches, ephemerals, size, sessions := 0, 0, 0, len(s.sessions)
	count := func(string, *conn, watchMode) { watches++ }
	rep.data.each(count)
	rep.child.each(count)
	if s.isEnsemble() {
		sessions = len(rep.sessions)
	}
	for path, n := range rep.tree {
		size += len(path) + len(n.data)
		if n.kind == ephemeral {
			ephemerals++
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "zk_version\t%s\nzk_server_state\t%s\n", version, s.mode(rep))
	if l := rep.leadership; s.isEnsemble() && l != nil {
		peer := map[role]string{leading: "leading", following: "following"}[rep.role]
		fmt.Fprintf(&b, "zk_peer_state\t%s - broadcast\nzk_quorum_size\t%d\n", peer, s.conf.members)
		if rep.role == leading {
			fmt.Fprintf(&b, "zk_learners\t%[1]d\nzk_synced_followers\t%[1]d\nzk_synced_non_voting_followers\t0\nzk_synced_observers\t0\n"+
				"zk_pending_syncs\t0\nzk_last_proposal_size\t-1\nzk_max_proposal_size\t-1\nzk_min_proposal_size\t-1\nzk_leader_uptime\t%[2]d\n",
				l.followers(), (s.now()-l.since)/time.Millisecond)
		}
	}
	for _, stat := range []struct {
		key   string
		value int64
	}{
		{"znode_count", int64(len(rep.tree) + 1)}, {"watch_count", int64(watches)},
		{"ephemerals_count", int64(ephemerals)}, {"approximate_data_size", int64(size)},
		{"num_alive_connections", int64(len(s.connsAt(rep)))}, {"outstanding_requests", 0},
		{"packets_received", received}, {"packets_sent", sent},
		{"min_latency", 0}, {"max_latency", 0},
		{"global_sessions", int64(sessions)}, {"uptime", int64(s.now() / time.Millisecond)},
	} {
		fmt.Fprintf(&b, "zk_%s\t%d\n", stat.key, stat.value)
	}
	b.WriteString("zk_avg_latency\t0.0\n")
	return b.String()
}
