package main

// This file tests the command history on the files of real servers.

import (
	"cmp"
	"context"
	"encoding/json"
	"encoding/xml"

	"fmt"
	"io"
	"log"
	"log/slog"
	"math"
	"math/rand/v2"

	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/cmd/lockpool/txnlog"
	"github.com/lockpool/lockpool/driver/zookeeper"
	"github.com/lockpool/lockpool/internal/waitgraph"
	"github.com/lockpool/lockpool/testing/locktest"
	"github.com/lockpool/lockpool/testing/zktest"
)

// startLogged starts a real server that begins a log and a snapshot at least every snapCount
// transactions. It returns a shell, and the directory of the files.
func startLogged(t *testing.T, snapCount int, flags ...string) (*shell, string) {
	server := zktest.StartReal(t, zktest.JVMFlags(append(flags, fmt.Sprintf("-Dzookeeper.snapCount=%d", snapCount), "-Dzookeeper.preAllocSize=1000")...))
	s := newShellOn(locktest.NewOn(t, server))
	conf, err := server.Command(s.Ctx, "conf")
	require.NoError(t, err)
	_, dir, _ := strings.Cut(conf, "dataDir=")
	dir, _, _ = strings.Cut(dir, "\n")
	return s, dir
}

// names are the locks of the workload.
var names = []string{"orders/42", "orders/43", "readers", "gpu", "plain", "curator"}

// moment is what Pool.Queue says of the locks between two transactions.
type moment struct {
	after, before int64
	queues        map[string][]lockpool.Contender
}

// said returns what the files should tell of a queue.
func said(contenders []lockpool.Contender) (all []string) {
	for _, c := range contenders {
		all = append(all, fmt.Sprintln(c.Node, c.Kind, c.Holds, c.Permits, c.Session, c.Asked.UnixMilli(), c.Kept, c.Origin, waiting(!c.Holds, c.At)))
	}
	return all
}

// replayed returns the same of the replayed contenders.
func replayed(contenders []*waitgraph.Contender) (all []string) {
	for _, c := range contenders {
		all = append(all, fmt.Sprintln(c.Name, c.Kind(), !c.Waits, c.Permits, c.Session, c.Joined.UnixMilli(), c.Record.Kept, lockpool.Origin(c.Record.Origin), waiting(c.Waits, c.Record.At)))
	}
	return all
}

// waiting is where a waiter's call was made. The holder may have another one by now, with a turn
// that a pool has reported.
func waiting(waits bool, at string) string {
	if waits {
		return at
	}
	return ""
}

// compared is a history that is compared with moments.
type compared struct {
	*shell
	queue   func(lock string) []*waitgraph.Contender
	moments []moment
	latest  map[string][]string // what was replayed last
	changed map[string]int64    // by a transaction
	first   int64               // transaction applied
	kinds   map[string]int      // how many contenders were compared
}

// take compares the state after a transaction with the moments before.
func (c *compared) take(number int64) {
	c.first = cmp.Or(c.first, number)
	for len(c.moments) > 0 && c.moments[0].before <= number {
		for name, contenders := range c.moments[0].queues {
			if c.moments[0].after < max(c.first, c.changed[name]) {
				continue
			}
			require.Equal(c, said(contenders), c.latest[name], "%s at %#x", name, number)
			for _, contender := range contenders {
				c.kinds[fmt.Sprint(contender.Kind, " ", contender.Holds)]++
			}
		}
		c.moments = c.moments[1:]
	}
	for _, name := range names {
		if now := replayed(c.queue(name)); !slices.Equal(now, c.latest[name]) {
			c.latest[name], c.changed[name] = now, number
		}
	}
}

// mark makes a transaction, and returns its number.
func (s *shell) mark() int64 {
	stat, err := s.Admin.Set(s.Chroot+"/marker", nil, -1)
	require.NoError(s, err)
	return stat.Mzxid
}

// watch records moments, in which work rests: the queues change little meanwhile, however slow
// the machine is.
func (s *shell) watch(n int, pool *lockpool.Pool, mark func() int64) (moments []moment) {
	look := func() {
		s.looks.Lock()
		defer s.looks.Unlock()
		m := moment{after: mark(), queues: map[string][]lockpool.Contender{}}
		for _, name := range names {
			q, err := pool.Queue(s.Ctx, name)
			require.NoError(s, err)
			m.queues[name] = q.Contenders
		}
		m.before = mark()
		moments = append(moments, m)
	}
	for range n {
		look()
	}
	return moments
}

func (s *shell) compare(moments []moment, queue func(lock string) []*waitgraph.Contender) *compared {
	return &compared{s, queue, moments, map[string][]string{}, map[string]int64{}, 0, map[string]int{}}
}

// requireMoments requires that the files tell what Pool.Queue has told, of each lock that by
// the files did not change meanwhile. It returns how many contenders of each kind were compared.
func (s *shell) requireMoments(files txnlog.Files, from time.Time, moments []moment) map[string]int {
	h := newFileHistory(s.Chroot, nil)
	h.To = time.Now()
	c := s.compare(moments, h.queue)
	notes, err := files.Walk(from, func(t txnlog.Txn) bool {
		more := h.apply(t)
		c.take(t.Zxid)
		return more
	})
	require.NoError(s, err)
	require.Empty(s, notes)
	require.Empty(s, c.moments)
	return c.kinds
}

// The files of a server tell at each moment what Pool.Queue has told then. Snapshots are
// compressed here, and not in the other tests.
func TestHistoryIsWhatQueueSaid(t *testing.T) {
	locktest.Once(t)
	t.Parallel()
	s, dir := startLogged(t, 40, "-Dzookeeper.snapshot.compression.method=gz")
	for _, path := range []string{"", "/marker"} {
		_, err := s.Admin.Create(s.Chroot+path, nil, 0, zk.WorldACL(zk.PermAll))
		require.NoError(t, err)
	}
	stop := s.contention()
	moments := s.watch(20, s.Pool(), s.mark)
	middle := time.Now()
	moments = append(moments, s.watch(20, s.Pool(), s.mark)...)
	stop()
	_, err := s.Dial().CreateProtectedEphemeralSequential(s.Chroot+"/curator/__WRIT__", nil, zk.WorldACL(zk.PermAll))
	require.NoError(t, err)
	s.pose(s.Pool(), s.Pool())
	moments = append(moments, s.watch(3, s.Pool(), s.mark)...)
	files, err := txnlog.Find(dir, "")
	require.NoError(t, err)
	require.Greater(t, len(files.Snapshots), 3)
	require.True(t, strings.HasSuffix(files.Snapshots[1].Path, ".gz"))
	all := s.requireMoments(files, time.Time{}, moments)
	for _, kind := range []string{"mutex true", "mutex false", "read true", "read false", "write true", "semaphore true", "semaphore false", "plain true"} {
		require.Positive(t, all[kind], kind)
	}
	require.Less(t, sum(s.requireMoments(files, middle, moments)), sum(all), "a snapshot replaces the oldest logs")
}

func sum(kinds map[string]int) (n int) {
	for _, k := range kinds {
		n += k
	}
	return n
}

// pose makes contenders of each kind hold and wait, until the pools are closed.
func (s *shell) pose(holders, waiters *lockpool.Pool) {
	s.Lock(holders, "orders/42")
	s.Lock(holders, "readers", lockpool.Shared())
	s.Lock(holders, "plain", lockpool.Plain())
	_, err := holders.Semaphore("gpu", 3).Acquire(s.Ctx, 3)
	require.NoError(s, err)
	for _, wait := range []func() (*lockpool.Lock, error){
		func() (*lockpool.Lock, error) { return waiters.Lock(s.Ctx, "orders/42", lockpool.Shared()) },
		func() (*lockpool.Lock, error) { return waiters.Lock(s.Ctx, "readers") },
		func() (*lockpool.Lock, error) { return waiters.Semaphore("gpu", 3).Acquire(s.Ctx, 1) },
	} {
		go func() { _, _ = wait() }() // ends with the pool
	}
	for name, n := range map[string]int{"orders/42": 2, "readers": 2, "gpu": 2, "curator": 1} {
		s.Until(func() bool {
			q, err := holders.Queue(s.Ctx, name)
			require.NoError(s, err)
			return len(q.Contenders) == n
		}, "%d contenders for %s", n, name)
	}
}

// ofWorker are the options of a pool that contends.
func ofWorker(i int) []lockpool.Option {
	return []lockpool.Option{lockpool.WithLocalTurns(i % 2 * 10), lockpool.WithKeptLocks(1, time.Second),
		lockpool.WithOwner(fmt.Sprint("worker", i)), lockpool.WithLogger(slog.New(slog.DiscardHandler))}
}

// rest waits for a while, or until ctx ends, and for the end of a look.
func (s *shell) rest(ctx context.Context, r *rand.Rand) {
	s.looks.RLock()
	defer s.looks.RUnlock()
	select {
	case <-ctx.Done():
	case <-time.After(time.Duration(r.IntN(40)) * time.Millisecond):
	}
}

// contention makes pools, and clients such as Curator, contend for locks, break locks and end
// sessions until stop is called.
func (s *shell) contention() (stop func()) {
	var pools []*lockpool.Pool
	for i, layout := range []zookeeper.Layout{zookeeper.LayoutCurator, zookeeper.LayoutKazoo, zookeeper.LayoutCurator, zookeeper.LayoutKazooRW} {
		cfg := s.Config()
		cfg.Layout = layout
		pools = append(pools, s.PoolWith(cfg, ofWorker(i)...))
	}
	return s.work(pools, func(ctx context.Context, r *rand.Rand) { // a client such as Curator, whose session ends
		conn := s.Dial()
		defer conn.Close()
		_, _ = conn.Create(s.Chroot+"/curator", nil, 0, zk.WorldACL(zk.PermAll)) // perhaps there
		for range 5 {
			ending := []string{"lock-", "__READ__", "__WRIT__"}[r.IntN(3)]
			node, err := conn.CreateProtectedEphemeralSequential(s.Chroot+"/curator/"+ending, []byte("10.0.0.1"), zk.WorldACL(zk.PermAll))
			s.rest(ctx, r)
			if err == nil && r.IntN(2) == 0 {
				_ = conn.Delete(node, -1) // perhaps broken
			}
		}
	})
}

// work makes pools contend for locks and break locks beside another client until stop is called.
func (s *shell) work(pools []*lockpool.Pool, other func(context.Context, *rand.Rand)) (stop func()) {
	ctx, cancel := context.WithCancel(s.Ctx)
	var all sync.WaitGroup
	again := func(do func(ctx context.Context, r *rand.Rand)) {
		all.Go(func() { // ends with ctx
			r := rand.New(rand.NewPCG(1, rand.Uint64()))
			for ctx.Err() == nil {
				one, cancel := context.WithTimeout(ctx, time.Duration(r.IntN(1000))*time.Millisecond)
				do(one, r)
				cancel()
			}
		})
	}
	use := func(ctx context.Context, r *rand.Rand, l *lockpool.Lock, err error) {
		if err == nil {
			s.rest(ctx, r)
			_ = l.Unlock(context.WithoutCancel(ctx)) // perhaps broken
		}
	}
	for _, pool := range pools {
		for range 2 {
			again(func(ctx context.Context, r *rand.Rand) {
				l, err := pool.Lock(ctx, names[r.IntN(2)])
				if err == nil && r.IntN(3) == 0 {
					inner, err := pool.Semaphore("gpu", 3).Acquire(ctx, 1+r.IntN(3))
					use(ctx, r, inner, err)
				}
				use(ctx, r, l, err)
			})
			again(func(ctx context.Context, r *rand.Rand) {
				var opts []lockpool.LockOption
				if r.IntN(3) > 0 {
					opts = append(opts, lockpool.Shared())
				}
				l, err := pool.Lock(ctx, "readers", opts...)
				use(ctx, r, l, err)
			})
			again(func(ctx context.Context, r *rand.Rand) {
				l, err := pool.Semaphore("gpu", 3).Acquire(ctx, 1+r.IntN(3))
				use(ctx, r, l, err)
			})
			again(func(ctx context.Context, r *rand.Rand) {
				l, err := pool.Lock(ctx, "plain", lockpool.Plain())
				use(ctx, r, l, err)
			})
		}
	}
	again(func(ctx context.Context, r *rand.Rand) { // breaks and revokes
		s.rest(ctx, r)
		q, err := pools[0].Queue(ctx, names[r.IntN(len(names))])
		if err != nil || len(q.Contenders) == 0 {
			return
		}
		if node := q.Contenders[r.IntN(len(q.Contenders))].Node; r.IntN(2) == 0 {
			_ = pools[0].Break(ctx, q.Name, node) // perhaps gone
		} else {
			_ = pools[0].Revoke(ctx, q.Name, node)
		}
	})
	again(other)
	return func() {
		cancel()
		all.Wait()
	}
}

var (
	times   = regexp.MustCompile(`\d\d:\d\d:\d\d(\.\d+)?`)
	lengths = regexp.MustCompile(` +(\d+(\.\d+)?m?s)+`)
	hexes   = regexp.MustCompile(`0x[0-9a-f]+`)
)

// changes returns the lines about changes, without what differs from run to run.
func changes(text string) string {
	_, text, _ = strings.Cut(text, "LOCK\n")
	text, _, _ = strings.Cut(text, "\n\n")
	return hexes.ReplaceAllString(lengths.ReplaceAllString(times.ReplaceAllString(text, "TIME"), " LONG"), "0x*") + "\n"
}

// History tells how each hold and wait has ended, while the server runs.
func TestHistoryTellsHowHoldsEnd(t *testing.T) {
	locktest.Once(t)
	t.Parallel()
	s, dir := startLogged(t, 100000)
	proxy := s.Proxy()
	mortal, _, err := zk.Connect([]string{proxy.Addr()}, 5*time.Second, zk.WithLogInfo(false), zk.WithLogger(log.New(io.Discard, "", 0)))
	require.NoError(t, err)
	defer mortal.Close()
	s.Addr = s.Server.Addr()
	first, last := s.Dial(), s.Dial()
	billing := s.contender(first, "orders/42", "billing", 101)
	cart := s.contender(first, "orders/42", "cart", 202)
	s.contender(mortal, "orders/42", "shop", 303)
	s.contender(last, "orders/42", "depot", 404)
	cron := s.contender(first, "orders/42", "cron", 505)
	for _, node := range []string{billing, cron} {
		require.NoError(t, first.Delete(s.Chroot+"/orders/42/"+node, -1))
	}
	require.NoError(t, s.Admin.Delete(s.Chroot+"/orders/42/"+cart, -1))
	for _, conn := range []*zk.Conn{last, first} {
		_, err := conn.Create(s.Chroot+"/stock", []byte("10.0.0.1"), zk.FlagEphemeral, zk.WorldACL(zk.PermAll))
		require.NoError(t, err)
		if conn == last {
			require.NoError(t, conn.Delete(s.Chroot+"/stock", -1))
		}
	}
	require.NoError(t, proxy.RefuseConnections(1))
	proxy.HalfOpen(zktest.Selector{})
	s.Until(func() bool { return len(s.Children("orders/42")) == 1 }, "shop's session is over")
	last.Close()
	require.Equal(t, `
TIME     1     0  holds            orders/42: billing, process 101 on web1 (mutex)
TIME     1     1  waits            orders/42: cart, process 202 on web2 (mutex)
TIME     1     2  waits            orders/42: shop, process 303 on web3 (mutex)
TIME     1     3  waits            orders/42: depot, process 404 on web4 (mutex)
TIME     1     4  waits            orders/42: cron, process 505 on web5 (mutex)
TIME     0     4  released         orders/42: billing, process 101 on web1 (mutex), held for LONG
TIME     1     3  holds            orders/42: cart, process 202 on web2 (mutex), waited for LONG
TIME     1     2  gave up          orders/42: cron, process 505 on web5 (mutex), waited for LONG
TIME     0     2  removed          orders/42: cart, process 202 on web2 (mutex), held for LONG, by session 0x*
TIME     1     1  holds            orders/42: shop, process 303 on web3 (mutex), waited for LONG
TIME     0     1  session expired  orders/42: shop, process 303 on web3 (mutex), held for LONG
TIME     1     0  holds            orders/42: depot, process 404 on web4 (mutex), waited for LONG
TIME     0     0  session closed   orders/42: depot, process 404 on web4 (mutex), held for LONG
`[1:], changes(s.prints("history", "--txnlog", dir, "--chroot", s.Chroot, "orders")))

	require.Equal(t, `
TIME     1     0  holds            stock: a process on 10.0.0.1 (plain)
TIME     0     0  released         stock: a process on 10.0.0.1 (plain), held for LONG
TIME     1     0  holds            stock: a process on 10.0.0.1 (plain)
`[1:], changes(s.prints("history", "--txnlog", dir, "--chroot", s.Chroot, "stock")), "the end of last's session does not concern first's node")

	s.contender(first, "\u202eforeign", "\u202e", 606)
	out := s.prints("history", "--txnlog", filepath.Dir(dir), "--chroot", s.Chroot, "\u202eforeign")
	require.Contains(t, out, `"\u202eforeign": process 606 on web6`)
	require.NotContains(t, out, "orders")
	var all history
	text := s.prints("history", "--txnlog", dir, "--chroot", s.Chroot, "--json")
	require.NoError(t, json.Unmarshal([]byte(text), &all))
	require.NotContains(t, out+text, "\u202e")

	var picture struct {
		XMLName xml.Name `xml:"http://www.w3.org/2000/svg svg"`
		Texts   []string `xml:"text"`
		Bars    []struct {
			Class string `xml:"class,attr"`
			Width int    `xml:"width,attr"`
			Title string `xml:"title"`
		} `xml:"rect"`
	}
	text = s.prints("history", "--txnlog", dir, "--chroot", s.Chroot, "--svg", "--from", all.Intervals[0].From.Format(time.RFC3339Nano))
	require.NoError(t, xml.Unmarshal([]byte(text), &picture))
	require.Contains(t, picture.Texts, "billing, process 101 on web1")
	require.NotContains(t, text, "\u202e")
	require.Len(t, picture.Bars, len(all.Intervals))
	for _, i := range all.Intervals {
		width := 1000 * cmp.Or(i.To, &all.To).Sub(*i.From).Seconds() / all.To.Sub(*all.Intervals[0].From).Seconds()
		class := map[bool]string{true: "holds", false: "waits"}[i.Holds]
		found := false
		for _, bar := range picture.Bars {
			found = found || bar.Class == class && strings.Contains(bar.Title, quoted(i.Lock)+": ") && strings.Contains(bar.Title, printable(i.Owner)) && math.Abs(width-float64(bar.Width)) <= 2
		}
		require.True(t, found, "%s %s in %+v", i.Owner, class, picture.Bars)
	}

	middle := all.Intervals[1].From.Format(time.RFC3339Nano) // when the first waiter came
	lines := changes(s.prints("history", "--txnlog", dir, "--chroot", s.Chroot, "--from", middle, "--to", middle, "orders"))
	require.Regexp(t, `^TIME     1     0  holds            orders/42: billing, process 101 on web1 \(mutex\)(, since TIME)?\n`, lines)
	require.Regexp(t, `\nTIME     1     1  waits            orders/42: cart, process 202 on web2 \(mutex\)\n`, lines)
	require.NotContains(t, lines, "expired")
	s.says(118, "nothing is between", "history", "--txnlog", dir, "--from", "1h", "--to", "2h")
}

// The hold of a downgraded lock, and the wait for permits, are those of one contender.
func TestHistoryFollowsContendersToTheirNextNodes(t *testing.T) {
	locktest.Once(t)
	t.Parallel()
	s, dir := startLogged(t, 100000)
	out := s.next(s.Pool(lockpool.WithOwner("billing")), s.Pool(lockpool.WithOwner("cart")), "--txnlog", dir, "--chroot", s.Chroot+"/")
	require.Len(t, out.Notes, 4)
}

// next makes contenders change to other nodes, and requires what the history should tell.
func (s *shell) next(billing, cart *lockpool.Pool, args ...string) (out history) {
	h := s.Handle(billing)
	write, err := h.Lock(s.Ctx, "prices")
	require.NoError(s, err)
	read, err := h.Lock(s.Ctx, "prices", lockpool.Shared())
	require.NoError(s, err)
	require.NoError(s, write.Unlock(s.Ctx))
	require.NoError(s, read.Unlock(s.Ctx))

	all, err := billing.Semaphore("gpu", 2).Acquire(s.Ctx, 2)
	require.NoError(s, err)
	waited := make(chan error, 1)
	go func() { // ends with the lock
		one, err := cart.Semaphore("gpu", 2).Acquire(s.Ctx, 1)
		if err == nil {
			err = one.Unlock(s.Ctx)
		}
		waited <- err
	}()
	s.Until(func() bool {
		q, err := billing.Queue(s.Ctx, "gpu")
		require.NoError(s, err)
		return len(q.Contenders) == 2
	}, "a wait for permits")
	require.NoError(s, all.Unlock(s.Ctx))
	require.NoError(s, <-waited)

	require.NoError(s, json.Unmarshal([]byte(s.prints(append([]string{"history", "--json"}, args...)...)), &out))
	var told []string
	for _, i := range out.Intervals {
		require.NotNil(s, i.From)
		require.NotNil(s, i.To)
		require.False(s, i.Asked.After(*i.From))
		require.Equal(s, os.Getpid(), i.PID)
		told = append(told, fmt.Sprint(i.Lock, " ", i.Owner, " ", i.Kind, " ", i.Holds, " ", i.Permits, " ", i.End))
	}
	require.Equal(s, []string{
		"gpu billing semaphore false 0 granted", "gpu billing semaphore true 2 released",
		"gpu cart semaphore false 0 granted", "gpu cart semaphore true 1 released",
		"prices billing mutex true 0 downgraded", "prices billing read true 0 released",
	}, told)
	require.Equal(s, out.Intervals[2].Asked, out.Intervals[3].Asked)
	require.Equal(s, out.Intervals[4].Token, out.Intervals[5].Token)
	return out
}

func TestHistoryReadsTimes(t *testing.T) {
	t.Parallel()
	locktest.Once(t)
	zone := time.FixedZone("", 3600)
	now := time.Date(2026, 3, 14, 15, 9, 26, 0, zone)
	for text, want := range map[string]time.Time{
		"":                     now.Add(-time.Minute),
		"15:09":                now.Add(-26 * time.Second),
		"15:09:27":             now.Add(time.Second).AddDate(0, 0, -1),
		"90m":                  now.Add(-90 * time.Minute),
		"2026-03-14T10:00:00Z": time.Date(2026, 3, 14, 10, 0, 0, 0, time.UTC),
	} {
		got, err := pastTime(text, now, now.Add(-time.Minute))
		require.NoError(t, err)
		require.True(t, want.Equal(got), "%s: %s", text, got)
	}
	s := &shell{Bench: &locktest.Bench{TB: t}, env: []string{asCommand + "=1"}}
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "log.1"), nil, 0o600))
	s.says(118, `"\u202e" is no time; give 15:04`, "history", "--server", "etcd://127.0.0.1:1", "--from", "\u202e")
	s.says(119, "no transaction can be read in "+dir, "history", "--txnlog", dir, "--from", "1h", "--to", "2h")
	s.says(119, "there are no files log.* in", "history", "--txnlog", t.TempDir())
	s.says(118, "ZooKeeper keeps the history in its files: give the directory of a server's with --txnlog", "history", "--server", "127.0.0.1:1")
}
