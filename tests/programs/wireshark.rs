//! Tests of the Wireshark profile and its script (`packaging/wireshark`), installed as docs/guide/captures.md says.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use urxe::wire::{HeaderSet, Opcode};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Home directory with the profile, and with the script if `has_script`.
fn home(has_script: bool) -> tempfile::TempDir {
    let home = tempfile::tempdir().unwrap();
    let from = root().join("packaging/wireshark/urxe");
    let install = |name: &str, to: &str| {
        let to = home.path().join(to);
        fs::create_dir_all(&to).unwrap();
        fs::copy(from.join(name), to.join(name)).unwrap();
    };
    install("preferences", ".config/wireshark/profiles/urxe");
    install("colorfilters", ".config/wireshark/profiles/urxe");
    if has_script {
        install("urxe.lua", ".local/lib/wireshark/plugins");
    }
    home
}

/// Returns the lines that tshark prints for a capture of `pcaps/` with the profile.
///
/// # Panics
/// If tshark fails or warns.
fn tshark(home: &Path, capture: &str, options: &[&str]) -> Vec<String> {
    let mut command = Command::new("tshark");
    command.env("HOME", home).env_remove("XDG_CONFIG_HOME").env_remove("WIRESHARK_CONFIG_DIR");
    command.args(["-C", "urxe", "-r"]).arg(root().join("pcaps").join(capture)).args(options);
    let out = command.output().unwrap_or_else(|e| panic!("{command:?}: {e} (tests/install programs)"));
    let errors = String::from_utf8_lossy(&out.stderr);
    let warnings: Vec<&str> = errors.lines().filter(|line| !line.starts_with("Running as user")).collect();
    assert!(out.status.success() && warnings.is_empty(), "{command:?}: {errors}");
    String::from_utf8(out.stdout).unwrap().lines().map(String::from).collect()
}

/// Returns the values of the fields, separated by tabs, of the packets that match `filter`.
fn values(home: &Path, capture: &str, filter: &str, names: &[&str]) -> Vec<String> {
    let mut options = vec!["--color", "-Y", filter, "-T", "fields"];
    options.extend(names.iter().flat_map(|name| ["-e", name]));
    tshark(home, capture, &options)
}

#[test]
fn script_decodes_flush_atomic_write_and_xrc() {
    let home = home(true);
    let reth = ["infiniband.reth.va", "infiniband.reth.r_key", "infiniband.reth.dmalen"];
    for ip in ["v4", "v6"] {
        let (memory, xrc) = (format!("own/rc_memory_{ip}.pcapng"), format!("own/xrc_{ip}.pcapng"));
        let feth = ["urxe.feth.placement", "urxe.feth.selectivity"];
        assert_eq!(
            values(home.path(), &memory, "infiniband.bth.opcode == 0x1c", &[&feth[..], &reth].concat()),
            [
                "0x00000001\t0\t0x0000000010000000\t0x626b584f\t600",
                "0x00000002\t0\t0x0000000010000000\t0x626b584f\t600",
                "0x00000003\t0\t0x0000000010000000\t0x626b584f\t600",
                "0x00000001\t1\t0x0000000010000000\t0x626b584f\t0",
            ]
        );
        let write = ["urxe.opcode", "urxe.atomic_write.data"];
        assert_eq!(
            values(home.path(), &memory, "urxe.atomic_write.data", &[&write[..], &reth].concat()),
            ["RC ATOMIC WRITE\t616c6c206f662038\t0x0000000010000040\t0x626b584f\t8"]
        );
        let swap = ["urxe.xrceth.srq", "infiniband.atomiceth.swapdt", "infiniband.atomiceth.cmpdt"];
        assert_eq!(
            values(home.path(), &xrc, "infiniband.bth.opcode == 0xb3", &swap),
            ["0x010000\t72623859790382856\t9223372036854775808"]
        );
        let nak = ["infiniband.aeth.syndrome.error_code", "infiniband.aeth.msn"];
        assert_eq!(values(home.path(), &xrc, "infiniband.aeth.syndrome.opcode == 3", &nak), ["2\t23"]);
    }
}

#[test]
fn script_shows_the_name_and_the_headers_of_each_opcode_that_wireshark_does_not_decode() {
    let headers = [
        (HeaderSet::XRCETH, "urxe.xrceth.srq"),
        (HeaderSet::FETH, "urxe.feth.placement"),
        (HeaderSet::RETH, "infiniband.reth.dmalen"),
        (HeaderSet::ATOMIC, "infiniband.atomiceth.swapdt"),
        (HeaderSet::AETH, "infiniband.aeth.msn"),
        (HeaderSet::ATOMIC_ACK, "infiniband.atomicacketh.origremdt"),
        (HeaderSet::IMMDT, "infiniband.immdt"),
        (HeaderSet::IETH, "infiniband.ieth"),
    ];
    let mut fields = vec!["infiniband.bth.opcode", "urxe.opcode", "_ws.col.Info"];
    fields.extend(headers.map(|(_, field)| field));
    let home = home(true);
    let mut seen = BTreeSet::new();
    for capture in ["own/rc_memory_v4.pcapng", "own/xrc_v4.pcapng"] {
        for line in values(home.path(), capture, "infiniband.vendor", &fields) {
            let columns: Vec<&str> = line.split('\t').collect();
            let opcode = Opcode(columns[0].parse().unwrap());
            assert_eq!(columns[1], opcode.to_string());
            assert!(columns[2].starts_with(&format!("{opcode} QP=0x")), "{line}");
            for ((header, field), value) in headers.iter().zip(&columns[3..]) {
                assert_eq!(!value.is_empty(), opcode.row().headers.contains(*header), "{field} of {opcode}");
            }
            seen.insert(opcode.0);
        }
    }
    // FLUSH and ATOMIC WRITE of RC, and all of XRC.
    assert_eq!(seen.len(), 2 + 25, "{seen:x?}");
}

#[test]
fn columns_of_the_profile_show_sequence_numbers_and_syndromes() {
    let home = home(true);
    let lines = tshark(home.path(), "own/xrc_v4.pcapng", &["-Y", "frame.number in {57, 58}"]);
    let words: Vec<Vec<&str>> = lines.iter().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(
        words[0][5..],
        ["0xd6e1b8", "164", "154851", "56", "XRC", "SEND", "Only", "QP=0xd6e1b8", "SRQ=0x010000"]
    );
    assert_eq!(
        words[1][5..],
        [
            "0x1176b6",
            "177",
            "154851",
            "22",
            "RNR",
            "Nak,0.64",
            "ms",
            "48",
            "XRC",
            "Acknowledge",
            "QP=0x1176b6"
        ]
    );
}

#[test]
fn colour_rules_of_the_profile_match_their_packets() {
    let home = home(true);
    for (capture, rules) in [
        ("own/xrc_v6.pcapng", &[("NAK", 1), ("RNR NAK", 1), ("ACK", 18), ("READ response", 7)][..]),
        ("broken/congestion-cnp-ignored.client.pcapng", &[("CNP", 36), ("NAK", 0)]),
        ("broken/wrong-icrc.server.pcapng", &[("Wrong ICRC", 1), ("NAK", 1)]),
        ("cm_rping.pcap", &[("Connection manager", 5), ("Wrong ICRC", 0)]),
    ] {
        let lines = values(home.path(), capture, "infiniband", &["frame.coloring_rule.name"]);
        for (rule, count) in rules {
            let found = lines.iter().filter(|line| line == rule).count();
            assert_eq!(found, *count, "{rule} in {capture}");
        }
    }
}

#[test]
fn script_finds_exactly_the_wrong_icrcs() {
    let home = home(true);
    for (capture, wrong) in [
        ("own/xrc_v4.pcapng", 0),
        ("own/ud_v6.pcapng", 0),
        ("rc_padding.pcap", 0),
        ("broken/peer-silent-roce-v1.pcapng", 0),
        ("broken/wrong-icrc.server.pcapng", 1),
        ("broken/wrong-icrc-flush.server.pcapng", 3),
    ] {
        let lines = values(home.path(), capture, "infiniband", &["urxe.icrc.status"]);
        let count = |status: &str| lines.iter().filter(|line| *line == status).count();
        assert!(lines.len() > wrong, "{capture}");
        assert_eq!((count("1"), count("0")), (lines.len() - wrong, wrong), "{capture}");
    }
}

#[test]
fn profile_without_the_script_loads_without_a_warning() {
    let home = home(false);
    let lines = values(home.path(), "rc_pingpong.pcap", "infiniband", &["frame.coloring_rule.name"]);
    assert!(lines.iter().any(|line| line == "ACK"), "{lines:?}");
    assert!(!tshark(home.path(), "own/xrc_v4.pcapng", &[]).is_empty());
}
