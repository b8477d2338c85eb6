//! Loopback addresses that no other test uses, in this process or another.

use std::net::{IpAddr, Ipv4Addr};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

use parking_lot::Mutex;

/// Number of blocks, 127.110.0.0/24 to 127.209.249.0/24, and of addresses in each.
const BLOCKS: u32 = 100 * 250;
const IN_BLOCK: u8 = 250;

/// A block of addresses of this process.
struct Block {
    number: u32,
    used: u8,
    /// Bound to the name of the block as long as the process lives. The kernel has such names for each
    /// network namespace, as it has loopback addresses.
    _claim: UnixListener,
}

/// Claims the first block from `first` on that no process has.
fn claim(first: u32) -> Block {
    for number in (0..BLOCKS).map(|n| (first + n) % BLOCKS) {
        let name = SocketAddr::from_abstract_name(format!("urxe-test-addresses-{number}")).unwrap();
        if let Ok(claim) = UnixListener::bind_addr(&name) {
            return Block { number, used: 0, _claim: claim };
        }
    }
    panic!("other processes have all loopback addresses for tests");
}

/// Returns an address.
pub fn address() -> IpAddr {
    static BLOCK: Mutex<Option<Block>> = Mutex::new(None);
    let mut block = BLOCK.lock();
    // By its number, a process begins with a block that has not been in use for long: a broker may outlive
    // its clients.
    let current = block.get_or_insert_with(|| claim(std::process::id() % BLOCKS));
    if current.used == IN_BLOCK {
        *current = claim(current.number + 1);
    }
    current.used += 1;
    let [second, third] = [110 + current.number / 250, current.number % 250].map(|byte| byte as u8);
    Ipv4Addr::new(127, second, third, current.used).into()
}
