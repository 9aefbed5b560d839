package zktest

// This file has networks of members of real ensembles, and partitions between members.

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
)

const maxSeparated = 126 // members fit into half a subnet

// ensembleNetwork is the network of an ensemble whose members can be isolated.
// Each member has a network namespace. The router, another namespace, connects
// the members with each other and with us, and silently drops packets from and to
// isolated members:
//
//	member 0 (subnet.1) ── router (subnet.253 everywhere) ── us (subnet.254)
//	member 1 (subnet.2) ──┘
//
// No namespace has a name, so none is left behind: each is kept by an open file. The kernel
// removes the namespaces, and our end of the link to the router, when we close the files or
// end.
type ensembleNetwork struct {
	self, router *os.File
	members      []*os.File
	link         string // our interface
	subnet       string // the first three numbers; members have addresses in the lower half

	mu       sync.Mutex
	isolated map[int]bool
	closed   bool
}

// newEnsembleNetwork creates the network of n members, with no member isolated.
func newEnsembleNetwork(n int) (*ensembleNetwork, error) {
	s := &ensembleNetwork{link: fmt.Sprintf("zk%08x", rand.Uint32()), isolated: map[int]bool{}}
	if err := s.configure(n); err != nil {
		return nil, errors.Join(fmt.Errorf("the option Separated needs Linux, root (or CAP_NET_ADMIN and CAP_SYS_ADMIN)"+
			" and the commands ip and nsenter (Debian: apt-get install iproute2 util-linux); nothing was started: %w", err), s.close())
	}
	return s, nil
}

func (s *ensembleNetwork) configure(n int) (err error) {
	if s.router, err = newNamespace(); err != nil {
		return err
	}
	if s.self, err = os.Open("/proc/self/ns/net"); err != nil {
		return err
	}
	var links strings.Builder
	fmt.Fprintf(&links, "link add us type veth peer name %s netns %s\n", s.link, path(s.self))
	for i := range n {
		member, err := newNamespace()
		if err != nil {
			return err
		}
		s.members = append(s.members, member)
		fmt.Fprintf(&links, "link add member%d type veth peer name net netns %s\n", i, path(member))
	}
	if err := ip(s.router, links.String()); err != nil {
		return err
	}

	// The index of an interface is unique on this machine, so two ensembles rarely choose
	// the same of the 512 subnets reserved by RFC 2544 for network tests. If they do,
	// adding the second one's route fails.
	us, err := net.InterfaceByName(s.link)
	if err != nil {
		return err
	}
	s.subnet = fmt.Sprintf("198.%d.%d", 18+us.Index/256%2, us.Index%256)

	routes := s.routerLink("us", s.subnet+".254")
	for i := range n {
		routes += s.routerLink(fmt.Sprintf("member%d", i), s.host(i))
	}
	if err := errors.Join(ip(s.router, routes), run(s.router, "1", "tee", "/proc/sys/net/ipv4/ip_forward")); err != nil {
		return err
	}
	for i, member := range s.members {
		if err := ip(member, "link set lo up\n"+s.hostLink("net", s.host(i), "0/24")); err != nil {
			return err
		}
	}
	return ip(s.self, s.hostLink(s.link, s.subnet+".254", "0/25"))
}

// host returns the address of member i.
func (s *ensembleNetwork) host(i int) string { return fmt.Sprintf("%s.%d", s.subnet, i+1) }

// ports returns ZooKeeper's usual ports: member i has a separate network.
func (s *ensembleNetwork) ports(i int) []port {
	var ports []port
	for _, number := range []int{2181, 2888, 3888, 2281} {
		ports = append(ports, port{host: s.host(i), number: number})
	}
	return ports
}

// nsenter returns the prefix of a command to run in the network of member i. The command
// keeps the process id.
func (s *ensembleNetwork) nsenter(i int) []string {
	if s == nil {
		return nil
	}
	return []string{"nsenter", "--net=" + path(s.members[i])}
}

// routerLink returns the lines of ip to configure the router's end of the link to host.
func (s *ensembleNetwork) routerLink(name, host string) string {
	return fmt.Sprintf("link set %[1]s up\naddress add %[2]s.253 dev %[1]s\nroute add %[3]s dev %[1]s\n", name, s.subnet, host)
}

// hostLink returns the lines of ip to configure host's end of the link, with a route to the
// rest of the subnet only.
func (s *ensembleNetwork) hostLink(name, host, rest string) string {
	return fmt.Sprintf("link set %[1]s up\naddress add %[2]s dev %[1]s\nroute add %[3]s.%[4]s via %[3]s.253 dev %[1]s onlink\n",
		name, host, s.subnet, rest)
}

// isolationRules returns the lines of ip to make the router drop packets between member i
// and the other members or, with the verb del, to undo this. The rules are in the router
// because a blackhole in a member's own namespace would report an error to the sender.
func (s *ensembleNetwork) isolationRules(verb string, i int) string {
	return fmt.Sprintf("rule %[1]s from %[2]s to %[3]s.0/25 blackhole\nrule %[1]s from %[3]s.0/25 to %[2]s blackhole\n",
		verb, s.host(i), s.subnet)
}

func (s *ensembleNetwork) isolate(i int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errClosed
	}
	if s.isolated[i] {
		return nil
	}
	if err := ip(s.router, s.isolationRules("add", i)); err != nil {
		return err
	}
	s.isolated[i] = true
	return nil
}

func (s *ensembleNetwork) heal() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errClosed
	}
	for i := range s.isolated {
		if err := ip(s.router, s.isolationRules("del", i)); err != nil {
			return err
		}
		delete(s.isolated, i)
	}
	return nil
}

// close also closes nil, and a network left incomplete by configure.
func (s *ensembleNetwork) close() error {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	var errs []error
	if _, err := net.InterfaceByName(s.link); err == nil {
		// The kernel would remove the link, but a moment later.
		errs = append(errs, ip(s.self, "link del "+s.link))
	}
	for _, namespace := range append(s.members, s.self, s.router) {
		if namespace != nil {
			errs = append(errs, namespace.Close())
		}
	}
	return errors.Join(errs...)
}

// newNamespace returns a network namespace. The namespace exists until the file is closed
// and no process is inside.
func newNamespace() (*os.File, error) {
	attr, err := ownNetwork()
	if err != nil {
		return nil, err
	}
	first := exec.Command("cat") // ends when the input is closed
	first.SysProcAttr = attr
	in, err := first.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := first.Start(); err != nil {
		return nil, fmt.Errorf("a network namespace: %w", err)
	}
	namespace, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", first.Process.Pid))
	_ = in.Close()
	if ended := first.Wait(); err == nil && ended != nil {
		return nil, errors.Join(ended, namespace.Close())
	}
	return namespace, err
}

// path returns the path of the namespace for other processes.
func path(namespace *os.File) string {
	return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), namespace.Fd())
}

// ip runs the command ip in the namespace with the lines as input.
func ip(namespace *os.File, lines string) error { return run(namespace, lines, "ip", "-batch", "-") }

func run(namespace *os.File, input string, argv ...string) error {
	cmd := exec.Command("nsenter", append([]string{"--net=" + path(namespace)}, argv...)...)
	cmd.Stdin = strings.NewReader(input)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, out)
	}
	return nil
}
