//! Queue pairs whose service is in their type: a call that the service does not have does not compile, and
//! the compiler's message names the service; the others do what those of an untyped queue pair do.

use std::process::Command;
use std::time::Duration;
use std::{env, fs};

use urxe::transport::service::Service;
use urxe::verbs::errors::{PostError, PostListError};
use urxe::verbs::memory::{Bind, FastReg};
use urxe::verbs::*;
use urxe_test_support::artifacts;

const LIMIT: Duration = Duration::from_secs(10);

/// Expressions that compile, with the variables of [`PARAMETERS`].
const ACCEPTED: [&str; 15] = [
    "rc.connect(peer, &ConnectOptions::default())",
    "uc.connect(peer, &ConnectOptions::default())",
    "any.connect(peer, &ConnectOptions::default())",
    "ud.activate(QKey(1))",
    "any.activate(QKey(1))",
    "ud.attach_mcast(Gid::default())",
    "rc.post_send(&SendWr::read(1, &[], at).fence())",
    "rc.post_send_list(&[SendWr::write(1, &[], at), SendWr::fetch_add(2, &[], at, 1)], ListPolicy::AllOrNone)",
    "uc.post_send(&SendWr::write_imm(1, &[], at, 2).inline(b\"data\"))",
    "uc.post_send(&SendWr::send(1, &[]))",
    "ud.post_send(&SendWr::send_to(1, &[], to))",
    "any.post_send(&SendWr::send(1, &[]).to(to))",
    "any.post_send(&SendWr::read(1, &[], at))",
    "{ let wr = SendWr::read(1, &[], at); (wr.signaled(false), any.post_send(&wr)) }",
    "(rc.post_recv(&RecvWr::empty(1)), ud.post_recv(&RecvWr::empty(1)))",
];

/// Expressions that do not compile, with a part of the compiler's message.
const REJECTED: [(&str, &str); 17] = [
    ("uc.post_send(&SendWr::read(1, &[], at))", "Uc` is not reliable: it has no READs"),
    ("uc.post_send(&SendWr::fetch_add(1, &[], at, 1))", "Uc` is not reliable"),
    ("uc.post_send(&SendWr::compare_swap(1, &[], at, 0, 1))", "Uc` is not reliable"),
    ("uc.post_send(&SendWr::atomic_write(1, at, [0; 8]))", "Uc` is not reliable"),
    ("uc.post_send(&SendWr::flush(1, at, 8, Placement::GLOBAL))", "Uc` is not reliable"),
    ("uc.post_send(&SendWr::send_inval(1, &[], RKey(1)))", "Uc` is not reliable"),
    ("ud.post_send(&SendWr::write(1, &[], at))", "Ud` has no connections, WRITEs"),
    ("ud.post_send(&SendWr::read(1, &[], at))", "Ud` is not reliable"),
    ("ud.post_send(&SendWr::send(1, &[]))", "Ud` has no connections"),
    ("ud.connect(peer, &ConnectOptions::default())", "connect"),
    ("rc.post_send(&SendWr::send_to(1, &[], to))", "Rc` has no datagrams"),
    ("rc.post_send(&SendWr::send(1, &[]).to(to))", "mismatched types"),
    ("rc.activate(QKey(1))", "activate"),
    ("uc.attach_mcast(Gid::default())", "attach_mcast"),
    ("uc.post_send_list(&[SendWr::send(1, &[]), SendWr::read(2, &[], at)], ListPolicy::AllOrNone)", "Uc` is"),
    ("rc.post_send(&SendWr::<Ud>::send_to(1, &[], to))", "mismatched types"),
    (
        "pd.create_typed_qp::<service::Untyped>(any.send_cq(), any.recv_cq(), &QpOptions::default())",
        "Service",
    ),
];

const PARAMETERS: &str = "rc: &Qp<Rc>, uc: &Qp<Uc>, ud: &Qp<Ud>, any: &Qp, pd: &Pd, peer: &Endpoint, at: RemoteAddr, \
                          to: Destination";

#[test]
fn calls_that_the_service_does_not_have_do_not_compile() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("calls.rs");
    let calls = ACCEPTED.iter().chain(REJECTED.iter().map(|(call, _)| call));
    // A line for each call, from line 2 on.
    let functions =
        calls.enumerate().map(|(i, call)| format!("fn call_{i}({PARAMETERS}) {{ let _ = {call}; }}\n"));
    fs::write(&source, format!("use urxe::verbs::*;\n{}", functions.collect::<String>())).unwrap();
    let (library, dependencies) = artifacts::rust_library("urxe");
    let mut rustc = Command::new(env::var_os("RUSTC").unwrap_or("rustc".into()));
    rustc.args([
        "--edition=2024",
        "--crate-type=lib",
        "--emit=metadata",
        "--error-format=short",
        "--cap-lints=allow",
    ]);
    rustc
        .arg("--extern")
        .arg(format!("urxe={}", library.display()))
        .arg("--out-dir")
        .arg(dir.path())
        .arg(&source);
    for path in dependencies {
        rustc.arg("-L").arg(path);
    }
    let output = String::from_utf8(rustc.output().unwrap().stderr).unwrap();
    let errors_of = |line: usize| {
        let place = format!("calls.rs:{line}:");
        output.lines().filter(move |text| text.contains(&place)).collect::<Vec<_>>().join("\n")
    };
    assert_eq!(errors_of(1), "", "{output}");
    for (line, call) in (2..).zip(ACCEPTED) {
        assert_eq!(errors_of(line), "", "{call}");
    }
    for (line, (call, message)) in (2 + ACCEPTED.len()..).zip(REJECTED) {
        let errors = errors_of(line);
        assert!(errors.contains("error") && errors.contains(message), "{call}: {errors}\n{output}");
    }
}

/// Every operation, with the traits of the services that have it.
#[test]
fn traits_agree_with_the_table_of_operations() {
    const SGES: [Sge; 0] = [];
    let (at, key) = (RemoteAddr::default(), RKey(0));
    let bind = Bind { rkey: key, region: LKey(0), addr: 0, len: 0, access: Access::empty() };
    let reg = FastReg { key: LKey(0), offset: 0, len: 0, iova: 0, access: Access::empty() };
    let connected: [SendWr<'_, Uc>; 7] = [
        SendWr::send(1, &SGES),
        SendWr::send_imm(1, &SGES, 2),
        SendWr::write(1, &SGES, at),
        SendWr::write_imm(1, &SGES, at, 2),
        SendWr::bind_mw(1, bind),
        SendWr::reg_mr(1, reg),
        SendWr::local_inv(1, key),
    ];
    let reliable: [SendWr<'_, Rc>; 6] = [
        SendWr::send_inval(1, &SGES, key),
        SendWr::read(1, &SGES, at),
        SendWr::compare_swap(1, &SGES, at, 0, 1),
        SendWr::fetch_add(1, &SGES, at, 1),
        SendWr::atomic_write(1, at, [0; 8]),
        SendWr::flush(1, at, 8, Placement::GLOBAL),
    ];
    for wr in connected {
        assert!(Rc::TYPE.offers(&wr.op) && Uc::TYPE.offers(&wr.op), "{wr:?}");
    }
    for wr in reliable {
        assert!(Rc::TYPE.offers(&wr.op) && !Uc::TYPE.offers(&wr.op) && !Ud::TYPE.offers(&wr.op), "{wr:?}");
    }
    let of_ud = |wr: &SendWr<'_, Uc>| Ud::TYPE.offers(&wr.op);
    assert_eq!(connected.map(|wr| of_ud(&wr)), [true, true, false, false, false, false, false]);
}

#[test]
fn typed_queue_pairs_carry_out_requests() {
    let (a, b) = Fabric::new().pair().unwrap();
    let (qp, memory) = (a.qp.typed::<Rc>().unwrap(), b.pd.reg_mr(16, Access::ALL).unwrap());
    let local = a.pd.reg_mr(8, Access::LOCAL_WRITE).unwrap();
    qp.post_send(&SendWr::write(1, &[], memory.remote(0)).inline(&5u64.to_ne_bytes())).unwrap();
    a.cq.wait(LIMIT).unwrap();
    let sges = [local.sge(0..8)];
    let list = [
        SendWr::fetch_add(2, &sges, memory.remote(0), 3),
        SendWr::read(3, &sges, memory.remote(0)).signaled(false),
        SendWr::send_imm(4, &[], 9).inline(&[0; 1024]),
    ];
    for policy in [ListPolicy::AllOrNone, ListPolicy::UntilRejected] {
        let rejected = qp.post_send_list(&list, policy).unwrap_err();
        assert_eq!(
            rejected,
            PostListError { index: 2, error: PostError::InlineTooLong { got: 1024, max: 256 } }
        );
    }
    // Only the second list has been posted as far as it is valid.
    assert_eq!(a.cq.wait(LIMIT).unwrap().wr_id, 2);
    qp.post_send(&SendWr::write(5, &[], memory.remote(8))).unwrap();
    assert_eq!(a.cq.wait(LIMIT).unwrap().wr_id, 5);
    assert_eq!(memory.read_vec(0..8).unwrap(), 8u64.to_ne_bytes());
    assert_eq!(local.read_vec(0..8).unwrap(), 8u64.to_ne_bytes());
}

#[test]
fn conversion_checks_the_service() {
    let (a, _b) = Fabric::new().pair().unwrap();
    let wrong = a.qp.typed::<Uc>().unwrap_err();
    assert_eq!((wrong.requested, wrong.actual), (QpType::Uc, QpType::Rc));
    assert_eq!(wrong.to_string(), "the queue pair is of the service Rc, not Uc");
    let qp = a.qp.typed::<Rc>().unwrap();
    assert_eq!(qp.untyped().qpn(), a.qp.qpn());
    let domain = a.context.open_xrcd().unwrap();
    assert_eq!(domain.create_target_qp().unwrap().typed::<Rc>().unwrap_err().actual, QpType::XrcRecv);
    // The last handle of any type destroys the queue pair.
    let (device, cq) = (a.context.clone(), a.cq.clone());
    drop(a);
    qp.modify(&QpAttr::default().state(QpState::Err)).unwrap();
    drop(qp);
    let options = QpOptions::default().qp_type(QpType::Uc);
    let ud = device.alloc_pd().unwrap().create_typed_qp::<Ud>(&cq, &cq, &options).unwrap();
    assert_eq!(ud.untyped().typed::<Uc>().unwrap_err().actual, QpType::Ud, "the type overrides the options");
}
