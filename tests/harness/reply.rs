//! The replies of a server, as the protocol types that they are.

use std::fmt;
use std::io::{self, BufRead, Error, ErrorKind};

use super::words::Words;

/// A reply, in RESP2 or RESP3. The three kinds of nil are kept apart.
///
/// It compares with numbers and texts: `assert_eq!(reply, 1)` wants an integer, and
/// `assert_eq!(reply, "v")` a simple or a bulk string. Where the kind matters, compare with the
/// variant.
#[derive(Clone, PartialEq)]
pub(crate) enum Reply {
    /// A status such as `OK`.
    Simple(String),
    /// An error, with its code in front.
    Error(String),
    /// An integer.
    Int(i64),
    /// A string of any bytes.
    Bulk(Vec<u8>),
    /// The nil of RESP2 where a string would stand, `$-1`.
    NilBulk,
    /// The nil of RESP2 where an array would stand, `*-1`.
    NilArray,
    /// The nil of RESP3, `_`.
    Null,
    /// An array.
    Array(Vec<Reply>),
    /// A map of RESP3, in the order in which it came.
    Map(Vec<(Reply, Reply)>),
    /// A set of RESP3.
    Set(Vec<Reply>),
    /// A message of RESP3 that answers no command.
    Push(Vec<Reply>),
    /// A boolean of RESP3.
    Bool(bool),
    /// A floating point number of RESP3.
    Double(f64),
    /// A text of RESP3 with its format, three letters.
    Verbatim(String, Vec<u8>),
}

impl Reply {
    /// The status `OK`.
    pub(crate) fn ok() -> Self {
        Self::Simple("OK".to_owned())
    }

    /// A bulk string of these bytes.
    pub(crate) fn bulk(bytes: impl AsRef<[u8]>) -> Self {
        Self::Bulk(bytes.as_ref().to_vec())
    }

    /// Whether it is any kind of nil.
    pub(crate) fn is_nil(&self) -> bool {
        matches!(self, Self::NilBulk | Self::NilArray | Self::Null)
    }

    /// The first word of an error, such as `WRONGTYPE`; nothing if it is no error.
    pub(crate) fn error_code(&self) -> Option<&str> {
        match self {
            Self::Error(text) => text.split(' ').next(),
            _ => None,
        }
    }

    /// The integer that it must be.
    pub(crate) fn as_int(&self) -> i64 {
        match self {
            Self::Int(number) => *number,
            other => panic!("{other:?} is not an integer"),
        }
    }

    /// The bytes of the string that it must be, an error included.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Simple(text) | Self::Error(text) => text.as_bytes(),
            Self::Bulk(bytes) | Self::Verbatim(_, bytes) => bytes,
            other => panic!("{other:?} is not a string"),
        }
    }

    /// The text of the string that it must be, an error included.
    pub(crate) fn as_text(&self) -> &str {
        str::from_utf8(self.as_bytes()).unwrap_or_else(|_| panic!("{self:?} is not text"))
    }

    /// The elements of the array, set or push message that it must be.
    pub(crate) fn items(&self) -> &[Self] {
        match self {
            Self::Array(items) | Self::Set(items) | Self::Push(items) => items,
            other => panic!("{other:?} is not an array"),
        }
    }

    /// The value of a field, in a map or in the array of fields and values that RESP2 has for it.
    pub(crate) fn field(&self, name: &str) -> &Self {
        let value = match self {
            Self::Map(pairs) => pairs
                .iter()
                .find_map(|(field, value)| (*field == name).then_some(value)),
            other => other
                .items()
                .chunks(2)
                .find_map(|pair| (pair[0] == name).then(|| &pair[1])),
        };
        value.unwrap_or_else(|| panic!("no field `{name}` in {self:?}"))
    }

    /// The strings of an array that must have nothing else, as words.
    pub(crate) fn to_words(&self) -> Words {
        Words(
            self.items()
                .iter()
                .map(|item| item.as_bytes().to_vec())
                .collect(),
        )
    }

    /// Reads one reply.
    pub(crate) fn read(from: &mut impl BufRead) -> io::Result<Self> {
        let line = read_line(from)?;
        let Some((kind, rest)) = line.split_at_checked(1) else {
            return Err(malformed(&line));
        };
        Ok(match kind {
            "+" => Self::Simple(rest.to_owned()),
            "-" => Self::Error(rest.to_owned()),
            ":" => Self::Int(parse(rest)?),
            "$" => read_bulk(from, rest)?.map_or(Self::NilBulk, Self::Bulk),
            "!" => Self::Error(String::from_utf8_lossy(&read_string(from, rest)?).into_owned()),
            "=" => {
                let mut text = read_string(from, rest)?;
                let text_start = text
                    .iter()
                    .position(|byte| *byte == b':')
                    .map_or(0, |colon| colon + 1);
                let body = text.split_off(text_start);
                text.pop();
                Self::Verbatim(String::from_utf8_lossy(&text).into_owned(), body)
            }
            "*" if rest == "-1" => Self::NilArray,
            "*" => Self::Array(read_many(from, parse(rest)?)?),
            "~" => Self::Set(read_many(from, parse(rest)?)?),
            ">" => Self::Push(read_many(from, parse(rest)?)?),
            "%" => {
                let mut pairs = Vec::new();
                for _ in 0..parse::<usize>(rest)? {
                    pairs.push((Self::read(from)?, Self::read(from)?));
                }
                Self::Map(pairs)
            }
            "_" => Self::Null,
            "#" => Self::Bool(rest == "t"),
            "," => Self::Double(parse(rest)?),
            _ => return Err(malformed(&line)),
        })
    }
}

/// Reads `count` replies.
fn read_many(from: &mut impl BufRead, count: usize) -> io::Result<Vec<Reply>> {
    (0..count).map(|_| Reply::read(from)).collect()
}

/// Reads the string whose length stands in `length`, which may be that of a nil.
fn read_bulk(from: &mut impl BufRead, length: &str) -> io::Result<Option<Vec<u8>>> {
    if length == "-1" {
        return Ok(None);
    }
    read_string(from, length).map(Some)
}

/// Reads the string whose length stands in `length`, and the end of line after it.
fn read_string(from: &mut impl BufRead, length: &str) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; parse::<usize>(length)? + 2];
    from.read_exact(&mut bytes)?;
    if !bytes.ends_with(b"\r\n") {
        return Err(malformed(&bytes.escape_ascii().to_string()));
    }
    bytes.truncate(bytes.len() - 2);
    Ok(bytes)
}

/// Reads a line, without its end.
fn read_line(from: &mut impl BufRead) -> io::Result<String> {
    let mut line = Vec::new();
    from.read_until(b'\n', &mut line)?;
    if line.is_empty() {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    let text = String::from_utf8_lossy(&line);
    match text.strip_suffix("\r\n") {
        Some(text) => Ok(text.to_owned()),
        None => Err(malformed(&text)),
    }
}

/// A number out of a reply.
fn parse<T: std::str::FromStr>(number: &str) -> io::Result<T> {
    number.parse().map_err(|_| malformed(number))
}

/// The error for what no server should send.
fn malformed(what: &str) -> Error {
    Error::new(ErrorKind::InvalidData, format!("not a reply: {what:?}"))
}

impl PartialEq<i64> for Reply {
    fn eq(&self, number: &i64) -> bool {
        *self == Self::Int(*number)
    }
}

/// For what [`Reply::field`] gives.
impl PartialEq<i64> for &Reply {
    fn eq(&self, number: &i64) -> bool {
        **self == *number
    }
}

impl PartialEq<&str> for Reply {
    fn eq(&self, text: &&str) -> bool {
        *self == **text
    }
}

impl PartialEq<str> for Reply {
    fn eq(&self, text: &str) -> bool {
        match self {
            Self::Simple(mine) => mine == text,
            Self::Bulk(mine) => mine == text.as_bytes(),
            _ => false,
        }
    }
}

impl fmt::Debug for Reply {
    /// Shows a reply about as it is on the wire, on one line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Simple(text) => write!(f, "+{text}"),
            Self::Error(text) => write!(f, "-{text}"),
            Self::Int(number) => write!(f, ":{number}"),
            Self::Bulk(bytes) => write!(f, "\"{}\"", bytes.escape_ascii()),
            Self::NilBulk => f.write_str("$-1"),
            Self::NilArray => f.write_str("*-1"),
            Self::Null => f.write_str("_"),
            Self::Array(items) => f.debug_list().entries(items).finish(),
            Self::Map(pairs) => {
                f.write_str("%")?;
                f.debug_map()
                    .entries(pairs.iter().map(|(field, value)| (field, value)))
                    .finish()
            }
            Self::Set(items) => {
                f.write_str("~")?;
                f.debug_list().entries(items).finish()
            }
            Self::Push(items) => {
                f.write_str(">")?;
                f.debug_list().entries(items).finish()
            }
            Self::Bool(value) => write!(f, "#{value}"),
            Self::Double(number) => write!(f, ",{number}"),
            Self::Verbatim(format, text) => write!(f, "={format}:\"{}\"", text.escape_ascii()),
        }
    }
}
