"""Shows the lock at work, and fails when it does not do what it says."""

import os
import threading
import time

import redis

from redis_lock import Lock, LockBusy, LockLost

NAME = "example:redis-py"
TTL_MS = 3000
PATIENCE_MS = 20000


def connect():
    make = redis.RedisCluster if os.environ.get("REDIS_CLUSTER") else redis.Redis
    return make(
        host="127.0.0.1",
        port=int(os.environ.get("REDIS_PORT", "6379")),
        protocol=int(os.environ.get("REDIS_PROTOCOL", "3")),
        # A reply that is waited for in the server comes as late as PATIENCE_MS.
        socket_timeout=2 * PATIENCE_MS / 1000,
    )


def wait_until(what, is_so):
    deadline = time.monotonic() + PATIENCE_MS / 1000
    while not is_so():
        if time.monotonic() > deadline:
            raise TimeoutError(f"it did not happen: {what}")
        time.sleep(0.01)


def lease_grows(client):
    """Tells when the server has renewed the lease: what is left of it shrinks otherwise."""
    left = [client.pttl(NAME)]

    def grows():
        left.append(client.pttl(NAME))
        return left[-1] > left[-2]

    return grows


def expect(kind, action):
    """Makes sure that `action` ends with an exception of this kind, and returns it."""
    try:
        action()
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__}")


def enter(lock):
    with lock:
        pass


def main():
    client = connect()
    tokens = []

    def wait_in_line():
        with Lock(client, NAME, ttl_ms=TTL_MS, wait_ms=PATIENCE_MS) as lock:
            tokens.append(lock.token)

    with Lock(client, NAME, ttl_ms=TTL_MS, wait_ms=PATIENCE_MS) as lock:
        tokens.append(lock.token)
        wait_until("the server renews the lease", lease_grows(client))
        lock.check()
        expect(LockBusy, lambda: enter(Lock(client, NAME, ttl_ms=TTL_MS)))
        expect(LockBusy, lambda: enter(Lock(client, NAME, ttl_ms=TTL_MS, wait_ms=1)))
        waiter = threading.Thread(target=wait_in_line)
        waiter.start()
        wait_until("somebody waits", lambda: len(client.execute_command("LOCK.QUEUE", NAME)) == 1)
    waiter.join()
    assert 0 < tokens[0] < tokens[1], tokens

    def lose():
        with Lock(client, NAME, ttl_ms=TTL_MS) as lost:
            client.delete(NAME)
            assert "is over" in str(expect(LockLost, lost.check))

    assert "is over" in str(expect(LockLost, lose))

    def lose_to_another():
        with Lock(client, NAME, ttl_ms=TTL_MS) as lost:
            client.delete(NAME)
            client.execute_command("LOCK.ACQUIRE", NAME, "another", 60000)
            assert "somebody else" in str(expect(LockLost, lost.check))

    assert "somebody else" in str(expect(LockLost, lose_to_another))
    client.delete(NAME)


main()
