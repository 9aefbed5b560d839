package zktest

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"
)

// version is the version that the server reports.
const version = "3.8.0-zktest, built on 2022-03-01 00:00 UTC"

// fourLetterCommands are ZooKeeper's commands for administrators, its "four letter
// words". After the reply the connection ends.
var fourLetterCommands = map[string]func(*Server) string{
	"conf": (*Server).fourLetterConf,
	"cons": (*Server).fourLetterCons,
	"crst": (*Server).fourLetterCrst,
	"dirs": func(*Server) string { return "datadir_size: 0\nlogdir_size: 0\n" },
	"dump": (*Server).fourLetterDump,
	"envi": func(*Server) string { return "Environment:\nzookeeper.version=" + version + "\n" },
	"gtmk": (*Server).fourLetterGtmk,
	"isro": func(*Server) string { return "rw" },
	"mntr": (*Server).fourLetterMntr,
	"ruok": func(*Server) string { return "imok" },
	"srst": (*Server).fourLetterSrst,
	"srvr": func(s *Server) string { return "Zookeeper version: " + version + "\n" + s.summary() },
	"stat": (*Server).fourLetterStat,
	"stmk": (*Server).fourLetterGtmk, // after fourLetterReply has set the mask
	"wchc": (*Server).fourLetterWchc,
	"wchp": (*Server).fourLetterWchp,
	"wchs": (*Server).fourLetterWchs,
}

// fourLetterReply returns the reply to a four letter command, whose argument, if
// it takes one, is read from more. It reports false if there is no such command.
func (s *Server) fourLetterReply(word string, more io.Reader) (string, bool) {
	reply, ok := fourLetterCommands[word]
	if !ok {
		return "", false
	}
	if s.conf.whitelist != nil && !s.conf.whitelist[word] {
		return word + " is not executed because it is not in the whitelist.\n", true
	}
	var mask [8]byte
	if word == "stmk" {
		if _, err := io.ReadFull(more, mask[:]); err != nil {
			return "", true
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if word == "stmk" {
		s.traceMask = int64(binary.BigEndian.Uint64(mask[:]))
	}
	return reply(s), true
}

// packetCounts returns the numbers of packets, including the command itself.
func (s *Server) packetCounts() (received, sent int64) {
	return s.network.received.Load() + 1, s.network.sent.Load()
}

func (s *Server) summary() string {
	received, sent := s.packetCounts()
	return fmt.Sprintf("Latency min/avg/max: 0/0.0/0\nReceived: %d\nSent: %d\nConnections: %d\nOutstanding: 0\nZxid: 0x%x\nMode: standalone\nNode count: %d\n",
		received, sent, len(s.conns), s.zxid, len(s.tree)+1) // ZooKeeper counts the root twice
}

func (s *Server) fourLetterConf() string {
	_, port, _ := net.SplitHostPort(s.Addr())
	return fmt.Sprintf("clientPort=%s\nsecureClientPort=-1\ndataDir=\ndataDirSize=0\ndataLogDir=\ndataLogSize=0\n"+
		"tickTime=%d\nmaxClientCnxns=%d\nminSessionTimeout=%d\nmaxSessionTimeout=%d\nclientPortListenBacklog=-1\nserverId=0\n",
		port, s.conf.tick.Milliseconds(), s.conf.maxClientConns, s.conf.minTimeout.Milliseconds(), s.conf.maxTimeout.Milliseconds())
}

func (s *Server) fourLetterGtmk() string { return strconv.FormatInt(s.traceMask, 10) }

func (s *Server) fourLetterCrst() string {
	for c := range s.conns {
		c.client.received.Store(0)
		c.client.sent.Store(0)
		c.last = noRequest
	}
	return "Connection stats reset.\n"
}

func (s *Server) fourLetterSrst() string {
	s.network.received.Store(0)
	s.network.sent.Store(0)
	return "Server stats reset.\n"
}

// lastRequest is the latest request of a connection, as cons shows it.
type lastRequest struct {
	op   string
	xid  int32 // the latest xid that is not negative; -1 if none
	zxid int64
}

// noRequest is the lastRequest after crst.
var noRequest = lastRequest{"NA", -1, -1}

// consNames are the names of operations in the reply to cons.
var consNames = map[Op]string{
	OpConnect: "SESS", OpPing: "PING", OpCreate: "CREA", OpCreate2: "CREA", OpCreateContainer: "CREA", OpCreateTTL: "CREA",
	OpDelete: "DELE", OpSetData: "SETD", OpGetData: "GETD", OpExists: "EXIS", OpGetACL: "GETA", OpSetACL: "SETA",
	OpGetChildren: "GETC", OpGetChildren2: "GETC", OpGetAllChildrenNumber: "GETACN", OpGetEphemerals: "GETE",
	OpMulti: "MULT", OpMultiRead: "MLTR", OpSync: "SYNC", OpSetWatches: "SETW", OpSetWatches2: "STW2", OpAddWatch: "ADDW",
	OpCheckWatches: "CHKW", OpRemoveWatches: "REMW", OpWhoAmI: "HOMI", OpReconfig: "RECO", OpCloseSession: "CLOS",
}

// recordReply records the request that a reply answers. A failed write has no
// name, and authentication does not count.
func (c *conn) recordReply(r Request, zxid int64, code Code) {
	if r.Op == OpAuth || r.Op == OpSASL {
		return
	}
	c.last.op, c.last.zxid = consNames[r.Op], zxid
	if c.last.op == "" || r.Op.writes() && code != OK {
		c.last.op = noRequest.op
	}
	if r.Xid >= 0 {
		c.last.xid = r.Xid
	}
}

// statLine returns the beginning of a connection's line in stat, cons and dump.
func (c *conn) statLine() string {
	return fmt.Sprintf(" /%s[1](queued=0,recved=%d,sent=%d", c.client.conn.RemoteAddr(), c.client.received.Load(), c.client.sent.Load())
}

func (s *Server) fourLetterCons() string {
	var b strings.Builder
	for _, c := range s.sortedConns() {
		b.WriteString(c.statLine())
		if ss := c.session; ss != nil {
			fmt.Fprintf(&b, ",sid=0x%x,lop=%s,est=%d,to=%d", ss.id, c.last.op, c.opened.UnixMilli(), ss.timeout.Milliseconds())
			if c.last.xid >= 0 {
				fmt.Fprintf(&b, ",lcxid=0x%x", c.last.xid)
			}
			fmt.Fprintf(&b, ",lzxid=0x%x,lresp=0,llat=0,minlat=0,avglat=0,maxlat=0", uint64(c.last.zxid))
		}
		b.WriteString(")\n")
	}
	return b.String() + "\n"
}

func (s *Server) fourLetterStat() string {
	var b strings.Builder
	b.WriteString("Zookeeper version: " + version + "\nClients:\n")
	for _, c := range s.sortedConns() {
		b.WriteString(c.statLine() + ")\n")
	}
	return b.String() + "\n" + s.summary()
}

// dataWatches returns the data watches of all replicas. ZooKeeper does not report
// child watches.
func (s *Server) dataWatches() (bySession map[int64][]string, byPath map[string][]int64, total int) {
	bySession, byPath = map[int64][]string{}, map[string][]int64{}
	s.eachWatch(func(_ *replica, path string, children bool, c *conn, _ watchMode) {
		if children {
			return
		}
		id := c.client.session.Load()
		bySession[id] = append(bySession[id], path)
		byPath[path] = append(byPath[path], id)
		total++
	})
	return bySession, byPath, total
}

func (s *Server) fourLetterWchs() string {
	bySession, byPath, total := s.dataWatches()
	return fmt.Sprintf("%d connections watching %d paths\nTotal watches:%d\n", len(bySession), len(byPath), total)
}

func (s *Server) fourLetterWchc() string {
	bySession, _, _ := s.dataWatches()
	return formatLists(bySession, func(id int64) string { return fmt.Sprintf("0x%x", id) }, func(path string) string { return path })
}

func (s *Server) fourLetterWchp() string {
	_, byPath, _ := s.dataWatches()
	return formatLists(byPath, func(path string) string { return path }, func(id int64) string { return fmt.Sprintf("0x%x", id) })
}

// formatLists formats keys, each with its values below it.
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

func (s *Server) fourLetterMntr() string {
	received, sent := s.packetCounts()
	watches, ephemerals, size := 0, 0, 0
	s.eachWatch(func(*replica, string, bool, *conn, watchMode) { watches++ })
	for path, n := range s.tree {
		size += len(path) + len(n.data)
		if n.kind == ephemeral {
			ephemerals++
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "zk_version\t%s\nzk_server_state\tstandalone\n", version)
	for _, stat := range []struct {
		key   string
		value int64
	}{
		{"znode_count", int64(len(s.tree) + 1)}, {"watch_count", int64(watches)},
		{"ephemerals_count", int64(ephemerals)}, {"approximate_data_size", int64(size)},
		{"num_alive_connections", int64(len(s.conns))}, {"outstanding_requests", 0},
		{"packets_received", received}, {"packets_sent", sent},
		{"min_latency", 0}, {"max_latency", 0},
		{"global_sessions", int64(len(s.sessions))}, {"uptime", int64(s.now() / time.Millisecond)},
	} {
		fmt.Fprintf(&b, "zk_%s\t%d\n", stat.key, stat.value)
	}
	b.WriteString("zk_avg_latency\t0.0\n")
	writeUnmeasured(&b)
	return b.String()
}

func (s *Server) fourLetterDump() string {
	var b strings.Builder
	fmt.Fprintf(&b, "SessionTracker dump:\nGlobal Sessions(%d):\n", len(s.sessions))
	owners := 0
	for _, id := range slices.Sorted(maps.Keys(s.sessions)) {
		ss := s.sessions[id]
		fmt.Fprintf(&b, "0x%x\t%dms\n", id, ss.timeout.Milliseconds())
		if len(ss.ephemerals) > 0 {
			owners++
		}
	}
	fmt.Fprintf(&b, "ephemeral nodes dump:\nSessions with Ephemerals (%d):\n", owners)
	for _, id := range slices.Sorted(maps.Keys(s.sessions)) {
		if paths := s.sessions[id].ephemerals; len(paths) > 0 {
			fmt.Fprintf(&b, "0x%x:\n", id)
			for _, path := range slices.Sorted(maps.Keys(paths)) {
				b.WriteString("\t" + path + "\n")
			}
		}
	}
	fmt.Fprintf(&b, "Connections dump:\nConnections Sets (1)/(%d):\n", len(s.conns))
	for _, c := range s.sortedConns() {
		b.WriteString(c.statLine() + ")\n")
	}
	return b.String()
}
