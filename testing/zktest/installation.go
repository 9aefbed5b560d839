package zktest

// This file has finding Java and the jars of ZooKeeper.

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

const mainClass = "org.apache.zookeeper.server.quorum.QuorumPeerMain"

// debianJars are Debian's zookeeper.jar, whose manifest names the required libraries, and a
// logger: without a logger slf4j is silent.
var debianJars = []string{"/usr/share/java/zookeeper.jar", "/usr/share/java/slf4j-simple.jar"}

// nettyJars are the parts of Netty needed for TLS but not named in the manifest of Debian's
// zookeeper.jar.
var nettyJars = []string{
	"/usr/share/java/netty-codec.jar", "/usr/share/java/netty-resolver.jar", "/usr/share/java/netty-transport-native-unix-common.jar",
}

// installation is an installed ZooKeeper: the path of java and the class path.
type installation struct {
	java      string
	classPath string
}

// findInstallation finds the installation or, if secure is set, an installation able to
// serve TLS.
func findInstallation(secure bool) (installation, error) {
	classPath, err := findClassPath(os.Getenv("ZOOKEEPER_HOME"), secure)
	if err != nil {
		return installation{}, err
	}
	java, err := exec.LookPath("java")
	if err != nil {
		return installation{}, fmt.Errorf("zktest: ZooKeeper needs java on the PATH (Debian: apt-get install default-jre-headless): %w", err)
	}
	return installation{java, classPath}, nil
}

func findClassPath(home string, secure bool) (string, error) {
	if home == "" {
		if _, err := os.Stat(debianJars[0]); err != nil {
			return "", fmt.Errorf("zktest: Apache ZooKeeper is not installed: run apt-get install zookeeper (Debian, Ubuntu),"+
				" or set ZOOKEEPER_HOME to an unpacked distribution from https://zookeeper.apache.org/releases.html: %w", err)
		}
		jars := debianJars
		if secure {
			jars = slices.Concat(jars, nettyJars)
			if _, err := os.Stat(nettyJars[0]); err != nil {
				return "", fmt.Errorf("zktest: ZooKeeper's TLS needs Netty: run apt-get install libnetty-java: %w", err)
			}
		}
		return strings.Join(jars, string(filepath.ListSeparator)), nil
	}
	// The JVM runs in another directory.
	home, err := filepath.Abs(home)
	if err != nil {
		return "", fmt.Errorf("zktest: ZOOKEEPER_HOME: %w", err)
	}
	var path []string
	if conf := filepath.Join(home, "conf"); isDir(conf) {
		path = append(path, conf) // has the logger's configuration
	}
	found := false
	for _, dir := range []string{filepath.Join(home, "lib"), home} {
		jars, err := filepath.Glob(filepath.Join(dir, "zookeeper*.jar"))
		found = found || err == nil && len(jars) > 0
		path = append(path, filepath.Join(dir, "*")) // expanded to the jars by java
	}
	if !found {
		return "", fmt.Errorf("zktest: ZOOKEEPER_HOME is %s, but neither it nor its lib directory contains a zookeeper*.jar:"+
			" set it to an unpacked distribution from https://zookeeper.apache.org/releases.html,"+
			" or unset it and run apt-get install zookeeper (Debian, Ubuntu)", home)
	}
	return strings.Join(path, string(filepath.ListSeparator)), nil
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}
