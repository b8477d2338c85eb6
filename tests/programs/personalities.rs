//! Tests of the personalities with a C program (`c/personality.c`) that makes the same calls in each; its
//! output shows the differences.

use std::time::Duration;

use urxe_test_support::programs::{CProgram, Library, Running, addresses, text};

const DEFAULT: &str = "\
limits: max_qp_wr 32768 max_sge 32 max_cqe 4194304 max_qp_rd_atom 128
region of length 0: taken, not at a page boundary taken, WRITE of 0 0:SUCCESS, WRITE of 1 1:REM_ACCESS_ERR
FETCH_ADD into 16 bytes: taken 1:SUCCESS, bytes after the eighth changed: 0, added: yes
UD, READ: taken 1:SUCCESS 2:LOC_QP_OP_ERR 3:WR_FLUSH_ERR, then SQE
UD, WRITE: taken 1:SUCCESS 2:LOC_QP_OP_ERR 3:WR_FLUSH_ERR, then SQE
UD, FETCH_ADD: taken 1:SUCCESS 2:LOC_QP_OP_ERR 3:WR_FLUSH_ERR, then SQE
UD, address handle of another domain: taken 1:SUCCESS 2:LOC_QP_OP_ERR 3:WR_FLUSH_ERR, then SQE
send in RESET: EINVAL, in RTS: nothing, after the next post: 2:SUCCESS
send in INIT: EINVAL, in RTS: nothing, after the next post: 2:SUCCESS
send in RTR: EINVAL, in RTS: nothing, after the next post: 2:SUCCESS
receive in RESET: EINVAL, a SEND takes receive 2, wc_flags 0
request for an event behind a completion: 1:WR_FLUSH_ERR event 2:WR_FLUSH_ERR
";

const STRICT: &str = "\
limits: max_qp_wr 32768 max_sge 32 max_cqe 4194304 max_qp_rd_atom 128
region of length 0: taken, not at a page boundary taken, WRITE of 0 0:SUCCESS, WRITE of 1 1:REM_ACCESS_ERR
FETCH_ADD into 16 bytes: EINVAL
UD, READ: EINVAL 1:SUCCESS 3:SUCCESS, then RTS
UD, WRITE: EINVAL 1:SUCCESS 3:SUCCESS, then RTS
UD, FETCH_ADD: EINVAL 1:SUCCESS 3:SUCCESS, then RTS
UD, address handle of another domain: EINVAL 1:SUCCESS 3:SUCCESS, then RTS
send in RESET: EINVAL, in RTS: nothing, after the next post: 2:SUCCESS
send in INIT: EINVAL, in RTS: nothing, after the next post: 2:SUCCESS
send in RTR: EINVAL, in RTS: nothing, after the next post: 2:SUCCESS
receive in RESET: EINVAL, a SEND takes receive 2, wc_flags 0
request for an event behind a completion: 1:WR_FLUSH_ERR event 2:WR_FLUSH_ERR
";

const MLX5: &str = "\
limits: max_qp_wr 32768 max_sge 30 max_cqe 4194303 max_qp_rd_atom 16
region of length 0: EINVAL, not at a page boundary taken, WRITE of 0 0:SUCCESS, WRITE of 1 1:REM_ACCESS_ERR
FETCH_ADD into 16 bytes: taken 1:SUCCESS, bytes after the eighth changed: 0, added: yes
UD, READ: taken 1:SUCCESS 2:LOC_QP_OP_ERR 3:WR_FLUSH_ERR, then SQE
UD, WRITE: taken 1:SUCCESS 2:LOC_QP_OP_ERR 3:WR_FLUSH_ERR, then SQE
UD, FETCH_ADD: taken 1:SUCCESS 2:LOC_QP_OP_ERR 3:WR_FLUSH_ERR, then SQE
UD, address handle of another domain: taken 1:SUCCESS 2:LOC_QP_OP_ERR 3:WR_FLUSH_ERR, then SQE
send in RESET: taken, in RTS: nothing, after the next post: 1:SUCCESS 2:SUCCESS
send in INIT: taken, in RTS: nothing, after the next post: 1:SUCCESS 2:SUCCESS
send in RTR: taken, in RTS: nothing, after the next post: 1:SUCCESS 2:SUCCESS
receive in RESET: taken, a SEND takes receive 1, wc_flags 0
request for an event behind a completion: 1:WR_FLUSH_ERR event 2:WR_FLUSH_ERR
";

#[test]
fn calls_have_the_results_of_the_selected_personality() {
    let (library, program, [address, _]) = (Library::new(), CProgram::build("personality"), addresses());
    // Output of the kernel's rxe, as recorded in the guest: see `tests/guest/interop_personality.rs`.
    let rxe = include_str!("../c/personality.rxe");
    for (personality, expected) in [
        (None, DEFAULT),
        (Some("default"), DEFAULT),
        (Some("strict"), STRICT),
        (Some("mlx5"), MLX5),
        (Some("rxe"), rxe),
    ] {
        let mut command = library.program(program.program(), &address);
        match personality {
            Some(name) => command.env("URXE_PERSONALITY", name),
            None => command.env_remove("URXE_PERSONALITY"),
        };
        let out = Running::new(command).finish(Duration::from_secs(60));
        assert!(out.status.success(), "{personality:?}: {:?}\n{}", out.status, text(&out));
        assert!(text(&out) == expected, "{personality:?}:\n{}\nexpected:\n{expected}", text(&out));
    }
}
