//! Out-of-band TCP connection over which the two ends of a run exchange parameters.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use clap::{Args, ValueHint};

use super::CliError;
use super::interrupt::Interrupt;
use super::oob_handshake::{self, HandshakeError};

/// Interval at which a waiting server polls for a connection and checks for Ctrl-C.
const ACCEPT_INTERVAL: Duration = Duration::from_millis(5);

/// Server address, TCP port, and the timeout for the peer's responses.
#[derive(Args, Clone, Debug)]
pub struct OobArgs {
    /// Host name or address of the server; if omitted, this side is the server
    #[arg(value_hint = ValueHint::Hostname)]
    pub host: Option<String>,
    /// TCP port for the exchange of parameters
    #[arg(short, long, default_value_t = oob_handshake::PORT)]
    pub port: u16,
    /// TCP address on which the server listens [default: all]
    #[arg(long, value_name = "ADDR", conflicts_with = "host")]
    pub server_bind: Option<IpAddr>,
    /// Timeout while waiting for the peer [default: 20]
    ///
    /// By default, a server waits for its client without a timeout.
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    pub timeout: Option<Duration>,
}

/// Parses a duration in seconds, such as `10` or `0.5`.
pub fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.strip_suffix('s').unwrap_or(text).parse::<f64>().ok().filter(|s| *s > 0.0);
    seconds
        .and_then(|s| Duration::try_from_secs_f64(s).ok())
        .ok_or_else(|| format!("invalid duration '{text}': specify seconds, such as 10 or 0.5"))
}

impl OobArgs {
    /// Returns the timeout when waiting for the peer: `--timeout`, or 20 s by default.
    pub fn peer_timeout(&self) -> Duration {
        self.timeout.unwrap_or(Duration::from_secs(20))
    }

    /// Reports whether this side is the client.
    pub fn is_client(&self) -> bool {
        self.host.is_some()
    }

    /// Connects to the server or, if no host is specified, waits for a client, and passes the connection to
    /// `set_up`. If that fails for a client, which may be any program that connects, the server reports the
    /// failure and waits for the next client. Error messages name `peer_program` as the program to start
    /// at the other end.
    pub fn open<T>(
        &self,
        peer_program: &str,
        interrupt: &Interrupt,
        mut set_up: impl FnMut(TcpStream) -> Result<T, CliError>,
    ) -> Result<T, CliError> {
        if let Some(host) = &self.host {
            return set_up(self.with_options(self.connect(host, peer_program)?)?);
        }
        let listener = self.listen()?;
        loop {
            let (stream, client) = self.accept(&listener, peer_program, interrupt)?;
            match self.with_options(stream).and_then(&mut set_up) {
                Err(e) if !interrupt.is_set() => {
                    eprintln!("client {client}: {e}; waiting for another client")
                }
                result => return result,
            }
        }
    }

    fn with_options(&self, stream: TcpStream) -> Result<TcpStream, CliError> {
        let set = stream
            .set_nodelay(true)
            .and_then(|()| stream.set_nonblocking(false))
            .and_then(|()| stream.set_read_timeout(Some(self.peer_timeout())))
            .and_then(|()| stream.set_write_timeout(Some(self.peer_timeout())));
        set.map_err(CliError::io("cannot set up the TCP connection"))?;
        Ok(stream)
    }

    fn connect(&self, host: &str, peer_program: &str) -> Result<TcpStream, CliError> {
        let port = self.port;
        let addresses = (host, port).to_socket_addrs();
        let addresses = addresses.map_err(CliError::io(format!("cannot resolve host '{host}'")))?;
        let mut last = None;
        for address in addresses {
            match TcpStream::connect_timeout(&address, self.peer_timeout()) {
                Ok(stream) => return Ok(stream),
                Err(e) => last = Some((address, e)),
            }
        }
        Err(match last {
            None => CliError::Usage(format!("host '{host}' has no address")),
            Some((at, e)) if e.kind() == ErrorKind::ConnectionRefused => CliError::Failed(format!(
                "connection to TCP {at} refused: start the server there first ({peer_program} --port {port})"
            )),
            Some((at, e)) if e.kind() == ErrorKind::TimedOut => CliError::Failed(format!(
                "connection to TCP {at} timed out after {:?}: check the address, and that no firewall drops \
                 the connection requests",
                self.peer_timeout()
            )),
            Some((at, e)) => CliError::io(format!("cannot connect to TCP {at}"))(e),
        })
    }

    fn accept(
        &self,
        listener: &TcpListener,
        peer_program: &str,
        interrupt: &Interrupt,
    ) -> Result<(TcpStream, SocketAddr), CliError> {
        let at = listener.local_addr().map_err(CliError::io("cannot listen"))?;
        let begin = Instant::now();
        loop {
            match listener.accept() {
                Ok(client) => return Ok(client),
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                Err(e) => return Err(CliError::io(format!("cannot accept on TCP {at}"))(e)),
            }
            if interrupt.is_set() {
                return Err(CliError::Failed(format!("interrupted while waiting for a client on TCP {at}")));
            }
            if self.timeout.is_some_and(|t| begin.elapsed() > t) {
                let waited = self.peer_timeout();
                return Err(CliError::Failed(format!(
                    "no client connected to TCP {at} within {waited:?}: start {peer_program} with this host \
                     as its argument"
                )));
            }
            std::thread::sleep(ACCEPT_INTERVAL);
        }
    }

    fn listen(&self) -> Result<TcpListener, CliError> {
        let listener = self.bind()?;
        let at = listener.local_addr().map_err(CliError::io("cannot listen"))?;
        eprintln!("waiting for a client on TCP {at}");
        listener.set_nonblocking(true).map_err(CliError::io("cannot listen"))?;
        Ok(listener)
    }

    fn bind(&self) -> Result<TcpListener, CliError> {
        let port = self.port;
        let any = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port);
        let result = match self.server_bind {
            Some(ip) => TcpListener::bind((ip, port)),
            // Accepts both IP versions where the machine has IPv6.
            None => TcpListener::bind(any).or_else(|_| TcpListener::bind(("0.0.0.0", port))),
        };
        result.map_err(|e| match e.kind() {
            ErrorKind::AddrInUse => CliError::Failed(format!(
                "TCP port {port} is already in use: stop the other server, or use another --port on both \
                 sides"
            )),
            ErrorKind::AddrNotAvailable => CliError::Failed(format!(
                "--server-bind {}: not an address of this machine; `ip address` lists its addresses",
                self.server_bind.unwrap_or(any.ip())
            )),
            ErrorKind::PermissionDenied => CliError::Failed(format!(
                "TCP port {port} requires privileges: use a --port above 1023 on both sides"
            )),
            _ => CliError::io(format!("cannot listen on TCP port {port}"))(e),
        })
    }
}

/// Converts a handshake error. For a timeout, the message includes `sent`, which describes the data sent so
/// far.
pub fn handshake_error(sent: &str, e: HandshakeError) -> CliError {
    match e {
        HandshakeError::TimedOut { .. } => CliError::Failed(format!(
            "the peer does not respond on TCP ({e}); sent so far: {sent}; check that both sides run the same \
             program with the same options"
        )),
        other => CliError::Handshake(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_seconds_are_parsed_and_invalid_ones_rejected() {
        assert_eq!(parse_seconds("0.5"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_seconds("10s"), Ok(Duration::from_secs(10)));
        for bad in ["", "0", "-1", "soon", "1e30", "nan"] {
            assert!(parse_seconds(bad).unwrap_err().contains(bad), "{bad}");
        }
    }

    #[test]
    fn error_for_a_refused_connection_names_the_command_that_starts_the_server() {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let args = OobArgs { host: Some("127.0.0.1".into()), port, server_bind: None, timeout: None };
        let error = args.open("urxe pingpong", &Interrupt::default(), Ok).unwrap_err().to_string();
        assert!(error.contains("start the server there first (urxe pingpong --port"), "{error}");
    }

    #[test]
    fn server_fails_if_no_client_connects_within_its_timeout() {
        let args =
            OobArgs { host: None, port: 0, server_bind: None, timeout: Some(Duration::from_millis(50)) };
        let error = args.open("urxe pingpong", &Interrupt::default(), Ok).unwrap_err().to_string();
        assert!(error.contains("no client connected"), "{error}");
    }
}
