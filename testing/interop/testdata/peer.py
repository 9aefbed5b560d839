"""One user of kazoo's locks on one path, who does as he is told on stdin:

usage: peer.py host:port timeout path

"enter KIND MS" waits for at most MS, or if that is negative for ever, and
answers "in" or "timeout"; "leave KIND" answers "out". Anything that goes wrong
is answered with "error". The end of stdin ends the session and the program.
"""

import sys
import traceback

try:
    from kazoo.client import KazooClient
    from kazoo.exceptions import LockTimeout
except ImportError:
    sys.exit("kazoo is missing: apt-get install python3-kazoo")

# A ReadLock of kazoo before 2.9 also waits for writers who came after it, and
# they wait for it. Who uses one has to give up and ask again.
READER_GIVES_UP = 0.03


def acquire(lock, **how):
    try:
        return lock.acquire(**how)
    except LockTimeout:
        return False


def enter(kind, lock, ms):
    if ms == 0:
        return acquire(lock, blocking=False)
    if ms > 0:
        return acquire(lock, timeout=ms / 1000)
    if kind != "read":
        return acquire(lock)
    while not acquire(lock, timeout=READER_GIVES_UP):
        pass
    return True


def main(address, timeout, path):
    zk = KazooClient(hosts=address, timeout=int(timeout) / 1000)
    zk.start(timeout=20)
    locks = {
        "lock": zk.Lock(path, "peer"),
        "seeing-lock": zk.Lock(path, "peer", extra_lock_patterns=["-lock-"]),
        "write": zk.WriteLock(path, "peer"),
        "read": zk.ReadLock(path, "peer"),
    }
    print("ready", flush=True)
    for line in iter(sys.stdin.readline, ""):
        words = line.split()
        try:
            lock = locks[words[1]]
            if words[0] == "leave":
                assert lock.release(), "not held"
                answer = "out"
            else:
                answer = "in" if enter(words[1], lock, int(words[2])) else "timeout"
        except Exception as e:
            traceback.print_exc()
            answer = "error %r" % e
        print(answer, flush=True)
    zk.stop()
    zk.close()


main(*sys.argv[1:])
