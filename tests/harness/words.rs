//! A command as a list of words: what clients send, and what replicas and the AOF get.

use std::fmt;
use std::ops::Deref;

/// The name and the arguments of a command, or another short list of byte strings.
///
/// It compares with a text of words, `assert_eq!(command, "SET k v")`, and prints like one.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Words(pub(crate) Vec<Vec<u8>>);

impl Words {
    /// Whether the words are those of `pattern`, in which `*` stands for any one word.
    pub(crate) fn matches(&self, pattern: &str) -> bool {
        let pattern: Vec<&str> = pattern.split_whitespace().collect();
        self.len() == pattern.len()
            && self
                .iter()
                .zip(pattern)
                .all(|(word, wanted)| wanted == "*" || word == wanted.as_bytes())
    }

    /// The word at `index`, which must be text. The name of a command is word 0.
    pub(crate) fn text(&self, index: usize) -> &str {
        str::from_utf8(&self[index])
            .unwrap_or_else(|_| panic!("word {index} of {self} is not text"))
    }

    /// The word at `index`, which must be a number.
    pub(crate) fn int(&self, index: usize) -> i64 {
        self.text(index)
            .parse()
            .unwrap_or_else(|_| panic!("word {index} of {self} is not a number"))
    }
}

impl Deref for Words {
    type Target = [Vec<u8>];

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl PartialEq<&str> for Words {
    fn eq(&self, text: &&str) -> bool {
        *self == text.to_words()
    }
}

impl fmt::Display for Words {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, word) in self.iter().enumerate() {
            if index > 0 {
                f.write_str(" ")?;
            }
            if word.is_empty() || word.contains(&b' ') {
                write!(f, "\"{}\"", word.escape_ascii())?;
            } else {
                write!(f, "{}", word.escape_ascii())?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Words {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{self}`")
    }
}

/// What can be sent as a command:
///
/// - a text, which is split at white space: `"SET k v"`, `format!("RELEASE k o TOKEN {token}")`;
/// - a tuple of texts, bytes and numbers, each of which is one word: `("SET", b"\xff\0", 1000)`;
/// - an array, slice or vector of one such kind.
pub(crate) trait ToWords {
    /// The words to send.
    fn to_words(&self) -> Words;
}

/// What can be one word of a command.
pub(crate) trait ToWord {
    /// The bytes to send.
    fn to_word(&self) -> Vec<u8>;
}

impl ToWords for str {
    fn to_words(&self) -> Words {
        Words(self.split_whitespace().map(Vec::from).collect())
    }
}

impl ToWords for String {
    fn to_words(&self) -> Words {
        self.as_str().to_words()
    }
}

impl ToWords for Words {
    fn to_words(&self) -> Words {
        self.clone()
    }
}

impl<T: ToWord> ToWords for [T] {
    fn to_words(&self) -> Words {
        Words(self.iter().map(ToWord::to_word).collect())
    }
}

impl<T: ToWord, const N: usize> ToWords for [T; N] {
    fn to_words(&self) -> Words {
        self.as_slice().to_words()
    }
}

impl<T: ToWord> ToWords for Vec<T> {
    fn to_words(&self) -> Words {
        self.as_slice().to_words()
    }
}

impl<T: ToWords + ?Sized> ToWords for &T {
    fn to_words(&self) -> Words {
        (**self).to_words()
    }
}

/// Implements [`ToWords`] for a tuple with these type parameters, and for each shorter one.
macro_rules! tuples_to_words {
    ($first:ident $($rest:ident)*) => {
        impl<$first: ToWord, $($rest: ToWord),*> ToWords for ($first, $($rest,)*) {
            #[allow(non_snake_case, reason = "a variable is named as its type here")]
            fn to_words(&self) -> Words {
                let ($first, $($rest,)*) = self;
                Words(vec![$first.to_word(), $($rest.to_word()),*])
            }
        }
        tuples_to_words!($($rest)*);
    };
    () => {};
}
tuples_to_words!(A B C D E F G H I J K L);

impl ToWord for str {
    fn to_word(&self) -> Vec<u8> {
        self.into()
    }
}

impl ToWord for String {
    fn to_word(&self) -> Vec<u8> {
        self.as_str().into()
    }
}

impl ToWord for [u8] {
    fn to_word(&self) -> Vec<u8> {
        self.into()
    }
}

impl<const N: usize> ToWord for [u8; N] {
    fn to_word(&self) -> Vec<u8> {
        self.into()
    }
}

impl ToWord for Vec<u8> {
    fn to_word(&self) -> Vec<u8> {
        self.clone()
    }
}

impl<T: ToWord + ?Sized> ToWord for &T {
    fn to_word(&self) -> Vec<u8> {
        (**self).to_word()
    }
}

/// Implements [`ToWord`] for kinds of numbers.
macro_rules! numbers_to_word {
    ($($number:ty)*) => {$(
        impl ToWord for $number {
            fn to_word(&self) -> Vec<u8> {
                self.to_string().into_bytes()
            }
        }
    )*};
}
numbers_to_word!(i32 i64 u16 u64 usize);
