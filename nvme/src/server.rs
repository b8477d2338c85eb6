//! Server that accepts connections, each served by its own thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::Builder;
use std::time::{Duration, Instant};

use urxe::verbs::cm::{Incoming, Listener};
use urxe::verbs::errors::WaitError;

use super::connection::{Connection, ConnectionError};
use super::private_data::{ConnectRequest, RejectReason};
use super::queue::Queue;
use super::subsystem::Subsystem;

/// Maximum number of connected queues, over all hosts.
const CONNECTIONS: usize = 1024;
/// Interval at which the server calls `stop`.
const TICK: Duration = Duration::from_millis(100);

/// Serves a subsystem to all hosts that connect, until `stop` returns true. `log` is called with a line for
/// each connection, rejection and disconnection.
///
/// # Errors
/// [`WaitError`] if the listener fails.
pub fn serve(
    listener: &Listener,
    subsystem: &Arc<Subsystem>,
    stop: &(dyn Fn() -> bool + Sync),
    log: &(dyn Fn(&str) + Sync),
) -> Result<(), WaitError> {
    let connections = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        while !stop() {
            let incoming = match listener.next(TICK) {
                Ok(incoming) => incoming,
                Err(WaitError::TimedOut(_) | WaitError::Interrupted) => continue,
                Err(e) => return Err(e),
            };
            let request = ConnectRequest::parse(incoming.private_data());
            let has_room = connections.load(Ordering::Relaxed) < CONNECTIONS;
            match request.and_then(|request| has_room.then_some(request).ok_or(RejectReason::Resources)) {
                Ok(request) => {
                    let connections = &connections;
                    // The request is passed to the thread once the thread exists.
                    let (sender, receiver) = crossbeam_channel::unbounded();
                    let thread = Builder::new().name(format!("queue {}", request.queue));
                    let spawned = thread.spawn_scoped(scope, move || {
                        if let Ok(incoming) = receiver.recv() {
                            connect(incoming, &request, subsystem, stop, log);
                            connections.fetch_sub(1, Ordering::Relaxed);
                        }
                    });
                    match spawned {
                        Ok(_) => {
                            connections.fetch_add(1, Ordering::Relaxed);
                            sender.send(incoming).expect("the thread receives the request");
                        }
                        Err(_) => reject(incoming, RejectReason::Resources, log),
                    }
                }
                Err(reason) => reject(incoming, reason, log),
            }
        }
        Ok(())
    })
}

fn reject(incoming: Incoming, reason: RejectReason, log: &dyn Fn(&str)) {
    log(&format!("{}: rejected the connection: {reason}", peer(&incoming)));
    // The host may have disconnected already, so errors are ignored.
    let _ = incoming.reject(&reason.bytes());
}

fn connect(
    incoming: Incoming,
    request: &ConnectRequest,
    subsystem: &Arc<Subsystem>,
    stop: &dyn Fn() -> bool,
    log: &dyn Fn(&str),
) {
    let peer = peer(&incoming);
    let queue = Queue::new(subsystem.clone(), request.queue, request.commands, Instant::now());
    let log_queue = |queue: &Queue| log(&format!("{peer}: {queue}"));
    let result =
        Connection::accept(incoming, request, queue).and_then(|connection| connection.run(stop, &log_queue));
    match result {
        Ok(()) => log(&format!("{peer}: queue {} disconnected", request.queue)),
        Err(ConnectionError::Wait(WaitError::Failed(completion))) => {
            log(&format!("{peer}: queue {} lost its connection: {}", request.queue, completion.status));
        }
        Err(e) => log(&format!("{peer}: queue {} disconnected: {e}", request.queue)),
    }
}

fn peer(incoming: &Incoming) -> String {
    incoming.peer_addr().map_or_else(|| "unknown host".into(), |peer| peer.ip().to_string())
}
