//! The timer that wakes the server to the microsecond. Only Linux has it.

use std::time::Duration;

use crate::harness::{Server, Timer, module_path, on_every_server, wait_until};
use crate::waiters::{LONG, clear, nobody_waits, take, unload, waiter};

/// A timer that has gone off, and been taken note of.
const OVER: Timer = Timer {
    left: Duration::ZERO,
    unread: 0,
};

/// Lets a lease lapse while somebody waits for it.
fn lapse(server: &Server) {
    let mut client = server.raw();
    // Sent as one, so that the second finds the lock held on any machine.
    let [held, granted] =
        &client.pipeline(["LOCK.ACQUIRE k a 100", "LOCK.ACQUIRE k b 100000 BLOCK 0"])[..]
    else {
        panic!("not two replies");
    };
    // The server itself may take the key in the millisecond of its deadline.
    let deadline = held.as_int() / 1_000 + 100;
    assert!(granted.as_int() >= deadline * 1_000);
    nobody_waits(server);
    assert_eq!(server.call("LOCK.RELEASE k b"), 1);
}

on_every_server! {
    fn a_lapse_wakes_the_server_by_one_timer_of_the_system(flavour) {
        let server = Server::start(flavour);
        for _ in 0..2 {
            take(&server);
            assert_eq!(server.timers(), [], "nobody waits yet");
            let _waiter = waiter(&server, "b");
            let [timer] = server.timers()[..] else {
                panic!("not just one: {:?}", server.timers());
            };
            let longest = Duration::from_millis(LONG.unsigned_abs() + 1);
            assert!(Duration::ZERO < timer.left && timer.left <= longest, "{timer:?}");
            clear(&server);

            for _ in 0..2 {
                lapse(&server);
                wait_until("the timer to have gone off", || server.timers() == [OVER]);
            }
            unload(&server);
            assert_eq!(server.timers(), [], "the module is gone");
            assert_eq!(server.call("PING"), "PONG");
            let path = module_path();
            assert_eq!(server.call(("MODULE", "LOAD", path.to_str().unwrap())), "OK");
        }
    }
}
