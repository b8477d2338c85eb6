//! The driver: decides which thread runs a NIC, and when.
//!
//! A device has one or more [`Shard`]s: a [`Nic`](crate::nic::Nic), its link and its timers behind one lock.
//! A *turn* of a shard receives packets, serves expired timers and sends. Several threads run turns, one at a
//! time, and [`DriveState`] is the state that they share. The link decides the [`Policy`]:
//!
//! | policy               | link                     | turns are run by                                          |
//! |----------------------|--------------------------|-----------------------------------------------------------|
//! | [`Policy::Clock`]    | a fabric in virtual time | the thread that advances the clock; there is no background thread |
//! | [`Policy::Sender`]   | a fabric in real time    | the thread that sends ([`FabricHandle::kick`]); the background thread does what is left over or due later |
//! | [`Policy::Adaptive`] | all others               | application threads in their calls; the background thread, unless the application polls |
//!
//! With all but `Clock`, an application call that posts, modifies or polls runs a turn inline, on the
//! calling thread, which saves a thread switch. A thread that finds the lock held rings the doorbell, and the
//! holder runs another turn after it has released the lock. A poll that finds the lock held returns without
//! ringing, because the application polls again soon.
//!
//! The background thread stands back while the application polls, that is until it announces a wait
//! ([`Shard::stop_polling`]) or has not polled for a poll gap ([`PollDetector`](adaptive::PollDetector)). It
//! stays awake while packets keep arriving, and sleeps after [`IDLE_TIMEOUT`](adaptive::timing::IDLE_TIMEOUT)
//! without any. Then it is woken by a packet, by the NIC's next deadline, and by
//! [`wake_thread`](Shard::wake_thread), called by a thread that leaves work unfinished or sets an earlier
//! deadline. [`Adaptive`](adaptive::Adaptive) decides all this.
//!
//! | file                  | content                                                                    |
//! |-----------------------|----------------------------------------------------------------------------|
//! | `shard.rs`            | [`Shard`]: the lock and access to what it protects                         |
//! | `object_faults.rs`    | injected faults on queue pairs, queues, regions, the port and the device   |
//! | `apply_faults.rs`     | their application in turns                                                 |
//! | `outputs.rs`          | delivery of the NIC's completions and events                               |
//! | `completion_queue.rs` | [`CompletionQueue`]: overflow and notification                             |
//! | `cq_ring.rs`          | the lock-free ring of a completion queue                                   |
//! | `events.rs`           | [`Events`]: the event hub                                                  |
//! | `records.rs`          | [`Records`] for reports, such as of refused requests                       |
//! | `drive_state.rs`      | [`DriveState`]: doorbell, polling, sleep                                   |
//! | `turn.rs`             | one turn; delayed acknowledgements; loss of the link                       |
//! | `inline.rs`           | turns on application threads                                               |
//! | `background.rs`       | the background thread                                                      |
//! | `policy.rs`           | [`Policy`]                                                                 |
//! | `adaptive/`           | [`Adaptive`](adaptive::Adaptive): back-off, busy-polling, delayed acknowledgements; constants with their measurements |
//! | `fabric_driver.rs`    | what a fabric calls: turns, and changes of the port                        |
//! | `fabric_kick.rs`      | turns on a fabric in real time                                             |
//! | `fabric_clock.rs`     | turns on a fabric in virtual time                                          |
//! | `shards.rs`           | all shards of a device, and their threads                                  |
//! | `mailbox.rs`          | packets that arrived at the wrong shard                                    |
//! | `wait.rs`             | blocking waits of the application                                          |
//! | `clock.rs`            | real and virtual time                                                      |
//!
//! [`FabricHandle::kick`]: crate::fabric::FabricHandle::kick
#![forbid(unsafe_code)]

mod adaptive;
mod apply_faults;
mod background;
mod clock;
mod completion_queue;
mod cq_ring;
mod drive_state;
mod events;
mod fabric_clock;
mod fabric_driver;
mod fabric_kick;
mod fabric_threads;
mod failure_faults;
mod inline;
mod link_calls;
mod mailbox;
mod object_faults;
mod objects;
mod outputs;
mod policy;
mod records;
mod shard;
mod shards;
#[cfg(test)]
mod tests;
mod turn;
mod wait;

pub(crate) use clock::Clock;
pub(crate) use completion_queue::{CompletionQueue, CqListener, Pushed, TimestampedCompletion};
pub use completion_queue::{CqOverflow, Notify};
use drive_state::DriveState;
pub(crate) use events::{EventReader, EventSubject, Events};
pub(crate) use failure_faults::faults_behind;
pub use link_calls::AttachError;
pub(crate) use mailbox::ShardMailbox;
pub(crate) use object_faults::ActiveObjectFault;
pub use object_faults::{ObjectChange, ObjectFault, Trigger};
use outputs::Outputs;
#[cfg(doc)]
use policy::Policy;
pub(crate) use records::Records;
pub(crate) use shard::{Shard, ShardState};
pub(crate) use shards::{ALL_SHARDS, CqUsers, Shards};
pub(crate) use wait::{WaitEnd, deadline_after, step_until, until_readable, until_signalled};
