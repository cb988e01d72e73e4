//! Messages to nodes as commands, and their answers.

use super::attempt::Attempt;
use super::coordinator::Job;
use super::info::LockInfo;
use super::link::Sent;
use super::round::{Answer, Message};
use crate::lock::fence::Token;
use crate::lock::lease::Ttl;
use crate::lock::time::UnixMillis;
use redis::{Cmd, Value, cmd};

/// The command for a message.
pub(super) fn command_of(job: &Job, message: Message) -> Cmd {
    let name = match message {
        Message::Vote { .. } => "LOCK.QVOTE",
        Message::Settle { .. } => "LOCK.QSETTLE",
        Message::Unvote { .. } => "LOCK.QUNVOTE",
        Message::Renew { .. } => "LOCK.QEXTEND",
        Message::Relock { .. } => "LOCK.QRELOCK",
        Message::Release { .. } => "LOCK.QEND",
    };
    let mut command = cmd(name);
    command.arg(&job.key).arg(&job.owner);
    let ttl = job.task.ttl().map_or(0, Ttl::millis);
    match message {
        Message::Vote { token, attempt } => {
            command.arg(ttl).arg(token.get()).arg(attempt.0);
        }
        Message::Settle { attempt, from, to } => {
            command
                .arg(ttl)
                .arg(attempt.0)
                .arg(from.get())
                .arg(to.get());
        }
        Message::Unvote { attempt } => {
            command.arg(attempt.0);
        }
        Message::Renew { token } => {
            command.arg(ttl);
            with_token(&mut command, token);
        }
        Message::Relock {
            token,
            attempt,
            at,
            within,
        } => {
            command
                .arg(ttl)
                .arg(token.get())
                .arg(attempt.0)
                .arg(at.0)
                .arg(within);
        }
        Message::Release { token } => with_token(&mut command, token),
    }
    let names_mode = matches!(
        message,
        Message::Vote { .. } | Message::Settle { .. } | Message::Relock { .. }
    );
    if names_mode && job.is_shared.get() {
        command.arg("SHARED");
    }
    command
}

/// Whether a message may be sent again if nobody knows whether it has arrived. All are made for it but
/// a release of just any hold: there may be a later one.
pub(super) fn may_repeat(message: Message) -> bool {
    !matches!(message, Message::Release { token: None })
}

fn with_token(command: &mut Cmd, token: Option<Token>) {
    if let Some(token) = token {
        command.arg("TOKEN").arg(token.get());
    }
}

/// What an answer to a message says. A renewal tells how the lock is held, which the job then knows.
pub(super) fn answer_to(job: &Job, message: Message, sent: Sent) -> Answer {
    let value = match sent {
        Sent::Answered(value) => value,
        Sent::Failed(_) => return Answer::Failed,
        Sent::Unknown(_) => return Answer::Unknown,
    };
    match (message, value) {
        (Message::Renew { .. }, Value::Array(items)) => match items.as_slice() {
            [Value::Int(-1), Value::Int(at)] => Answer::NoLock {
                at: UnixMillis(*at),
            },
            [token, attempt, Value::BulkString(mode)] => {
                job.is_shared.set(mode == b"shared");
                number(token)
                    .and_then(Token::new)
                    .zip(number(attempt))
                    .map_or(Answer::Failed, |(token, attempt)| Answer::Renewed {
                        token,
                        attempt: Attempt(attempt),
                    })
            }
            _ => Answer::Failed,
        },
        (Message::Renew { .. } | Message::Release { .. }, Value::Int(0)) => Answer::NotYours,
        (Message::Release { .. }, Value::Int(-1)) => Answer::NoLock { at: UnixMillis(0) },
        (Message::Release { .. }, attempt) => number(&attempt)
            .map(Attempt)
            .map_or(Answer::Failed, Answer::Released),
        (Message::Vote { .. } | Message::Settle { .. } | Message::Relock { .. }, value) => {
            match value {
                Value::Nil => Answer::Refused,
                value => number(&value)
                    .and_then(Token::new)
                    .map_or(Answer::Failed, Answer::Granted),
            }
        }
        _ => Answer::Failed,
    }
}

/// An unsigned integer, as a number or in digits.
fn number(value: &Value) -> Option<u64> {
    match value {
        Value::Int(number) => u64::try_from(*number).ok(),
        Value::BulkString(text) => std::str::from_utf8(text).ok()?.parse().ok(),
        _ => None,
    }
}

/// The command that asks a node what it says of a lock.
pub(super) fn info_command(job: &Job) -> Cmd {
    let mut command = cmd("LOCK.INFO");
    command.arg(&job.key);
    command
}

/// What a node says of a lock, or why it says nothing.
pub(super) fn info_of(sent: Sent) -> Result<LockInfo, String> {
    match sent {
        Sent::Answered(value) => {
            lock_info(&value).ok_or_else(|| "not an answer to LOCK.INFO".to_owned())
        }
        Sent::Failed(reason) | Sent::Unknown(reason) => Err(reason),
    }
}

/// What an answer to `LOCK.INFO` says.
fn lock_info(value: &Value) -> Option<LockInfo> {
    let Value::Array(fields) = value else {
        return None;
    };
    let field = |name: &[u8]| {
        fields.chunks_exact(2).find_map(|pair| match pair {
            [Value::BulkString(found), value] if found == name => Some(value),
            _ => None,
        })
    };
    let text = |name: &[u8]| match field(name)? {
        Value::BulkString(text) => Some(text.clone()),
        _ => None,
    };
    let owners = match field(b"owners")? {
        Value::Array(owners) => owners
            .chunks_exact(2)
            .filter_map(|pair| match pair {
                [Value::BulkString(owner), _] => Some(owner.clone()),
                _ => None,
            })
            .collect(),
        _ => return None,
    };
    Some(LockInfo {
        is_held: text(b"state")? == b"held",
        is_shared: text(b"mode").is_some_and(|mode| mode == b"shared"),
        owners,
        token: field(b"token").and_then(number).and_then(Token::new),
        ttl: match field(b"ttl")? {
            Value::Int(ttl) => *ttl,
            _ => return None,
        },
    })
}
