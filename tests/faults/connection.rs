//! A connection that never waits, one of many that one thread drives.

use std::fmt::Write as _;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpStream};

use mio::{Interest, Registry, Token};

use crate::harness::Reply;

pub(super) struct Connection {
    stream: mio::net::TcpStream,
    port: u16,
    /// What came and has not been read as a reply.
    received: Vec<u8>,
}

impl Connection {
    /// Connects to the server on this port. A server that stands still is connected to as well.
    pub(super) fn open(port: u16, registry: &Registry, token: usize) -> io::Result<Self> {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        let mut stream = mio::net::TcpStream::from_std(stream);
        registry.register(&mut stream, Token(token), Interest::READABLE)?;
        let received = Vec::new();
        Ok(Self {
            stream,
            port,
            received,
        })
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// Sends a request. It is small, and no other is on its way, so there is room for it.
    pub(super) fn send(&mut self, request: &[u8]) -> io::Result<()> {
        self.stream.write_all(request)
    }

    /// Takes all that is there. False when the connection has ended.
    pub(super) fn receive(&mut self) -> bool {
        let mut bytes = [0; 4096];
        loop {
            match self.stream.read(&mut bytes) {
                Ok(0) => return false,
                Ok(length) => {
                    self.received.extend_from_slice(&bytes[..length]);
                    if length < bytes.len() {
                        return true;
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
                Err(_) => return false,
            }
        }
    }

    /// The next reply, if all of it has come.
    pub(super) fn next_reply(&mut self) -> Option<Reply> {
        if !self.received.ends_with(b"\r\n") {
            return None;
        }
        let mut rest = &self.received[..];
        let reply = Reply::read(&mut rest).ok()?;
        let read = self.received.len() - rest.len();
        self.received.drain(..read);
        Some(reply)
    }
}

/// Appends a command, whose words stand apart in `text`, as the protocol wants it.
pub(super) fn encode(text: &str, request: &mut String) {
    let _ = write!(request, "*{}\r\n", text.split_ascii_whitespace().count());
    for word in text.split_ascii_whitespace() {
        let _ = write!(request, "${}\r\n{word}\r\n", word.len());
    }
}
