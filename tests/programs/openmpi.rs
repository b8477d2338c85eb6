//! Tests of Open MPI over UCX on the library, with ranks on separate addresses, all ranks on one address, and
//! ranks in two network namespaces that act as two hosts.
//!
//! Repeated over sockets.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use urxe_test_support::huge_pages;
use urxe_test_support::netns::{self, Veth};
use urxe_test_support::programs::{Running, addresses, built, text, urxe};

const LIMIT: Duration = Duration::from_secs(300);

/// Debian's Python, which has mpi4py and numpy. Another Python may come first in `PATH`.
const PYTHON: &str = "/usr/bin/python3";

/// A program from `mpi/`, compiled if necessary, and the directory for the files that its ranks write.
struct Program {
    dir: tempfile::TempDir,
    line: Vec<String>,
    _huge_pages: fs::File,
}

impl Program {
    fn c() -> Program {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("ranks").display().to_string();
        let cc = Command::new("mpicc")
            .args(["-Wall", "-Werror", "-O1", "-o", &program])
            .arg(source("ranks.c"))
            .output()
            .expect("mpicc (apt-get install libopenmpi-dev)");
        assert!(cc.status.success(), "{}", text(&cc));
        Program { dir, line: vec![program], _huge_pages: huge_pages::leave() }
    }

    fn python(name: &str) -> Program {
        let line = vec![PYTHON.to_owned(), source(name).display().to_string()];
        Program { dir: tempfile::tempdir().unwrap(), line, _huge_pages: huge_pages::leave() }
    }

    /// Writes an executable script into the directory and returns its path.
    fn script(&self, name: &str, text: &str) -> String {
        let path = self.dir.path().join(name);
        fs::write(&path, format!("#!/bin/bash\n{text}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path.display().to_string()
    }

    /// Returns the path pattern of the captures; each process writes one.
    fn capture(&self) -> String {
        self.dir.path().join("%p.pcapng").display().to_string()
    }

    /// Returns the size of each capture file, in bytes.
    fn captured(&self) -> Vec<u64> {
        let files = fs::read_dir(self.dir.path()).unwrap().map(|entry| entry.unwrap());
        let captures = files.filter(|entry| entry.file_name().to_string_lossy().ends_with(".pcapng"));
        captures.map(|entry| entry.metadata().unwrap().len()).collect()
    }

    /// Runs each rank on a separate address.
    fn on_addresses(&self, count: usize, transports: &str) -> String {
        let own: Vec<String> = std::iter::repeat_with(addresses).flatten().take(count).collect();
        let start = self.script(
            "start",
            &format!(
                "addresses=({})\nexec '{}' run --ip ${{addresses[$OMPI_COMM_WORLD_RANK]}} --capture '{}' -- \"$@\"",
                own.join(" "),
                urxe_path().display(),
                self.capture()
            ),
        );
        let mut line = mpirun(count);
        line.push(start);
        self.finish(line, transports)
    }

    /// Runs all ranks on one address, with the environment variables that `mpirun` inherits from `urxe run`.
    fn on_one_address(&self, count: usize, transports: &str) -> String {
        let [address, _] = addresses();
        let mut line = vec![urxe_path().display().to_string()];
        line.extend(["run", "--ip", &address, "--capture", &self.capture(), "--"].map(str::to_owned));
        line.extend(mpirun(count));
        self.finish(line, transports)
    }

    /// Runs `each` ranks on each of two hosts, on all addresses of their interfaces. `mpirun` runs on the
    /// first host.
    fn on_hosts(&self, net: &Veth, each: usize, transports: &str) -> String {
        // Stands in for ssh as `agent HOST COMMAND...`. The daemons need two host names to have two
        // directories.
        let [first, second] = net.sides.each_ref().map(|side| side.name());
        let agent = self.script(
            "agent",
            &format!("shift\nexec ip netns exec {second} unshare --uts sh -c \"hostname {second}; $*\""),
        );
        let mut line: Vec<String> = ["ip", "netns", "exec", first].map(str::to_owned).to_vec();
        line.extend(mpirun(2 * each));
        let hosts = format!("10.77.0.1:{each},10.77.0.2:{each}");
        line.extend(["--host", &hosts, "--mca", "plm_rsh_agent", &agent].map(str::to_owned));
        line.extend(["--mca", "oob_tcp_if_include", "10.77.0.0/24"].map(str::to_owned));
        line.push(urxe_path().display().to_string());
        line.extend(["run", "--capture", &self.capture(), "--"].map(str::to_owned));
        self.finish(line, transports)
    }

    /// Runs the program under the given command line and returns the output.
    fn finish(&self, line: Vec<String>, transports: &str) -> String {
        let mut command = Command::new(&line[0]);
        command.args(&line[1..]).args(&self.line);
        // Sets the variables that ranks need for `urxe run`, and removes those that this test was started
        // with.
        let with = urxe(&[]);
        for (name, value) in with.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.env("UCX_TLS", transports).env("UCX_NET_DEVICES", "urxe0:1");
        command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        command.env("OPENBLAS_NUM_THREADS", "1");
        // Runs that start at once would race for the creation of a directory that they share.
        command.env("OMPI_MCA_orte_tmpdir_base", self.dir.path());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let out = Running::new(command).finish(LIMIT);
        let printed = text(&out);
        assert!(out.status.success(), "{transports}: {line:?} {:?}: {printed}", out.status);
        printed
    }

    /// Checks that each rank has reported success, and that the capture of each process is larger than
    /// `min_bytes`.
    fn has_passed(&self, printed: &str, count: usize, min_bytes: u64) {
        assert_eq!(printed.matches("is done").count(), count, "{printed}");
        let captured = self.captured();
        assert_eq!(captured.len(), count, "number of processes with a capture; {printed}");
        assert!(
            captured.iter().all(|bytes| *bytes > min_bytes),
            "captured {captured:?} bytes, expected more than {min_bytes} each; {printed}"
        );
    }
}

fn source(name: &str) -> PathBuf {
    Path::new(env!("URXE_REPOSITORY")).join("tests/programs/mpi").join(name)
}

fn urxe_path() -> PathBuf {
    built("urxe").expect("urxe is not built: run cargo build, or cargo test --workspace")
}

/// Returns the `mpirun` command line for `count` ranks over UCX only, without the shared memory and TCP
/// transports.
fn mpirun(count: usize) -> Vec<String> {
    let count = count.to_string();
    let line = ["mpirun", "--oversubscribe", "-np", &count, "--mca", "pml", "ucx", "--mca", "osc", "ucx"];
    line.map(str::to_owned).to_vec()
}

/// UCX transport lists: RC, for which UCX itself adds UD for the wireup; RC and UD, both by name; and UD for
/// everything.
const TRANSPORTS: [&str; 3] = ["rc,self", "rc_verbs,ud_verbs,self", "ud_verbs,self"];

/// Bytes that each rank of `ranks.c` sends and receives in the ring test alone: three rounds of 4^0 to 4^9
/// bytes in each direction.
const C_RING_BYTES: u64 = 2 * 3 * ((1 << 20) - 1) / 3;

/// Bytes that each rank of `ranks.py` sends and receives in the ring test, as 8-byte numbers.
const PYTHON_RING_BYTES: u64 = 2 * 8 * 110_101;

#[test]
fn two_ranks_on_two_addresses_exchange_data() {
    let program = Program::c();
    let printed = program.on_addresses(2, TRANSPORTS[0]);
    program.has_passed(&printed, 2, C_RING_BYTES);
}

#[test]
fn three_ranks_on_three_addresses_exchange_data_over_datagrams() {
    let program = Program::c();
    let printed = program.on_addresses(3, TRANSPORTS[2]);
    program.has_passed(&printed, 3, C_RING_BYTES);
}

#[test]
fn c_ranks_on_one_address_exchange_data() {
    for (count, transports) in [(2, TRANSPORTS[0]), (4, TRANSPORTS[1]), (4, TRANSPORTS[2])] {
        let program = Program::c();
        let printed = program.on_one_address(count, transports);
        program.has_passed(&printed, count, C_RING_BYTES);
    }
}

#[test]
fn python_ranks_on_one_address_exchange_data() {
    for (count, transports) in [(2, TRANSPORTS[2]), (4, TRANSPORTS[0])] {
        let program = Program::python("ranks.py");
        let printed = program.on_one_address(count, transports);
        program.has_passed(&printed, count, PYTHON_RING_BYTES);
    }
}

#[test]
fn ranks_on_two_hosts_exchange_data() {
    if !netns::is_available() {
        return;
    }
    let net = Veth::new(1500);
    for transports in [TRANSPORTS[0], TRANSPORTS[2]] {
        for (program, min_bytes) in
            [(Program::c(), C_RING_BYTES), (Program::python("ranks.py"), PYTHON_RING_BYTES)]
        {
            let printed = program.on_hosts(&net, 2, transports);
            program.has_passed(&printed, 4, min_bytes);
        }
    }
}

/// Checks that the weights are bit-identical for any number of ranks and any distribution of them over hosts.
#[test]
fn training_gives_the_same_weights_with_any_number_of_ranks() {
    if !netns::is_available() {
        return;
    }
    let training = |arg: &str| Program {
        line: [PYTHON, source("training.py").to_str().unwrap(), arg].map(str::to_owned).to_vec(),
        ..Program::python("training.py")
    };
    let mut alone = Command::new(PYTHON);
    let alone = alone.arg(source("training.py")).arg("alone").output().expect("python3");
    let alone = text(&alone);
    let losses: Vec<f64> =
        alone.split_whitespace().filter_map(|word| word.trim_end_matches(',').parse().ok()).collect();
    assert!(losses.len() == 2 && losses[1] < losses[0] / 2.0, "it learns: {alone}");
    let net = Veth::new(1500);
    for (count, transports) in [(2, TRANSPORTS[2]), (4, TRANSPORTS[0])] {
        for hosts in [false, true] {
            let program = training("in ranks");
            let printed = match hosts {
                true => program.on_hosts(&net, count / 2, transports),
                false => program.on_one_address(count, transports),
            };
            let same = printed.matches(alone.trim()).count();
            assert_eq!(same, count, "{transports}: alone {alone} but in {count} ranks {printed}");
            // Each of 40 steps exchanges a gradient of 17,409 numbers.
            assert!(
                program.captured().iter().all(|bytes| *bytes > 40 * 17_409 * 8),
                "{:?}",
                program.captured()
            );
        }
    }
}
