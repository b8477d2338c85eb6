//! The constants of the adaptive policy, each with its measurement, or what it is derived from.

use std::time::Duration;

/// Time without a packet, or without a poll by the application, after which a thread counts as idle. It is
/// used in three places:
/// - the background thread polls the link for this long after each packet before it sleeps, provided that its
///   last sleep was shorter than this: a wake-up costs both ends several microseconds, as much as a burst;
/// - an application that polled less than this long ago is expected to poll again, and the background thread
///   keeps away from the socket, or both threads would wake for every packet;
/// - the background thread tries again after this time if another thread held the lock when the link had to
///   be polled, or if it could not read the link because another shard's inbox was full.
///
/// Derived from the cost of a wake-up: a thread that polls in vain for this long spends some tens of
/// wake-ups, once, and requests that follow each other within it need none.
pub const IDLE_TIMEOUT: Duration = Duration::from_micros(200);

/// Timer granularity on a fabric with no delayed packets in flight, where the sending thread drives the
/// receiving NIC: the background thread serves the timers, and if another thread holds the lock, tries again
/// after this time. Also the longest back-off for a distrusted application. As long as the shortest
/// retransmission timeout (`transport/tuning.rs: min_timeout`): more often there is nothing to serve.
pub const TIMER_GRANULARITY: Duration = Duration::from_millis(1);

/// Longest back-off of the background thread for a polling application. An application that stops polling
/// without announcing it may delay its peers by this much, once. Each check takes 20 µs away from a thread
/// that polls on the same core; two background threads with 250 checks per second each would show in the 99th
/// percentile of a ping-pong.
pub const MAX_BACKOFF: Duration = Duration::from_millis(16);

/// Maximum time since a distrusted application's last poll for it to count as polling, and the shortest
/// back-off for it. A distrusted application polls for something other than received packets. As long as a
/// polling thread spins before it yields ([`SPIN_TIME`]): an application that has not polled for this long
/// does other work.
pub const DISTRUSTED_POLL_GAP: Duration = Duration::from_micros(10);

/// Bounds of the time for which an application is distrusted, which doubles each time. Packets that
/// accumulate during a back-off show that the application polls for something else: for example, it may wait
/// for a byte in memory to change, and poll only for its own sends in between. The background thread then
/// checks more often. The shortest time exceeds [`MAX_BACKOFF`], or the next back-off would follow at once;
/// with the longest, an application that keeps misleading the thread delays its peers by one [`MAX_BACKOFF`]
/// in two seconds, less than 1 % of the time.
pub const DISTRUST_TIME: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(2));

/// Time for which the background thread refrains from busy-polling after finding that another thread competes
/// for its core: the shortest and the longest. The other thread would get a whole scheduler slice at each
/// yield, whereas a sleeping background thread is scheduled as soon as a packet arrives. The time doubles if
/// the other thread competes again soon afterwards. A yield of 205 µs was seen, and then the thread slept
/// before each request of the next 100 ms: fio's READs of 256 KiB reached 41 to 46 instead of 57 Gb/s in
/// rings. With four pairs of fio on two cores it makes no difference.
pub const CROWDED_CORE_BACKOFF: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(100));

/// Time for which acknowledgements wait for the application's next call before the background thread sends
/// them, unless it is backing off for a polling application. Derived from a usual local ACK timeout of peers,
/// code 14 or 67 ms, of which it is a sixteenth.
pub const MAX_ACK_DELAY: Duration = Duration::from_millis(4);

/// Time for which the background thread delays acknowledgements while the application is distrusted. Such an
/// application is about to respond, and its response carries the acknowledgements. The peer then receives
/// both at once, in time for its own response to do the same, so that two applications that poll completion
/// queues only for their sends, and otherwise wait for memory to change, need no background thread. Three
/// times [`DISTRUSTED_POLL_GAP`], within which such an application polls for its own sends.
pub const RESPONSE_ACK_DELAY: Duration = Duration::from_micros(30);

/// Maximum number of packets received in a turn, for each queue pair with acknowledgements to send, whose
/// acknowledgements are delayed until the application's next call. A polling application may respond to so
/// few packets, and its response then carries the acknowledgements. A longer burst is a stream, whose sender
/// waits for the acknowledgements. A limit for all queue pairs together cost redis-benchmark, with 50
/// connections over rsockets, 14 % of its requests.
pub const MAX_DELAYED_ACK_PACKETS: usize = 4;

/// Number of bytes sent in one turn above which the turn takes so long that the application thread running it
/// would seem to have stopped polling. Derived from 47 Gb/s, the rate of WRITEs of 64 KiB over sockets: so
/// many bytes take 22 µs, twice [`DISTRUSTED_POLL_GAP`].
pub const LONG_TURN_BYTES: usize = 128 << 10;

/// Time without packets after which a polling application thread begins to yield its core, and the interval
/// at which it yields. If more threads poll than there are cores, the peer of a thread that spins may be
/// waiting for the core: with four pairs of polling processes on two cores, WRITEs of 64 KiB reach 73 instead
/// of 30 Gb/s in rings, and 47 instead of 28 over sockets.
pub const SPIN_TIME: Duration = Duration::from_micros(10);
pub const YIELD_INTERVAL: Duration = Duration::from_micros(5);
