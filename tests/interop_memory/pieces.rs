//! READs into the maximum number of pieces, of odd sizes and at odd addresses.

use super::guest::{hash, pattern};
use super::pair::{MTU, Pair};
use super::peer::{How, Ip, Site, words};
use urxe::verbs::*;

/// Offset of the source; `TO` is that of the first piece.
const FROM: usize = 13;
const TO: usize = 140_007;
const UNTOUCHED: u8 = 0xee;
const SIZES: [usize; 6] = [31, 32, 33, 1025, 4099, 65_537];
const PIECES: [usize; 4] = [2, 5, 31, 32];

/// Returns `len` bytes from `TO` on in `n` uneven pieces with a byte between each two, in reverse order of
/// the message.
fn pieces(len: usize, n: usize) -> Vec<(usize, usize)> {
    let cut = |i: usize| len * i * i / (n * n);
    let all = (0..n).map(|i| (TO + len - cut(i + 1) + (n - 1 - i), cut(i + 1) - cut(i)));
    all.collect()
}

/// Returns the expected memory from the byte before the first piece to the one after the last.
fn image(data: &[u8], pieces: &[(usize, usize)]) -> Vec<u8> {
    let mut image = vec![UNTOUCHED; data.len() + pieces.len() + 1];
    let mut rest = data;
    for (at, len) in pieces {
        let (now, later) = rest.split_at(*len);
        image[at - TO + 1..][..*len].copy_from_slice(now);
        rest = later;
    }
    image
}

fn read(site: &Site, ip: Ip, urxe_asks: bool) {
    let mut p = Pair::with(site, ip, site.open(ip));
    p.shell = site.shell(1 << 18);
    let mut how = How::new(ip, MTU);
    (how.options.send.max_sge, how.their_qp) = (32, "sge=32".into());
    let qp = p.connect_as(&how);
    for (len, n) in SIZES.into_iter().flat_map(|len| PIECES.map(|n| (len, n))) {
        let what = format!("{len} bytes in {n} pieces");
        let pieces = pieces(len, n);
        let seed = (len + n) as u8;
        let want = image(&pattern(len, seed), &pieces);
        let all = want.len();
        if urxe_asks {
            p.cmd(&format!("pattern m {FROM} {len} {seed}"));
            p.side.mr.write(TO - 1, &vec![UNTOUCHED; all]).unwrap();
            let sges: Vec<Sge> = pieces.iter().map(|(at, len)| p.side.mr.sge(*at..at + len)).collect();
            qp.post_send(&SendWr::read(1, &sges, p.shell.at(FROM))).unwrap();
            let wc = p.side.one().unwrap();
            let seen = (wc.wr_id, wc.status, wc.opcode, wc.byte_len as usize);
            assert_eq!(seen, (1, WcStatus::Success, WcOpcode::RdmaRead, len), "{what}");
            let mut got = vec![0; all];
            p.side.mr.read(TO - 1, &mut got).unwrap();
            assert!(got == want, "{what}: wrong data");
        } else {
            p.side.mr.write(FROM, &pattern(len, seed)).unwrap();
            p.cmd(&format!("fill m {} {all} {UNTOUCHED}", TO - 1));
            let sges: String = pieces.iter().map(|(at, len)| format!(" m {at} {len}")).collect();
            p.cmd(&format!("read q{sges} {} id=1", words(p.side.mr.remote(FROM))));
            let wc = p.shell.one().unwrap();
            assert_eq!(
                (wc.status.as_str(), wc.op.as_str(), wc.len as usize),
                ("SUCCESS", "RDMA_READ", len),
                "{what}"
            );
            let got = p.shell.vsh.cmd(&format!("hash m {} {all}", TO - 1)).unwrap().num("hash");
            assert_eq!(got, hash(&want), "{what}: wrong data");
        }
    }
}

pub fn by_urxe(site: &Site, ip: Ip) {
    read(site, ip, true);
}

pub fn by_rxe(site: &Site, ip: Ip) {
    read(site, ip, false);
}
