//! A connection to a node that never waits, in the clear or by TLS.

use mio::net::TcpStream;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::path::Path;
use std::sync::Arc;

/// What TLS takes: whom to trust, and what to show.
#[derive(Clone, Debug)]
pub(super) struct Tls(Arc<ClientConfig>);

impl Tls {
    /// Reads the files, in PEM format. Without a file of authorities, those that the system trusts
    /// count; without a certificate and its key, none is shown. The error says what is wrong.
    pub(super) fn new(ca: &Path, cert: &Path, key: &Path) -> Result<Self, String> {
        let mut roots = RootCertStore::empty();
        if ca.as_os_str().is_empty() {
            for certificate in rustls_native_certs::load_native_certs().certs {
                // One that this library cannot read is trusted by nobody here.
                let _ = roots.add(certificate);
            }
        } else {
            for certificate in certificates(ca)? {
                roots
                    .add(certificate)
                    .map_err(|error| in_file(ca, &error))?;
            }
        }
        let config = ClientConfig::builder().with_root_certificates(roots);
        let config = if cert.as_os_str().is_empty() || key.as_os_str().is_empty() {
            config.with_no_client_auth()
        } else {
            let key = PrivateKeyDer::from_pem_file(key).map_err(|error| in_file(key, &error))?;
            config
                .with_client_auth_cert(certificates(cert)?, key)
                .map_err(|error| in_file(cert, &error))?
        };
        Ok(Self(Arc::new(config)))
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    read.map_err(|error| in_file(path, &error))
}

fn in_file(path: &Path, error: &impl std::fmt::Display) -> String {
    format!("{}: {error}", path.display())
}

/// A connection that is made, or is being made: then reading and writing fail with
/// [`io::ErrorKind::WouldBlock`] or `NotConnected`.
#[derive(Debug)]
pub(super) enum Transport {
    Plain(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Transport {
    /// Begins to connect. `host` is what a certificate has to name.
    pub(super) fn connect(address: SocketAddr, host: &str, tls: Option<&Tls>) -> io::Result<Self> {
        let socket = TcpStream::connect(address)?;
        // A request is small and is waited for.
        let _ = socket.set_nodelay(true);
        let Some(Tls(config)) = tls else {
            return Ok(Self::Plain(socket));
        };
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        let session = ClientConnection::new(Arc::clone(config), name).map_err(io::Error::other)?;
        Ok(Self::Tls(Box::new(StreamOwned::new(session, socket))))
    }

    fn socket(&self) -> &TcpStream {
        match self {
            Self::Plain(socket) => socket,
            Self::Tls(stream) => &stream.sock,
        }
    }

    /// What to watch it by.
    pub(super) fn fd(&self) -> RawFd {
        self.socket().as_raw_fd()
    }

    /// Where it comes from, as the node sees it.
    pub(super) fn local_address(&self) -> io::Result<SocketAddr> {
        self.socket().local_addr()
    }

    /// Whether the connection is made, or why it could not be.
    pub(super) fn is_connected(&self) -> io::Result<bool> {
        if let Some(error) = self.socket().take_error()? {
            return Err(error);
        }
        match self.socket().peer_addr() {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Whether a read that does not fill its buffer has read all that has arrived. TLS can have more
    /// of it decrypted already.
    pub(super) fn tells_all(&self) -> bool {
        matches!(self, Self::Plain(_))
    }

    /// Whether it has something to write that was not given to it to be written: of TLS's own.
    pub(super) fn wants_write(&self) -> bool {
        match self {
            Self::Plain(_) => false,
            Self::Tls(stream) => stream.conn.wants_write(),
        }
    }
}

impl Read for Transport {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.read(buffer),
            Self::Tls(stream) => stream.read(buffer),
        }
    }
}

impl Write for Transport {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.write(bytes),
            Self::Tls(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(socket) => socket.flush(),
            Self::Tls(stream) => stream.flush(),
        }
    }
}
