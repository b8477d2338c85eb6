//! Automatic path migration (IBA 17.2.8): both ends arm an alternate path, which takes over when the primary
//! path fails.

use super::connection::{Alternate, PathMatch};
use super::qp::QueuePair;
use super::{AsyncEvent, Env, MigrationState, ModifyError, Output, QpAttr};
use crate::wire::{Flow, PKey};

impl QueuePair {
    /// Reports whether an alternate path is loaded.
    #[inline]
    pub fn has_alternate(&self) -> bool {
        self.conn.alternate.is_some()
    }

    /// Returns the path on which a packet from the peer arrived, or `None` if it matches neither path. The
    /// alternate path is considered only while armed.
    pub fn classify_path(&self, flow: &Flow) -> Option<PathMatch> {
        let fits = |ours: &Flow| ours.dst == flow.src && ours.src == flow.dst;
        if self.conn.flow.as_ref().is_some_and(fits) {
            return Some(PathMatch::Primary);
        }
        let armed = self.conn.migration == MigrationState::Armed;
        self.conn.alternate.filter(|a| armed && fits(&a.flow)).map(|_| PathMatch::Alternate)
    }

    /// Returns the partition key for the given path.
    pub fn pkey_via(&self, via: PathMatch) -> PKey {
        match (via, &self.conn.alternate) {
            (PathMatch::Alternate, Some(a)) => a.pkey,
            _ => self.conn.pkey,
        }
    }

    /// Returns the partition key indices of the primary path and, if one is loaded, of the alternate path.
    pub fn pkey_indices(&self) -> (u16, Option<u16>) {
        (self.conn.attr.pkey_index, self.conn.alternate.map(|a| a.path.pkey_index))
    }

    /// Switches to another of the port's partitions for one packet: QP1 is a member of all of them.
    pub fn enter_partition(&mut self, index: u16, key: PKey) {
        (self.conn.attr.pkey_index, self.conn.pkey) = (index, key);
    }

    /// Updates both paths' partition keys after a change to the port's partition key table.
    pub fn set_pkeys(&mut self, key: impl Fn(u16) -> PKey) {
        self.conn.pkey = key(self.conn.attr.pkey_index);
        if let Some(a) = &mut self.conn.alternate {
            a.pkey = key(a.path.pkey_index);
        }
    }

    /// Checks the migration attributes in `attr` before any attribute is applied.
    pub(super) fn check_migration(&self, attr: &QpAttr) -> Result<(), ModifyError> {
        let Some(to) = attr.path_mig_state else { return Ok(()) };
        let from = self.conn.migration;
        let loaded = attr.alt_path.is_some() || self.conn.alternate.is_some();
        let reject = |reason| Err(ModifyError::Migration { from, to, reason });
        match to {
            MigrationState::Rearm if !loaded => reject(": there is no alternate path"),
            MigrationState::Armed => reject(": only the peer arms it"),
            _ => Ok(()),
        }
    }

    /// Sets the path migration state, which [`check_migration`](Self::check_migration) must have accepted.
    pub(super) fn set_migration(&mut self, to: MigrationState, env: &mut Env<'_>) {
        if to == MigrationState::Migrated && self.conn.migration == MigrationState::Armed {
            self.migrate(env);
        }
        self.conn.migration = to;
    }

    /// Migrates to the alternate path, if one is loaded, and retransmits all unacknowledged packets on it.
    pub(super) fn migrate(&mut self, env: &mut Env<'_>) {
        let Some(Alternate { path, flow, pkey }) = self.conn.alternate.take() else { return };
        let conn = &mut self.conn;
        conn.set_flow(flow);
        conn.av = Some(path.av);
        (conn.attr.pkey_index, conn.pkey, conn.attr.timeout) = (path.pkey_index, pkey, path.timeout);
        conn.migration = MigrationState::Migrated;
        env.out.push(Output::Event(AsyncEvent::PathMigrated(conn.qpn)));
        self.requester.restart_on_alternate_path(&self.conn, env);
    }

    /// Handles the MigReq bit of a packet that arrived on path `via`, and returns whether to accept the
    /// packet.
    pub(super) fn note_migration(&mut self, migrated: bool, via: PathMatch, env: &mut Env<'_>) -> bool {
        match (self.conn.migration, via, migrated) {
            (MigrationState::Rearm, PathMatch::Primary, false) => {
                self.conn.migration = MigrationState::Armed;
                true
            }
            (MigrationState::Armed, PathMatch::Alternate, true) => {
                self.migrate(env);
                true
            }
            // The peer has migrated to a path that is not the alternate path.
            (MigrationState::Armed, PathMatch::Primary, true) => {
                env.out.push(Output::Event(AsyncEvent::PathMigrateError(self.conn.qpn)));
                false
            }
            (_, PathMatch::Primary, _) => true,
            (_, PathMatch::Alternate, _) => false,
        }
    }
}
