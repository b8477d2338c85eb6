//! Port counters in sysfs, under the names that the kernel and its mlx5 and rxe drivers use.

use super::Counters;
use crate::link::LinkCounters;

/// Directory of the counters that the InfiniBand specification defines for every port.
const PORT: &str = "counters";
/// Directory of the device's own counters.
const HW: &str = "hw_counters";

/// Interval in milliseconds between publications of a process's counters, the `lifespan` of mlx5.
pub const PUBLISHING_INTERVAL_MS: u64 = 200;

/// Port counters of the InfiniBand specification, each with the NIC and link counters that it sums.
const PORT_SUMS: [(&str, &[&str]); 8] = [
    ("excessive_buffer_overrun_errors", &["link_rx_overflow"]),
    ("multicast_rcv_packets", &["rcvd_mcast_pkts"]),
    ("multicast_xmit_packets", &["sent_mcast_pkts"]),
    ("port_rcv_constraint_errors", &["rx_pkey_violation"]),
    (
        "port_rcv_errors",
        &[
            "rx_icrc_err",
            "rx_truncated",
            "rx_bad_pad",
            "rx_bad_version",
            "rx_reserved_opcode",
            "link_rx_roce_v1_corrupt",
            "link_rx_truncated",
            "link_rx_bad_checksum",
            "link_rx_malformed",
        ],
    ),
    ("port_rcv_packets", &["rcvd_pkts"]),
    (
        "port_xmit_discards",
        &[
            "link_tx_dropped",
            "link_tx_oversized",
            "link_tx_unreachable",
            "link_tx_unresolved",
            "link_tx_no_ring",
        ],
    ),
    ("port_xmit_packets", &["sent_pkts"]),
];

/// Counters that the kernel's drivers name differently, each with the NIC and link counters that it sums.
const HW_SUMS: [(&str, &[&str]); 8] = [
    ("completer_retry_err", &["requester_retry"]),
    ("out_of_buffer", &["send_rnr_err", "rx_no_receive"]),
    ("out_of_sequence", &["out_of_seq_request"]),
    ("packet_seq_err", &["rcvd_seq_err"]),
    ("resp_remote_access_errors", &["resp_remote_access_err"]),
    ("rnr_nak_retry_err", &["rcvd_rnr_err"]),
    ("rx_icrc_encapsulated", &["rx_icrc_err"]),
    ("send_err", &["link_tx_dropped"]),
];

/// Counters of events that cannot occur, because there are no virtual lanes, no physical layer and no switch.
const PORT_ZEROS: &str = "VL15_dropped link_downed link_error_recovery local_link_integrity_errors \
    port_rcv_remote_physical_errors port_rcv_switch_relay_errors port_xmit_constraint_errors \
    port_xmit_wait symbol_error";
/// Counters of the kernel's drivers for events that cannot occur either.
const HW_ZEROS: &str = "ack_deferred link_downed roce_adp_retrans roce_adp_retrans_to roce_slow_restart \
    roce_slow_restart_cnps roce_slow_restart_trans";

/// Returns the paths of the counter files, relative to the port's directory in sysfs, and their values.
/// `total` returns a counter by its name in [`Counters::iter`] or [`LinkCounters::iter`].
pub fn port_counter_files(total: impl Fn(&str) -> u64) -> Vec<(String, u64)> {
    let sum = |names: &[&str]| names.iter().map(|name| total(name)).sum();
    let mut files: Vec<(String, u64)> = Vec::new();
    let mut add =
        |directory: &str, name: &str, value: u64| files.push((format!("{directory}/{name}"), value));
    PORT_ZEROS.split(' ').for_each(|name| add(PORT, name, 0));
    HW_ZEROS.split(' ').for_each(|name| add(HW, name, 0));
    PORT_SUMS.iter().for_each(|(name, of)| add(PORT, name, sum(of)));
    // The InfiniBand specification counts data in units of 4 bytes.
    add(PORT, "port_xmit_data", total("sent_bytes") / 4);
    add(PORT, "port_rcv_data", total("rcvd_bytes") / 4);
    let unicast = |all, multicast| total(all).saturating_sub(total(multicast));
    add(PORT, "unicast_xmit_packets", unicast("sent_pkts", "sent_mcast_pkts"));
    add(PORT, "unicast_rcv_packets", unicast("rcvd_pkts", "rcvd_mcast_pkts"));
    HW_SUMS.iter().for_each(|(name, of)| add(HW, name, sum(of)));
    add(HW, "lifespan", PUBLISHING_INTERVAL_MS);
    let own = Counters::default();
    // `HW_SUMS` contains it under another name.
    let own = own.iter().filter(|(name, _)| *name != "resp_remote_access_err");
    own.for_each(|(name, _)| add(HW, name, total(name)));
    LinkCounters::default().iter().for_each(|(name, _)| add(HW, name, total(name)));
    files
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn names() -> BTreeSet<&'static str> {
        Counters::default().iter().chain(LinkCounters::default().iter()).map(|(name, _)| name).collect()
    }

    #[test]
    fn every_file_is_listed_once_and_every_sum_is_of_existing_counters() {
        let known = names();
        let files = port_counter_files(|name| {
            assert!(known.contains(name), "{name}");
            0
        });
        let unique: BTreeSet<&String> = files.iter().map(|(name, _)| name).collect();
        assert_eq!(unique.len(), files.len());
    }

    #[test]
    fn data_counts_in_words_and_unicast_excludes_multicast() {
        let files = port_counter_files(|name| match name {
            "sent_bytes" => 4096,
            "sent_pkts" => 10,
            "sent_mcast_pkts" => 3,
            "rx_icrc_err" | "rx_truncated" => 1,
            "rx_write_requests" => 7,
            _ => 0,
        });
        let value = |file: &str| files.iter().find(|(name, _)| name == file).unwrap().1;
        assert_eq!(value("counters/port_xmit_data"), 1024);
        assert_eq!(value("counters/port_xmit_packets"), 10);
        assert_eq!(value("counters/multicast_xmit_packets"), 3);
        assert_eq!(value("counters/unicast_xmit_packets"), 7);
        assert_eq!(value("counters/port_rcv_errors"), 2);
        assert_eq!(value("hw_counters/rx_write_requests"), 7);
        assert_eq!(value("hw_counters/rx_icrc_encapsulated"), 1);
    }
}
