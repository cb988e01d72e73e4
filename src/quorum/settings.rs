//! What a coordinator has to know of its nodes.

use super::round::MAX_NODES;
use std::path::PathBuf;
use std::time::Duration;

/// The settings `lock.quorum-*`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Settings {
    /// All nodes, this server among them if it is one. A majority is one of these.
    pub(crate) nodes: Vec<Address>,
    /// The longest time to wait for the answer of one node.
    pub(crate) node_timeout: Duration,
    /// The least time between two rounds of one request.
    pub(crate) retry_delay: Duration,
    /// What is added to it at most, at random.
    pub(crate) retry_jitter: Duration,
    /// The user to log in as; `default` when it is empty and there is a password.
    pub(crate) user: String,
    pub(crate) password: Secret,
    pub(crate) tls: bool,
    /// Files in PEM format; none when empty.
    pub(crate) tls_ca: PathBuf,
    pub(crate) tls_cert: PathBuf,
    pub(crate) tls_key: PathBuf,
}

impl Settings {
    /// [`node_timeout`](Self::node_timeout) in microseconds.
    pub(super) fn node_timeout_micros(&self) -> u64 {
        u64::try_from(self.node_timeout.as_micros()).unwrap_or(u64::MAX)
    }
}

/// A text that is not shown.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Secret(pub(crate) String);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("(secret)")
    }
}

/// Where a node listens.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Address {
    pub(crate) host: String,
    pub(crate) port: u16,
}

/// Reads `host:port` of each node, separated by commas or spaces. An IPv6 address stands in
/// brackets. An empty text is no nodes; the error says what is wrong.
pub(crate) fn parse_nodes(text: &str) -> Result<Vec<Address>, String> {
    let mut nodes = Vec::new();
    for word in text.split([',', ' ']).filter(|word| !word.is_empty()) {
        let (host, port) = word
            .rsplit_once(':')
            .ok_or_else(|| format!("{word} has no port"))?;
        let host = match host.strip_prefix('[') {
            Some(rest) => rest.strip_suffix(']').unwrap_or_default(),
            None if host.contains(':') => "",
            None => host,
        };
        if host.is_empty() {
            return Err(format!("{word} has no host that can be told from its port"));
        }
        let port = match port.parse() {
            Ok(port) if port > 0 => port,
            _ => return Err(format!("{word} has no port from 1 to 65535")),
        };
        let address = Address {
            host: host.to_owned(),
            port,
        };
        if nodes.contains(&address) {
            return Err(format!("{word} is given twice, and would vote twice"));
        }
        nodes.push(address);
    }
    if nodes.len() > MAX_NODES {
        return Err(format!("there are more than {MAX_NODES} nodes"));
    }
    Ok(nodes)
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_read_and_shown_alike() {
        let text = "10.0.0.1:7001, [::1]:7002 lock-3.example:7003";
        let nodes = parse_nodes(text).expect("three nodes");
        let shown: Vec<String> = nodes.iter().map(ToString::to_string).collect();
        assert_eq!(
            shown,
            ["10.0.0.1:7001", "[::1]:7002", "lock-3.example:7003"]
        );
        assert_eq!(parse_nodes(""), Ok(Vec::new()));
        assert_eq!(parse_nodes(" , "), Ok(Vec::new()));
    }

    #[test]
    fn what_is_no_list_of_nodes_is_told_why() {
        for (text, reason) in [
            ("a", "a has no port"),
            ("a:", "a: has no port from 1 to 65535"),
            ("a:0", "a:0 has no port from 1 to 65535"),
            ("a:65536", "a:65536 has no port from 1 to 65535"),
            (":1", ":1 has no host that can be told from its port"),
            (
                "::1:7000",
                "::1:7000 has no host that can be told from its port",
            ),
            (
                "[::1:7000",
                "[::1:7000 has no host that can be told from its port",
            ),
            ("a:1,a:1", "a:1 is given twice, and would vote twice"),
        ] {
            assert_eq!(parse_nodes(text), Err(reason.to_owned()));
        }
        let many: Vec<String> = (1..=16).map(|port| format!("a:{port}")).collect();
        assert_eq!(
            parse_nodes(&many.join(",")),
            Err("there are more than 15 nodes".to_owned())
        );
    }

    #[test]
    fn a_secret_is_not_shown() {
        let settings = Settings {
            password: Secret("hunter2".to_owned()),
            ..Settings::default()
        };
        assert!(!format!("{settings:?}").contains("hunter2"));
    }
}
