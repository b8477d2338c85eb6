//! Server that accepts connections, each on a thread of its own.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::Builder;
use std::time::{Duration, Instant};

use urxe::verbs::WaitError;
use urxe::verbs::cm::{Incoming, Listener};

use super::connection::{Connection, ConnectionError};
use super::private_data::{ConnectRequest, Refusal};
use super::queue::Queue;
use super::subsystem::Subsystem;

/// Largest number of connected queues, of all hosts together.
const CONNECTIONS: usize = 1024;
/// Interval at which the server checks whether it has to stop.
const TICK: Duration = Duration::from_millis(100);

/// Serves a subsystem to all hosts that connect, until `stop` returns true. `log` receives a line for each
/// connection, rejection and disconnection.
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
            let asked = ConnectRequest::parse(incoming.private_data());
            let has_room = connections.load(Ordering::Relaxed) < CONNECTIONS;
            match asked.and_then(|asked| has_room.then_some(asked).ok_or(Refusal::Resources)) {
                Ok(asked) => {
                    let connections = &connections;
                    // The request is passed to the thread once the thread exists.
                    let (give, take) = mpsc::channel();
                    let thread = Builder::new().name(format!("queue {}", asked.queue));
                    let begun = thread.spawn_scoped(scope, move || {
                        if let Ok(incoming) = take.recv() {
                            connect(incoming, &asked, subsystem, stop, log);
                            connections.fetch_sub(1, Ordering::Relaxed);
                        }
                    });
                    match begun {
                        Ok(_) => {
                            connections.fetch_add(1, Ordering::Relaxed);
                            give.send(incoming).expect("the thread waits for it");
                        }
                        Err(_) => refuse(incoming, Refusal::Resources, log),
                    }
                }
                Err(refusal) => refuse(incoming, refusal, log),
            }
        }
        Ok(())
    })
}

fn refuse(incoming: Incoming, refusal: Refusal, log: &dyn Fn(&str)) {
    log(&format!("{} is refused: {refusal}", peer(&incoming)));
    // The host may be gone already, so errors are ignored.
    let _ = incoming.reject(&refusal.bytes());
}

fn connect(
    incoming: Incoming,
    asked: &ConnectRequest,
    subsystem: &Arc<Subsystem>,
    stop: &dyn Fn() -> bool,
    log: &dyn Fn(&str),
) {
    let peer = peer(&incoming);
    let queue = Queue::new(subsystem.clone(), asked.queue, asked.commands, Instant::now());
    let said = |what: &Queue| log(&format!("{peer}: {what}"));
    let ended = Connection::accept(incoming, asked, queue).and_then(|connection| connection.run(stop, &said));
    match ended {
        Ok(()) => log(&format!("{peer}: queue {} is disconnected", asked.queue)),
        Err(ConnectionError::Wait(WaitError::Failed(completion))) => {
            log(&format!("{peer}: queue {} is gone: {}", asked.queue, completion.status));
        }
        Err(e) => log(&format!("{peer}: queue {} is ended: {e}", asked.queue)),
    }
}

fn peer(incoming: &Incoming) -> String {
    incoming.peer_addr().map_or_else(|| "somebody".into(), |peer| peer.ip().to_string())
}
