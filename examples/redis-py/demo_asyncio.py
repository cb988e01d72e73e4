"""Shows the asyncio lock at work, and fails when it does not do what it says."""

import asyncio
import os

from redis import asyncio as redis

from redis_lock import AsyncLock, LockBusy, LockLost

NAME = "example:redis-py-asyncio"
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


async def until_lease_grows(client):
    """Returns when the server has renewed the lease: what is left of it shrinks otherwise."""
    before = after = await client.pttl(NAME)
    while after <= before:
        await asyncio.sleep(0.01)
        before, after = after, await client.pttl(NAME)


async def until_somebody_waits(client):
    while not await client.execute_command("LOCK.QUEUE", NAME):
        await asyncio.sleep(0.01)


async def expect(kind, action):
    """Makes sure that `action` ends with an exception of this kind, and returns it."""
    try:
        await action
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__}")


async def enter(lock):
    async with lock:
        return lock.token


async def main():
    client = connect()

    async with AsyncLock(client, NAME, ttl_ms=TTL_MS, wait_ms=PATIENCE_MS) as lock:
        await asyncio.wait_for(until_lease_grows(client), PATIENCE_MS / 1000)
        await lock.check()
        await expect(LockBusy, enter(AsyncLock(client, NAME, ttl_ms=TTL_MS)))
        await expect(LockBusy, enter(AsyncLock(client, NAME, ttl_ms=TTL_MS, wait_ms=1)))
        # One that gives up leaves the queue.
        gives_up = asyncio.create_task(enter(AsyncLock(client, NAME, ttl_ms=TTL_MS, wait_ms=0)))
        await asyncio.wait_for(until_somebody_waits(client), PATIENCE_MS / 1000)
        gives_up.cancel()
        await expect(asyncio.CancelledError, gives_up)
        waiter = asyncio.create_task(
            enter(AsyncLock(client, NAME, ttl_ms=TTL_MS, wait_ms=PATIENCE_MS))
        )
        await asyncio.wait_for(until_somebody_waits(client), PATIENCE_MS / 1000)
    assert 0 < lock.token < await waiter

    async def lose():
        async with AsyncLock(client, NAME, ttl_ms=TTL_MS) as lost:
            await client.delete(NAME)
            assert "is over" in str(await expect(LockLost, lost.check()))

    assert "is over" in str(await expect(LockLost, lose()))

    async def lose_to_another():
        async with AsyncLock(client, NAME, ttl_ms=TTL_MS) as lost:
            await client.delete(NAME)
            await client.execute_command("LOCK.ACQUIRE", NAME, "another", 60000)
            assert "somebody else" in str(await expect(LockLost, lost.check()))

    assert "somebody else" in str(await expect(LockLost, lose_to_another()))
    await client.delete(NAME)
    await client.aclose()


asyncio.run(main())
