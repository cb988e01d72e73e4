"""A lock as a context manager, for redis-py, and the same for its asyncio client.

    with Lock(client, "order:17", ttl_ms=3000, wait_ms=5000) as lock:
        ship(order, fence=lock.token)

The server renews the lease for as long as the connection that asked for the lock is open. redis-py
keeps that in its pool, so the lock lasts as long as the work does, and lapses within `ttl_ms` when
the process dies.
"""

import uuid


class LockBusy(Exception):
    """Somebody else had the lock for all of the time that one was ready to wait."""


class LockLost(Exception):
    """The lock was no longer held, so what was done under it may have met work of others."""


def _check(name, answer):
    """Makes sure that a release or a renewal was one of a lock that was held."""
    if answer == 0:
        raise LockLost(f"somebody else holds {name}")
    if answer == -1:
        raise LockLost(f"the lease of {name} is over")


class _Requests:
    """What the two kinds of lock have in common: the commands that they send."""

    def __init__(self, client, name, *, ttl_ms, wait_ms=None):
        """With a `wait_ms` of 0 the lock is waited for as long as it takes, with None not at all."""
        self._client = client
        self._name = name
        self._owner = str(uuid.uuid4())
        self._ttl_ms = ttl_ms
        self._wait_ms = wait_ms
        self.token = None

    def _acquire_command(self):
        # redis-py sends a command again when the connection breaks. The request's id makes sure
        # that the second one gets the answer of the first, instead of waiting for itself.
        words = ["LOCK.ACQUIRE", self._name, self._owner, self._ttl_ms]
        words += ["WATCHDOG", "REQID", uuid.uuid4().hex]
        if self._wait_ms is not None:
            words += ["BLOCK", self._wait_ms]
        return words

    def _granted(self, token):
        if token is None:
            raise LockBusy(f"{self._name} is locked by somebody else")
        self.token = token

    def _renew_command(self):
        # With WATCHDOG, so that the server goes on to renew if the first connection broke.
        words = ["LOCK.RENEW", self._name, self._owner, self._ttl_ms]
        return [*words, "TOKEN", self.token, "WATCHDOG"]

    def _release_command(self):
        return ["LOCK.RELEASE", self._name, self._owner, "TOKEN", self.token]


class Lock(_Requests):
    """A lock for a `redis.Redis` or a `redis.RedisCluster`."""

    def __enter__(self):
        self._granted(self._client.execute_command(*self._acquire_command()))
        return self

    def check(self):
        """Raises `LockLost` unless the lock is held. Do this before a step that has no fence."""
        _check(self._name, self._client.execute_command(*self._renew_command()))

    def __exit__(self, kind, error, trace):
        answer = self._client.execute_command(*self._release_command())
        # The error of the work itself says more than that the lock was lost meanwhile.
        if error is None:
            _check(self._name, answer)


class AsyncLock(_Requests):
    """A lock for a `redis.asyncio.Redis` or a `redis.asyncio.RedisCluster`."""

    async def __aenter__(self):
        # If this is cancelled redis-py closes the connection, and the server forgets the request.
        self._granted(await self._client.execute_command(*self._acquire_command()))
        return self

    async def check(self):
        """Raises `LockLost` unless the lock is held. Do this before a step that has no fence."""
        _check(self._name, await self._client.execute_command(*self._renew_command()))

    async def __aexit__(self, kind, error, trace):
        answer = await self._client.execute_command(*self._release_command())
        if error is None:
            _check(self._name, answer)
