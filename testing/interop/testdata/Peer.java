import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessLock;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.framework.recipes.locks.InterProcessSemaphoreV2;
import org.apache.curator.framework.recipes.locks.Lease;
import org.apache.curator.retry.ExponentialBackoffRetry;

/**
 * One user of Curator's locks on one path, who does as he is told on stdin:
 *
 * <p>usage: Peer host:port timeout path limit
 *
 * <p>"enter KIND MS" waits for at most MS, or if that is negative for ever, and answers "in" or
 * "timeout"; "leave KIND" answers "out". Anything that goes wrong is answered with "error". The end
 * of stdin ends the session and the program.
 */
class Peer {
    /** Something to enter and to leave. */
    interface Door {
        boolean enter(long ms) throws Exception;

        void leave() throws Exception;
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
            InterProcessReadWriteLock both = new InterProcessReadWriteLock(client, path);
            Door mutex = of(new InterProcessMutex(client, path));
            Door write = of(both.writeLock());
            Door read = of(both.readLock());
            Door permit = of(new InterProcessSemaphoreV2(client, path, Integer.parseInt(args[3])));
            System.out.println("ready");

            BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
            for (String line = commands.readLine(); line != null; line = commands.readLine()) {
                String[] words = line.split(" ");
                try {
                    Door door = switch (words[1]) {
                        case "mutex" -> mutex;
                        case "write" -> write;
                        case "read" -> read;
                        case "permit" -> permit;
                        default -> throw new IllegalArgumentException(line);
                    };
                    if (words[0].equals("leave")) {
                        door.leave();
                        System.out.println("out");
                    } else {
                        System.out.println(door.enter(Long.parseLong(words[2])) ? "in" : "timeout");
                    }
                } catch (Exception e) {
                    e.printStackTrace();
                    System.out.println("error " + e);
                }
            }
        }
        System.exit(0);
    }

    static Door of(InterProcessLock lock) {
        return new Door() {
            @Override
            public boolean enter(long ms) throws Exception {
                if (ms >= 0) {
                    return lock.acquire(ms, TimeUnit.MILLISECONDS);
                }
                lock.acquire();
                return true;
            }

            @Override
            public void leave() throws Exception {
                lock.release();
            }
        };
    }

    static Door of(InterProcessSemaphoreV2 semaphore) {
        Deque<Lease> held = new ArrayDeque<>();
        return new Door() {
            @Override
            public boolean enter(long ms) throws Exception {
                Lease lease = ms >= 0 ? semaphore.acquire(ms, TimeUnit.MILLISECONDS) : semaphore.acquire();
                if (lease != null) {
                    held.push(lease);
                }
                return lease != null;
            }

            @Override
            public void leave() throws Exception {
                semaphore.returnLease(held.pop());
            }
        };
    }
}
