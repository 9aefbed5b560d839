import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.Callable;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.api.transaction.CuratorTransactionResult;
import org.apache.curator.framework.recipes.cache.CuratorCache;
import org.apache.curator.framework.recipes.cache.CuratorCacheListener;
import org.apache.curator.framework.recipes.cache.TreeCache;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.framework.recipes.locks.InterProcessSemaphoreV2;
import org.apache.curator.framework.recipes.locks.Lease;
import org.apache.curator.retry.ExponentialBackoffRetry;
import org.apache.zookeeper.AddWatchMode;
import org.apache.zookeeper.CreateMode;
import org.apache.zookeeper.KeeperException;
import org.apache.zookeeper.WatchedEvent;
import org.apache.zookeeper.Watcher;
import org.apache.zookeeper.Watcher.Event.EventType;
import org.apache.zookeeper.ZooDefs.Ids;
import org.apache.zookeeper.ZooDefs.Perms;
import org.apache.zookeeper.data.ACL;
import org.apache.zookeeper.data.Id;
import org.apache.zookeeper.data.Stat;

/**
 * Uses Curator as its users do, with the server at the given address.
 *
 * <p>usage: CuratorInterop host:port
 */
class CuratorInterop {
    static final int PATIENCE = 20_000; // ms for what happens soon
    static final int SHORT = 200; // ms for what must not happen
    static final int DEADLINE = 300_000; // ms for everything

    static final ExecutorService THREADS = Executors.newCachedThreadPool();

    final CuratorFramework a;
    final CuratorFramework b;

    CuratorInterop(CuratorFramework a, CuratorFramework b) {
        this.a = a;
        this.b = b;
    }

    public static void main(String[] args) {
        Thread watchdog = new Thread(CuratorInterop::giveUp);
        watchdog.setDaemon(true);
        watchdog.start();
        try (CuratorFramework a = connect(args[0], null);
                CuratorFramework b = connect(args[0], null)) {
            new CuratorInterop(a, b).run(args[0]);
        } catch (Throwable e) {
            e.printStackTrace();
            System.exit(1);
        }
        System.exit(0);
    }

    /** Prints the stack of every thread and exits, even if a thread is stuck. */
    static void giveUp() {
        try {
            Thread.sleep(DEADLINE);
        } catch (InterruptedException e) {
            return;
        }
        System.err.println("not done after " + DEADLINE + " ms");
        Thread.getAllStackTraces().forEach((thread, stack) -> {
            System.err.println(thread);
            Arrays.stream(stack).forEach(frame -> System.err.println("    at " + frame));
        });
        Runtime.getRuntime().halt(1);
    }

    static CuratorFramework connect(String address, String user) throws Exception {
        CuratorFrameworkFactory.Builder builder = CuratorFrameworkFactory.builder()
                .connectString(address)
                .sessionTimeoutMs(PATIENCE)
                .connectionTimeoutMs(PATIENCE)
                .retryPolicy(new ExponentialBackoffRetry(100, 3));
        if (user != null) {
            builder.authorization("digest", bytes(user));
        }
        CuratorFramework client = builder.build();
        client.start();
        check(client.blockUntilConnected(PATIENCE, TimeUnit.MILLISECONDS), "not connected");
        return client;
    }

    interface Check {
        void run() throws Exception;
    }

    void run(String address) throws Exception {
        ok("nodes", this::nodes);
        ok("transactions", this::transactions);
        ok("watches", this::watches);
        ok("persistentWatches", this::persistentWatches);
        ok("caches", this::caches);
        ok("permissions", () -> permissions(address));
        ok("mutex", this::mutex);
        ok("readWriteLock", this::readWriteLock);
        ok("semaphore", this::semaphore);
        ok("close", () -> close(address));
        ok("nothingLeft", () -> {
            for (String lock : List.of("mutex", "readwrite", "semaphore/locks", "semaphore/leases")) {
                same(List.of(), a.getChildren().forPath("/curator/" + lock));
            }
            noEphemerals("/curator");
        });
    }

    static void ok(String name, Check check) throws Exception {
        check.run();
        System.out.println("ok " + name);
    }

    void nodes() throws Exception {
        String parent = "/curator/nodes/a/b";
        String p = parent + "/c";
        same(null, a.checkExists().forPath(p));
        same(p, a.create().creatingParentContainersIfNeeded().forPath(p, bytes("1")));
        fails(KeeperException.NodeExistsException.class, () -> a.create().forPath(p));
        a.create().orSetData().forPath(p, bytes("22"));
        Stat stat = new Stat();
        same("22", text(b.getData().storingStatIn(stat).forPath(p)));
        same(1, stat.getVersion());
        same(2, a.setData().withVersion(1).forPath(p, bytes("3")).getVersion());
        fails(KeeperException.BadVersionException.class, () -> a.setData().withVersion(1).forPath(p));
        fails(KeeperException.NotEmptyException.class, () -> a.delete().forPath(parent));
        a.sync().forPath(p);

        String n = a.create().withMode(CreateMode.EPHEMERAL_SEQUENTIAL).forPath(parent + "/n-");
        same(parent + "/n-0000000001", n);
        same(sessionOf(a), b.checkExists().forPath(n).getEphemeralOwner());
        String guarded = a.create().withProtection().withMode(CreateMode.EPHEMERAL_SEQUENTIAL)
                .forPath(parent + "/n-");
        check(guarded.matches(parent + "/_c_[-0-9a-f]{36}-n-0000000002"), guarded);
        check(a.create().withMode(CreateMode.PERSISTENT_SEQUENTIAL).forPath(parent + "/s-")
                .equals(parent + "/s-0000000003"), "not numbered 3");
        same(4, b.getChildren().forPath(parent).size());

        BlockingQueue<String> done = new LinkedBlockingQueue<>();
        a.getData().inBackground((client, event) -> done.add(text(event.getData()))).forPath(p);
        next(done, "3");
        a.delete().guaranteed().deletingChildrenIfNeeded().forPath("/curator/nodes");
        same(null, b.checkExists().forPath("/curator/nodes"));
    }

    @SuppressWarnings("deprecation") // older programs use inTransaction
    void transactions() throws Exception {
        String p = "/curator/transactions";
        List<CuratorTransactionResult> results = new ArrayList<>(a.inTransaction()
                .create().forPath(p, bytes("1")).and()
                .create().withMode(CreateMode.EPHEMERAL_SEQUENTIAL).forPath(p + "/n-").and()
                .setData().withVersion(0).forPath(p, bytes("22")).and()
                .check().withVersion(1).forPath(p).and()
                .delete().forPath(p + "/n-0000000000").and()
                .commit());
        same(5, results.size());
        same(p + "/n-0000000000", results.get(1).getResultPath());
        same(1, results.get(2).getResultStat().getVersion());

        KeeperException e = fails(KeeperException.NoNodeException.class, () -> a.transaction().forOperations(
                a.transactionOp().create().withMode(CreateMode.CONTAINER).forPath(p + "/a"),
                a.transactionOp().delete().forPath(p + "/missing"),
                a.transactionOp().create().forPath(p + "/b")));
        same(3, e.getResults().size());
        same(List.of(), b.getChildren().forPath(p));

        a.transaction().forOperations( // whose result Curator loses for a container
                a.transactionOp().create().withMode(CreateMode.CONTAINER).forPath(p + "/a"),
                a.transactionOp().setData().forPath(p + "/a", bytes("x")));
        same("x", text(b.getData().forPath(p + "/a")));
    }

    void watches() throws Exception {
        String p = "/curator/watches";
        Events events = new Events();
        same(null, a.checkExists().usingWatcher(events).forPath(p));
        b.create().forPath(p);
        events.next(EventType.NodeCreated, p);
        a.getData().usingWatcher(events).forPath(p);
        b.setData().forPath(p, bytes("x"));
        events.next(EventType.NodeDataChanged, p);
        a.getChildren().usingWatcher(events).forPath(p);
        b.create().forPath(p + "/child");
        events.next(EventType.NodeChildrenChanged, p);

        a.getData().usingWatcher(events).forPath(p);
        a.watchers().remove(events).forPath(p);
        events.next(EventType.DataWatchRemoved, p);
        b.setData().forPath(p, bytes("y"));
        a.getData().usingWatcher(events).forPath(p + "/child");
        b.delete().forPath(p + "/child");
        events.next(EventType.NodeDeleted, p + "/child"); // the data watch is removed
        fails(KeeperException.NoWatcherException.class, () -> a.watchers().removeAll().forPath(p));
    }

    void persistentWatches() throws Exception {
        String p = "/curator/persistent";
        Events events = new Events();
        a.watchers().add().withMode(AddWatchMode.PERSISTENT_RECURSIVE).usingWatcher(events).forPath(p);
        for (int i = 0; i < 2; i++) {
            b.create().forPath(p);
            events.next(EventType.NodeCreated, p);
            b.create().forPath(p + "/child");
            events.next(EventType.NodeCreated, p + "/child");
            b.setData().forPath(p + "/child", bytes("x"));
            events.next(EventType.NodeDataChanged, p + "/child");
            b.delete().deletingChildrenIfNeeded().forPath(p);
            events.next(EventType.NodeDeleted, p + "/child");
            events.next(EventType.NodeDeleted, p);
        }
        a.watchers().removeAll().forPath(p);
        events.next(EventType.PersistentWatchRemoved, p);

        a.watchers().add().withMode(AddWatchMode.PERSISTENT).usingWatcher(events).forPath(p);
        b.create().forPath(p);
        events.next(EventType.NodeCreated, p); // only one: the other watch was removed
        b.create().forPath(p + "/child");
        events.next(EventType.NodeChildrenChanged, p);
        b.setData().forPath(p, bytes("x"));
        events.next(EventType.NodeDataChanged, p);
        a.watchers().remove(events).forPath(p);
        events.next(EventType.PersistentWatchRemoved, p);
    }

    void caches() throws Exception {
        String p = "/curator/cache";
        b.create().forPath(p, bytes("root"));
        BlockingQueue<String> seen = new LinkedBlockingQueue<>();
        CountDownLatch initialized = new CountDownLatch(1);
        // On one connection the plain watches of the second would replace those of the first.
        try (CuratorCache cache = CuratorCache.build(a, p); TreeCache tree = new TreeCache(b, p)) {
            cache.listenable().addListener(CuratorCacheListener.builder()
                    .forInitialized(initialized::countDown)
                    .forCreates(node -> seen.add("created " + node.getPath()))
                    .forChanges((old, node) -> seen.add("changed " + node.getPath() + " to " + text(node.getData())))
                    .forDeletes(old -> seen.add("deleted " + old.getPath()))
                    .build());
            cache.start();
            check(initialized.await(PATIENCE, TimeUnit.MILLISECONDS), "the cache is not ready");
            next(seen, "created " + p);
            tree.start();

            b.create().forPath(p + "/x");
            next(seen, "created " + p + "/x");
            b.create().forPath(p + "/x/y", bytes("1"));
            next(seen, "created " + p + "/x/y");
            b.setData().forPath(p + "/x/y", bytes("2"));
            next(seen, "changed " + p + "/x/y to 2");
            same("2", text(cache.get(p + "/x/y").get().getData()));
            until(() -> tree.getCurrentData(p + "/x/y") != null
                    && text(tree.getCurrentData(p + "/x/y").getData()).equals("2"));
            b.delete().deletingChildrenIfNeeded().forPath(p + "/x");
            next(seen, "deleted " + p + "/x/y");
            next(seen, "deleted " + p + "/x");
            same(1, cache.size());
            until(() -> tree.getCurrentData(p + "/x") == null);
        }
    }

    void permissions(String address) throws Exception {
        String p = "/curator/permissions";
        try (CuratorFramework owner = connect(address, "curator:secret")) {
            owner.create().withACL(Ids.CREATOR_ALL_ACL).forPath(p, bytes("private"));
            same("private", text(owner.getData().forPath(p)));
            fails(KeeperException.NoAuthException.class, () -> a.getData().forPath(p));
            fails(KeeperException.NoAuthException.class, () -> a.create().forPath(p + "/child"));
            Stat stat = new Stat();
            List<ACL> acl = owner.getACL().storingStatIn(stat).forPath(p);
            same(1, acl.size());
            same(Perms.ALL, acl.get(0).getPerms());
            check(acl.get(0).getId().toString().startsWith("'digest,'curator:"), acl.toString());
            List<ACL> wider = List.of(acl.get(0), new ACL(Perms.READ, Ids.ANYONE_ID_UNSAFE));
            same(1, owner.setACL().withVersion(0).withACL(wider).forPath(p).getAversion());
            fails(KeeperException.BadVersionException.class,
                    () -> owner.setACL().withVersion(0).withACL(acl).forPath(p));
            same("private", text(a.getData().forPath(p)));
            same(List.of(new ACL(Perms.ALL, new Id("digest", "curator:x")), wider.get(1)), a.getACL().forPath(p));
            fails(KeeperException.NoAuthException.class, () -> a.setData().forPath(p));
        }
    }

    void mutex() throws Exception {
        String p = "/curator/mutex";
        Path guard = Files.createTempDirectory("curator").resolve("guard");
        contend(p, guard, 20);
        Files.delete(guard.getParent());

        InterProcessMutex ours = new InterProcessMutex(a, p);
        InterProcessMutex theirs = new InterProcessMutex(b, p);
        check(ours.acquire(PATIENCE, TimeUnit.MILLISECONDS), "a free mutex");
        check(ours.acquire(PATIENCE, TimeUnit.MILLISECONDS), "not reentrant");
        check(!theirs.acquire(SHORT, TimeUnit.MILLISECONDS), "held twice");
        same(1, a.getChildren().forPath(p).size());
        ours.release();
        check(ours.isOwnedByCurrentThread(), "released too soon");
        Future<Boolean> acquired = THREADS.submit(() -> {
            boolean ok = theirs.acquire(PATIENCE, TimeUnit.MILLISECONDS);
            theirs.release();
            return ok;
        });
        until(() -> ours.getParticipantNodes().size() == 2);
        ours.release();
        check(acquired.get(PATIENCE, TimeUnit.MILLISECONDS), "not handed over");
    }

    /** Makes each of two clients take a mutex the given number of times. */
    void contend(String path, Path guard, int rounds) throws Exception {
        List<Future<?>> contenders = new ArrayList<>();
        for (CuratorFramework client : List.of(a, b)) {
            contenders.add(THREADS.submit((Callable<Void>) () -> {
                InterProcessMutex mutex = new InterProcessMutex(client, path);
                for (int i = 0; i < rounds; i++) {
                    check(mutex.acquire(PATIENCE, TimeUnit.MILLISECONDS), "no turn");
                    enterAlone(guard);
                    mutex.release();
                }
                return null;
            }));
        }
        for (Future<?> contender : contenders) {
            contender.get(PATIENCE, TimeUnit.MILLISECONDS);
        }
    }

    /** Fails if another holder is inside with the same guard. */
    static void enterAlone(Path guard) throws IOException, InterruptedException {
        Files.createFile(guard);
        Thread.sleep(2); // gives a second holder time to enter
        Files.delete(guard);
    }

    void readWriteLock() throws Exception {
        String p = "/curator/readwrite";
        InterProcessReadWriteLock ours = new InterProcessReadWriteLock(a, p);
        InterProcessReadWriteLock theirs = new InterProcessReadWriteLock(b, p);
        check(ours.readLock().acquire(PATIENCE, TimeUnit.MILLISECONDS), "first reader");
        check(theirs.readLock().acquire(PATIENCE, TimeUnit.MILLISECONDS), "second reader");
        theirs.readLock().release();
        check(!theirs.writeLock().acquire(SHORT, TimeUnit.MILLISECONDS), "a writer beside a reader");
        Future<?> written = THREADS.submit((Callable<Void>) () -> {
            check(theirs.writeLock().acquire(PATIENCE, TimeUnit.MILLISECONDS), "the writer");
            check(theirs.readLock().acquire(PATIENCE, TimeUnit.MILLISECONDS), "the writer reads");
            check(!ours.readLock().acquire(SHORT, TimeUnit.MILLISECONDS), "a reader beside a writer");
            theirs.readLock().release();
            theirs.writeLock().release();
            return null;
        });
        until(() -> b.getChildren().forPath(p).size() == 2);
        ours.readLock().release();
        written.get(PATIENCE, TimeUnit.MILLISECONDS);
    }

    void semaphore() throws Exception {
        String p = "/curator/semaphore";
        InterProcessSemaphoreV2 ours = new InterProcessSemaphoreV2(a, p, 2);
        InterProcessSemaphoreV2 theirs = new InterProcessSemaphoreV2(b, p, 2);
        Lease first = ours.acquire(PATIENCE, TimeUnit.MILLISECONDS);
        Lease second = theirs.acquire(PATIENCE, TimeUnit.MILLISECONDS);
        check(first != null && second != null, "two leases");
        same(null, theirs.acquire(SHORT, TimeUnit.MILLISECONDS));
        same(2, ours.getParticipantNodes().size());
        Future<Lease> third = THREADS.submit(() -> theirs.acquire(PATIENCE, TimeUnit.MILLISECONDS));
        until(() -> ours.getParticipantNodes().size() == 3);
        ours.returnLease(first);
        check(third.get(PATIENCE, TimeUnit.MILLISECONDS) != null, "not handed over");
        theirs.returnLease(second);
        theirs.returnLease(third.get());
        until(() -> ours.getParticipantNodes().isEmpty()); // leases are returned in the background
    }

    /** Closing a client removes its ephemerals, even while others wait for them. */
    void close(String address) throws Exception {
        String p = "/curator/mutex";
        CuratorFramework leaver = connect(address, null);
        check(new InterProcessMutex(leaver, p).acquire(PATIENCE, TimeUnit.MILLISECONDS), "a free mutex");
        InterProcessMutex next = new InterProcessMutex(a, p);
        Future<Boolean> acquired = THREADS.submit(() -> {
            boolean ok = next.acquire(PATIENCE, TimeUnit.MILLISECONDS);
            next.release();
            return ok;
        });
        until(() -> a.getChildren().forPath(p).size() == 2);
        leaver.create().withMode(CreateMode.EPHEMERAL).forPath("/curator/leaver");
        leaver.close();
        same(null, a.checkExists().forPath("/curator/leaver"));
        check(acquired.get(PATIENCE, TimeUnit.MILLISECONDS), "not handed over");
    }

    void noEphemerals(String path) throws Exception {
        same(0L, a.checkExists().forPath(path).getEphemeralOwner());
        for (String child : a.getChildren().forPath(path)) {
            noEphemerals(path + "/" + child);
        }
    }

    /** Records events in their order. */
    static class Events implements Watcher {
        final BlockingQueue<String> seen = new LinkedBlockingQueue<>();

        @Override
        public void process(WatchedEvent event) {
            seen.add(event.getType() + " " + event.getPath());
        }

        void next(EventType type, String path) throws InterruptedException {
            CuratorInterop.next(seen, type + " " + path);
        }
    }

    static void next(BlockingQueue<String> queue, String want) throws InterruptedException {
        same(want, queue.poll(PATIENCE, TimeUnit.MILLISECONDS));
    }

    static void until(Callable<Boolean> condition) throws Exception {
        long start = System.nanoTime();
        while (!condition.call()) {
            check(System.nanoTime() - start < PATIENCE * 1_000_000L, "timeout");
            Thread.sleep(10);
        }
    }

    static <E extends Exception> E fails(Class<E> want, Check check) throws Exception {
        try {
            check.run();
        } catch (Exception e) {
            if (want.isInstance(e)) {
                return want.cast(e);
            }
            throw e;
        }
        throw new AssertionError("no " + want.getSimpleName());
    }

    static void same(Object want, Object got) {
        check(want == null ? got == null : want.equals(got), "got " + got + ", want " + want);
    }

    static void check(boolean condition, String otherwise) {
        if (!condition) {
            throw new AssertionError(otherwise);
        }
    }

    static long sessionOf(CuratorFramework client) throws Exception {
        return client.getZookeeperClient().getZooKeeper().getSessionId();
    }

    static byte[] bytes(String s) {
        return s.getBytes(StandardCharsets.UTF_8);
    }

    static String text(byte[] b) {
        return new String(b, StandardCharsets.UTF_8);
    }
}
