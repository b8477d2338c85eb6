//! Processes that are the ends of connections over rings in shared memory: one sends messages, whose contents
//! the other verifies. Each runs [`run_end`], through the test `one_end` of its own test program.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::artifacts::urxe_program;
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use urxe::broker::{SharedMemory, Sharing};
use urxe::link::LinkSpec;
use urxe::verbs::*;

/// Length of a message. One takes several bursts.
const LEN: usize = 256 << 10;
/// Number of messages in flight, and of receives.
pub const DEPTH: u64 = 4;
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

/// 67 ms, and 540 ms with all retries.
pub const SHORT: AckTimeout = AckTimeout::new(14);
/// 69 s.
pub const LONG: AckTimeout = AckTimeout::new(24);

/// A process that is one end of connections.
pub struct End {
    child: Child,
    commands: ChildStdin,
    lines: Arc<Mutex<Vec<String>>>,
    ip: &'static str,
    /// Whether the process is the parent of the program.
    is_parent: bool,
}

impl End {
    /// Starts the test `one_end` of the module with this path (`module_path!`) in a process of its own.
    pub fn start(module: &str, ip: &'static str) -> End {
        End::start_by(Command::new(std::env::current_exe().unwrap()), module, ip)
    }

    /// Like [`start`](Self::start), by a command that runs this program.
    pub fn start_by(mut command: Command, module: &str, ip: &'static str) -> End {
        // The name of a test begins behind that of the crate.
        let test = [module, "::one_end"].concat();
        let (_, test) = test.split_once("::").expect("the path has a crate");
        command.args(["--exact", test, "--nocapture"]).env(ADDRESS, ip);
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
        End { child, commands, lines, ip, is_parent: false }
    }

    /// Starts an end in a container of its own, which shares the network namespace and the directory of
    /// sockets.
    pub fn start_in_container(module: &str, ip: &'static str) -> End {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--ipc", "--uts", "--pid", "--fork", "--kill-child"]);
        command.arg(std::env::current_exe().unwrap());
        let mut end = End::start_by(command, module, ip);
        end.is_parent = true;
        end
    }

    /// Returns the number of the program's process.
    fn id(&self) -> u32 {
        let id = self.child.id();
        let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children"));
        if self.is_parent { children.unwrap().trim().parse().unwrap() } else { id }
    }

    pub fn tell(&mut self, command: &str) {
        writeln!(self.commands, "{command}").unwrap();
    }

    /// Returns how often the process has printed a line that begins with `text`.
    pub fn says(&self, text: &str) -> usize {
        self.lines.lock().unwrap().iter().filter(|line| line.starts_with(text)).count()
    }

    pub fn wait_until(&self, what: &str, mut condition: impl FnMut() -> bool) {
        let begin = Instant::now();
        while !condition() {
            let lines = self.lines.lock().unwrap();
            assert!(begin.elapsed() < TIMEOUT, "{what}: not within {TIMEOUT:?}; {} says {lines:?}", self.ip);
            drop(lines);
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Tells the process a command. Returns what follows `answer` in its answer.
    pub fn ask(&mut self, command: &str, answer: &str) -> String {
        let before = self.says(answer);
        self.tell(command);
        self.wait_until(command, || self.says(answer) > before);
        let lines = self.lines.lock().unwrap();
        let line = lines.iter().rfind(|line| line.starts_with(answer)).unwrap();
        line[answer.len()..].trim().to_owned()
    }

    pub fn wait_for_messages(&self) {
        let before = self.says("received");
        self.wait_until("messages", || self.says("received") >= before + 2);
    }

    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.id() as i32), signal).unwrap();
    }

    fn read(&self, file: &str) -> String {
        std::fs::read_to_string(format!("/proc/{}/{file}", self.id())).unwrap()
    }

    /// Returns the number of mappings of a memfd.
    pub fn mappings(&self, name: &str) -> usize {
        self.read("maps").lines().filter(|line| line.contains(&format!("/memfd:{name}"))).count()
    }

    /// Returns the numbers of open descriptors of each kind, and of the mappings of memfds.
    pub fn resources(&self) -> BTreeMap<String, usize> {
        let mut all = BTreeMap::from([("mappings".to_owned(), self.mappings(""))]);
        for fd in std::fs::read_dir(format!("/proc/{}/fd", self.id())).unwrap().flatten() {
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
pub fn connect(writer: &mut End, reader: &mut End, timeout: AckTimeout, region: &str) {
    let endpoints = [&mut *writer, &mut *reader].map(|end| end.ask("create", "endpoint"));
    let connect = |endpoint: &str, ip: &str| format!("connect {} {ip} {endpoint}", timeout.code());
    writer.ask(&connect(&endpoints[1], reader.ip), "connected");
    reader.ask(&connect(&endpoints[0], writer.ip), "connected");
    writer.tell(&format!("send {region}"));
}

/// Runs an end until the test that has started it ends. Does nothing if no test has.
pub fn run_end() {
    let Ok(ip) = std::env::var(ADDRESS) else {
        println!("{ADDRESS} is not set: the other tests run this one, as an end of their connections");
        return;
    };
    let ip = ip.parse().unwrap();
    let sharing = Sharing { program: urxe_program(), any_user: false, shared_memory: SharedMemory::Require };
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
                // The queue pair executes the packets in the ring before it enters ERR.
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
