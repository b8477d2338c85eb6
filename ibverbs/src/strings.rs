//! Names of enumeration values, rate conversions, and access to sysfs files.

use std::ffi::{CStr, c_char, c_int};

export! {
    "IBVERBS_1.0":
        ibv_get_sysfs_path = get_sysfs_path,
        ibv_read_sysfs_file = read_sysfs_file,
        ibv_rate_to_mult = rate_to_mult,
        mult_to_ibv_rate = mult_to_rate;
    "IBVERBS_1.1":
        ibv_node_type_str = node_type_str,
        ibv_port_state_str = port_state_str,
        ibv_event_type_str = event_type_str,
        ibv_wc_status_str = wc_status_str,
        ibv_rate_to_mbps = rate_to_mbps,
        mbps_to_ibv_rate = mbps_to_rate;
}

/// Returns the name of `number`, or `other` if `number` is not in the table.
fn name(names: &[&'static CStr], number: c_int, other: &'static CStr) -> *const c_char {
    usize::try_from(number).ok().and_then(|i| names.get(i)).unwrap_or(&other).as_ptr()
}

extern "C" fn node_type_str(number: c_int) -> *const c_char {
    const NAMES: [&CStr; 8] = [
        c"unknown",
        c"InfiniBand channel adapter",
        c"InfiniBand switch",
        c"InfiniBand router",
        c"iWARP NIC",
        c"usNIC",
        c"usNIC UDP",
        c"unspecified",
    ];
    name(&NAMES, number, c"unknown")
}

/// Returns the name of an `enum ibv_wr_opcode` value, as release 56 and later do.
pub(crate) extern "C" fn wr_opcode_str(number: c_int) -> *const c_char {
    const NAMES: [&CStr; 16] = [
        c"rdma-write",
        c"rdma-write-with-imm",
        c"send",
        c"send-with-imm",
        c"rdma-read",
        c"atomic-cmp-and-swp",
        c"atomic-fetch-and-add",
        c"local-inv",
        c"bind-mw",
        c"send-with-inv",
        c"tso",
        c"driver1",
        c"unknown",
        c"unknown",
        c"flush",
        c"atomic-write",
    ];
    name(&NAMES, number, c"unknown")
}

extern "C" fn port_state_str(number: c_int) -> *const c_char {
    const NAMES: [&CStr; 6] =
        [c"no state change (NOP)", c"DOWN", c"INIT", c"ARMED", c"ACTIVE", c"ACTIVE_DEFER"];
    name(&NAMES, number, c"unknown")
}

extern "C" fn event_type_str(number: c_int) -> *const c_char {
    const NAMES: [&CStr; 21] = [
        c"CQ error",
        c"local work queue catastrophic error",
        c"invalid request local work queue error",
        c"local access violation work queue error",
        c"communication established",
        c"send queue drained",
        c"path migrated",
        c"path migration request error",
        c"local catastrophic error",
        c"port active",
        c"port error",
        c"LID change",
        c"P_Key change",
        c"SM change",
        c"SRQ catastrophic error",
        c"SRQ limit reached",
        c"last WQE reached",
        c"client reregistration",
        c"GID table change",
        c"WQ fatal",
        c"Device link speed change",
    ];
    name(&NAMES, number, c"unknown")
}

extern "C" fn wc_status_str(number: c_int) -> *const c_char {
    const NAMES: [&CStr; 24] = [
        c"success",
        c"local length error",
        c"local QP operation error",
        c"local EE context operation error",
        c"local protection error",
        c"Work Request Flushed Error",
        c"memory management operation error",
        c"bad response error",
        c"local access error",
        c"remote invalid request error",
        c"remote access error",
        c"remote operation error",
        c"transport retry counter exceeded",
        c"RNR retry counter exceeded",
        c"local RDD violation error",
        c"remote invalid RD request",
        c"aborted error",
        c"invalid EE context number",
        c"invalid EE context state",
        c"fatal error",
        c"response timeout error",
        c"general error",
        c"TM error",
        c"TM software rendezvous",
    ];
    name(&NAMES, number, c"unknown")
}

/// Each `enum ibv_rate` value with its multiple of 2.5 Gb/s, if that is an integer, and its rate in Mb/s.
const RATES: [(c_int, Option<c_int>, c_int); 23] = [
    (2, Some(1), 2_500),
    (5, Some(2), 5_000),
    (3, Some(4), 10_000),
    (6, Some(8), 20_000),
    (4, Some(12), 30_000),
    (7, Some(16), 40_000),
    (8, Some(24), 60_000),
    (9, Some(32), 80_000),
    (10, Some(48), 120_000),
    (11, None, 14_062),
    (12, None, 56_250),
    (13, None, 112_500),
    (14, None, 168_750),
    (15, None, 25_781),
    (16, None, 103_125),
    (17, None, 206_250),
    (18, None, 309_375),
    (19, Some(11), 28_125),
    (20, Some(20), 53_125),
    (21, Some(160), 425_000),
    (22, Some(240), 637_500),
    (23, Some(320), 850_000),
    (24, Some(480), 1_275_000),
];

extern "C" fn rate_to_mult(rate: c_int) -> c_int {
    RATES.iter().find(|r| r.0 == rate).and_then(|r| r.1).unwrap_or(-1)
}

extern "C" fn mult_to_rate(mult: c_int) -> c_int {
    RATES.iter().find(|r| r.1 == Some(mult)).map_or(0, |r| r.0)
}

extern "C" fn rate_to_mbps(rate: c_int) -> c_int {
    RATES.iter().find(|r| r.0 == rate).map_or(-1, |r| r.2)
}

extern "C" fn mbps_to_rate(mbps: c_int) -> c_int {
    RATES.iter().find(|r| r.2 == mbps).map_or(0, |r| r.0)
}

extern "C" fn get_sysfs_path() -> *const c_char {
    static PATH: std::sync::OnceLock<std::ffi::CString> = std::sync::OnceLock::new();
    PATH.get_or_init(|| std::ffi::CString::new(crate::device::sysfs()).unwrap_or_else(|_| c"/sys".to_owned()))
        .as_ptr()
}

/// Reads up to `size - 1` bytes of a file into `buffer`, removes a trailing newline, and appends a zero byte.
/// Returns the number of bytes before the zero byte, or -1 if the file cannot be read.
unsafe extern "C" fn read_sysfs_file(
    dir: *const c_char,
    file: *const c_char,
    buffer: *mut c_char,
    size: usize,
) -> c_int {
    // SAFETY: `ibv_read_sysfs_file` requires both to be zero-terminated strings that stay valid during the
    // call.
    let [dir, file] = unsafe { [dir, file].map(|text| CStr::from_ptr(text).to_string_lossy()) };
    let Ok(mut text) = std::fs::read(format!("{dir}/{file}")) else { return -1 };
    if size == 0 {
        return -1;
    }
    text.truncate(size);
    if text.last() == Some(&b'\n') {
        text.pop();
    }
    text.truncate(size - 1);
    // SAFETY: the caller provides `size` writable bytes; `text` was truncated to `size - 1`, which leaves
    // room for the zero. The freshly read vector does not overlap the buffer.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr().cast(), buffer, text.len());
        *buffer.add(text.len()) = 0;
    }
    text.len() as c_int
}
