//! Instructions of classic BPF programs.
#![forbid(unsafe_code)]

use libc::{BPF_ABS, BPF_ALU, BPF_AND, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_RET, sock_filter};

/// Returns an instruction other than a conditional jump.
pub(crate) fn op(code: u32, k: u32) -> sock_filter {
    sock_filter { code: code as u16, jt: 0, jf: 0, k }
}

/// Returns an instruction that loads a value of the given size (`BPF_B`, `BPF_H`, `BPF_W`) into the
/// accumulator.
pub(crate) fn load(size: u32, at: u32) -> sock_filter {
    op(BPF_LD | size | BPF_ABS, at)
}

/// Returns an instruction that keeps only the given bits of the accumulator.
pub(crate) fn mask(bits: u32) -> sock_filter {
    op(BPF_ALU | BPF_AND | BPF_K, bits)
}

/// Returns an instruction that ends the program with a result.
pub(crate) fn ret(result: u32) -> sock_filter {
    op(BPF_RET | BPF_K, result)
}

/// Appends instructions that execute `then` if the accumulator equals `k`, and skip it otherwise.
pub(crate) fn if_eq(out: &mut Vec<sock_filter>, k: u32, then: &[sock_filter]) {
    out.push(jump(k, 0, then.len()));
    out.extend(then);
}

/// Appends instructions that execute `then` unless the accumulator equals `k`. Execution continues after
/// `then` unless it ends the program.
pub(crate) fn unless_eq(out: &mut Vec<sock_filter>, k: u32, then: &[sock_filter]) {
    out.push(jump(k, then.len(), 0));
    out.extend(then);
}

fn jump(k: u32, if_equal: usize, otherwise: usize) -> sock_filter {
    let skip = |len| u8::try_from(len).expect("a block has at most 255 instructions");
    sock_filter { jt: skip(if_equal), jf: skip(otherwise), ..op(BPF_JMP | BPF_JEQ | BPF_K, k) }
}
