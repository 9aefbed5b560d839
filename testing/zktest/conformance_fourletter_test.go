package zktest_test

import (
	"fmt"
	"net"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/testing/zktest"
)

// Monitors depend on the names in the reply to mntr.
func TestMntrHasTheNamesOfARealServer(t *testing.T) {
	t.Parallel()
	names := func(addr string) (all []string) {
		c := open(t, addr, longTimeout)
		c.must(create("/a", nil, persistent))
		for line := range strings.Lines(fourLetter(t, addr, "mntr")) {
			name, value, found := strings.Cut(line, "\t")
			require.True(t, found)
			require.NotEmpty(t, value)
			if !strings.HasSuffix(name, "_per_namespace") { // one for each node below the root that was used
				all = append(all, name)
			}
		}
		slices.Sort(all)
		return all
	}
	require.Equal(t, names(zktest.StartReal(t).Addr()), names(zktest.Start(t).Addr()))
}

var fourLetterChecks = []check{
	{62, "ruok, isro and the lists of watches are answered", exclusive, func(t *testing.T, s checkEnv) {
		require.Equal(t, "imok", fourLetter(t, s.addr, "ruok"))
		require.Equal(t, "rw", fourLetter(t, s.addr, "isro"))
		c := s.open(t)
		data, child := s.path("data"), s.path("child")
		c.must(create(data, nil, persistent))
		c.must(create(child, nil, persistent))
		c.must(getData(data, true))
		c.must(getChildren(child, true))
		// The server may not have noticed the end of earlier connections yet.
		poll(t, "there are no other watches", func() bool {
			return fourLetter(t, s.addr, "wchs") == "1 connections watching 1 paths\nTotal watches:1\n"
		})
		session := fmt.Sprintf("0x%x", c.welcome.Session)
		require.Equal(t, fmt.Sprintf("%s\n\t%s\n\n", data, session), fourLetter(t, s.addr, "wchp"))
		require.Equal(t, fmt.Sprintf("%s\n\t%s\n\n", session, data), fourLetter(t, s.addr, "wchc"))
		require.Contains(t, fourLetter(t, s.addr, "mntr"), "\nzk_watch_count\t2\n")
	}},
	{128, "monitoring commands reply in ZooKeeper's format", exclusive, func(t *testing.T, s checkEnv) {
		c := s.open(t)
		n := c.must(create(s.path("n-"), nil, ephemeralSequential)).Path
		session := fmt.Sprintf("0x%x", c.welcome.Session)
		client := regexp.QuoteMeta(c.conn.LocalAddr().String())
		zxid := c.must(ping()).Zxid
		nodes := c.must(getAllChildrenNumber("/")).Count + 2 // "/" counts twice
		server := fmt.Sprintf(`Latency min/avg/max: \d+/\d+(\.\d+)?/\d+
Received: \d+
Sent: \d+
Connections: \d+
Outstanding: 0
Zxid: 0x%x
Mode: standalone
Node count: %d
`, zxid, nodes)
		_, port, err := net.SplitHostPort(s.addr)
		require.NoError(t, err)
		version := `Zookeeper version: .+, built on .+\n`
		for name, pattern := range map[string]string{
			"srvr": `^` + version + server + `$`,
			"stat": `^` + version + `Clients:\n( /[0-9.:]+\[\d+\]\(queued=\d+,recved=\d+,sent=\d+\)\n)+\n` + server + `$`,
			"cons": `(?s)^( /[^\n]+\n)+\n$`,
			"dump": `(?s)^SessionTracker dump:\n.*ephemeral nodes dump:\nSessions with Ephemerals \(\d+\):\n.*` +
				session + `:\n\t` + n + `\n.*Connections dump:\n`,
			"conf": `^clientPort=` + port + `\nsecureClientPort=-1\ndataDir=.*\ndataDirSize=\d+\ndataLogDir=.*\ndataLogSize=\d+\n` +
				`tickTime=500\nmaxClientCnxns=0\nminSessionTimeout=1000\nmaxSessionTimeout=40000\nclientPortListenBacklog=-1\nserverId=\d+\n$`,
			"envi": `^Environment:\n`,
			"dirs": `datadir_size: \d+\nlogdir_size: \d+\n`,
			"crst": `^Connection stats reset\.\n$`,
			"srst": `^Server stats reset\.\n$`,
		} {
			require.Regexp(t, pattern, fourLetter(t, s.addr, name), name)
		}
		require.Regexp(t, ` /`+client+`\[\d\]\(queued=\d+,recved=\d+,sent=\d+\)\n`, fourLetter(t, s.addr, "stat"))
		c.must(exists(n, false))
		require.Regexp(t, ` /`+client+`\[\d\]\(queued=\d+,recved=\d+,sent=\d+,sid=`+session+
			`,lop=EXIS,est=\d+,to=30000,lcxid=0x[0-9a-f]+,lzxid=0x[0-9a-f]+,lresp=\d+,llat=\d+,minlat=\d+,avglat=\d+,maxlat=\d+\)\n`,
			fourLetter(t, s.addr, "cons"))

		mntr := fourLetter(t, s.addr, "mntr")
		require.Regexp(t, `^(zk_[^\t\n]+\t[^\t\n]+\n)+`, mntr)
		require.Regexp(t, `^zk_version\t.+, built on .+\n`, mntr)
		for _, line := range []string{
			"zk_server_state\tstandalone", fmt.Sprintf("zk_znode_count\t%d", nodes), "zk_watch_count\t0", `zk_ephemerals_count\t[1-9]\d*`,
			`zk_approximate_data_size\t[1-9]\d*`, `zk_num_alive_connections\t[1-9]\d*`, "zk_outstanding_requests\t0",
			`zk_packets_received\t[1-9]\d*`, `zk_packets_sent\t[1-9]\d*`, `zk_avg_latency\t[0-9.]+`, `zk_min_latency\t\d+`,
			`zk_max_latency\t\d+`, `zk_global_sessions\t[1-9]\d*`, `zk_uptime\t\d+`,
		} {
			require.Regexp(t, `(?m)^`+line+`$`, mntr)
		}
	}},
	{129, "a command that is not allowed gets an error, an unknown one no reply", strict, func(t *testing.T, s checkEnv) {
		require.Equal(t, "ruok is not executed because it is not in the whitelist.\n", fourLetter(t, s.addr, "ruok"))
		require.Equal(t, "mntr is not executed because it is not in the whitelist.\n", fourLetter(t, s.addr, "mntr"))
		require.Contains(t, fourLetter(t, s.addr, "srvr"), "\nMode: standalone\n")
		require.Contains(t, fourLetter(t, s.addr, "srvr\n"), "\nMode: standalone\n")
		c := dial(t, s.addr)
		c.write([]byte("what"))
		c.waitEnd()
	}},
	{135, "cons names the latest request", exclusive, func(t *testing.T, s checkEnv) {
		c := s.open(t)
		n := s.path("n")
		latest := func(c *client) string {
			t.Helper()
			mine := regexp.MustCompile(` /` + regexp.QuoteMeta(c.conn.LocalAddr().String()) + `\[.*,(lop=.*,)est=.*,(to=.*),lresp=`)
			found := mine.FindStringSubmatch(fourLetter(t, s.addr, "cons"))
			require.Len(t, found, 3)
			return found[1] + found[2]
		}
		opened := latest(c)
		require.Equal(t, fmt.Sprintf("lop=SESS,to=30000,lcxid=0x0,lzxid=0x%x", c.must(ping()).Zxid), opened)
		for _, step := range []struct {
			request
			lop string
		}{
			{create(n, nil, persistent), "CREA"},
			{ping(), "PING"}, // its xid is negative
			{create2(s.path("m"), nil, persistent), "CREA"},
			{createContainer(s.path("c"), container), "CREA"},
			{createTTL(s.path("ttl"), ttl, time.Hour), "CREA"},
			{exists(n, false), "EXIS"},
			{exists(s.path("none"), false), "EXIS"},
			{getData(n, false), "GETD"},
			{getData(s.path("none"), false), "GETD"},
			{setData(n, nil, 0), "SETD"},
			{setData(n, nil, 0), "NA"},
			{getACL(n), "GETA"},
			{setACL(n, 0, world...), "SETA"},
			{getChildren(n, false), "GETC"},
			{getChildren2(n, false), "GETC"},
			{getAllChildrenNumber(n), "GETACN"},
			{getEphemerals(n), "GETE"},
			{syncPath(n), "SYNC"},
			{auth("digest", "u:p"), "SYNC"},
			{multi(), "MULT"},
			{multi(remove(s.path("none"), 0)), "MULT"},
			{multiRead(), "MLTR"},
			{setWatches(0, nil, nil, nil), "SETW"},
			{setWatches(0, nil, nil, nil).withXid(xidSetWatches), "SETW"},
			{setWatches2(0, nil, nil, nil, nil, nil), "STW2"},
			{addWatch(n, modePersistent), "ADDW"},
			{checkWatches(n, anyWatch), "CHKW"},
			{removeWatches(n, anyWatch), "REMW"},
			{whoAmI(), "HOMI"},
			{remove(n, 0), "NA"},
			{remove(n, anyVersion), "DELE"},
			{request{Op: opReconfig, Body: encoder{}.string(null).string(null).string(null).long(-1)}, "NA"},
			{request{Op: opDeleteContainer}, "NA"},
			{checkVersion(n, 0), "NA"},
		} {
			if step.Op == opAuth { // not recorded
				before := latest(c)
				c.must(step.request)
				require.Equal(t, before, latest(c))
				continue
			}
			r := c.do(step.request)
			require.Equal(t, fmt.Sprintf("lop=%s,to=30000,lcxid=0x%x,lzxid=0x%x", step.lop, c.xid, r.Zxid), latest(c))
		}
		again := c.reattach()
		require.Equal(t, "lop=null,to=30000,lcxid=0x0,lzxid=0x0", latest(again))
	}},
	{136, "statistics are reset", exclusive, func(t *testing.T, s checkEnv) {
		c := s.open(t)
		for range 100 {
			c.must(create(s.path("n-"), nil, sequential))
		}
		require.Regexp(t, `(?m)^Received: \d{3,}$`, fourLetter(t, s.addr, "srvr"))
		require.Equal(t, "Server stats reset.\n", fourLetter(t, s.addr, "srst"))
		require.Regexp(t, `(?m)^Received: \d{1,2}\nSent: \d{1,2}$`, fourLetter(t, s.addr, "srvr"))
		mine := ` /` + regexp.QuoteMeta(c.conn.LocalAddr().String()) + `\[1\]\(queued=0,`
		require.Regexp(t, mine+`recved=10\d,sent=10\d,sid=`, fourLetter(t, s.addr, "cons"))
		require.Equal(t, "Connection stats reset.\n", fourLetter(t, s.addr, "crst"))
		require.Regexp(t, mine+`recved=0,sent=0,sid=0x[0-9a-f]+,lop=NA,est=\d+,to=30000,lzxid=0xffffffffffffffff,lresp=0,`, fourLetter(t, s.addr, "cons"))
	}},
	{137, "the trace mask can be set and read", exclusive, func(t *testing.T, s checkEnv) {
		require.Equal(t, "306", fourLetter(t, s.addr, "gtmk"))
		for _, mask := range []int64{2, -3, 306} {
			set := string(encoder("stmk").long(mask))
			require.Equal(t, fmt.Sprint(mask), fourLetter(t, s.addr, set))
			require.Equal(t, fmt.Sprint(mask), fourLetter(t, s.addr, "gtmk"))
		}
	}},
}
