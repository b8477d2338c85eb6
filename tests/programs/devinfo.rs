//! Tests that `urxe devinfo` agrees with `ibv_devinfo -v` on the same device, and that programs can use each
//! GID of an interface.

use std::process::Command;
use std::time::{Duration, Instant};

use urxe_test_support::netns::{self, Veth};
use urxe_test_support::programs::{Library, Running, addresses, built, port, text};

/// Parses the output of `ibv_devinfo -v` into fields, each listed once. Flags, which are on separate lines,
/// are appended to the value of their field.
fn ibv_devinfo_fields(printed: &str) -> Vec<(String, String)> {
    let mut fields: Vec<(String, String)> = Vec::new();
    for line in printed.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let field = match line.split_once(':') {
            _ if line.starts_with("tag matching ") => ("tag matching", &line["tag matching ".len()..]),
            Some(("Unknown flags", _)) | None => {
                let value = &mut fields.last_mut().expect("flags before the first field").1;
                *value = format!("{value} {line}").trim().to_owned();
                continue;
            }
            Some((name, value)) => (name, value.trim()),
        };
        fields.push((field.0.to_owned(), field.1.to_owned()));
    }
    fields
}

/// Returns the value of a field in the output of `urxe devinfo`, in which a padded name precedes the value. A
/// name of several words may fill the padding.
fn urxe_devinfo_value<'a>(printed: &'a str, name: &str) -> Option<&'a str> {
    printed.lines().find_map(|line| {
        let rest = line.strip_prefix("  ")?.strip_prefix(name)?;
        (rest.is_empty() || rest.starts_with(' ')).then(|| rest.trim())
    })
}

fn output_of(mut command: Command) -> String {
    let out = command.output().unwrap_or_else(|e| panic!("{command:?}: {e} (apt-get install ibverbs-utils)"));
    assert!(out.status.success(), "{command:?}: {}", text(&out));
    String::from_utf8(out.stdout).unwrap()
}

fn assert_agree(theirs: &str, ours: &str) {
    let fields = ibv_devinfo_fields(theirs);
    assert!(fields.len() > 80, "{theirs}");
    for (name, value) in fields {
        assert_eq!(urxe_devinfo_value(ours, &name), Some(value.as_str()), "{name}\n{ours}");
    }
}

#[test]
fn urxe_devinfo_and_ibv_devinfo_agree_on_the_attributes_of_a_link() {
    let library = Library::new();
    let [address, _] = addresses();
    let dir = tempfile::tempdir().unwrap();
    let [a, b] = ["a", "b"].map(|name| dir.path().join(name).display().to_string());
    for link in [format!("udp:{address}"), format!("frames:dgram:{a},{b},ip=10.77.0.1/24,ip=fd00::1/64")] {
        let mut theirs = Command::new("ibv_devinfo");
        theirs.arg("-v").env("LD_LIBRARY_PATH", library.path()).env("URXE_LINK", &link);
        let mut ours = Command::new(built("urxe").expect("urxe is not built: run cargo build"));
        ours.args(["devinfo", "--link", &link]);
        assert_agree(&output_of(theirs), &output_of(ours));
    }
}

/// Returns the command that runs a program in one of the network namespaces.
fn command_in(net: &Veth, side: usize, program: &str) -> Command {
    net.sides[side].command(program)
}

/// Returns the GIDs that `ibv_devinfo` lists in a namespace. Waits until the kernel has assigned the
/// interface's link-local address.
fn gids(net: &Veth, library: &Library, side: usize) -> Vec<String> {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let mut command = command_in(net, side, "ibv_devinfo");
        command.arg("-v").env("LD_LIBRARY_PATH", library.path());
        let gids: Vec<String> = ibv_devinfo_fields(&output_of(command))
            .into_iter()
            .filter(|(name, _)| name.starts_with("GID["))
            .map(|(_, value)| value.split_once(',').unwrap().0.to_owned())
            .collect();
        if gids[0].starts_with("fe80:") {
            return gids;
        }
        assert!(Instant::now() < deadline, "{gids:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn device_has_a_gid_for_each_address_of_its_interface_in_both_programs() {
    if !netns::is_available() {
        return;
    }
    let (library, net) = (Library::new(), Veth::new(1500));
    assert_eq!(gids(&net, &library, 0)[1..], ["::ffff:10.77.0.1", "fd77::1"]);
    let mut theirs = command_in(&net, 0, "ibv_devinfo");
    theirs.arg("-v").env("LD_LIBRARY_PATH", library.path());
    let mut ours = command_in(&net, 0, built("urxe").unwrap().to_str().unwrap());
    ours.args(["devinfo", "-v"]);
    let (theirs, ours) = (output_of(theirs), output_of(ours));
    assert!(ours.starts_with("udp:v0\n"), "{ours}");
    assert_agree(&theirs, ours.split("\n\n").next().unwrap());
    let mut list = command_in(&net, 0, built("urxe").unwrap().to_str().unwrap());
    list.arg("devinfo");
    let list = output_of(list);
    assert!(list.lines().nth(1).unwrap().starts_with("urxe0  udp:v0 "), "{list}");
    assert!(!list.contains("urxe1"), "{list}");
}

#[test]
fn pingpong_succeeds_over_each_gid() {
    if !netns::is_available() {
        return;
    }
    let (library, net) = (Library::new(), Veth::new(1500));
    (0..2).for_each(|side| drop(gids(&net, &library, side)));
    for (program, gid, events) in [
        ("ibv_rc_pingpong", "0", false),
        ("ibv_rc_pingpong", "0", true),
        ("ibv_rc_pingpong", "1", false),
        ("ibv_rc_pingpong", "2", true),
        ("ibv_ud_pingpong", "0", false),
        ("ibv_ud_pingpong", "1", true),
    ] {
        let port = port().to_string();
        let command = |side| {
            let mut command = command_in(&net, side, program);
            command.args(["-g", gid, "-p", &port, "-n", "200"]).args(events.then_some("-e"));
            command.env("LD_LIBRARY_PATH", library.path());
            command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
            command
        };
        let serving = Running::new(command(0));
        wait_for_listener(&net, &port);
        let mut client = command(1);
        client.arg("10.77.0.1");
        let client = Running::new(client).finish(Duration::from_secs(30));
        let server = serving.finish(Duration::from_secs(10));
        let printed = format!("client:\n{}server:\n{}", text(&client), text(&server));
        assert!(client.status.success() && server.status.success(), "{program} -g {gid}: {printed}");
        if gid == "0" {
            assert_eq!(printed.matches("GID fe80:").count(), 4, "{printed}");
        }
    }
}

/// Waits until a server in the first namespace listens, because clients do not retry.
fn wait_for_listener(net: &Veth, port: &str) {
    let deadline = Instant::now() + Duration::from_secs(10);
    let listens = || {
        let mut list = command_in(net, 0, "cat");
        list.args(["/proc/net/tcp", "/proc/net/tcp6"]);
        let hex = format!(":{:04X} ", port.parse::<u16>().unwrap());
        output_of(list).lines().any(|line| line.contains(&hex) && line.contains(" 0A "))
    };
    while !listens() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(10));
    }
}
