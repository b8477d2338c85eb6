//! Tests that programs under `urxe run` see the library's devices in `/sys` and `/dev`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use urxe_test_support::programs::{self, CProgram, Running, addresses, port, text, urxe, wait_for_listener};

fn output(mut command: Command, args: &[&str]) -> Output {
    command.args(args);
    Running::new(command).finish(Duration::from_secs(30))
}

/// Runs a shell script under `urxe run` with the given options, and returns its output.
fn script(options: &[&str], script: &str) -> String {
    let out = output(urxe(&["run"]), &[options, &["--", "sh", "-c", script]].concat());
    assert!(out.status.success(), "{}", text(&out));
    text(&out)
}

/// Returns the values of a field in the output of `ibv_devinfo -v`, in order.
fn values<'a>(printed: &'a str, name: &str) -> Vec<&'a str> {
    let lines = printed.lines().filter_map(|line| line.trim_start().strip_prefix(name));
    lines.filter_map(|rest| rest.split_once(':')).map(|(_, value)| value.trim()).collect()
}

#[test]
fn rate_is_the_port_speed_of_the_personality() {
    let [address, _] = addresses();
    for (personality, rate) in [("default", "200 Gb/sec (4X HDR)"), ("mlx5", "100 Gb/sec (4X EDR)")] {
        let options = ["--ip", &address, "--personality", personality];
        let shown = script(&options, "cat /sys/class/infiniband/*/ports/1/rate");
        assert_eq!(shown.trim(), rate, "{personality}");
    }
}

#[test]
fn sysfs_files_agree_with_the_library() {
    let dir = tempfile::tempdir().unwrap();
    let [a, b] = ["a", "b"].map(|name| dir.path().join(name).display().to_string());
    let [address, _] = addresses();
    let frames = format!("frames:dgram:{a},{b},ip=10.77.0.1/24,ip=fd00::77/64");
    let udp = format!("udp:{address}");
    for (link, gids) in [(&udp, 1), (&frames, 2)] {
        let show = |file: &str| script(&["--link", link], &format!("cat /sys/class/infiniband/urxe0/{file}"));
        let printed = script(&["--link", link], "ibv_devinfo -v");
        for file in ["node_guid", "sys_image_guid", "fw_ver", "board_id"] {
            assert_eq!(values(&printed, file), [show(file).trim()], "{file}");
        }
        let state = show("ports/1/state");
        let [number, name] = state.trim().split(": ").collect::<Vec<_>>()[..] else { panic!("{state}") };
        assert_eq!(values(&printed, "state"), [format!("PORT_{name} ({number})")]);
        assert_eq!(values(&printed, "link_layer"), [show("ports/1/link_layer").trim()]);
        assert_eq!(values(&printed, "port_cap_flags")[0], show("ports/1/cap_mask").trim());
        let lanes = values(&printed, "active_width")[0].split('X').next().unwrap().to_owned();
        let speed = values(&printed, "active_speed")[0].to_owned();
        assert_eq!((show("ports/1/rate").trim(), speed.as_str()), ("200 Gb/sec (4X HDR)", "50.0 Gbps (64)"));
        assert_eq!(lanes, "4");
        let files = show("ports/1/gids/*");
        let files: Vec<u128> =
            files.lines().map(|gid| u128::from_str_radix(&gid.replace(':', ""), 16).unwrap()).collect();
        let listed = values(&printed, "GID[");
        let listed: Vec<u128> = listed
            .iter()
            .map(|gid| gid.split(',').next().unwrap().parse::<std::net::Ipv6Addr>().unwrap().to_bits())
            .collect();
        assert_eq!((files.len(), &files), (gids, &listed));
        assert_eq!(show("ports/1/gid_attrs/types/*"), "RoCE v2\n".repeat(gids));
        assert_eq!(values(&printed, "pkey_tbl_len"), [show("ports/1/pkeys/*").lines().count().to_string()]);
    }
}

#[test]
fn sysfs_and_dev_show_each_device_of_the_machine() {
    let listed = script(&[], "ibv_devices | tail -n +3 | awk '{print $1}'; echo; ls /sys/class/infiniband");
    let (library, files) = listed.split_once("\n\n").unwrap();
    assert_eq!(library, files.trim_end(), "{listed}");
    let nodes =
        script(&[], "for f in /dev/infiniband/uverbs*; do test -c $f -a -r $f -a -w $f && echo yes; done");
    assert_eq!(nodes, "yes\n".repeat(library.lines().count()));
}

#[test]
fn named_device_has_that_name_and_the_identity_of_an_mlx5_device_everywhere() {
    let [address, _] = addresses();
    let show = "ibv_devinfo; cd /sys/class/infiniband; ls; cat */device/vendor */device/device */hca_type; \
                cat /sys/class/infiniband_verbs/uverbs0/ibdev; ls */device/net";
    let printed = script(&["--ip", &address, "--name", "mlx5_3"], show);
    for field in ["hca_id:\tmlx5_3\n", "vendor_id:\t\t\t0x02c9\n", "vendor_part_id:\t\t\t4119\n"] {
        assert!(printed.contains(field), "{field}: {printed}");
    }
    assert!(printed.ends_with("mlx5_3\n0x15b3\n0x1017\nMT4119\nmlx5_3\nlo\n"), "{printed}");
    // By default a device claims no vendor, and the personality alone names no device.
    let printed = script(&["--ip", &address], show);
    assert!(printed.contains("vendor_id:\t\t\t0xffffff\n"), "{printed}");
    assert!(printed.ends_with("urxe0\n0xffff\n0x0000\nurxe\nurxe0\nlo\n"), "{printed}");
    let printed = script(&["--ip", &address, "--personality", "mlx5"], show);
    assert!(printed.ends_with("urxe0\n0x15b3\n0x1017\nMT4119\nurxe0\nlo\n"), "{printed}");
}

#[test]
fn pci_function_is_found_by_each_path_that_programs_follow() {
    let [address, _] = addresses();
    // By the link as text, by its target, by the address, and as NCCL walks from the bus to the function.
    let show = r#"
        device=$(readlink -f /sys/class/infiniband/mlx5_0/device) && echo $device | grep -o '^/sys/devices/pci0000:..'
        function=${device##*/}; bus=${function%:*}
        for directory in /sys/class/infiniband/mlx5_0/device "$device" /sys/bus/pci/devices/$function             /sys/class/pci_bus/$bus/../../$function /sys/class/infiniband_verbs/uverbs0/device; do
            echo $(cat $directory/class $directory/current_link_speed $directory/current_link_width) $(ls $directory/infiniband)
        done
        grep -c "PCI_SLOT_NAME=$function" $device/uevent
        test -e /sys/bus/pci/devices/0000:00:00.1 || echo absent
    "#;
    let printed = script(&["--ip", &address, "--name", "mlx5_0"], show);
    let lines: Vec<&str> = printed.lines().collect();
    assert!(lines[0].starts_with("/sys/devices/pci0000:"), "{printed}");
    assert_eq!(lines[1..6], ["0x020000 16.0 GT/s PCIe 16 mlx5_0"; 5], "{printed}");
    assert_eq!(lines[6..], ["1", "absent"], "{printed}");
}

#[test]
fn name_of_a_device_is_passed_to_the_library_and_an_invalid_one_is_refused() {
    let [address, _] = addresses();
    let printed = text(&output(urxe(&["env"]), &["--ip", &address, "--name", "mlx5_0"]));
    assert!(printed.contains("export URXE_NAME='mlx5_0'\n"), "{printed}");
    let printed = text(&output(urxe(&["env"]), &["--ip", &address]));
    assert!(printed.contains("unset URXE_NAME\n"), "{printed}");
    let out = output(urxe(&["run"]), &["--ip", &address, "--name", "mlx5", "--", "true"]);
    assert!(out.status.success(), "a prefix that ends in a digit: {}", text(&out));
    for (name, reason) in [("mlx", "ends in the number of the first device"), ("mlx5/0", "but '/' is in it")]
    {
        let out = output(urxe(&["run"]), &["--ip", &address, "--name", name, "--", "true"]);
        assert!(!out.status.success() && text(&out).contains(reason), "{}", text(&out));
        let command = format!("URXE_NAME={name} ibv_devices");
        let out = output(urxe(&["run"]), &["--ip", &address, "--", "sh", "-c", &command]);
        assert!(text(&out).contains("urxe: URXE_NAME is") && text(&out).contains(reason), "{}", text(&out));
    }
}

#[test]
fn library_reports_its_sysfs_path() {
    let [address, _] = addresses();
    let query = "python3 -c 'import ctypes as c; v = c.CDLL(\"libibverbs.so.1\"); v.ibv_get_sysfs_path.restype = c.c_char_p; \
               print(v.ibv_get_sysfs_path().decode())'; echo $URXE_SYSFS";
    let printed = script(&["--ip", &address], query);
    let lines: Vec<_> = printed.lines().collect();
    assert!(lines.len() == 2 && lines[0] == lines[1] && lines[0].contains("/sysfs-"), "{printed}");
}

#[test]
fn preload_libraries_are_added_once_after_existing_ones() {
    let [address, _] = addresses();
    let mut command = urxe(&["run", "--ip", &address, "--", "sh", "-c"]);
    // Every machine has libm, and the loader finds it without a path.
    command.env("LD_PRELOAD", "libm.so.6 libdl.so.2");
    let nested = "\"$0\" run -- sh -c 'echo $LD_PRELOAD; echo $ASAN_OPTIONS'";
    let out = output(command, &[nested, programs::built("urxe").unwrap().to_str().unwrap()]);
    let printed = text(&out);
    let lines: Vec<_> = printed.lines().collect();
    let preloaded: Vec<_> = lines[0].split(':').collect();
    assert_eq!(preloaded[..2], ["libm.so.6", "libdl.so.2"], "{printed}");
    assert!(preloaded.len() == 4 && preloaded[2].ends_with("/liburxe_preload.so"), "{printed}");
    assert!(preloaded[3].ends_with("/liburxe_verbs.so"), "{printed}");
    assert_eq!(lines[1..], ["verify_asan_link_order=0"], "{printed}");
}

#[test]
fn program_with_address_sanitizer_runs_under_urxe_run() {
    let dir = tempfile::tempdir().unwrap();
    let (source, program) = (dir.path().join("checked.c"), dir.path().join("checked"));
    let text_of =
        "#include <unistd.h>\nint main(void) { return access(\"/dev/infiniband/uverbs0\", R_OK | W_OK); }\n";
    fs::write(&source, text_of).unwrap();
    let built =
        Command::new("cc").args(["-fsanitize=address", "-o"]).arg(&program).arg(&source).output().unwrap();
    assert!(built.status.success(), "{}", text(&built));
    let [address, _] = addresses();
    let out = output(urxe(&["run", "--ip", &address, "--"]), &[program.to_str().unwrap()]);
    assert!(out.status.success() && text(&out).is_empty(), "{:?} {}", out.status, text(&out));
}

#[test]
fn run_fails_if_ld_preload_cannot_name_the_runtime_directory() {
    let dir = tempfile::tempdir().unwrap();
    for (name, reason) in
        [("with space".to_owned(), "space or a colon"), ("d".repeat(220), "exceeds the limit")]
    {
        let inside = dir.path().join(name);
        fs::create_dir(&inside).unwrap();
        fs::set_permissions(&inside, fs::Permissions::from_mode(0o700)).unwrap();
        let mut command = urxe(&["run"]);
        command.env("XDG_RUNTIME_DIR", &inside);
        let out = output(command, &["--", "true"]);
        let printed = text(&out);
        assert!(
            out.status.code() == Some(126) && printed.contains(reason) && printed.lines().count() == 1,
            "{printed}"
        );
    }
}

/// Options of `urxe run`, with a runtime directory in which no other program has written congestion
/// parameters.
struct View<'a> {
    directory: tempfile::TempDir,
    options: &'a [&'a str],
}

impl View<'_> {
    fn new<'a>(options: &'a [&'a str]) -> View<'a> {
        View { directory: tempfile::tempdir().unwrap(), options }
    }

    fn run(&self, program: &[&str]) -> Command {
        let mut command = urxe(&[&["run"], self.options, &["--"], program].concat());
        command.env("XDG_RUNTIME_DIR", self.directory.path());
        command
    }

    /// Runs a shell script with the given `$1`. It must succeed.
    fn script(&self, script: &str, argument: &str) -> Output {
        let command = self.run(&["sh", "-c", script, "sh", argument]);
        let out = Running::new(command).finish(Duration::from_secs(50));
        assert!(out.status.success(), "{:?} {}", out.status, text(&out));
        out
    }
}

#[test]
fn congestion_parameters_are_written_under_both_names_and_values_out_of_range_are_restored() {
    const SCRIPT: &str = r#"
        debugfs=$(echo /sys/kernel/debug/mlx5/*/cc_params/rp_ai_rate)
        cd /sys/class/net/lo/ecn/roce_rp || exit 3
        wait_for() { until [ "$(cat rpg_ai_rate)" = "$1" ]; do sleep 0.02; done; }
        echo 20 >rpg_ai_rate && cat "$debugfs"
        # A program that ends at once.
        echo 0 >"$debugfs" && ibv_devinfo >/dev/null && cat rpg_ai_rate

        echo 20 >rpg_ai_rate
        "$1" linger >"$XDG_RUNTIME_DIR/out" & program=$!
        until grep -q ready "$XDG_RUNTIME_DIR/out"; do sleep 0.02; done
        echo 0 >"$debugfs" && wait_for 20
        # The program writes the number as soon as it has read it.
        echo +30 >"$debugfs" && wait_for 30
        echo 1000001 >rpg_ai_rate && wait_for 30
        kill $program
        cat "$debugfs"
    "#;
    let [address, _] = addresses();
    let options = ["--ip", &address, "--name", "mlx5_0", "--congestion", "dcqcn"];
    let (view, corners) = (View::new(&options), CProgram::build("corners"));
    let out = view.script(SCRIPT, corners.program());
    assert_eq!(String::from_utf8_lossy(&out.stdout), "20\n5\n30\n", "{}", text(&out));
    let printed = String::from_utf8_lossy(&out.stderr);
    let warnings: Vec<_> = printed.lines().filter(|line| line.contains("rpg_ai_rate")).collect();
    let expected = [("0", 5), ("0", 20), ("1000001", 30)].map(|(value, remaining)| {
        format!(
            "urxe: mlx5_0: rpg_ai_rate is '{value}': give a number from 1 to 1000000; {remaining} remains"
        )
    });
    assert_eq!(warnings, expected);
    let printed = view.script("cat /sys/class/net/lo/ecn/roce_rp/rpg_ai_rate", "").stdout;
    assert_eq!(printed, b"30\n", "the value outlives the programs");
}

#[test]
fn minimum_time_between_cnps_changes_in_a_running_program_and_in_one_that_starts_later() {
    /// Number of CNPs for which the initial interval, 4095 µs, would be too long.
    const CNPS: u32 = 10_000;
    const LIMIT: Duration = Duration::from_millis(4 * CNPS as u64);
    let [server, client] = addresses();
    let options =
        ["--ip", &server, "--fault", "rx:mark=p:1", "--congestion", "loss-driven,min_time_between_cnps=4095"];
    let view = View::new(&options);
    let cnps = || -> u32 {
        let out = view.script("cat /sys/class/infiniband/urxe0/ports/1/hw_counters/np_cnp_sent", "");
        String::from_utf8_lossy(&out.stdout).trim().parse().unwrap()
    };
    let wait_until = |at_least: u32| {
        let begin = Instant::now();
        while cnps() < at_least {
            assert!(begin.elapsed() < LIMIT, "{} of {at_least} CNPs", cnps());
        }
    };
    for is_running in [true, false] {
        let port = port().to_string();
        let program = ["ib_write_bw", "-x", "0", "--run_infinitely", "-p", &port];
        let _receiver = Running::new(view.run(&program));
        wait_for_listener(&port);
        let run = ["run", "--ip", &client, "--min-ack-timeout", "20", "--"];
        let command = urxe(&[&run[..], &program[..], &["127.0.0.1"]].concat());
        let _sender = Running::new(command);
        if is_running {
            wait_until(cnps() + 1);
            view.script("echo 0 >/sys/class/net/lo/ecn/roce_np/min_time_between_cnps", "");
        }
        wait_until(cnps() + CNPS);
    }
}
