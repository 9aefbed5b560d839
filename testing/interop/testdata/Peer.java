import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.concurrent.SynchronousQueue;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.leader.LeaderLatch;
import org.apache.curator.framework.recipes.leader.LeaderSelector;
import org.apache.curator.framework.recipes.leader.LeaderSelectorListenerAdapter;
import org.apache.curator.framework.recipes.locks.InterProcessLock;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.framework.recipes.locks.InterProcessSemaphoreV2;
import org.apache.curator.framework.recipes.locks.Lease;
import org.apache.curator.retry.ExponentialBackoffRetry;

/**
 * A client of Curator's locks on one path. It reads commands from stdin:
 *
 * <p>usage: Peer host:port timeout path limit
 *
 * <p>"acquire KIND MS" waits for at most MS, or without limit if that is negative, and answers
 * "acquired" or "timeout"; "release KIND" answers "released". Failures are answered with "error".
 * The end of stdin ends the session and the program.
 */
class Peer {
    /** A lock or semaphore. */
    interface Lock {
        boolean acquire(long ms) throws Exception;

        void release() throws Exception;
    }

    public static void main(String[] args) throws Exception {
        int timeout = Integer.parseInt(args[1]);
        String path = args[2];
        try (CuratorFramework client = CuratorFrameworkFactory.newClient(
                args[0], timeout, 20_000, new ExponentialBackoffRetry(100, 3))) {
            client.start();
            if (!client.blockUntilConnected(20, TimeUnit.SECONDS)) {
                throw new IllegalStateException("not connected");
            }
            InterProcessReadWriteLock readWrite = new InterProcessReadWriteLock(client, path);
            Lock mutex = of(new InterProcessMutex(client, path));
            Lock write = of(readWrite.writeLock());
            Lock read = of(readWrite.readLock());
            Lock permit = of(new InterProcessSemaphoreV2(client, path, Integer.parseInt(args[3])));
            Lock selector = selector(client, path);
            Lock latch = latch(client, path);
            System.out.println("ready");

            BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
            for (String line = commands.readLine(); line != null; line = commands.readLine()) {
                String[] words = line.split(" ");
                try {
                    Lock lock = switch (words[1]) {
                        case "mutex" -> mutex;
                        case "write" -> write;
                        case "read" -> read;
                        case "permit" -> permit;
                        case "selector" -> selector;
                        case "latch" -> latch;
                        default -> throw new IllegalArgumentException(line);
                    };
                    if (words[0].equals("release")) {
                        lock.release();
                        System.out.println("released");
                    } else {
                        System.out.println(lock.acquire(Long.parseLong(words[2])) ? "acquired" : "timeout");
                    }
                } catch (Exception e) {
                    e.printStackTrace();
                    System.out.println("error " + e);
                }
            }
        }
        System.exit(0);
    }

    static Lock of(InterProcessLock lock) {
        return new Lock() {
            @Override
            public boolean acquire(long ms) throws Exception {
                if (ms >= 0) {
                    return lock.acquire(ms, TimeUnit.MILLISECONDS);
                }
                lock.acquire();
                return true;
            }

            @Override
            public void release() throws Exception {
                lock.release();
            }
        };
    }

    /** Leads from acquire to release. A selector cannot give up waiting for its turn. */
    static Lock selector(CuratorFramework client, String path) {
        SynchronousQueue<String> leading = new SynchronousQueue<>();
        SynchronousQueue<String> resigned = new SynchronousQueue<>();
        LeaderSelector selector = new LeaderSelector(client, path, new LeaderSelectorListenerAdapter() {
            @Override
            public void takeLeadership(CuratorFramework client) throws Exception {
                leading.put("leading");
                resigned.take();
            }
        });
        return new Lock() {
            private boolean started;

            @Override
            public boolean acquire(long ms) throws Exception {
                if (!started) {
                    selector.start(); // it also queues
                    started = true;
                } else {
                    while (!selector.requeue()) { // until the last turn is over
                        Thread.sleep(1);
                    }
                }
                leading.take();
                return true;
            }

            @Override
            public void release() throws Exception {
                resigned.put("resigned");
            }
        };
    }

    static Lock latch(CuratorFramework client, String path) {
        Deque<LeaderLatch> held = new ArrayDeque<>();
        return new Lock() {
            @Override
            public boolean acquire(long ms) throws Exception {
                LeaderLatch latch = new LeaderLatch(client, path);
                latch.start();
                latch.await();
                held.push(latch);
                return true;
            }

            @Override
            public void release() throws Exception {
                held.pop().close();
            }
        };
    }

    static Lock of(InterProcessSemaphoreV2 semaphore) {
        Deque<Lease> held = new ArrayDeque<>();
        return new Lock() {
            @Override
            public boolean acquire(long ms) throws Exception {
                Lease lease = ms >= 0 ? semaphore.acquire(ms, TimeUnit.MILLISECONDS) : semaphore.acquire();
                if (lease != null) {
                    held.push(lease);
                }
                return lease != null;
            }

            @Override
            public void release() throws Exception {
                semaphore.returnLease(held.pop());
            }
        };
    }
}
