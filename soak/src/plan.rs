//! Contents of connections, computed from the seed: both ends of a connection know what the other one posts.

/// Maximum length of a message in bytes.
pub const MAX_LEN: usize = 32 << 10;

/// Maximum number of messages of a connection.
const MAX_MESSAGES: u64 = 1500;

/// Number that selects the bytes of the area that peers read; no message has it.
pub const READ_AREA: u64 = u64::MAX;

/// Random numbers from a seed: the SplitMix64 sequence, whose n-th number can be computed alone.
#[derive(Clone, Debug)]
pub struct Rng(u64);

/// Distance between the states of the SplitMix64 sequence.
const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

fn mix(x: u64) -> u64 {
    let x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

impl Rng {
    /// Creates the generator for a purpose, which a list of numbers names.
    pub fn new(seed: u64, purpose: &[u64]) -> Rng {
        Rng(purpose.iter().fold(mix(seed), |state, n| mix(state.wrapping_add(GAMMA) ^ mix(*n))))
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GAMMA);
        mix(self.0)
    }

    /// Returns a number of the range `from..to`, which must not be empty.
    pub fn range(&mut self, from: u64, to: u64) -> u64 {
        from + self.next() % (to - from)
    }

    /// Returns true with the given probability in percent.
    pub fn percent(&mut self, percent: u64) -> bool {
        self.range(0, 100) < percent
    }
}

/// Operation of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    Send,
    SendImm,
    WriteImm,
    /// A WRITE, and a READ of the same bytes.
    WriteRead,
    Read,
    FetchAdd,
    CompSwap,
}

impl Op {
    const ALL: [Op; 7] =
        [Op::Send, Op::SendImm, Op::WriteImm, Op::WriteRead, Op::Read, Op::FetchAdd, Op::CompSwap];

    /// Reports whether the message completes a receive at the target.
    pub fn consumes_receive(self) -> bool {
        matches!(self, Op::Send | Op::SendImm | Op::WriteImm)
    }

    pub fn is_atomic(self) -> bool {
        matches!(self, Op::FetchAdd | Op::CompSwap)
    }
}

/// A message of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Message {
    pub op: Op,
    /// Length in bytes; 8 for an atomic operation.
    pub len: usize,
    /// Operand of an atomic operation.
    pub operand: u64,
}

/// The messages of one connection and their bytes.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    key: u64,
    /// Number of messages.
    pub count: u64,
}

impl Plan {
    pub fn new(seed: u64, connection: u64) -> Plan {
        let mut rng = Rng::new(seed, &[0, connection]);
        Plan { key: rng.next(), count: rng.range(1, MAX_MESSAGES) }
    }

    /// Returns the message with the given number, from 0.
    pub fn message(&self, number: u64) -> Message {
        let mut rng = Rng::new(self.key, &[number]);
        let op = Op::ALL[rng.range(0, Op::ALL.len() as u64) as usize];
        let max = if rng.percent(20) { MAX_LEN } else { 2048 };
        let len = if op.is_atomic() { 8 } else { rng.range(1, max as u64 + 1) as usize };
        Message { op, len, operand: rng.next() }
    }

    /// Returns the first message from `number` that completes a receive, and its number.
    pub fn next_received(&self, number: u64) -> Option<(u64, Message)> {
        (number..self.count).map(|n| (n, self.message(n))).find(|(_, message)| message.op.consumes_receive())
    }

    /// Writes the bytes of a message, or of [`READ_AREA`].
    pub fn fill(&self, number: u64, bytes: &mut [u8]) {
        let base = mix(self.key ^ mix(number));
        for (at, chunk) in bytes.chunks_mut(8).enumerate() {
            let word = mix(base.wrapping_add(GAMMA.wrapping_mul(at as u64))).to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
    }

    /// Compares received bytes with those of a message, or of [`READ_AREA`].
    pub fn check(&self, number: u64, found: &[u8]) -> Result<(), String> {
        let mut expected = vec![0; found.len()];
        self.fill(number, &mut expected);
        match found.iter().zip(&expected).position(|(found, expected)| found != expected) {
            None => Ok(()),
            Some(at) => Err(format!("byte {at} is {:#04x}, expected {:#04x}", found[at], expected[at])),
        }
    }
}

/// Number of a connection: the process that initiates it, that process's incarnation, and a sequence number.
pub fn connection_number(process: usize, incarnation: u32, sequence: u32) -> u64 {
    (process as u64) << 56 | u64::from(incarnation & 0xff_ffff) << 32 | u64::from(sequence)
}

/// Returns the process and the incarnation that initiated a connection.
pub fn initiator(connection: u64) -> (usize, u32) {
    ((connection >> 56) as usize, (connection >> 32) as u32 & 0xff_ffff)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_byte_and_bytes_of_another_message_are_found() {
        let plan = Plan::new(1, connection_number(2, 3, 4));
        let mut bytes = vec![0; 101];
        plan.fill(9, &mut bytes);
        assert_eq!(plan.check(9, &bytes), Ok(()));
        assert!(plan.check(8, &bytes).is_err());
        bytes[100] ^= 1;
        assert!(plan.check(9, &bytes).unwrap_err().starts_with("byte 100 is"));
        assert_eq!(initiator(connection_number(2, 3, 4)), (2, 3));
    }

    #[test]
    fn plans_of_one_seed_are_equal_and_have_every_operation() {
        let plan = Plan::new(5, 1);
        let messages: Vec<Message> = (0..200).map(|n| plan.message(n)).collect();
        assert_eq!(messages, (0..200).map(|n| Plan::new(5, 1).message(n)).collect::<Vec<_>>());
        assert!(Op::ALL.iter().all(|op| messages.iter().any(|message| message.op == *op)));
        assert!(messages.iter().all(|message| (1..=MAX_LEN).contains(&message.len)));
    }
}
