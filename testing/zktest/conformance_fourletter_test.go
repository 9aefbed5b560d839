package zktest_test

// This file has the checks of four letter words.

import (
	"fmt"
	"net"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

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
		n := c.must(create(s.path("n-"), nil, ephemeralSequential)).Path // for mntr
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
			"conf": `^clientPort=` + port + `\nsecureClientPort=-1\ndataDir=.*\ndataDirSize=\d+\ndataLogDir=.*\ndataLogSize=\d+\n` +
				`tickTime=500\nmaxClientCnxns=0\nminSessionTimeout=1000\nmaxSessionTimeout=40000\nclientPortListenBacklog=-1\nserverId=\d+\n$`,
		} {
			require.Regexp(t, pattern, fourLetter(t, s.addr, name), name)
		}
		require.Regexp(t, ` /`+client+`\[\d\]\(queued=\d+,recved=\d+,sent=\d+\)\n`, fourLetter(t, s.addr, "stat"))
		c.must(exists(n, false))
		require.Regexp(t, ` /`+client+`\[\d\]\(queued=\d+,recved=\d+,sent=\d+,sid=`+session+
			`,lop=[A-Z]+,est=\d+,to=30000,(lcxid=0x[0-9a-f]+,)?lzxid=0x[0-9a-f]+,lresp=\d+,llat=\d+,minlat=\d+,avglat=\d+,maxlat=\d+\)\n`,
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
}
