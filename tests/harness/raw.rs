//! A client that shows every byte of a conversation.

use std::io::{self, BufRead, BufReader, ErrorKind, Write};
use std::net::{Ipv4Addr, Shutdown, TcpStream};
use std::time::Duration;

use super::reply::Reply;
use super::wait::deadline;
use super::words::{ToWords, Words};

/// A connection. It fails the test when a reply does not come before the deadline, when the server
/// hangs up, and when what comes is no reply.
pub(crate) struct Raw {
    stream: BufReader<TcpStream>,
    /// What was sent last, for the message of a failure.
    last: Words,
}

impl Raw {
    /// Connects to the server on this port of this machine, in RESP2.
    pub(super) fn connect(port: u16) -> io::Result<Self> {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        stream.set_nodelay(true)?;
        let connection = Self {
            stream: BufReader::new(stream),
            last: Words(Vec::new()),
        };
        connection.expect_replies_within(deadline())?;
        Ok(connection)
    }

    /// How long a reply may take from now on.
    pub(super) fn expect_replies_within(&self, time: Duration) -> io::Result<()> {
        self.stream.get_ref().set_read_timeout(Some(time))
    }

    /// Sends a command and reads its reply. See [`ToWords`] for what a command can be.
    pub(crate) fn call(&mut self, command: impl ToWords) -> Reply {
        self.send(command);
        self.read()
    }

    /// Sends a command and leaves its reply for later.
    pub(crate) fn send(&mut self, command: impl ToWords) {
        let sent = self.try_send(&command.to_words());
        sent.unwrap_or_else(|error| panic!("cannot send {}: {error}", self.last));
    }

    /// Reads the next reply.
    pub(crate) fn read(&mut self) -> Reply {
        self.try_read().unwrap_or_else(|error| match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => {
                panic!("no reply within {:?}; sent last: {}", deadline(), self.last)
            }
            ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset => {
                panic!("the server hung up; sent last: {}", self.last)
            }
            _ => panic!("{error}; sent last: {}", self.last),
        })
    }

    /// Sends commands in one go and reads all replies.
    pub(crate) fn pipeline<C: ToWords>(
        &mut self,
        commands: impl IntoIterator<Item = C>,
    ) -> Vec<Reply> {
        let sent = self.send_all(commands);
        (0..sent).map(|_| self.read()).collect()
    }

    /// Sends commands in one go and leaves their replies for later. The server runs them one after
    /// the other, with nothing in between, up to one that blocks. Returns how many they were.
    pub(crate) fn send_all<C: ToWords>(&mut self, commands: impl IntoIterator<Item = C>) -> usize {
        let mut request = Vec::new();
        let mut sent = 0;
        for command in commands {
            self.last = command.to_words();
            encode(&self.last, &mut request);
            sent += 1;
        }
        self.stream
            .get_mut()
            .write_all(&request)
            .unwrap_or_else(|error| panic!("cannot send a pipeline to {}: {error}", self.last));
        sent
    }

    /// The server's number for this connection.
    pub(crate) fn id(&mut self) -> i64 {
        self.call("CLIENT ID").as_int()
    }

    /// Whether something is there to be read now, be it the end of the connection. When it is not,
    /// although the server answered a command that another connection sent later, the command that
    /// was sent here is waiting.
    pub(crate) fn has_reply(&mut self) -> bool {
        if !self.stream.buffer().is_empty() {
            return true;
        }
        let stream = self.stream.get_ref();
        stream.set_nonblocking(true).unwrap();
        let peeked = stream.peek(&mut [0]);
        stream.set_nonblocking(false).unwrap();
        !matches!(peeked, Err(error) if error.kind() == ErrorKind::WouldBlock)
    }

    /// Waits until the server has ended this connection, whatever it still sends before that.
    pub(crate) fn wait_until_closed(mut self) {
        loop {
            match self.stream.fill_buf().map(<[u8]>::len) {
                Ok(0) => return,
                Ok(length) => self.stream.consume(length),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return,
                Err(error) => panic!(
                    "the server did not hang up: {error}; sent last: {}",
                    self.last
                ),
            }
        }
    }

    /// Hangs up at once.
    pub(crate) fn close(self) {
        // The server may have hung up before: then there is nothing left to do.
        let _ = self.stream.get_ref().shutdown(Shutdown::Both);
    }

    /// Sends a command, where the server may be gone.
    pub(super) fn try_send(&mut self, command: &Words) -> io::Result<()> {
        self.last = command.clone();
        let mut request = Vec::new();
        encode(command, &mut request);
        self.stream.get_mut().write_all(&request)
    }

    /// Reads a reply, where the server may be gone.
    pub(super) fn try_read(&mut self) -> io::Result<Reply> {
        Reply::read(&mut self.stream)
    }

    /// The bytes that come in, for what is no reply.
    pub(super) fn reader(&mut self) -> &mut impl BufRead {
        &mut self.stream
    }
}

/// Appends a command as the protocol wants it.
fn encode(command: &Words, request: &mut Vec<u8>) {
    request.extend(format!("*{}\r\n", command.len()).into_bytes());
    for word in command.iter() {
        request.extend(format!("${}\r\n", word.len()).into_bytes());
        request.extend(word);
        request.extend(b"\r\n");
    }
}
