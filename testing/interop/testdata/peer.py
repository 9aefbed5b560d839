"""A client of kazoo's locks on one path. It reads commands from stdin:

usage: peer.py host:port timeout path

"acquire KIND MS" waits for at most MS, or without limit if that is negative, and
answers "acquired" or "timeout"; "release KIND" answers "released". Failures are
answered with "error". The end of stdin ends the session and the program.
"""

import sys
import traceback

try:
    from kazoo.client import KazooClient
    from kazoo.exceptions import LockTimeout
except ImportError:
    sys.exit("kazoo is missing: apt-get install python3-kazoo")

# Before 2.9 kazoo's ReadLock also waits for writers that came after it, and they
# wait for it. So a reader has to give up and try again.
READ_TIMEOUT = 0.03


def attempt(lock, **how):
    try:
        return lock.acquire(**how)
    except LockTimeout:
        return False


def acquire(kind, lock, ms):
    if ms == 0:
        return attempt(lock, blocking=False)
    if ms > 0:
        return attempt(lock, timeout=ms / 1000)
    if kind != "read":
        return attempt(lock)
    while not attempt(lock, timeout=READ_TIMEOUT):
        pass
    return True


def main(address, timeout, path):
    zk = KazooClient(hosts=address, timeout=int(timeout) / 1000)
    zk.start(timeout=20)
    locks = {
        "lock": zk.Lock(path, "peer"),
        "pattern-lock": zk.Lock(path, "peer", extra_lock_patterns=["-lock-"]),
        "write": zk.WriteLock(path, "peer"),
        "read": zk.ReadLock(path, "peer"),
    }
    print("ready", flush=True)
    for line in iter(sys.stdin.readline, ""):
        words = line.split()
        try:
            lock = locks[words[1]]
            if words[0] == "release":
                assert lock.release(), "not held"
                answer = "released"
            else:
                answer = "acquired" if acquire(words[1], lock, int(words[2])) else "timeout"
        except Exception as e:
            traceback.print_exc()
            answer = "error %r" % e
        print(answer, flush=True)
    zk.stop()
    zk.close()


main(*sys.argv[1:])
