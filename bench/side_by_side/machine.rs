//! Description of the machine and of the source revision measured on it.

use std::fs;
use std::process::Command;

use serde::Serialize;

#[derive(Serialize)]
pub struct Machine {
    pub date: String,
    pub commit: String,
    pub cpu: String,
    pub cores: usize,
    pub virtual_machine: bool,
    pub kernel: String,
    pub rmem_max: String,
    pub wmem_max: String,
    pub tcp_congestion_control: String,
    pub root: bool,
    /// Load averages over the one, five and fifteen minutes before the start, which reveal other activity on
    /// the machine.
    pub load: String,
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

fn output(program: &str, args: &[&str]) -> String {
    let out = Command::new(program).args(args).output();
    out.map(|out| String::from_utf8_lossy(&out.stdout).trim().to_owned()).unwrap_or_default()
}

impl Machine {
    pub fn detect() -> Machine {
        let cpuinfo = read("/proc/cpuinfo");
        let field = |name: &str| {
            let line = cpuinfo.lines().find(|l| l.starts_with(name));
            line.and_then(|l| l.split_once(':')).map_or(String::new(), |(_, v)| v.trim().to_owned())
        };
        let is_modified =
            !output("git", &["status", "--porcelain", "--untracked-files=no", "src"]).is_empty();
        Machine {
            date: output("date", &["-u", "+%Y-%m-%d %H:%M UTC"]),
            commit: output("git", &["rev-parse", "--short", "HEAD"])
                + if is_modified { ", src changed" } else { "" },
            cpu: field("model name"),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            virtual_machine: field("flags").split(' ').any(|flag| flag == "hypervisor"),
            kernel: read("/proc/sys/kernel/osrelease"),
            rmem_max: read("/proc/sys/net/core/rmem_max"),
            wmem_max: read("/proc/sys/net/core/wmem_max"),
            tcp_congestion_control: read("/proc/sys/net/ipv4/tcp_congestion_control"),
            root: nix::unistd::geteuid().is_root(),
            load: read("/proc/loadavg").split(' ').take(3).collect::<Vec<_>>().join(" "),
        }
    }

    pub fn print(&self) {
        let Machine {
            date,
            commit,
            cpu,
            cores,
            kernel,
            rmem_max,
            wmem_max,
            tcp_congestion_control,
            load,
            ..
        } = self;
        let kind = if self.virtual_machine { "virtual" } else { "physical" };
        let buffers = match self.root {
            true => "root: socket buffers of 8 MiB regardless of these limits",
            false => "not root: these limit the socket buffers",
        };
        println!("{date}, urxe {commit}");
        println!("{cpu}, {cores} cores ({kind}), Linux {kernel}, load {load}");
        println!(
            "rmem_max {rmem_max}, wmem_max {wmem_max} ({buffers}); \
             TCP congestion control {tcp_congestion_control}"
        );
    }
}
