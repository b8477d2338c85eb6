//! Automatic path migration (IBA 17.2.8): a second path, armed by both ends, that takes over where the first fails.

use super::qp::QueuePair;
use super::{AlternatePath, AsyncEvent, Env, MigrationState, ModifyError, Output, QpAttr};
use crate::wire::{Flow, PKey};

/// The second path of a connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct Alternate {
    pub path: AlternatePath,
    pub flow: Flow,
    pub pkey: PKey,
}

/// How a packet came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Via {
    /// By the path in use.
    Primary,
    /// By the other one.
    Alternate,
}

impl QueuePair {
    /// Whether it has another path that it may go over to.
    #[inline]
    pub fn has_alternate(&self) -> bool {
        self.conn.alternate.is_some()
    }

    /// How a packet from the peer came, if by a path of the connection. The alternate one counts while it is armed.
    pub fn via(&self, flow: &Flow) -> Option<Via> {
        let fits = |ours: &Flow| ours.dst == flow.src && ours.src == flow.dst;
        if self.conn.flow.as_ref().is_some_and(fits) {
            return Some(Via::Primary);
        }
        let armed = self.conn.migration == MigrationState::Armed;
        self.conn.alternate.filter(|a| armed && fits(&a.flow)).map(|_| Via::Alternate)
    }

    /// The partition key of a path.
    pub fn pkey_via(&self, via: Via) -> PKey {
        match (via, &self.conn.alternate) {
            (Via::Alternate, Some(a)) => a.pkey,
            _ => self.conn.pkey,
        }
    }

    /// Indices into the port's partition key table that it refers to: the path's, and the alternate one's.
    pub fn pkey_indices(&self) -> (u16, Option<u16>) {
        (self.conn.pkey_index, self.conn.alternate.map(|a| a.path.pkey_index))
    }

    /// Goes over to the partition at another index, for one packet: QP1 is in all that the port is in.
    pub fn enter_partition(&mut self, index: u16, key: PKey) {
        (self.conn.pkey_index, self.conn.pkey) = (index, key);
    }

    /// Sets the keys that the table has at its indices.
    pub fn set_pkeys(&mut self, key: impl Fn(u16) -> PKey) {
        self.conn.pkey = key(self.conn.pkey_index);
        if let Some(a) = &mut self.conn.alternate {
            a.pkey = key(a.path.pkey_index);
        }
    }

    /// What a `modify` asks of migration, before anything of it is done.
    pub(super) fn check_migration(&self, attr: &QpAttr) -> Result<(), ModifyError> {
        let Some(to) = attr.path_mig_state else { return Ok(()) };
        let from = self.conn.migration;
        let loaded = attr.alt_path.is_some() || self.conn.alternate.is_some();
        let refuse = |why| Err(ModifyError::Migration { from, to, why });
        match to {
            MigrationState::Rearm if !loaded => refuse(": there is no alternate path"),
            MigrationState::Armed => refuse(": only the peer arms it"),
            _ => Ok(()),
        }
    }

    /// What a `modify` that was checked asks of migration.
    pub(super) fn set_migration(&mut self, to: MigrationState, env: &mut Env<'_>) {
        if to == MigrationState::Migrated && self.conn.migration == MigrationState::Armed {
            self.migrate(env);
        }
        self.conn.migration = to;
    }

    /// Goes over to the alternate path.
    pub(super) fn migrate(&mut self, env: &mut Env<'_>) {
        let Some(Alternate { path, flow, pkey }) = self.conn.alternate.take() else { return };
        let conn = &mut self.conn;
        (conn.av, conn.flow) = (Some(path.av), Some(flow));
        (conn.pkey_index, conn.pkey, conn.timeout) = (path.pkey_index, pkey, path.timeout);
        conn.migration = MigrationState::Migrated;
        env.out.push(Output::Event(AsyncEvent::PathMigrated(conn.qpn)));
        self.requester.begin_again(&self.conn, env);
    }

    /// What a packet's MigReq says. Whether the packet is to be taken.
    pub(super) fn note_migration(&mut self, migrated: bool, via: Via, env: &mut Env<'_>) -> bool {
        match (self.conn.migration, via, migrated) {
            (MigrationState::Rearm, Via::Primary, false) => {
                self.conn.migration = MigrationState::Armed;
                true
            }
            (MigrationState::Armed, Via::Alternate, true) => {
                self.migrate(env);
                true
            }
            // The peer has gone over to a path that is not our alternate one.
            (MigrationState::Armed, Via::Primary, true) => {
                env.out.push(Output::Event(AsyncEvent::PathMigrateError(self.conn.qpn)));
                false
            }
            (_, Via::Primary, _) => true,
            (_, Via::Alternate, _) => false,
        }
    }
}
