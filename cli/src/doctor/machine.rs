//! Checks of this machine.

use std::fs;
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::path::Path;
use std::process::{Command, Stdio};

use nix::sys::resource::{Resource, getrlimit};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use urxe::broker::{self, BrokerStatus};
use urxe::link::udp::{PortOwner, UdpLink, UdpOptions};
use urxe::verbs::Adapter;
use urxe::wire::ROCE_PORT;

use super::Check;
use crate::{CliError, devinfo};

/// Descriptor limit below which a process may be unable to share addresses: the broker passes it up to 64
/// sockets for each.
const MIN_DESCRIPTORS: u64 = 256;

/// Runs all checks of the machine. `environment` is the error with which `urxe run` would fail to set up a
/// program's environment.
pub fn checks(environment: Result<(), &CliError>) -> Vec<Check> {
    let brokers = broker::statuses();
    let adapters = Adapter::all(None).unwrap_or_default();
    let mut checks = vec![interfaces()];
    // Before devices are opened, which starts brokers.
    checks.extend(ports(&adapters, brokers.as_deref().unwrap_or_default()));
    checks.push(broker_check(brokers));
    checks.extend(devices(&adapters));
    checks.push(match environment {
        Ok(()) => Check::ok("libraries", "the libraries for `urxe run` are installed"),
        Err(e) => Check::failed("libraries", e),
    });
    checks.extend([packet_links(), user()]);
    checks.extend(buffers());
    checks.extend([locked_memory(), descriptors(), namespaces(), huge_pages(), kernel_rdma()]);
    checks
}

/// Lists the interfaces with their addresses.
fn interfaces() -> Check {
    let list: Vec<String> = pnet_datalink::interfaces()
        .iter()
        .map(|interface| {
            let addresses: Vec<String> = interface.ips.iter().map(|net| net.ip().to_string()).collect();
            let state = if interface.is_up() { "up" } else { "down" };
            format!("{} {state} ({})", interface.name, addresses.join(" "))
        })
        .collect();
    Check::ok("interfaces", list.join(", "))
}

/// Opens each device as a libibverbs program would, and reports its GIDs or the error.
fn devices(adapters: &[Adapter]) -> Vec<Check> {
    if adapters.is_empty() {
        let advice = "set an interface up (ip link set lo up), or use --link frames:…";
        return vec![Check::problem("devices", "no device: no network interface is up", advice)];
    }
    let device = |(n, adapter): (usize, &Adapter)| match devinfo::open(Ok(adapter.link.clone())) {
        Ok(context) => {
            let gids: Vec<String> = context.gids().iter().map(|gid| gid.ip().to_string()).collect();
            let mtu = context.query_port().active_mtu.bytes();
            let text = format!("urxe{n} on {}, path MTU {mtu}, GIDs {}", adapter.link, gids.join(" "));
            match adapter.active {
                true => Check::ok("devices", text),
                false => {
                    let advice = "connect the interface, or select another one with --link udp:IF";
                    Check::warning("devices", format!("{text}: the port is down"), advice)
                }
            }
        }
        Err(e) => Check::problem(
            "devices",
            format!("urxe{n} on {} cannot be opened: {e}", adapter.link),
            "remove the cause, or select another device with --link or --ip",
        ),
    };
    adapters.iter().enumerate().map(device).collect()
}

/// Reports for each local address whether UDP port 4791 is free, shared, or in use by another process.
fn ports(adapters: &[Adapter], brokers: &[BrokerStatus]) -> Vec<Check> {
    let interfaces = pnet_datalink::interfaces();
    let addresses = interfaces.iter().filter(|i| i.is_up()).flat_map(|i| i.ips.iter().map(|net| net.ip()));
    let mut free = Vec::new();
    let mut checks = Vec::new();
    for ip in addresses {
        let adapter = adapters.iter().find(|adapter| has_address(adapter, ip));
        let Some(owner) = PortOwner::of(ip, ROCE_PORT) else {
            free.push(ip.to_string());
            continue;
        };
        // One broker shares all addresses of an interface, and is named by one of them.
        let is_shared = |broker: &BrokerStatus| {
            let address = broker.address.split('%').next().and_then(|text| text.parse::<IpAddr>().ok());
            address.is_some_and(|own| own == ip || adapter.is_some_and(|adapter| has_address(adapter, own)))
        };
        let message = format!("UDP port {ROCE_PORT} of {ip} is in use by {owner}");
        checks.push(if brokers.iter().any(is_shared) {
            Check::ok("port", format!("{message}, shared by a broker: further programs can use it"))
        } else if adapter.is_some() {
            Check::problem("port", message, port_advice(&owner))
        } else {
            Check::warning("port", message, port_advice(&owner))
        });
    }
    if !free.is_empty() {
        checks.insert(0, Check::ok("port", format!("UDP port {ROCE_PORT} is free on {}", free.join(" "))));
    }
    checks
}

fn has_address(adapter: &Adapter, ip: IpAddr) -> bool {
    adapter.gids.iter().any(|gid| gid.ip() == ip)
}

/// Returns what the user can do about a port that `owner` occupies.
fn port_advice(owner: &PortOwner) -> String {
    match owner {
        PortOwner::Kernel => {
            "it occupies the port on all addresses: remove its devices (rdma link delete rxe0; modprobe -r rdma_rxe), \
             or run urxe in another network namespace (unshare -Urn) or over --link frames:…"
                .into()
        }
        PortOwner::Process { pid, name } => {
            let sharing = if name == "urxe" { "--shared-memory auto" } else { "`urxe run`" };
            format!(
                "stop it (kill {pid}), start it with {sharing} so that the address is shared, or use another \
                 address (--ip)"
            )
        }
        PortOwner::User(_) => {
            "stop it, or start the first program with `urxe run --any-user` so that the address \
                               is shared, or use another address (--ip)"
                .into()
        }
        _ => "use another address (--ip)".into(),
    }
}

/// Lists the running brokers with the number of partitions leased from each.
fn broker_check(brokers: io::Result<Vec<BrokerStatus>>) -> Check {
    let brokers = match brokers {
        Ok(brokers) => brokers,
        Err(e) => {
            let message = format!("the kernel's table of sockets cannot be read: {e}");
            let advice =
                "mount /proc; `urxe run` works without it, but error messages do not name port owners";
            return Check::warning("broker", message, advice);
        }
    };
    let describe = |broker: &BrokerStatus| {
        let state = if broker.is_running { "running" } else { "ended; the next program starts another" };
        let place = match (&broker.directory, broker.user) {
            (None, _) => "for programs of any user".to_owned(),
            (Some(directory), Some(user)) => format!("for uid {user}, sockets in {}", directory.display()),
            (Some(directory), None) => format!("sockets in {}", directory.display()),
        };
        let BrokerStatus { address, leases, services, .. } = broker;
        format!("{address}: {state}, {place}, {leases} of 63 partitions leased, {services} services")
    };
    match &brokers[..] {
        [] => Check::ok("broker", "none runs; a program starts one for its address"),
        all => Check::ok("broker", all.iter().map(describe).collect::<Vec<_>>().join("; ")),
    }
}

/// Checks whether this process may open packet sockets.
fn packet_links() -> Check {
    match socket_with(AddressFamily::PACKET, SocketType::RAW, SocketFlags::CLOEXEC, None) {
        Ok(_) => Check::ok("links", "udp, packet and frames links are usable"),
        Err(e) => Check::warning(
            "links",
            format!("udp and frames links are usable, packet links are not: {}", io::Error::from(e)),
            "only for --link packet:IF: run as root or with CAP_NET_RAW",
        ),
    }
}

/// Reports user, user namespace and effective capabilities.
fn user() -> Check {
    let uid = nix::unistd::geteuid();
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let is_initial = map.split_whitespace().eq(["0", "0", "4294967295"]);
    let place = if is_initial { "the initial user namespace" } else { "a user namespace" };
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let capabilities =
        status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap_or("unknown").trim();
    Check::ok("user", format!("uid {uid} in {place}, effective capabilities {capabilities}; urxe needs none"))
}

/// Checks the socket buffers and offloads that the kernel grants.
fn buffers() -> Vec<Check> {
    let probe = match UdpLink::probe(&UdpOptions::default()) {
        Ok(probe) => probe,
        Err(e) => {
            let advice = "allow UDP sockets in this sandbox, or use --link frames:…";
            return vec![Check::problem("buffers", format!("no UDP socket can be created: {e}"), advice)];
        }
    };
    let limit = |name: &str| {
        let text = fs::read_to_string(format!("/proc/sys/net/core/{name}"));
        text.map_or("not visible here".to_owned(), |text| text.trim().to_owned())
    };
    let message = format!(
        "net.core.rmem_max {}, wmem_max {}: receive buffer {} of {} requested bytes, send buffer {} of {}, \
         {} bytes in flight",
        limit("rmem_max"),
        limit("wmem_max"),
        probe.receive_buffer / 2,
        probe.requested_receive_buffer / 2,
        probe.send_buffer / 2,
        probe.requested_send_buffer / 2,
        probe.window
    );
    let is_full = probe.receive_buffer >= probe.requested_receive_buffer
        && probe.send_buffer >= probe.requested_send_buffer;
    let sizes = if is_full {
        Check::ok("buffers", message)
    } else {
        let advice = format!(
            "for more throughput, and fewer losses of UC and UD: sysctl -w net.core.rmem_max={} net.core.wmem_max={}",
            probe.requested_receive_buffer / 2,
            probe.requested_send_buffer / 2
        );
        Check::warning("buffers", message, advice)
    };
    let offload = match (probe.segmentation, probe.coalescing) {
        (true, true) => Check::ok("offload", "the kernel segments and coalesces UDP (GSO, GRO)"),
        (gso, gro) => {
            let named = |name, has| if has { format!("has {name}") } else { format!("lacks {name}") };
            let message = format!("the kernel {} and {}", named("UDP GSO", gso), named("UDP GRO", gro));
            let advice = "for up to ten times the throughput: Linux 5.0 or newer, outside of gVisor and similar sandboxes";
            Check::warning("offload", message, advice)
        }
    };
    vec![sizes, offload]
}

/// Formats a resource limit; the highest value means unlimited.
fn limit_text(value: u64) -> String {
    if value == nix::libc::RLIM_INFINITY { "unlimited".into() } else { value.to_string() }
}

fn locked_memory() -> Check {
    let text = getrlimit(Resource::RLIMIT_MEMLOCK).map_or("unknown".into(), |(soft, _)| limit_text(soft));
    let message =
        format!("RLIMIT_MEMLOCK {text} bytes; urxe locks no memory, so it does not limit registrations");
    Check::ok("memlock", message)
}

fn descriptors() -> Check {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else {
        return Check::ok("descriptors", "RLIMIT_NOFILE unknown");
    };
    let message = format!("RLIMIT_NOFILE {} (hard limit {})", limit_text(soft), limit_text(hard));
    match soft {
        MIN_DESCRIPTORS.. => Check::ok("descriptors", message),
        _ => Check::warning(
            "descriptors",
            message,
            format!("sharing an address takes 64 descriptors and more: ulimit -n {MIN_DESCRIPTORS}"),
        ),
    }
}

/// Tries to create a user and a network namespace, which unprivileged tests need.
fn namespaces() -> Check {
    const ADVICE: &str = "only for tests in namespaces: sysctl -w kernel.unprivileged_userns_clone=1 \
                          kernel.apparmor_restrict_unprivileged_userns=0 (those that exist), or run as root";
    let mut probe = Command::new("unshare");
    probe.args(["-Urn", "true"]).stdin(Stdio::null()).stdout(Stdio::null()).env_remove("LD_PRELOAD");
    match probe.output() {
        Ok(out) if out.status.success() => {
            Check::ok("namespaces", "user and network namespaces are allowed (unshare -Urn)")
        }
        Ok(out) => {
            let error = String::from_utf8_lossy(&out.stderr);
            let first = error.lines().next().unwrap_or("unshare failed").to_owned();
            let message = format!("user or network namespaces are not allowed: {first}");
            Check::warning("namespaces", message, ADVICE)
        }
        Err(e) if e.kind() == ErrorKind::NotFound => {
            Check::ok("namespaces", "not tried, because there is no `unshare` (util-linux)")
        }
        Err(e) => Check::warning("namespaces", format!("`unshare` cannot be run: {e}"), ADVICE),
    }
}

/// Reports the number of huge pages, which programs may request for their buffers.
fn huge_pages() -> Check {
    let info = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let value =
        |name: &str| info.lines().find_map(|line| line.strip_prefix(name)).unwrap_or(" 0").trim().to_owned();
    let (total, free, size) = (value("HugePages_Total:"), value("HugePages_Free:"), value("Hugepagesize:"));
    let message = format!("{free} of {total} huge pages of {size} are free; urxe itself uses none");
    Check::ok("hugepages", message)
}

/// Reports the kernel's RDMA devices and modules, which are hidden from programs under `urxe run`.
fn kernel_rdma() -> Check {
    let names = |directory: &str| -> Vec<String> {
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        let mut names: Vec<String> =
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    };
    let mut found = names("/sys/class/infiniband");
    found.extend(names("/dev/infiniband").into_iter().map(|name| format!("/dev/infiniband/{name}")));
    let modules = ["rdma_rxe", "siw", "ib_uverbs", "rdma_ucm"];
    let loaded = modules.into_iter().filter(|module| Path::new("/sys/module").join(module).exists());
    found.extend(loaded.map(|module| format!("module {module}")));
    match &found[..] {
        [] => Check::ok("kernel", "no RDMA device or module of the kernel; urxe needs none"),
        found => Check::ok(
            "kernel",
            format!("{}: programs under `urxe run` see urxe's devices instead", found.join(", ")),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_address_is_advised_unless_the_kernel_has_the_port() {
        let process = |name: &str| PortOwner::Process { pid: 7, name: name.into() };
        assert!(port_advice(&process("urxe")).contains("--shared-memory auto"));
        for owner in [process("server"), process("urxe"), PortOwner::User(1), PortOwner::Unknown] {
            assert!(port_advice(&owner).contains("another address (--ip)"), "{owner}");
        }
        let advice = port_advice(&PortOwner::Kernel);
        assert!(advice.contains("another network namespace") && !advice.contains("--ip"), "{advice}");
    }
}
