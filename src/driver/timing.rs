//! Tuning constants of the driver.

use std::time::Duration;

/// Idle timeout: time without a packet, or without a poll of the application, after which a thread counts as
/// idle. It determines the following:
/// - the background thread polls the link for this long after each packet before it sleeps, provided that its
///   last sleep was shorter than this: a wake-up costs both ends several microseconds, as much as a burst;
/// - an application that polled less than this long ago is expected to poll again, and the background thread
///   keeps away from the socket, or both threads would wake for every packet;
/// - the background thread tries again after this time if another thread held the lock when the link had to
///   be polled, or if it could not read the link because the inbox of another shard was full.
pub(super) const IDLE_TIMEOUT: Duration = Duration::from_micros(200);

/// Granularity of the timers on a fabric without delayed packets in flight, where the sending thread drives
/// the receiving NIC: the background thread serves them, and tries again after this time if another thread
/// held the lock. Also the longest back-off for a distrusted application.
pub(super) const TIMER_GRANULARITY: Duration = Duration::from_millis(1);

/// Longest back-off of the background thread for a polling application. An application that stops polling
/// without an announcement may delay its peers by this much, once. Each check takes 20 µs from a thread that
/// polls on the same core, and two threads with 250 checks per second each would be visible in the 99th
/// percentile of a ping-pong.
pub(super) const MAX_BACKOFF: Duration = Duration::from_millis(16);

/// Poll gap and shortest back-off for a distrusted application, that is, one that polls for something other
/// than received packets.
pub(super) const DISTRUSTED_POLL_GAP: Duration = Duration::from_micros(10);

/// Bounds of the time for which an application is distrusted, which doubles each time. Packets that
/// accumulated during a back-off show that the application polls for something else, for example because it
/// waits for a byte of its memory to change and polls only for its own sends in between; the background
/// thread then checks more often.
pub(super) const DISTRUST_TIME: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(2));

/// Time for which the background thread does not busy-poll after it found that another thread occupies its
/// core: that thread gets a whole scheduler slice at each yield, and a sleeping thread is scheduled when a
/// packet arrives.
pub(super) const CROWDED_CORE_BACKOFF: Duration = Duration::from_millis(100);

/// Time for which acknowledgements are delayed, waiting for the application's next call, before the
/// background thread sends them, while it is not backing off for a polling application.
pub(super) const MAX_ACK_DELAY: Duration = Duration::from_millis(4);

/// Time for which the background thread delays acknowledgements while the application is distrusted. Such an
/// application is about to respond, and its response carries the acknowledgements. The peer then receives
/// both at once, in time for its own response to do the same: two applications that poll a completion queue
/// only for their sends, and otherwise wait for memory to change, need no background thread.
pub(super) const RESPONSE_ACK_DELAY: Duration = Duration::from_micros(30);

/// Largest number of received packets whose acknowledgements are delayed until the application's next call. A
/// polling application may respond to them, and the acknowledgements then travel with the response. A longer
/// burst is a stream, whose sender waits for the acknowledgements.
pub(super) const MAX_DELAYED_ACK_PACKETS: usize = 4;

/// Number of bytes sent in one turn at which the turn takes so long that the application thread running it
/// would be mistaken for absent.
pub(super) const LONG_TURN_BYTES: usize = 128 << 10;

/// Maximum number of turns that one call drives inline while other threads keep ringing the doorbell; the
/// background thread then takes over.
pub(super) const MAX_INLINE_TURNS: usize = 64;

/// Number of bytes in the inbox of a shard above which the other shards stop reading their sockets.
pub(super) const INBOX_FULL_BYTES: usize = 4 << 20;
