//! Tests of the features `async` and `tracing`.

mod futures;
mod tracing_events;
