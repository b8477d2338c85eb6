//! Tests of regions from which another process copies payloads, with an end of the connection that is killed, is stopped or
//! lacks descriptors. Each end is a process of its own; its program is [`one_end`].

#[path = "../support/in_flight.rs"]
mod in_flight;
#[path = "../support/requirement.rs"]
mod requirement;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use in_flight::{InFlight, limited};
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use requirement::is_met;
use urxe::broker::{SharedMemory, Sharing};
use urxe::link::LinkSpec;
use urxe::verbs::*;

/// Length of a message. One takes several bursts.
const LEN: usize = 256 << 10;
/// Number of messages in flight, and of receives.
const DEPTH: u64 = 4;
const RECEIVES: u64 = 8;
const TIMEOUT: Duration = Duration::from_secs(60);
/// Variable with the address of an end.
const ADDRESS: &str = "URXE_TEST_END";

/// Returns the contents of messages: `LEN` bytes from `8 * (number % 1000)` on.
fn contents() -> Vec<u8> {
    (0..LEN + 8000).map(|n| (n * 31 + n / 251) as u8).collect()
}

fn message(contents: &[u8], number: u64) -> &[u8] {
    &contents[8 * (number % 1000) as usize..][..LEN]
}

/// A process that is one end of connections.
struct End {
    child: Child,
    commands: ChildStdin,
    lines: Arc<Mutex<Vec<String>>>,
    ip: &'static str,
}

impl End {
    fn start(ip: &'static str) -> End {
        End::start_by(Command::new(std::env::current_exe().unwrap()), ip)
    }

    fn start_by(mut command: Command, ip: &'static str) -> End {
        command.args(["--exact", "one_end", "--ignored", "--nocapture"]).env(ADDRESS, ip);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (commands, printed) = (child.stdin.take().unwrap(), child.stderr.take().unwrap());
        let lines: Arc<Mutex<Vec<String>>> = Arc::default();
        let all = lines.clone();
        std::thread::spawn(move || {
            BufReader::new(printed)
                .lines()
                .map_while(Result::ok)
                .for_each(|line| all.lock().unwrap().push(line));
        });
        End { child, commands, lines, ip }
    }

    fn tell(&mut self, command: &str) {
        writeln!(self.commands, "{command}").unwrap();
    }

    /// Returns how often the process has printed a line that begins with `text`.
    fn says(&self, text: &str) -> usize {
        self.lines.lock().unwrap().iter().filter(|line| line.starts_with(text)).count()
    }

    fn wait_until(&self, what: &str, mut condition: impl FnMut() -> bool) {
        let begin = Instant::now();
        while !condition() {
            let lines = self.lines.lock().unwrap();
            assert!(begin.elapsed() < TIMEOUT, "{what}: not within {TIMEOUT:?}; {} says {lines:?}", self.ip);
            drop(lines);
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Tells the process a command. Returns what follows `answer` in its answer.
    fn ask(&mut self, command: &str, answer: &str) -> String {
        let before = self.says(answer);
        self.tell(command);
        self.wait_until(command, || self.says(answer) > before);
        let lines = self.lines.lock().unwrap();
        let line = lines.iter().rfind(|line| line.starts_with(answer)).unwrap();
        line[answer.len()..].trim().to_owned()
    }

    fn wait_for_messages(&self) {
        let before = self.says("received");
        self.wait_until("messages", || self.says("received") >= before + 2);
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
    }

    fn read(&self, file: &str) -> String {
        std::fs::read_to_string(format!("/proc/{}/{file}", self.child.id())).unwrap()
    }

    /// Returns the number of mappings of a memfd.
    fn mappings(&self, name: &str) -> usize {
        self.read("maps").lines().filter(|line| line.contains(&format!("/memfd:{name}"))).count()
    }

    /// Returns the numbers of open descriptors of each kind, and of the mappings of memfds.
    fn resources(&self) -> BTreeMap<String, usize> {
        let mut all = BTreeMap::from([("mappings".to_owned(), self.mappings(""))]);
        for fd in std::fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap().flatten() {
            // `socket:[4711]`
            let Ok(target) = std::fs::read_link(fd.path()) else { continue };
            let kind = target.to_str().unwrap().split('[').next().unwrap().to_owned();
            *all.entry(kind).or_default() += 1;
        }
        all
    }
}

impl Drop for End {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Connects a writer and a reader. The writer starts to send from a region of the given kind.
fn connect(writer: &mut End, reader: &mut End, timeout: AckTimeout, region: &str) {
    let endpoints = [&mut *writer, &mut *reader].map(|end| end.ask("create", "endpoint"));
    let connect = |endpoint: &str, ip: &str| format!("connect {} {ip} {endpoint}", timeout.code());
    writer.ask(&connect(&endpoints[1], reader.ip), "connected");
    reader.ask(&connect(&endpoints[0], writer.ip), "connected");
    writer.tell(&format!("send {region}"));
}

/// Returns the number of rounds of a test; the variable is for more rounds by hand.
fn rounds(default: usize) -> usize {
    std::env::var("ROUNDS").map_or(default, |text| text.parse().unwrap())
}

/// Waits until the connections of an ended peer have left nothing behind: neither descriptors nor mappings beyond those
/// after the first peer.
fn check_resources(survivor: &End, level: &mut Option<BTreeMap<String, usize>>) {
    survivor.wait_until("the ring is closed", || survivor.mappings("urxe ring") == 0);
    match level {
        Some(level) => survivor.wait_until("no leak", || survivor.resources() == *level),
        None => *level = Some(survivor.resources()),
    }
}

#[test]
fn killed_reader_fails_the_sends_of_the_writer_and_leaves_nothing_behind() {
    let (mut writer, mut level) = (End::start("127.18.234.1"), None);
    for round in 0..rounds(5) {
        let mut reader = End::start("127.18.234.2");
        let region = if round == 0 { "shareable" } else { "same" };
        connect(&mut writer, &mut reader, SHORT, region);
        reader.wait_until("payloads are shared", || reader.mappings("urxe region") == 1);
        reader.wait_for_messages();
        reader.signal(Signal::SIGKILL);
        writer.wait_until("the sends fail", || writer.says("failed") > round);
        assert_eq!(writer.ask("end", "ended"), "RetryExcErr, flushed 3 sends and 8 receives");
        drop(reader);
        check_resources(&writer, &mut level);
    }
}

#[test]
fn killed_writer_leaves_nothing_behind_and_the_reader_with_what_has_arrived() {
    let (mut reader, mut level) = (End::start("127.18.235.1"), None);
    for _ in 0..rounds(5) {
        let mut writer = End::start("127.18.235.2");
        connect(&mut writer, &mut reader, SHORT, "shareable");
        reader.wait_until("payloads are shared", || reader.mappings("urxe region") == 1);
        reader.wait_for_messages();
        writer.signal(Signal::SIGKILL);
        drop(writer);
        reader.wait_until("the region is unmapped", || reader.mappings("urxe region") == 0);
        assert_eq!(reader.ask("end", "ended"), "Success, flushed 0 sends and 8 receives");
        check_resources(&reader, &mut level);
    }
}

#[test]
fn stopped_end_loses_nothing_and_continues() {
    let (mut writer, mut reader) = (End::start("127.18.236.1"), End::start("127.18.236.2"));
    connect(&mut writer, &mut reader, LONG, "shareable");
    reader.wait_until("payloads are shared", || reader.mappings("urxe region") == 1);
    for stopped in [&writer, &reader] {
        reader.wait_for_messages();
        stopped.signal(Signal::SIGSTOP);
        std::thread::sleep(Duration::from_secs(1));
        stopped.signal(Signal::SIGCONT);
    }
    reader.wait_for_messages();
    assert_eq!([writer.says("failed"), reader.says("failed")], [0; 2]);
    assert_eq!(reader.mappings("urxe region"), 1);
    assert_eq!(writer.ask("stop", "sent"), reader.ask("count", "got"));
}

/// The writer changes the memory of each request that has ended, as a program may.
#[test]
fn reader_stopped_beyond_the_retries_receives_no_memory_that_has_changed_meanwhile() {
    let (mut writer, mut reader) = (End::start("127.18.237.1"), End::start("127.18.237.2"));
    for round in 0..rounds(5) {
        let region = if round == 0 { "shareable" } else { "same" };
        connect(&mut writer, &mut reader, SHORT, region);
        reader.wait_until("payloads are shared", || reader.mappings("urxe region") == 1);
        reader.wait_for_messages();
        reader.signal(Signal::SIGSTOP);
        writer.wait_until("the sends fail", || writer.says("failed") > round);
        let sent: u64 = writer.ask("count", "sent").parse().unwrap();
        assert_eq!(writer.ask("end", "ended"), "RetryExcErr, flushed 3 sends and 8 receives");
        reader.signal(Signal::SIGCONT);
        let ended = reader.ask("end", "ended");
        let got: u64 = reader.ask("count", "got").parse().unwrap();
        assert_eq!(ended, "Success, flushed 0 sends and 8 receives");
        assert!((sent..=sent + DEPTH).contains(&got), "{got} of {sent} messages");
    }
}

#[test]
fn writer_stopped_beyond_the_retries_continues_or_its_sends_fail() {
    let (mut writer, mut reader) = (End::start("127.18.238.1"), End::start("127.18.238.2"));
    connect(&mut writer, &mut reader, SHORT, "shareable");
    reader.wait_until("payloads are shared", || reader.mappings("urxe region") == 1);
    for _ in 0..rounds(3) {
        let (before, failed) = (reader.says("received"), writer.says("failed"));
        writer.signal(Signal::SIGSTOP);
        std::thread::sleep(Duration::from_millis(1500));
        writer.signal(Signal::SIGCONT);
        reader.wait_until("progress or failure", || {
            reader.says("received") > before + 2 || writer.says("failed") > failed
        });
    }
    let sent: u64 = writer.ask("stop", "sent").parse().unwrap();
    let got: u64 = reader.ask("count", "got").parse().unwrap();
    assert!((sent..=sent + DEPTH).contains(&got), "{got} of {sent} messages");
}

#[test]
fn payloads_are_copied_while_the_reader_lacks_descriptors_and_those_of_later_regions_are_shared() {
    let (mut writer, mut reader) = (End::start("127.18.239.1"), End::start("127.18.239.2"));
    connect(&mut writer, &mut reader, LONG, "ordinary");
    reader.wait_for_messages();
    assert_eq!(reader.mappings("urxe region"), 0);
    reader.ask("hoard", "hoarded");
    writer.ask("send shareable", "sends");
    for _ in 0..3 {
        reader.wait_for_messages();
    }
    assert_eq!((reader.mappings("urxe region"), writer.mappings("urxe region")), (0, 1));
    reader.ask("release", "released");
    writer.ask("send shareable", "sends");
    reader.wait_until("payloads are shared", || reader.mappings("urxe region") == 1);
    reader.wait_for_messages();
    assert_eq!(reader.mappings("urxe ring"), 2 * 2, "the same rings");
    assert_eq!(writer.ask("stop", "sent"), reader.ask("count", "got"));
}

#[test]
fn region_is_ordinary_if_the_limit_on_files_forbids_another() {
    let (mut writer, mut reader) = (End::start("127.18.233.1"), End::start("127.18.233.2"));
    connect(&mut writer, &mut reader, LONG, "ordinary");
    reader.wait_for_messages();
    writer.ask("limit", "limited");
    writer.ask("send shareable", "sends");
    reader.wait_for_messages();
    assert_eq!((reader.mappings("urxe region"), writer.mappings("urxe region")), (0, 0));
    assert_eq!(writer.ask("stop", "sent"), reader.ask("count", "got"));
}

#[test]
fn region_is_shared_once_descriptors_in_flight_have_been_received() {
    if !is_met(nix::unistd::geteuid().is_root(), "root's other processes may have any number in flight") {
        return;
    }
    let mut writer = End::start_by(limited(std::env::current_exe().unwrap()), "127.18.227.1");
    let mut reader = End::start("127.18.227.2");
    connect(&mut writer, &mut reader, LONG, "ordinary");
    reader.wait_for_messages();
    let in_flight = InFlight::new();
    writer.ask("send shareable", "sends");
    reader.wait_for_messages();
    assert_eq!((reader.mappings("urxe region"), writer.mappings("urxe region")), (0, 1));
    drop(in_flight);
    reader.wait_until("payloads are shared", || reader.mappings("urxe region") == 1);
    reader.wait_for_messages();
    assert_eq!(writer.ask("stop", "sent"), reader.ask("count", "got"));
}

/// 67 ms, and 540 ms with all retries.
const SHORT: AckTimeout = AckTimeout::new(14);
/// 69 s.
const LONG: AckTimeout = AckTimeout::new(24);

#[test]
#[ignore = "one end of a connection, which the other tests start"]
fn one_end() {
    let ip =
        std::env::var(ADDRESS).expect("the other tests start this one, with an address").parse().unwrap();
    let sharing = Sharing {
        program: env!("CARGO_BIN_EXE_urxe").into(),
        any_user: false,
        shared_memory: SharedMemory::Require,
    };
    let links = sharing.bind(&LinkSpec::Udp(Some(ip)), 1, true).unwrap();
    let context = Context::open_shards(links, &ContextOptions::default()).unwrap();
    let (send, commands) = channel();
    std::thread::spawn(move || {
        std::io::stdin().lines().map_while(Result::ok).try_for_each(|line| send.send(line))
    });
    let mut program = Program::new(context);
    loop {
        let wait = if program.poll() { Duration::ZERO } else { Duration::from_micros(50) };
        match commands.recv_timeout(wait) {
            Ok(command) => program.carry_out(&command.split(' ').collect::<Vec<_>>()),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// Program of an end. It carries out commands, and checks what it receives.
struct Program {
    pd: Pd,
    cq: Cq,
    qp: Option<Qp>,
    contents: Vec<u8>,
    /// Memory of the messages to send; `None` while it sends none.
    source: Option<Mr>,
    target: Mr,
    sends: bool,
    posted: u64,
    sent: u64,
    got: u64,
    /// The first status other than success, and the numbers of sends and receives flushed after it.
    failure: WcStatus,
    flushed: [usize; 2],
    hoard: Vec<OwnedFd>,
}

impl Program {
    fn new(context: Context) -> Program {
        let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(64).unwrap());
        let target = pd.reg_mr(RECEIVES as usize * LEN, Access::ALL).unwrap();
        Program {
            pd,
            cq,
            qp: None,
            contents: contents(),
            source: None,
            target,
            sends: false,
            posted: 0,
            sent: 0,
            got: 0,
            failure: WcStatus::Success,
            flushed: [0; 2],
            hoard: Vec::new(),
        }
    }

    fn carry_out(&mut self, command: &[&str]) {
        match *command {
            ["create"] => {
                (self.posted, self.sent, self.got, self.flushed) = (0, 0, 0, [0; 2]);
                self.failure = WcStatus::Success;
                let qp = self.pd.create_qp(&self.cq, &self.cq, &QpOptions::default()).unwrap();
                let Endpoint { qpn, psn, .. } = qp.endpoint();
                self.qp = Some(qp);
                eprintln!("endpoint {} {}", qpn.get(), psn.get());
            }
            ["connect", timeout, ip, qpn, psn] => {
                let gid = Gid::from(ip.parse::<std::net::IpAddr>().unwrap());
                let (qpn, psn) = (Qpn::new(qpn.parse().unwrap()), Psn::new(psn.parse().unwrap()));
                let timeout = AckTimeout::new(timeout.parse().unwrap());
                let options = ConnectOptions::default().timeout(timeout);
                self.qp.as_ref().unwrap().connect(&Endpoint { gid, qpn, psn }, &options).unwrap();
                (0..RECEIVES).for_each(|number| self.post_recv(number));
                eprintln!("connected");
            }
            ["send", region] => {
                self.stop();
                if region != "same" {
                    let options = MrOptions::new(Access::ALL).shareable(region == "shareable");
                    self.source = Some(self.pd.reg_mr(DEPTH as usize * LEN, options).unwrap());
                }
                self.sends = true;
                eprintln!("sends");
            }
            ["stop"] => {
                self.stop();
                eprintln!("sent {}", self.sent);
            }
            ["count"] => {
                eprintln!("sent {}\ngot {}", self.sent, self.got);
            }
            ["end"] => {
                // What has arrived must be executed before the queue pair fails.
                for _ in 0..1000 {
                    self.poll();
                }
                self.sends = false;
                self.qp.as_ref().unwrap().modify(&QpAttr::new(QpState::Err)).unwrap();
                while self.poll() {}
                self.qp = None;
                let [sends, receives] = self.flushed;
                eprintln!("ended {:?}, flushed {sends} sends and {receives} receives", self.failure);
            }
            ["hoard"] => {
                setrlimit(Resource::RLIMIT_NOFILE, 256, 1024).unwrap();
                let null = std::fs::File::open("/dev/null").unwrap();
                self.hoard = std::iter::from_fn(|| null.try_clone().ok()).map(OwnedFd::from).collect();
                self.hoard.push(null.into());
                eprintln!("hoarded");
            }
            ["release"] => {
                self.hoard.clear();
                eprintln!("released");
            }
            ["limit"] => {
                setrlimit(Resource::RLIMIT_FSIZE, LEN as u64, LEN as u64).unwrap();
                eprintln!("limited");
            }
            _ => panic!("unknown command {command:?}"),
        }
    }

    /// Waits until all messages in flight are acknowledged.
    fn stop(&mut self) {
        self.sends = false;
        while self.sent < self.posted && self.failure == WcStatus::Success {
            self.poll();
        }
    }

    fn post_recv(&self, number: u64) {
        let at = (number % RECEIVES) as usize * LEN;
        let sges = [self.target.sge(at..at + LEN)];
        self.qp.as_ref().unwrap().post_recv(&RecvWr::new(2 * number + 1, &sges)).unwrap();
    }

    /// Sends messages, and takes the completions. Returns false if there was nothing to do.
    fn poll(&mut self) -> bool {
        while self.sends && self.posted < self.sent + DEPTH && self.failure == WcStatus::Success {
            let (number, source) = (self.posted, self.source.as_ref().unwrap());
            let at = (number % DEPTH) as usize * LEN;
            source.write(at, message(&self.contents, number)).unwrap();
            let sges = [source.sge(at..at + LEN)];
            self.qp.as_ref().unwrap().post_send(&SendWr::send(2 * number, &sges)).unwrap();
            self.posted += 1;
        }
        let mut completions = Vec::new();
        self.cq.poll(16, &mut completions).unwrap();
        completions.iter().for_each(|completion| self.complete(completion));
        !completions.is_empty()
    }

    fn complete(&mut self, completion: &Completion) {
        let (number, is_receive) = (completion.wr_id / 2, completion.wr_id % 2 == 1);
        if !is_receive {
            let at = (number % DEPTH) as usize * LEN;
            self.source.as_ref().unwrap().write(at, &vec![0xee; LEN]).unwrap();
        }
        match completion.status {
            WcStatus::Success if is_receive => {
                let at = (number % RECEIVES) as usize * LEN;
                assert_eq!((number, completion.byte_len as usize), (self.got, LEN));
                let is_correct =
                    self.target.read_vec(at..at + LEN).unwrap() == message(&self.contents, number);
                assert!(is_correct, "message {number} has changed");
                self.got += 1;
                if self.got.is_multiple_of(16) {
                    eprintln!("received {}", self.got);
                }
                self.post_recv(number + RECEIVES);
            }
            WcStatus::Success => self.sent += 1,
            WcStatus::WrFlushErr => self.flushed[usize::from(is_receive)] += 1,
            status => {
                self.failure = status;
                eprintln!("failed {status:?}");
            }
        }
    }
}
