package zktest

// This file has the options of real servers.

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// RealOption is an option of real servers.
type RealOption interface{ real(*realConfig) }

type realOption func(*realConfig)

func (o realOption) real(c *realConfig) { o(c) }

type realConfig struct {
	properties map[string]string
	jvmFlags   []string
	separated  bool
	secure     bool                 // with a port for TLS
	err        error                // of an option
	reserve    func() (port, error) // replaced by tests
}

func newRealConfig(opts []RealOption) (*realConfig, error) {
	c := &realConfig{
		properties: map[string]string{
			"tickTime":               "500",
			"maxSessionTimeout":      "40000", // as with ZooKeeper's default tick
			"initLimit":              "20",
			"syncLimit":              "5",
			"4lw.commands.whitelist": "*",
			"admin.enableServer":     "false",
			"forceSync":              "no", // only a crash of the machine would lose anything
		},
		jvmFlags: []string{
			"-Xmx512m",
			"-XX:-UsePerfData", // a killed JVM leaves nothing in /tmp
			// A server of a test lives for seconds: the optimizing compiler and a
			// concurrent garbage collector cost more than they save.
			"-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC",
		},
		reserve: reservePort,
	}
	for _, opt := range opts {
		if opt == nil {
			return nil, errors.New("zktest: a nil RealOption was given")
		}
		if b, ok := opt.(commonOption); ok {
			if err := b.option(new(config)); err != nil { // checks the arguments
				return nil, fmt.Errorf("zktest: %w", err)
			}
		}
		opt.real(c)
	}
	if c.err != nil {
		return nil, fmt.Errorf("zktest: %w", c.err)
	}
	words := strings.FieldsFunc(c.properties["4lw.commands.whitelist"], func(r rune) bool { return r == ',' || r == ' ' })
	if !slices.Contains(words, "*") && !(slices.Contains(words, "conf") && slices.Contains(words, "srvr")) {
		return nil, errors.New("zktest: the launcher asks a real server by conf and srvr whether the server serves: allow both four letter commands")
	}
	for key := range c.properties {
		switch {
		case key == "dataDir", key == "clientPort", key == "clientPortAddress", strings.HasPrefix(key, "server."):
			return nil, fmt.Errorf("zktest: the property %s is set by the launcher and cannot be changed", key)
		}
	}
	return c, nil
}

// Properties adds lines to zoo.cfg, such as maxClientCnxns or minSessionTimeout (in
// milliseconds), or replaces the launcher's lines. The ports, the data directory and the
// list of servers cannot be set: starting then fails.
func Properties(lines map[string]string) RealOption {
	return realOption(func(c *realConfig) { maps.Copy(c.properties, lines) })
}

// JVMFlags adds flags for java, such as -Xmx1g (the default is -Xmx512m) or
// -Dznode.container.checkIntervalMs=1000. They follow the launcher's own flags and so
// override them: the launcher's make short runs cheap. To measure the speed of a server,
// restore the usual compiler and garbage collector with
//
//	JVMFlags("-XX:TieredStopAtLevel=4", "-XX:-UseSerialGC")
//
// and waits for the disk, as in production, with [Properties] of forceSync=yes.
func JVMFlags(flags ...string) RealOption {
	return realOption(func(c *realConfig) { c.jvmFlags = append(c.jvmFlags, flags...) })
}

// Separated gives each member of an ensemble a separate network, so that
// [RealEnsemble.Isolate] can cut the connections between them. Clients on this machine
// reach the members at addresses from 198.18.0.0/15, reserved for network tests. The
// networks have no route out of this machine, and end with the process that started the
// ensemble.
//
// Separated needs Linux, root (or CAP_NET_ADMIN and CAP_SYS_ADMIN) and the commands ip and
// nsenter. Without them nothing is started, and the error says so. Users without root can
// become root in namespaces of their own:
//
//	unshare -rn sh -c 'ip link set lo up && go test ./...'
func Separated() RealOption {
	return realOption(func(c *realConfig) { c.separated = true })
}

// zooCfg returns the text of the configuration file. own holds the properties of
// this server only, servers the server.N lines of an ensemble.
func (c *realConfig) zooCfg(dataDir string, client port, own map[string]string, servers []string) string {
	var b strings.Builder
	for _, lines := range []map[string]string{c.properties, own} {
		for _, key := range slices.Sorted(maps.Keys(lines)) {
			fmt.Fprintf(&b, "%s=%s\n", key, lines[key])
		}
	}
	fmt.Fprintf(&b, "dataDir=%s\nclientPort=%d\nclientPortAddress=%s\n", escape(dataDir), client.number, client.host)
	for _, line := range servers {
		b.WriteString(line + "\n")
	}
	return b.String()
}

// escape returns a path for a file of Java's properties, read as Latin-1.
func escape(path string) string {
	quoted := strconv.QuoteToASCII(path)
	return quoted[1 : len(quoted)-1]
}
