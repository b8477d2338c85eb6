//! Tests of the warnings of configurations that cause trouble.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use urxe::verbs::*;

/// Returns the kinds of warnings that the first of two connected NICs has raised.
fn kinds(options: ConnectOptions, qp: QpOptions) -> Vec<WarningKind> {
    let (a, _b) = Fabric::new().pair_builder().connect(options).qp(qp).build().unwrap();
    a.context.warnings().into_iter().map(|warning| warning.kind).collect()
}

#[test]
fn each_attribute_that_causes_trouble_is_warned_of_by_name() {
    let options = ConnectOptions::default;
    let cases = [
        (options(), None),
        (options().min_rnr_timer(RnrTimer::new(0)), Some("rnr-timer-zero")),
        (options().min_rnr_timer(RnrTimer::new(0)).rnr_retry(6), None),
        (options().timeout(AckTimeout::new(0)), Some("ack-timeout-infinite")),
        (options().timeout(AckTimeout::new(27)), Some("ack-timeout-hours")),
        (options().timeout(AckTimeout::new(26)), None),
        (options().retry_cnt(0), Some("retry-cnt-zero")),
        (options().rnr_retry(0), Some("rnr-retry-zero")),
        (options().max_dest_rd_atomic(0).max_rd_atomic(0), Some("rd-atomic-zero")),
        (options().max_dest_rd_atomic(0).max_rd_atomic(0).access(Access::REMOTE_WRITE), None),
    ];
    for (options, name) in cases {
        let raised = kinds(options, QpOptions::default());
        let names: Vec<_> = raised.iter().map(|kind| kind.name()).collect();
        assert_eq!(names, Vec::from_iter(name), "{options:?}");
    }
}

#[test]
fn message_for_a_queue_pair_that_never_had_a_receive_is_warned_of() {
    let fabric = Fabric::virtual_time(FabricConfig::default()).unwrap();
    let (a, b) = fabric.pair().unwrap();
    b.qp.post_recv(&RecvWr::empty(1)).unwrap();
    for end in [&a, &b] {
        end.qp.post_send(&SendWr::send(2, &[])).unwrap();
    }
    // `b` has one receive for two messages, `a` none for one.
    a.qp.post_send(&SendWr::send(3, &[])).unwrap();
    fabric.advance(Duration::from_millis(1));
    assert_eq!(b.context.warnings(), []);
    let [warning] = &a.context.warnings()[..] else { panic!("{:?}", a.context.warnings()) };
    assert_eq!(warning.kind, WarningKind::ReceiveQueueEmpty);
    let qpn = a.qp.qpn();
    assert_eq!(
        warning.detail,
        format!("a message has arrived at QP {qpn}, to which no receive has been posted")
    );
}

#[test]
fn inline_data_beyond_the_limit_is_warned_of_when_it_is_rejected() {
    let (a, _b) = Fabric::new().pair().unwrap();
    let data = [0; 257];
    a.qp.post_send(&SendWr::send(1, &[]).inline(&data)).unwrap_err();
    let [warning] = &a.context.warnings()[..] else { panic!("{:?}", a.context.warnings()) };
    assert_eq!(warning.kind, WarningKind::InlineLimit);
    let qpn = a.qp.qpn();
    let expected = format!("257 bytes of inline data were posted to QP {qpn}, whose limit is 256");
    assert_eq!(warning.detail, expected);
    assert!(warning.to_string().starts_with(&format!("inline-limit: {expected}; ")));
}

#[test]
fn completion_queue_below_the_work_requests_that_complete_to_it_is_warned_of() {
    let context = Context::on_fabric(&Fabric::new()).unwrap();
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(300).unwrap());
    let unsignaled = QpOptions::default();
    let create = |options: &QpOptions| {
        let qp = pd.create_qp(&cq, &cq, options).unwrap();
        qp.enter_init(Access::LOCAL_WRITE).unwrap();
        qp.post_recv(&RecvWr::empty(1)).unwrap();
        qp
    };
    let (first, second) = (create(&unsignaled), create(&unsignaled));
    assert_eq!(context.warnings(), [], "256 receives; the sends need not complete");
    drop(second);
    let signaled = create(&unsignaled.clone().signal_all(true));
    assert_eq!(context.warnings(), [], "no sends have been posted");
    let peer = Endpoint { qpn: Qpn::new(2), ..signaled.endpoint() };
    signaled.enter_rtr(&peer, &ConnectOptions::default()).unwrap();
    signaled.enter_rts(&ConnectOptions::default()).unwrap();
    signaled.post_send(&SendWr::send(2, &[])).unwrap();
    let [warning] = &context.warnings()[..] else { panic!("{:?}", context.warnings()) };
    assert_eq!(warning.kind, WarningKind::CqOverrun);
    assert_eq!(warning.detail, "a completion queue holds 300 completions of up to 384 work requests");
    drop((first, signaled));
}

#[test]
fn queue_pairs_that_never_post_do_not_count_for_their_completion_queue() {
    let context = Context::on_fabric(&Fabric::new()).unwrap();
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(1).unwrap());
    let options = QpOptions::default().signal_all(true);
    let qps = [(); 3].map(|()| pd.create_qp(&cq, &cq, &options).unwrap());
    for qp in &qps {
        let peer = Endpoint { qpn: Qpn::new(2), ..qp.endpoint() };
        qp.connect(&peer, &ConnectOptions::default()).unwrap();
    }
    drop(qps);
    assert_eq!(context.warnings(), []);
}

#[test]
fn callback_gets_earlier_and_later_warnings_once_each() {
    let context = Context::on_fabric(&Fabric::new()).unwrap();
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(1).unwrap());
    let create = || pd.create_qp(&cq, &cq, &QpOptions::default()).unwrap();
    let qp = create();
    qp.enter_init(Access::LOCAL_WRITE).unwrap();
    qp.post_recv(&RecvWr::empty(1)).unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let to = seen.clone();
    context.on_warning(move |warning| to.lock().unwrap().push(warning.kind));
    assert_eq!(*seen.lock().unwrap(), [WarningKind::CqOverrun]);
    let peer = Endpoint { qpn: Qpn::new(2), ..qp.endpoint() };
    for qp in [qp, create()] {
        qp.connect(&peer, &ConnectOptions::default().retry_cnt(0)).unwrap();
    }
    assert_eq!(*seen.lock().unwrap(), [WarningKind::CqOverrun, WarningKind::RetryCntZero]);
    assert_eq!(context.warnings().len(), 2);
}

#[test]
fn every_kind_is_documented() {
    let page = include_str!("../../docs/guide/troubleshooting.md");
    for kind in WarningKind::all() {
        assert!(page.contains(&format!("| `{}` |", kind.name())), "{}", kind.name());
    }
    assert_eq!(WarningKind::all().count(), 10);
}
