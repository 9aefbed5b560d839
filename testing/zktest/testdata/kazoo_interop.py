"""Uses kazoo as its users do, with the server at the given address.

usage: kazoo_interop.py host:port
"""

import faulthandler
import os
import queue
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from tempfile import TemporaryDirectory

try:
    from kazoo import exceptions as errors
    from kazoo.client import KazooClient
    from kazoo.security import OPEN_ACL_UNSAFE, make_digest_acl
except ImportError:
    sys.exit("kazoo is missing: apt-get install python3-kazoo")

PATIENCE = 60  # seconds for what happens soon
SHORT = 0.2  # seconds for what must not happen


@contextmanager
def connect():
    """Yields a client and ends its session."""
    zk = KazooClient(hosts=sys.argv[1], timeout=20)
    zk.start(timeout=PATIENCE)
    try:
        yield zk
    finally:
        zk.stop()
        zk.close()


def expect(got, want):
    assert got == want, "got %r, want %r" % (got, want)


def fails(error, call, *args, **kwargs):
    try:
        result = call(*args, **kwargs)
    except error:
        return
    raise AssertionError("got %r, want %s" % (result, error.__name__))


def until(condition):
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "timeout"
        time.sleep(0.01)


def enter_alone(guard):
    """Fails if another holder is inside with the same guard."""
    os.close(os.open(guard, os.O_CREAT | os.O_EXCL))
    time.sleep(0.002)  # gives a second holder time to enter
    os.unlink(guard)


def contend(clients, path, guard, rounds, **options):
    """Makes each client take the lock the given number of times."""

    def turns(zk):
        lock = zk.Lock(path, "contender", **options)
        for _ in range(rounds):
            assert lock.acquire(timeout=PATIENCE)
            enter_alone(guard)
            lock.release()

    with ThreadPoolExecutor() as pool:
        for done in [pool.submit(turns, zk) for zk in clients]:
            done.result(PATIENCE)


def nodes(a, b):
    p = "/kazoo/nodes"
    expect(a.exists(p), None)
    expect(a.create(p, b"1", makepath=True), p)
    fails(errors.NodeExistsError, a.create, p)
    fails(errors.NoNodeError, a.create, p + "/deep/node")
    data, stat = b.get(p)
    expect((data, stat.version, stat.ephemeralOwner), (b"1", 0, 0))
    expect(a.set(p, b"22", version=0).version, 1)
    fails(errors.BadVersionError, a.set, p, b"3", version=0)
    expect(b.exists(p).dataLength, 2)
    a.ensure_path(p + "/x/y/z")
    a.create(p + "/empty")
    expect(b.get(p + "/empty")[0], b"")
    expect(sorted(b.get_children(p)), ["empty", "x"])
    children, stat = b.get_children(p, include_data=True)
    expect((sorted(children), stat.numChildren), (["empty", "x"], 2))
    expect(a.sync(p), p)
    fails(errors.NotEmptyError, a.delete, p)
    fails(errors.BadVersionError, a.delete, p + "/empty", version=7)
    a.delete(p, recursive=True)
    fails(errors.NoNodeError, b.get, p)


def ephemerals(a, b):
    p = "/kazoo/ephemerals"
    a.ensure_path(p)
    first = a.create(p + "/n-", b"", ephemeral=True, sequence=True)
    second = b.create(p + "/n-", b"", ephemeral=True, sequence=True)
    expect((first, second), (p + "/n-0000000000", p + "/n-0000000001"))
    expect(b.exists(first).ephemeralOwner, a.client_id[0])
    expect(a.create(p + "/kept-", sequence=True), p + "/kept-0000000002")
    fails(errors.NoChildrenForEphemeralsError, a.create, first + "/child")
    with connect() as c:
        c.create(p + "/other", ephemeral=True)
        c.create(p + "/other-", ephemeral=True, sequence=True)
        expect(len(a.get_children(p)), 5)
    expect(len(a.get_children(p)), 3)


def permissions(a, b):
    p = "/kazoo/permissions"
    mine = make_digest_acl("kazoo", "secret", all=True)
    with connect() as owner:
        owner.add_auth("digest", "kazoo:secret")
        owner.create(p, b"private", acl=[mine])
        expect(owner.get(p)[0], b"private")
        fails(errors.NoAuthError, a.get, p)
        fails(errors.NoAuthError, a.set, p, b"")
        fails(errors.NoAuthError, a.create, p + "/child")
        acl, stat = owner.get_acls(p)
        expect((acl, stat.aversion), ([mine], 0))
        owner.set_acls(p, OPEN_ACL_UNSAFE, version=0)
        fails(errors.BadVersionError, owner.set_acls, p, [mine], version=0)
    expect(a.get(p)[0], b"private")
    expect(a.get_acls(p)[0], OPEN_ACL_UNSAFE)


def transactions(a, b):
    p = "/kazoo/transactions"
    a.create(p, b"")
    t = a.transaction()
    t.check(p, version=0)
    t.create(p + "/a", b"1")
    t.create(p + "/a/n-", ephemeral=True, sequence=True)
    t.set_data(p, b"x", version=0)
    t.create(p + "/b")
    t.delete(p + "/b")
    checked, a_path, n_path, stat, b_path, deleted = t.commit()
    expect((checked, deleted), (True, True))
    expect([a_path, n_path, b_path], [p + "/a", p + "/a/n-0000000000", p + "/b"])
    expect((stat.version, stat.dataLength), (1, 1))

    t = a.transaction()
    t.create(p + "/c")
    t.delete(p + "/missing")
    t.create(p + "/d")
    expect(
        [type(result) for result in t.commit()],
        [errors.RolledBackError, errors.NoNodeError, errors.RuntimeInconsistency],
    )
    expect(b.get_children(p), ["a"])


def watches(a, b):
    p = "/kazoo/watches"
    seen = queue.Queue()

    def next_is(*want):
        expect(seen.get(timeout=PATIENCE), want)

    def noted(event):
        seen.put((event.type, event.path))

    expect(a.exists(p, watch=noted), None)
    b.create(p)
    next_is("CREATED", p)

    a.DataWatch(p, lambda data, stat: seen.put(("data", data)))
    next_is("data", b"")
    a.ChildrenWatch(p, lambda children: seen.put(("children", sorted(children))))
    next_is("children", [])
    for data in b"1", b"2":
        b.set(p, data)
        next_is("data", data)
    b.create(p + "/x")
    next_is("children", ["x"])
    b.create(p + "/y")
    next_is("children", ["x", "y"])

    a.get(p + "/y", watch=noted)
    a.get_children(p + "/x", watch=noted)
    b.create(p + "/x/child")
    next_is("CHILD", p + "/x")
    b.delete(p + "/y")  # the node's event comes before its parent's
    next_is("DELETED", p + "/y")
    next_is("children", ["x"])
    b.delete(p + "/x/child")
    b.delete(p + "/x")
    next_is("children", [])
    b.delete(p)
    next_is("data", None)
    assert seen.empty()


def locks(a, b):
    p = "/kazoo/lock"
    with TemporaryDirectory() as tmp:
        contend([a, b], p, os.path.join(tmp, "guard"), rounds=20)
    expect(a.get_children(p), [])

    holder, waiter = a.Lock(p, "holder"), b.Lock(p, "waiter")
    assert holder.acquire(timeout=PATIENCE)
    assert not waiter.acquire(blocking=False)
    fails(errors.LockTimeout, waiter.acquire, timeout=SHORT)
    expect(holder.contenders(), ["holder"])
    with ThreadPoolExecutor() as pool:
        acquired = pool.submit(waiter.acquire, timeout=PATIENCE)
        until(lambda: holder.contenders() == ["holder", "waiter"])
        waiter.cancel()
        fails(errors.CancelledError, acquired.result, PATIENCE)
        expect(holder.contenders(), ["holder"])

        acquired = pool.submit(waiter.acquire, timeout=PATIENCE)
        until(lambda: holder.contenders() == ["holder", "waiter"])
        holder.release()
        assert acquired.result(PATIENCE)
    waiter.release()
    expect(a.get_children(p), [])


def locks_of_a_closed_session(a, b):
    p = "/kazoo/lock"
    waiter = a.Lock(p, "waiter")
    with ThreadPoolExecutor() as pool:
        with connect() as c:
            assert c.Lock(p, "holder").acquire(timeout=PATIENCE)
            acquired = pool.submit(waiter.acquire, timeout=PATIENCE)
            until(lambda: b.Lock(p).contenders() == ["holder", "waiter"])
        assert acquired.result(PATIENCE)
    waiter.release()
    expect(b.get_children(p), [])


def read_write_locks(a, b):
    p = "/kazoo/readwrite"
    read_a, read_b = a.ReadLock(p), b.ReadLock(p)
    write = b.WriteLock(p)
    assert read_a.acquire(timeout=PATIENCE) and read_b.acquire(timeout=PATIENCE)
    assert not write.acquire(blocking=False)
    read_a.release()
    read_b.release()
    assert write.acquire(timeout=PATIENCE)
    assert not read_a.acquire(blocking=False)
    write.release()
    expect(a.get_children(p), [])


def semaphores(a, b):
    p = "/kazoo/semaphore"
    guard_of_leases = p + "-__lock__"  # kazoo's lock for acquiring leases
    first, second, third = [
        zk.Semaphore(p, name, max_leases=2)
        for zk, name in ((a, "first"), (b, "second"), (b, "third"))
    ]
    assert first.acquire(timeout=PATIENCE) and second.acquire(timeout=PATIENCE)
    assert not third.acquire(blocking=False)
    fails(errors.LockTimeout, third.acquire, timeout=SHORT)
    expect(sorted(first.lease_holders()), ["first", "second"])
    with ThreadPoolExecutor() as pool:
        acquired = pool.submit(third.acquire, timeout=PATIENCE)
        until(lambda: a.get_children(guard_of_leases) != [])
        first.release()
        assert acquired.result(PATIENCE)
    expect(sorted(first.lease_holders()), ["second", "third"])
    second.release()
    third.release()
    expect((a.get_children(p), a.get_children(guard_of_leases)), ([], []))


def interop():
    with connect() as a, connect() as b:
        a.ensure_path("/kazoo")
        for check in (
            nodes,
            ephemerals,
            permissions,
            transactions,
            watches,
            locks,
            locks_of_a_closed_session,
            read_write_locks,
            semaphores,
        ):
            check(a, b)
            print("ok", check.__name__)


if __name__ == "__main__":
    # Prints the stack of every thread and exits, even if a thread is stuck.
    faulthandler.dump_traceback_later(300, exit=True)
    interop()
