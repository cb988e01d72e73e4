//! What the tests of waiting share.

use crate::harness::{Raw, Server, wait_until};

/// The ttl of a lease that lapses in no test.
pub(crate) const LONG: i64 = 100_000;

/// A client that stands last in the queue of `k` as `owner`, for as long as it takes.
pub(crate) fn waiter(server: &Server, owner: &str) -> Raw {
    let mut client = server.raw();
    wait_in(server, &mut client, owner, 0);
    client
}

/// Sends `client` into the queue of `k` as `owner`, for `timeout`. Unless it has been answered
/// already, it stands there when this is over.
pub(crate) fn wait_in(server: &Server, client: &mut Raw, owner: &str, timeout: i64) {
    client.send(("LOCK.ACQUIRE", "k", owner, LONG, "BLOCK", timeout));
    wait_until("the client to wait", || {
        queue(server).iter().any(|waiter| waiter == owner) || client.has_reply()
    });
}

/// The owners that wait for `k`, in order.
pub(crate) fn queue(server: &Server) -> Vec<String> {
    let queue = server.call("LOCK.QUEUE k COUNT 1000");
    let owners = queue.items().iter().map(|line| line.field("owner"));
    owners.map(|owner| owner.as_text().to_owned()).collect()
}

/// Takes `k` for `a`.
pub(crate) fn take(server: &Server) {
    assert!(server.call(("LOCK.ACQUIRE", "k", "a", LONG)).as_int() > 0);
}

/// Reads the grant of `k` to `client`, which asked for it as `owner`, and returns its token. The
/// key must say the same.
pub(crate) fn granted(server: &Server, client: &mut Raw, owner: &str) -> i64 {
    let token = client.read().as_int();
    let info = server.call("LOCK.INFO k");
    assert_eq!(*info.field("token"), token);
    let owners = info.field("owners").items();
    assert!(
        owners.len() == 2 && owners[0] == owner && owners[1] == 1,
        "{info:?}"
    );
    // The lease counts from the grant and not from the request.
    assert_eq!(server.call("PEXPIRETIME k"), token / 1_000 + LONG);
    token
}

/// Nobody waits, for whatever it is.
pub(crate) fn nobody_waits(server: &Server) {
    assert!(server.call("LOCK.CONTENDED").items().is_empty());
    assert_eq!(server.info_number("lock", "lock_waiters"), 0);
    assert_eq!(server.blocked_clients(), 0);
}

/// The server's wall clock in milliseconds.
pub(crate) fn clock_of(server: &Server) -> i64 {
    let time = server.call("TIME").to_words();
    time.int(0) * 1_000 + time.int(1) / 1_000
}

/// Unloads the module. The server refuses that while it has a blocked client or a timer of the
/// module's. A timer that ends subscriptions may be due at once, so it is tried again.
pub(crate) fn unload(server: &Server) {
    wait_until("the module to be unloaded", || {
        server.call("MODULE UNLOAD lock") == "OK"
    });
}

/// Ends all connections but that of `server.call`, and deletes all keys.
pub(crate) fn clear(server: &Server) {
    server.call("CLIENT KILL TYPE normal");
    nobody_waits(server);
    assert_eq!(server.call("FLUSHALL"), "OK");
}

/// Tries `attempt` with longer and longer times, in milliseconds, until it says that it was done
/// before the time was over. So it does not matter how fast the machine is.
pub(crate) fn with_time_enough(mut attempt: impl FnMut(i64) -> bool) {
    let mut time = 20;
    wait_until("a time that is long enough", || {
        time *= 2;
        attempt(time)
    });
}
