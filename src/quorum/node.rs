//! The connection to one node.

use super::settings::{Address, Settings};
use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::{
    Client, ClientTlsConfig, Cmd, ConnectionAddr, IntoConnectionInfo, RedisConnectionInfo,
    RedisError, TlsCertificates, Value,
};
use std::path::Path;
use std::time::Duration;

/// The shortest and the longest time between two attempts to connect.
const RECONNECT_AFTER: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// How long to wait before a command is sent again.
const REPEAT_AFTER: Duration = Duration::from_millis(1);

/// A node, and the connection to it that all requests share: it is made with the first of them,
/// requests go out without waiting for each other's answers, and it is made anew when it breaks.
pub(super) struct Node {
    pub(super) address: Address,
    timeout: Duration,
    /// The error says what is wrong with the settings.
    connection: Result<ConnectionManager, String>,
}

/// What came of a request to a node.
pub(super) enum Sent {
    /// It answered.
    Answered(Value),
    /// It did nothing, because it could not be reached or answered an error.
    Failed(String),
    /// Nobody knows whether it did what it was asked for.
    Unknown(String),
}

impl Node {
    /// A node that nothing has been sent to. To be called inside of the runtime.
    pub(super) fn new(address: Address, settings: &Settings) -> Self {
        let connection = client(&address, settings).and_then(|client| {
            let config = ConnectionManagerConfig::new()
                .set_min_delay(RECONNECT_AFTER.0)
                .set_max_delay(RECONNECT_AFTER.1)
                .set_number_of_retries(usize::MAX)
                .set_connection_timeout(Some(settings.node_timeout))
                .set_response_timeout(None);
            ConnectionManager::new_lazy_with_config(client, config)
                .map_err(|error| error.to_string())
        });
        Self {
            address,
            timeout: settings.node_timeout,
            connection,
        }
    }

    /// Sends a command and waits for its answer, but no longer than a node has time for. If the
    /// connection turns out to be broken, one that `may_repeat` is sent again over a new one: a
    /// connection of a node that was started anew breaks with the first command.
    pub(super) async fn send(&self, command: &Cmd, may_repeat: bool) -> Sent {
        let mut connection = match &self.connection {
            Ok(connection) => connection.clone(),
            Err(reason) => return Sent::Failed(reason.clone()),
        };
        let sending = async {
            loop {
                let sent = connection.send_packed_command(command).await;
                if !may_repeat || !sent.as_ref().is_err_and(RedisError::is_connection_dropped) {
                    return sent;
                }
                tokio::time::sleep(REPEAT_AFTER).await;
            }
        };
        match tokio::time::timeout(self.timeout, sending).await {
            Ok(Ok(Value::ServerError(error))) => Sent::Failed(RedisError::from(error).to_string()),
            Ok(Ok(value)) => Sent::Answered(value),
            Ok(Err(error)) if error.is_connection_refusal() || error.code().is_some() => {
                Sent::Failed(error.to_string())
            }
            Ok(Err(error)) => Sent::Unknown(error.to_string()),
            Err(_) => Sent::Unknown("timed out".to_owned()),
        }
    }
}

/// Whom to connect to, and how.
fn client(address: &Address, settings: &Settings) -> Result<Client, String> {
    let host = address.host.clone();
    let port = address.port;
    let transport = if settings.tls {
        ConnectionAddr::TcpTls {
            host,
            port,
            insecure: false,
            tls_params: None,
        }
    } else {
        ConnectionAddr::Tcp(host, port)
    };
    let mut login = RedisConnectionInfo::default().set_skip_set_lib_name();
    if !settings.user.is_empty() {
        login = login.set_username(&settings.user);
    }
    if !settings.password.0.is_empty() {
        login = login.set_password(&settings.password.0);
    }
    let info = transport
        .into_connection_info()
        .map_err(|error| error.to_string())?
        .set_redis_settings(login);
    let client = if settings.tls {
        let certificates = TlsCertificates {
            client_tls: match (file(&settings.tls_cert)?, file(&settings.tls_key)?) {
                (Some(client_cert), Some(client_key)) => Some(ClientTlsConfig {
                    client_cert,
                    client_key,
                }),
                _ => None,
            },
            root_cert: file(&settings.tls_ca)?,
        };
        Client::build_with_tls(info, certificates)
    } else {
        Client::open(info)
    };
    client.map_err(|error| error.to_string())
}

/// The bytes of a file, if one is named.
fn file(path: &Path) -> Result<Option<Vec<u8>>, String> {
    if path.as_os_str().is_empty() {
        return Ok(None);
    }
    std::fs::read(path)
        .map(Some)
        .map_err(|error| format!("{}: {error}", path.display()))
}
