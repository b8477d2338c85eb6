//! Tests of `urxe run` and `urxe env`, which set up the environment for programs to use the library.

use std::fs::{self, File};
use std::io::Read;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use pcap_file::pcapng::{Block, PcapNgReader};
use urxe_test_support::programs::{
    self, CProgram, Running, addresses, built, in_namespace, library, port, preload, text, urxe,
    wait_for_listener,
};

fn output(args: &[&str]) -> Output {
    Running::new(urxe(args)).finish(Duration::from_secs(30))
}

/// Checks that the command fails and prints a single line, which contains `reason`.
fn check_fails(args: &[&str], reason: &str) {
    let out = output(args);
    let printed = text(&out);
    let status = if reason.starts_with("no executable program") { 127 } else { 126 };
    assert_eq!(out.status.code(), Some(status), "{args:?}: {printed}");
    assert!(printed.contains(reason), "{args:?}: {reason:?} is not in {printed:?}");
    assert_eq!(printed.lines().filter(|l| !l.is_empty()).count(), 1, "{printed}");
}

#[test]
fn program_under_urxe_run_finds_the_device() {
    let [address, _] = addresses();
    let out = output(&["run", "--ip", &address, "--", "ibv_devinfo", "-v"]);
    let printed = text(&out);
    assert!(out.status.success(), "{printed}");
    assert!(
        printed.contains("hca_id:\turxe0") && printed.contains(&format!("::ffff:{address}")),
        "{printed}"
    );
    let out = output(&["run", "--personality", "mlx5", "--ip", &address, "--", "ibv_devinfo", "-v"]);
    assert_ne!(text(&out), printed, "the mlx5 personality has other limits");
}

#[test]
fn run_replaces_the_urxe_process_with_the_program() {
    assert_eq!(output(&["run", "--", "sh", "-c", "exit 7"]).status.code(), Some(7));
    assert_eq!(output(&["run", "--", "sh", "-c", "kill -TERM $$"]).status.signal(), Some(15));
    let child = urxe(&["run", "--", "sh", "-c", "echo $$ $0 \"$1\"", "name", "two words"]).spawn().unwrap();
    let expected = format!("{} name two words\n", child.id());
    assert_eq!(String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap(), expected);
}

#[test]
fn program_without_separator_starts_when_a_server_listens_on_the_port() {
    let port = port();
    let mut child = urxe(&["run", "--wait-port", &port.to_string(), "sh", "-c", "exit 7"]).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(child.try_wait().unwrap(), None, "nothing listens yet");
    let _listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(7));
}

#[test]
fn program_finds_the_device_after_a_shell_evaluates_env_output() {
    let [address, _] = addresses();
    let script = "eval \"$(\"$0\" env --link \"$1\")\" && ibv_devinfo";
    let out = Command::new("sh")
        .args(["-c", script])
        .arg(built("urxe").unwrap())
        .arg(format!("udp:{address}"))
        .env("URXE_LIBRARY", library())
        .env("URXE_PRELOAD", preload())
        .output()
        .unwrap();
    assert!(out.status.success() && text(&out).contains("urxe0"), "{}", text(&out));
}

#[test]
fn run_clears_inherited_variables_that_no_option_sets() {
    let [address, _] = addresses();
    let show = "env | grep -o '^URXE_[A-Z]*'; echo \"${LD_LIBRARY_PATH#*:}\"";
    let mut command = urxe(&["run", "--ip", &address, "--seed", "3", "--", "sh", "-c", show]);
    command
        .env("URXE_FAULTS", "drop=1")
        .env("URXE_CAPTURE", "/nowhere/out")
        .env("LD_LIBRARY_PATH", "/one:/two")
        // Without the option, its variable applies.
        .env_remove("URXE_SHARED_MEMORY");
    let out = command.output().unwrap();
    let warnings = String::from_utf8_lossy(&out.stderr);
    for name in ["URXE_FAULTS", "URXE_CAPTURE"] {
        assert!(warnings.contains(&format!("the variable {name} is ignored")), "{warnings}");
    }
    let mut lines: Vec<_> = String::from_utf8(out.stdout).unwrap().lines().map(str::to_owned).collect();
    lines.sort();
    let names = ["LIBRARY", "LINK", "PRELOAD", "PROGRAM", "SEED", "SYSFS", "WARNINGS"]
        .map(|name| format!("URXE_{name}"));
    assert_eq!(lines[0], "/one:/two");
    assert_eq!(lines[1..], names);
    let cleared = text(&output(&["env"]));
    assert!(
        cleared.contains("unset URXE_LINK\n") && cleared.contains("export LD_LIBRARY_PATH='/"),
        "{cleared}"
    );
}

#[test]
fn copied_command_serves_programs_without_any_other_file() {
    let dir = tempfile::tempdir().unwrap();
    let command = dir.path().join("urxe");
    programs::copy_built("urxe", &command);
    let output = Command::new(command)
        .args(["run", "--ip", &addresses()[0], "--", "ibv_devinfo"])
        .env("XDG_RUNTIME_DIR", dir.path())
        .output()
        .unwrap();
    let printed = text(&output);
    assert!(output.status.success() && printed.contains("urxe0"), "{printed}");
    let unpacked = fs::read_dir(dir.path()).unwrap().flatten();
    let unpacked: Vec<_> = unpacked.filter(|entry| entry.file_type().unwrap().is_dir()).collect();
    assert_eq!(unpacked.len(), 1, "the private directory of the user: {unpacked:?}");
}

/// Runs a ping-pong over a veth pair while tshark captures at one end. With `--no-offload`, no captured
/// packet may exceed the interface MTU.
#[test]
fn no_offload_option_keeps_packets_in_a_tshark_capture_within_the_mtu() {
    let script = r#"
        unshare -n sleep 280 & peer=$!
        until [ "$(readlink /proc/$peer/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do kill -0 $peer || exit 3; done
        ip link add a0 type veth peer name b0 netns $peer || exit 3
        ip addr add 10.9.0.1/24 dev a0 && ip link set a0 up || exit 3
        there() { nsenter -t $peer -n "$@"; }
        there ip addr add 10.9.0.2/24 dev b0 && there ip link set b0 up || exit 3
        both() {
            tshark -q -i a0 -f 'udp port 4791' -a duration:60 -w "$DIR/$1" 2>"$DIR/log" & shark=$!
            until grep -q 'Capturing on' "$DIR/log"; do kill -0 $shark || { cat "$DIR/log"; exit 4; }; done
            sleep 1
            there "$URXE" run --ip 10.9.0.2 --min-ack-timeout 20 $2 -- ibv_rc_pingpong -g 0 -s 65536 -n 50 >/dev/null & server=$!
            until "$URXE" run --ip 10.9.0.1 --min-ack-timeout 20 $2 -- ibv_rc_pingpong -g 0 -s 65536 -n 50 10.9.0.2 >/dev/null 2>"$DIR/err"; do
                grep -q "Couldn't connect" "$DIR/err" || { cat "$DIR/err"; exit 5; }
            done
            wait $server
            sleep 1
            kill $shark; wait $shark
            echo "$1: $(tshark -r "$DIR/$1" -T fields -e frame.len 2>/dev/null | sort -n | tail -1)"
        }
        both with "" && both without --no-offload
        kill $peer
    "#;
    let printed = in_namespace(script, &[]);
    let longest = |which: &str| -> usize {
        let line = printed.lines().find_map(|line| line.strip_prefix(&format!("{which}: ")));
        line.unwrap_or_else(|| panic!("{printed}")).parse().unwrap()
    };
    assert!(longest("with") > 1514 && longest("without") <= 1514, "{printed}");
}

#[test]
fn min_ack_timeout_option_reaches_the_library() {
    let [address, _] = addresses();
    let show = "echo $URXE_MIN_ACK_TIMEOUT $URXE_OFFLOAD";
    let out =
        output(&["run", "--ip", &address, "--min-ack-timeout", "60", "--no-offload", "--", "sh", "-c", show]);
    assert_eq!(text(&out), "60 0\n");
    let out = output(&["run", "--ip", &address, "--patient", "--", "sh", "-c", show]);
    assert_eq!(text(&out), "600\n");
    let mut command =
        urxe(&["run", "--ip", &address, "--", "sh", "-c", "URXE_MIN_ACK_TIMEOUT=soon ibv_devices"]);
    let printed = text(&command.output().unwrap());
    assert!(
        printed.contains("URXE_MIN_ACK_TIMEOUT is 'soon': it must be a number of seconds above 0"),
        "{printed}"
    );
}

#[test]
fn urxe_log_prints_the_cause_of_an_errno() {
    let [address, _] = addresses();
    let pingpong = "URXE_LOG=debug ibv_rc_pingpong -g 0 -r 100000000";
    let mut command = urxe(&["run", "--ip", &address, "--", "sh", "-c", pingpong]);
    let printed = text(&command.output().unwrap());
    assert!(
        printed.contains("urxe::errno: error of a call errno=22 error=CQ size is 100000001"),
        "{printed}"
    );
}

#[test]
fn send_to_a_stopped_process_fails_unless_the_patient_option_is_given() {
    let [address, _] = addresses();
    let stopped = CProgram::build("stopped");
    let run = |options: &[&str], arg: &str| {
        let out = Running::new(urxe(
            &[&["run", "--ip", &address], options, &["--", stopped.program(), arg]].concat(),
        ))
        .finish(Duration::from_secs(120));
        assert!(out.status.success(), "{arg}: {:?} {}", out.status, text(&out));
    };
    run(&[], "fails");
    run(&["--patient"], "survives");
}

#[test]
fn program_runs_despite_an_invalid_runtime_directory() {
    for directory in ["", "relative", "/nonexistent"] {
        let out = urxe(&["run", "--", "true"]).env("XDG_RUNTIME_DIR", directory).output().unwrap();
        assert!(out.status.success(), "{directory:?}: {}", text(&out));
    }
}

#[test]
fn concurrent_runs_find_the_library() {
    let dir = tempfile::tempdir().unwrap();
    let script = "for n in 1 2 3 4 5 6 7 8; do \"$0\" run -- sh -c 'cat \"${LD_LIBRARY_PATH%%:*}/libibverbs.so.1\" >/dev/null' \
                  || echo failed & done; wait";
    for _ in 0..5 {
        let run = dir.path().join("run");
        std::fs::create_dir(&run).unwrap();
        fs::set_permissions(&run, fs::Permissions::from_mode(0o700)).unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", script]).arg(built("urxe").unwrap()).env("XDG_RUNTIME_DIR", &run);
        command.env("URXE_LIBRARY", library()).env("URXE_PRELOAD", preload());
        assert_eq!(text(&command.output().unwrap()), "");
        std::fs::remove_dir_all(&run).unwrap();
    }
}

/// Another user can put files there if the executable lies in a directory such as `/tmp`.
#[test]
fn libraries_beside_the_executable_are_not_loaded() {
    let top = tempfile::tempdir().unwrap();
    let bin = top.path().join("bin");
    let installed = top.path().join("lib/urxe");
    fs::create_dir_all(&bin).unwrap();
    fs::create_dir_all(&installed).unwrap();
    programs::copy_built("urxe", &bin.join("urxe"));
    for (directory, library) in [
        (&bin, "libibverbs.so"),
        (&bin, "liburxe_preload.so"),
        (&installed, "libibverbs.so.1"),
        (&installed, "liburxe_preload.so"),
    ] {
        fs::write(directory.join(library), "planted").unwrap();
    }
    let mut command = Command::new(bin.join("urxe"));
    command
        .args(["run", "--", "cat", "/proc/self/maps"])
        .env_remove("URXE_LIBRARY")
        .env_remove("URXE_PRELOAD");
    let out = command.output().unwrap();
    let printed = text(&out);
    assert!(out.status.success() && printed.contains("liburxe_preload.so"), "{printed}");
    let planted = top.path().to_str().unwrap();
    assert!(!printed.contains(planted) && !printed.contains("ERROR: ld.so"), "{printed}");
}

#[test]
fn error_for_a_program_that_cannot_run_is_one_line_with_the_reason() {
    check_fails(&["run", "--", "no-such-program"], "no executable program 'no-such-program'");
    check_fails(&["run", "--ip", "192.0.2.1", "--", "true"], "no interface has address 192.0.2.1");
    check_fails(&["run", "--link", "udp:192.0.2.1", "--", "true"], "no interface has address 192.0.2.1");
    check_fails(
        &["run", "--link", "udp:no0", "--", "true"],
        "--link: no such link 'udp:no0': available links are udp, udp:",
    );
}

#[test]
fn doctor_predicts_that_debian_programs_use_the_library() {
    for (program, libraries) in
        [("ibv_devinfo", &["libibverbs.so.1"][..]), ("rping", &["libibverbs.so.1", "librdmacm.so.1"])]
    {
        let out = output(&["doctor", "--", program]);
        let printed = text(&out);
        let (_, checks) = printed.split_once("\nprogram ").unwrap_or_else(|| panic!("{printed}"));
        assert!(checks.contains("under `urxe run` it uses urxe's libibverbs"), "{checks}");
        for library in libraries {
            let line = checks.lines().find(|line| line.contains(&format!(" {library}: ")));
            let line = line.unwrap_or_else(|| panic!("{library}: {checks}"));
            assert!(line.contains("; under `urxe run` /") && line.ends_with("/liburxe_verbs.so"), "{line}");
        }
        assert!(!checks.contains("  problem "), "{checks}");
    }
}

#[test]
fn run_without_any_device_fails_with_the_reason() {
    let printed = in_namespace("\"$URXE\" run -- ibv_devices", &[]);
    assert!(printed.contains("urxe: no device: no network interface is up"), "{printed}");
}

#[test]
fn error_for_a_udp_port_in_use_names_the_address_and_port() {
    let [address, _] = addresses();
    let _other = std::net::UdpSocket::bind((address.as_str(), 4791)).unwrap();
    let out = output(&["run", "--ip", &address, "--", "ibv_devinfo"]);
    let printed = text(&out);
    assert!(!out.status.success());
    assert!(printed.contains(&format!("urxe: UDP port 4791 of {address} is in use by")), "{printed}");
}

/// Runs both ends of a ping-pong, the client with additional options of `urxe run`. Returns the client's
/// output.
fn pingpong(options: &[&str]) -> String {
    let [server, client] = addresses();
    pingpong_between(&["--ip", &server], &[&["--ip", &client], options].concat())
}

fn pingpong_between(server: &[&str], options: &[&str]) -> String {
    let port = port().to_string();
    let program = ["--", "ibv_rc_pingpong", "-g", "0", "-n", "200", "-p", &port];
    let serving = Running::new(urxe(&[&["run"], server, &program].concat()));
    wait_for_listener(&port);
    let out = output(&[&["run"], options, &program, &["127.0.0.1"]].concat());
    let printed = text(&out);
    assert!(out.status.success(), "{options:?}: {printed}");
    assert!(serving.finish(Duration::from_secs(10)).status.success());
    printed
}

/// Returns the number of packets in a capture, and their comments.
fn captured(file: &Path) -> (usize, Vec<String>) {
    let (mut packets, mut comments) = (0, Vec::new());
    let Ok(mut reader) = File::open(file).map_err(drop).and_then(|f| PcapNgReader::new(f).map_err(drop))
    else {
        return (0, comments);
    };
    // A capture that is being written may be truncated anywhere.
    while let Some(Ok(block)) = reader.next_block() {
        if let Block::EnhancedPacket(packet) = block {
            packets += 1;
            comments.extend(packet.options.iter().map(|option| format!("{option:?}")));
        }
    }
    (packets, comments)
}

#[test]
fn run_captures_packets_and_injects_faults() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("out-%p.pcapng");
    let never = "tx:dup=1,opcode=flush";
    let options = [
        "--fault",
        // Acknowledgements are not dropped, because the next one makes up for a lost one.
        "tx:drop=5,opcode=send-middle",
        "--fault",
        "rx:dup=7",
        "--fault",
        never,
        "--capture",
        file.to_str().unwrap(),
    ];
    let printed = pingpong(&options);
    assert!(
        printed.contains("urxe: fault rx:dup=7: matched ") && printed.contains(", affected 1\n"),
        "{printed}"
    );
    // At least the dropped packet is retransmitted.
    let retransmitted = printed
        .split("packets retransmitted: ")
        .nth(1)
        .and_then(|n| n.split(' ').next()?.parse::<u32>().ok());
    assert!(retransmitted >= Some(1), "{printed}");
    assert!(printed.contains(&format!("warning: fault rule '{never}' matched no packet")), "{printed}");
    let files: Vec<PathBuf> = fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().path()).collect();
    let [file] = &files[..] else { panic!("{files:?}") };
    let number = file.file_stem().unwrap().to_str().unwrap().strip_prefix("out-").unwrap();
    assert!(number.parse::<u32>().is_ok(), "{number}");
    let (packets, comments) = captured(file);
    assert!(packets >= 400, "captured {packets} packets of 200 round trips");
    for word in ["drop", "dup"] {
        assert!(comments.iter().any(|c| c.contains(word)), "no {word} in {comments:?}");
    }
}

#[test]
fn statistics_are_printed_if_the_program_exits_during_a_call() {
    let [address, _] = addresses();
    let corners = CProgram::build("corners");
    let rule = "tx:drop=1000000";
    for _ in 0..8 {
        let args = ["run", "--ip", &address, "--fault", rule, "--", corners.program(), "interrupted"];
        let out = output(&args);
        let printed = text(&out);
        assert!(
            out.status.success() && printed.contains("packets retransmitted: "),
            "{:?} {printed}",
            out.status
        );
    }
}

/// Returns a shell command that runs both ends of a ping-pong on an unused port.
fn both_ends(iterations: u32) -> String {
    let program = format!("ibv_rc_pingpong -g 0 -n {iterations} -p {}", port());
    // The client is repeated until the server listens. Any other failure of it fails the command.
    format!(
        "{program} & until {program} 127.0.0.1 2>\"$DIR/err\"; do grep -q \"Couldn't connect\" \"$DIR/err\" || \
         {{ cat \"$DIR/err\"; exit 1; }}; done; cat \"$DIR/err\" >&2; wait"
    )
}

#[test]
fn each_process_of_a_run_captures_to_a_file_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("out.pcapng");
    // An existing capture is replaced.
    fs::write(&file, "old").unwrap();
    let [address, _] = addresses();
    let script = both_ends(300);
    let mut command =
        urxe(&["run", "--ip", &address, "--capture", file.to_str().unwrap(), "--", "sh", "-c", &script]);
    let out = Running::new({
        command.env("DIR", dir.path());
        command
    })
    .finish(Duration::from_secs(60));
    let printed = text(&out);
    assert!(out.status.success(), "{printed}");
    let names = fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().path());
    let files: Vec<PathBuf> = names.filter(|name| name.extension().is_some_and(|e| e == "pcapng")).collect();
    // A client that could not connect may have opened a device too.
    assert!(files.len() >= 2 && files.contains(&file), "{files:?}: {printed}");
    let counts: Vec<usize> = files.iter().map(|file| whole_capture(file)).collect();
    // 300 messages in each direction with their acknowledgements, at both ends.
    assert!(counts.iter().filter(|count| **count >= 900).count() == 2, "{counts:?} in {files:?}");
    // The output of a client that could not connect is overwritten by that of the next one.
    for (name, _) in files.iter().zip(&counts).filter(|(name, count)| **name != file && **count >= 900) {
        assert!(printed.contains(&format!("writes its capture to {}", name.display())), "{printed}");
    }
}

/// Returns the number of packets in a capture. Panics if the capture is truncated.
fn whole_capture(file: &Path) -> usize {
    packets_of(&fs::read(file).unwrap())
}

fn packets_of(bytes: &[u8]) -> usize {
    let mut reader = PcapNgReader::new(bytes).unwrap();
    let mut packets = 0;
    while let Some(block) = reader.next_block() {
        packets += usize::from(matches!(block.unwrap(), Block::EnhancedPacket(_)));
    }
    packets
}

#[test]
fn capture_to_standard_output_moves_other_output_to_standard_error() {
    let [address, _] = addresses();
    let corners = CProgram::build("corners");
    let out = output(&[
        "run",
        "--ip",
        &address,
        "--capture",
        "-",
        "--",
        "sh",
        "-c",
        "echo said; exec \"$0\" leave",
        corners.program(),
    ]);
    assert!(out.status.success(), "{}", text(&out));
    assert!(packets_of(&out.stdout) >= 3);
    assert!(String::from_utf8_lossy(&out.stderr).contains("said"), "{}", text(&out));
}

#[test]
fn capture_file_stays_valid_and_lost_packets_are_counted_when_the_disk_is_full() {
    let dir = tempfile::tempdir().unwrap();
    let kept = dir.path().join("kept.pcapng");
    let script = r#"
        ip link set lo up && mount -t tmpfs -o size=200k none "$DIR" || exit 3
        "$URXE" run --ip 127.0.0.1 --capture "$DIR/out.pcapng" -- "$CORNERS" much || exit 4
        cp "$DIR/out.pcapng" "$KEPT"
    "#;
    let script = format!("unshare -m sh -c '{script}'");
    let corners = CProgram::build("corners");
    let printed = in_namespace(&script, &[("KEPT", kept.to_str().unwrap()), ("CORNERS", corners.program())]);
    let lines: Vec<&str> = printed.lines().filter(|line| line.contains("No space left on device")).collect();
    // One line at the first failure, and one with the total at the end.
    let lost: Vec<u64> = lines
        .iter()
        .map(|l| l.split(" packets are missing").next().unwrap().rsplit(' ').next().unwrap().parse().unwrap())
        .collect();
    let [first, all] = lost[..] else { panic!("{printed}") };
    assert!(0 < first && first < all, "{printed}");
    assert!(whole_capture(&kept) > 0);
}

/// Checks the capture of a program that exits without closing its device.
#[test]
fn capture_is_complete_when_the_program_exits_with_open_devices() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("out.pcapng");
    let corners = CProgram::build("corners");
    let [address, _] = addresses();
    let out = output(&[
        "run",
        "--ip",
        &address,
        "--capture",
        file.to_str().unwrap(),
        "--",
        corners.program(),
        "leave",
    ]);
    assert!(out.status.success(), "{}", text(&out));
    assert!(captured(&file).0 >= 3, "captured {} packets of a SEND to the QP itself", captured(&file).0);
}

#[test]
fn capture_is_valid_after_the_program_is_killed() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("out.pcapng");
    let corners = CProgram::build("corners");
    let [address, _] = addresses();
    let args =
        ["run", "--ip", &address, "--capture", file.to_str().unwrap(), "--", corners.program(), "linger"];
    let mut running = urxe(&args).spawn().unwrap();
    // The program prints this once it has sent everything.
    let mut ready = [0; 6];
    running.stdout.as_mut().unwrap().read_exact(&mut ready).unwrap();
    let deadline = Instant::now() + Duration::from_secs(10);
    while captured(&file).0 < 3 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
    }
    running.kill().unwrap();
    running.wait().unwrap();
    assert!(captured(&file).0 >= 3, "expected a SEND to the QP itself and its ACK, sent and received");
}

#[test]
fn program_under_urxe_run_uses_a_frame_link() {
    let dir = tempfile::tempdir().unwrap();
    let [a, b] = ["a", "b"].map(|name| dir.path().join(name).display().to_string());
    let server = format!("frames:dgram:{a},{b},ip=10.77.0.1/24");
    let client = format!("frames:dgram:{b},{a},ip=10.77.0.2/24");
    let printed = pingpong_between(&["--link", &server], &["--link", &client]);
    assert!(
        printed.contains("GID ::ffff:10.77.0.2") && printed.contains("GID ::ffff:10.77.0.1"),
        "{printed}"
    );
}

#[test]
fn same_seed_gives_the_same_qp_numbers() {
    // The highest 6 bits are the QPN partition, which the broker assigns at random.
    let qpn = |printed: &str| {
        let qpn = &printed.split("QPN 0x").nth(1).unwrap()[..6];
        u32::from_str_radix(qpn, 16).unwrap() & 0x3_ffff
    };
    let first = qpn(&pingpong(&["--seed", "5"]));
    assert_eq!(first, qpn(&pingpong(&["--seed", "5"])));
    assert_ne!(first, qpn(&pingpong(&["--seed", "6"])));
}
