//! READs into many SGEs, up to the maximum number, with odd lengths and at odd addresses.

use urxe::verbs::*;
use urxe_test_support::guest::{hash, pattern};
use urxe_test_support::pair::{MTU, Pair};
use urxe_test_support::peer::{ConnectParams, remote_args};
use urxe_test_support::testbed::{Ip, Testbed};

/// Offset of the source data; `TARGET` is the offset of the first destination piece.
const SOURCE: usize = 13;
const TARGET: usize = 140_007;
const FILL: u8 = 0xee;
const SIZES: [usize; 6] = [31, 32, 33, 1025, 4099, 65_537];
const SGE_COUNTS: [usize; 4] = [2, 5, 31, 32];

/// Splits `len` bytes into `n` pieces of unequal length and returns their offsets and lengths. The pieces
/// begin at `TARGET`, are one byte apart, and are in reverse order: the first piece of the message is the
/// last in memory.
fn pieces(len: usize, n: usize) -> Vec<(usize, usize)> {
    let cut = |i: usize| len * i * i / (n * n);
    let all = (0..n).map(|i| (TARGET + len - cut(i + 1) + (n - 1 - i), cut(i + 1) - cut(i)));
    all.collect()
}

/// Returns the expected memory contents from the byte before the first piece to the byte after the last
/// piece.
fn image(data: &[u8], pieces: &[(usize, usize)]) -> Vec<u8> {
    let mut image = vec![FILL; data.len() + pieces.len() + 1];
    let mut rest = data;
    for (at, len) in pieces {
        let (part, remainder) = rest.split_at(*len);
        image[at - TARGET + 1..][..*len].copy_from_slice(part);
        rest = remainder;
    }
    image
}

fn read(setup: &Testbed, ip: Ip, is_urxe_requester: bool) {
    let mut p = Pair::with_side(setup, ip, setup.open(ip));
    p.shell = setup.shell(1 << 18);
    let mut params = ConnectParams::new(ip, MTU);
    (params.options.send.max_sge, params.their_qp) = (32, "sge=32".into());
    let qp = p.connect_as(&params);
    for (len, n) in SIZES.into_iter().flat_map(|len| SGE_COUNTS.map(|n| (len, n))) {
        let case = format!("{len} bytes in {n} pieces");
        let pieces = pieces(len, n);
        let seed = (len + n) as u8;
        let want = image(&pattern(len, seed), &pieces);
        let all = want.len();
        if is_urxe_requester {
            p.cmd(&format!("pattern m {SOURCE} {len} {seed}"));
            p.side.mr.write(TARGET - 1, &vec![FILL; all]).unwrap();
            let sges: Vec<Sge> = pieces.iter().map(|(at, len)| p.side.mr.sge(*at..at + len)).collect();
            qp.post_send(&SendWr::read(1, &sges, p.shell.at(SOURCE))).unwrap();
            let wc = p.side.one().unwrap();
            let seen = (wc.wr_id, wc.status, wc.opcode, wc.byte_len as usize);
            assert_eq!(seen, (1, WcStatus::Success, WcOpcode::RdmaRead, len), "{case}");
            let mut got = vec![0; all];
            p.side.mr.read(TARGET - 1, &mut got).unwrap();
            assert!(got == want, "{case}: wrong data");
        } else {
            p.side.mr.write(SOURCE, &pattern(len, seed)).unwrap();
            p.cmd(&format!("fill m {} {all} {FILL}", TARGET - 1));
            let sges: String = pieces.iter().map(|(at, len)| format!(" m {at} {len}")).collect();
            p.cmd(&format!("read q{sges} {} id=1", remote_args(p.side.mr.remote(SOURCE))));
            let wc = p.shell.one().unwrap();
            assert_eq!(
                (wc.status.as_str(), wc.op.as_str(), wc.len as usize),
                ("SUCCESS", "RDMA_READ", len),
                "{case}"
            );
            let got = p.shell.vsh.cmd(&format!("hash m {} {all}", TARGET - 1)).unwrap().num("hash");
            assert_eq!(got, hash(&want), "{case}: wrong data");
        }
    }
}

pub fn by_urxe(setup: &Testbed, ip: Ip) {
    read(setup, ip, true);
}

pub fn by_rxe(setup: &Testbed, ip: Ip) {
    read(setup, ip, false);
}
