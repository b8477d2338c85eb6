//! Joins the captures of both ends: offset of their clocks, and for each packet whether it arrived.

use super::sightings::{Sighting, Sightings};

/// Whether a packet arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fate {
    /// Only one capture can tell of it.
    Unknown,
    /// Both captures have it.
    Arrived,
    /// The capture of its receiver lacks it, though it was running.
    Lost,
    /// The capture of its sender lacks it.
    NotSent,
}

/// A packet, and where it was seen.
#[derive(Clone, Copy, Debug)]
pub(super) struct Event {
    /// Time at its sender, or at its receiver if only that saw it, by the clock of the first capture.
    pub time: u64,
    /// Index in the packets of each capture.
    pub seen: [Option<usize>; 2],
    pub fate: Fate,
}

impl Event {
    /// Returns the packet as the first capture that has it shows it.
    pub(super) fn sighting<'a>(&self, sides: &'a [Sightings]) -> &'a Sighting {
        let (side, index) = match self.seen {
            [Some(index), _] => (0, index),
            [None, index] => (1, index.unwrap_or_default()),
        };
        &sides[side].packets[index]
    }
}

/// Captures, that at the requester first, and their packets in order of time.
#[derive(Debug)]
pub(super) struct Joined {
    pub sides: Vec<Sightings>,
    /// Offset of the second capture's clock to that of the first, in nanoseconds.
    pub offset: Option<i64>,
    pub events: Vec<Event>,
}

/// Fields by which a packet is recognised in the other capture: direction, PSN, opcode, syndrome.
type Identity = (bool, u32, u8, Option<u8>);

fn identity(packet: &Sighting) -> Identity {
    let syndrome = packet.syndrome.map(|syndrome| syndrome.to_byte());
    (packet.from_requester, packet.psn.get(), packet.opcode.0, syndrome)
}

/// Packets of one identity: their indices in each capture, in order of time.
type Group<'a> = (Identity, [&'a [usize]; 2]);

/// Returns the indices of the packets, sorted by identity and then by time.
fn sorted(side: &Sightings) -> Vec<usize> {
    let mut order: Vec<usize> = (0..side.packets.len()).collect();
    order.sort_by_key(|index| (identity(&side.packets[*index]), *index));
    order
}

/// Returns the packets of each identity, of both captures.
fn groups<'a>(sides: &'a [Sightings], orders: &'a [Vec<usize>; 2]) -> Vec<Group<'a>> {
    let of = |side: usize, index: usize| identity(&sides[side].packets[index]);
    let mut rest =
        [0, 1].map(|side| orders[side].chunk_by(move |a, b| of(side, *a) == of(side, *b)).peekable());
    let mut all = Vec::new();
    loop {
        let next = [0, 1].map(|side| rest[side].peek().map(|group| of(side, group[0])));
        let Some(least) = next.iter().flatten().min().copied() else { return all };
        let empty: &[usize] = &[];
        let group = [0, 1].map(|side| match next[side] == Some(least) {
            true => rest[side].next().unwrap_or(empty),
            false => empty,
        });
        all.push((least, group));
    }
}

/// Joins one capture or two of the same queue pairs.
pub(super) fn join(mut sides: Vec<Sightings>) -> Joined {
    if sides.len() != 2 {
        let one = |(index, packet): (usize, &Sighting)| Event {
            time: packet.time,
            seen: [Some(index), None],
            fate: Fate::Unknown,
        };
        let events = sides.iter().flat_map(|side| side.packets.iter().enumerate().map(one)).collect();
        return Joined { sides, offset: None, events };
    }
    let mut orders = [sorted(&sides[0]), sorted(&sides[1])];
    if Differences::of(&sides, &groups(&sides, &orders)).is_second_at_the_requester() {
        sides.reverse();
        orders.reverse();
    }
    let groups = groups(&sides, &orders);
    let differences = Differences::of(&sides, &groups);
    // The interfaces of one file have one clock.
    let is_one_clock = sides[0].file == sides[1].file;
    let (offset, slack) = if is_one_clock { (0, 0) } else { differences.offset() };
    let mut events = Vec::new();
    for ((from_requester, ..), group) in groups {
        let (sender, receiver) = if from_requester { (0, 1) } else { (1, 0) };
        let at = |side: usize, index: usize| {
            let time = sides[side].packets[index].time as i64;
            if side == 1 { time - offset } else { time }
        };
        let covers = |side: usize, time: i64| {
            let shift = if side == 1 { offset } else { 0 };
            let (from, to) = sides[side].range;
            (from as i64 - shift..=to as i64 - shift).contains(&time)
        };
        let mut arrivals = group[receiver].iter().copied().peekable();
        for (n, &sent) in group[sender].iter().enumerate() {
            // An arrival belongs to the last transmission before it. If as many arrived as were sent, all did.
            let all_arrived = group[sender].len() == group[receiver].len();
            let next = group[sender].get(n + 1).map(|next| at(sender, *next) - slack);
            let arrival = arrivals
                .next_if(|arrival| all_arrived || next.is_none_or(|next| at(receiver, *arrival) < next));
            let mut seen = [None; 2];
            (seen[sender], seen[receiver]) = (Some(sent), arrival);
            let fate = match arrival {
                Some(_) => Fate::Arrived,
                None if covers(receiver, at(sender, sent)) => Fate::Lost,
                None => Fate::Unknown,
            };
            events.push(Event { time: at(sender, sent).max(0) as u64, seen, fate });
        }
        for arrival in arrivals {
            let mut seen = [None; 2];
            seen[receiver] = Some(arrival);
            let time = at(receiver, arrival);
            let fate = if covers(sender, time) { Fate::NotSent } else { Fate::Unknown };
            events.push(Event { time: time.max(0) as u64, seen, fate });
        }
    }
    events.sort_by_key(|event| (event.time, event.sighting(&sides).number));
    Joined { offset: (differences.is_known() && !is_one_clock).then_some(offset), sides, events }
}

/// Least and greatest difference between the times of packets that each capture has once.
#[derive(Clone, Copy, Debug, Default)]
struct Differences {
    requests: Option<(i64, i64)>,
    responses: Option<(i64, i64)>,
}

impl Differences {
    fn of(sides: &[Sightings], groups: &[Group<'_>]) -> Differences {
        let mut all = Differences::default();
        for ((from_requester, ..), group) in groups {
            let [[a], [b]] = group else { continue };
            let difference = sides[1].packets[*b].time as i64 - sides[0].packets[*a].time as i64;
            let of = if *from_requester { &mut all.requests } else { &mut all.responses };
            let (least, most) = of.unwrap_or((difference, difference));
            *of = Some((least.min(difference), most.max(difference)));
        }
        all
    }

    fn is_known(&self) -> bool {
        self.requests.is_some() || self.responses.is_some()
    }

    /// A request is seen at the requester first, and a response at the responder: whatever the offset, the
    /// differences of the requests are the greater ones.
    fn is_second_at_the_requester(&self) -> bool {
        let (Some(requests), Some(responses)) = (self.requests, self.responses) else { return false };
        requests.0 - responses.1 < responses.0 - requests.1
    }

    /// Returns the offset of the second clock, by which the least delays of both directions are equal (as NTP
    /// estimates it), and that delay.
    fn offset(&self) -> (i64, i64) {
        match (self.requests, self.responses) {
            (Some((requests, _)), Some((_, responses))) => {
                ((requests + responses) / 2, (requests - responses).max(0) / 2)
            }
            (Some((one, _)), None) | (None, Some((_, one))) => (one, 0),
            (None, None) => (0, 0),
        }
    }
}
