package zookeeper

// This file checks the names of locks, and the sizes of data and semaphores.

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/internal/znode"
)

// CheckName implements driver.Connector.
func (c *Connector) CheckName(name string) error {
	if err := cmp.Or(driver.CheckName(name), checkCharacters(name)); err != nil {
		return err
	}
	for part := range strings.SplitSeq(name, "/") {
		if znode.IsContender(part) || strings.HasPrefix(part, znode.GUIDPrefix) {
			return fmt.Errorf("its part %q could be mistaken for a contender's node", part)
		}
	}
	if first, _, _ := strings.Cut(name, "/"); first == "zookeeper" && c.cfg.Chroot == "" {
		return errors.New("/zookeeper belongs to the server; use another name or a chroot")
	}
	return nil
}

// cutLast cuts the last part off a name of several parts.
func cutLast(name string) (of, last string, ok bool) {
	i := strings.LastIndexByte(name, '/')
	if i < 0 {
		return "", name, false
	}
	return name[:i], name[i+1:], true
}

// CheckPermits implements driver.Connector. The leases are created in one request, with
// room for a few hundred.
func (c *Connector) CheckPermits(name string, n int) error {
	const fixed = 160 // bytes of a request for one node, without what is added here
	one := fixed + len(c.cfg.Chroot) + len(name)
	for _, acl := range c.cfg.ACL {
		one += len(acl.Scheme) + len(acl.ID) + 12
	}
	if most := (maxSend - maxData) / one; n > most {
		return fmt.Errorf("%d at once do not fit in one request to the server: ask for at most %d", n, most)
	}
	return nil
}

// maxData is what a pool stores in a node with permits at most (nodedata.MaxLease).
const maxData = 2 << 10

// checkCharacters checks a path for characters that driver.CheckName allows and the server
// refuses (org.apache.zookeeper.common.PathUtils), so that nothing is sent with an invalid path.
func checkCharacters(path string) error {
	for _, r := range path {
		if r >= 0xd800 && r <= 0xf8ff || r >= 0xfff0 {
			return fmt.Errorf("it has the character %U, which ZooKeeper does not allow", r)
		}
	}
	return nil
}
