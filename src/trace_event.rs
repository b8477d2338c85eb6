//! Events for `tracing` subscribers (feature `tracing`). Without the feature, they cost nothing.
//!
//! An event may be emitted while a NIC or a connection manager is locked, so a subscriber must not call back
//! into urxe. Events carry no time and no other value that differs from run to run in virtual time.
//!
//! | target | level | event |
//! | --- | --- | --- |
//! | `urxe::qp` | DEBUG | a queue pair changed its state: `qpn`, `from`, `to`, `cause` |
//! | `urxe::nak` | DEBUG | a NAK was sent or received: `qpn`, `psn`, `syndrome`; a queue pair refused a request and enters ERR: `qpn`, `reason`, the text of the failure report's cause |
//! | `urxe::recovery` | DEBUG | a retransmission (`qpn`, `cause`, `psn` of its first packet, `retries_left`), an RNR wait (`qpn`, `psn`, `wait`), exhausted retries (`qpn`, `cause`, `psn`, `status`) |
//! | `urxe::link` | WARN | a link, and with it the device, was lost: `reason` |
//! | `urxe::cm` | DEBUG | a connection changed its state (`id`, `from`, `to`), retransmitted a message or gave up (`id`, `state`) |
//! | `urxe::errno` | DEBUG | an error is reported to a C program: `errno`, `error` |

/// Emits an event with the given level, target, message and fields. The fields are written as in
/// `tracing::event!`: `name = value`, `name = %value` or `name = ?value`.
#[cfg(feature = "tracing")]
macro_rules! trace_event {
    ($level:ident, $target:literal, $message:literal, $($fields:tt)*) => {
        tracing::event!(target: $target, tracing::Level::$level, { $($fields)* }, $message)
    };
}

/// Type-checks the values of an event without evaluating them. This also marks the values as used, which
/// avoids `allow` attributes.
#[cfg(not(feature = "tracing"))]
macro_rules! trace_event {
    (@check) => {};
    (@check $name:ident = % $value:expr $(, $($rest:tt)*)?) => {
        let _ = &$value;
        trace_event!(@check $($($rest)*)?);
    };
    (@check $name:ident = ? $value:expr $(, $($rest:tt)*)?) => {
        let _ = &$value;
        trace_event!(@check $($($rest)*)?);
    };
    (@check $name:ident = $value:expr $(, $($rest:tt)*)?) => {
        let _ = &$value;
        trace_event!(@check $($($rest)*)?);
    };
    ($level:ident, $target:literal, $message:literal, $($fields:tt)*) => {
        if false {
            trace_event!(@check $($fields)*);
        }
    };
}
