//! Whether a server lets a client in: a log line or an open port says less.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(2);

/// Asks as a client would that trusts and is trusted: the server answers with a request for authentication (R) or with an
/// error (E).
pub(crate) fn lets_in(address: SocketAddr) -> bool {
    let ask = || -> std::io::Result<bool> {
        let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let parameters = b"user\0postgres\0database\0postgres\0\0";
        let length = u32::try_from(parameters.len() + 8).unwrap_or(0);
        let version = 3_u32 << 16;
        let mut startup = Vec::new();
        startup.extend(length.to_be_bytes());
        startup.extend(version.to_be_bytes());
        startup.extend(parameters);
        stream.write_all(&startup)?;
        let mut answer = [0];
        stream.read_exact(&mut answer)?;
        Ok(answer == *b"R")
    };
    ask().unwrap_or(false)
}
