//! Rows of a ladder: packets, and runs of packets of one side with consecutive PSNs.

use std::collections::HashMap;

use urxe::wire::{Opcode, Operation, Psn, Syndrome};

use super::joined::{Event, Fate};
use super::sightings::{Sighting, Sightings};

/// One packet, or a run of packets of one side with consecutive PSNs and the same fate.
#[derive(Clone, Debug)]
pub(super) struct Row {
    /// Time in nanoseconds since 1970.
    pub time: u64,
    /// Numbers of the first and the last packet in each capture.
    pub numbers: [Option<(u64, u64)>; 2],
    /// Number of packets.
    pub packets: u64,
    pub from_requester: bool,
    pub psns: (Psn, Psn),
    pub opcode: Opcode,
    pub syndrome: Option<Syndrome>,
    pub is_icrc_wrong: bool,
    /// How many times the request was sent before, and the nanoseconds since the last time.
    pub again: Option<(u32, u64)>,
    pub fate: Fate,
    /// Whether a packet of the finding is in it.
    pub is_key: bool,
}

impl Row {
    fn takes(&self, next: &Row) -> bool {
        let operation = self.opcode.row().operation;
        matches!(operation, Operation::Send | Operation::Write | Operation::ReadResponse)
            && next.opcode.row().operation == operation
            && self.psns.1.next() == next.psns.0
            && (self.from_requester, self.fate, self.is_icrc_wrong)
                == (next.from_requester, next.fate, next.is_icrc_wrong)
            && self.again.map(|again| again.0) == next.again.map(|again| again.0)
            && !self.is_key
            && !next.is_key
    }

    fn take(&mut self, next: &Row) {
        self.psns.1 = next.psns.1;
        self.packets += 1;
        for (numbers, more) in self.numbers.iter_mut().zip(next.numbers) {
            if let (Some(numbers), Some(more)) = (numbers, more) {
                numbers.1 = more.1;
            }
        }
    }
}

/// Makes rows of events.
pub(super) fn rows(events: &[Event], sides: &[Sightings]) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    let mut sent: HashMap<Psn, (u32, u64)> = HashMap::new();
    for event in events {
        let Sighting { psn, from_requester, opcode, syndrome, is_icrc_wrong, .. } = *event.sighting(sides);
        let mut again = None;
        if from_requester && opcode.row().operation.is_request() {
            let (times, last) = sent.entry(psn).or_insert((0, event.time));
            again = (*times > 0).then(|| (*times, event.time.saturating_sub(*last)));
            (*times, *last) = (*times + 1, event.time);
        }
        let number = |side: usize| event.seen[side].map(|index| sides[side].packets[index].number);
        let numbers = [number(0), number(1)];
        let is_key = sides.iter().zip(numbers).any(|(side, n)| n.is_some_and(|n| side.keys.contains(&n)));
        let row = Row {
            time: event.time,
            numbers: numbers.map(|number| number.map(|number| (number, number))),
            packets: 1,
            from_requester,
            psns: (psn, psn),
            opcode,
            syndrome,
            is_icrc_wrong,
            again,
            fate: event.fate,
            is_key,
        };
        match rows.last_mut().filter(|last| last.takes(&row)) {
            Some(last) => last.take(&row),
            None => rows.push(row),
        }
    }
    rows
}
