//! Files that `/sys` and `/dev` would contain if the kernel had urxe's devices, for programs that look for
//! devices there and not only through libibverbs. Each device is a PCI function. A tree is a snapshot, which
//! does not reflect later changes to the devices, except for the counters, which libibverbs writes while
//! programs run, and the congestion parameters, which any program may write and libibverbs reads.

use std::fs::{self, DirBuilder};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use nix::sys::socket::getsockopt;
use nix::{getsockopt_impl, libc, sockopt_impl};

use super::congestion_files::{CNP_PRIO_MODE, debugfs_name, ecn_name, enabled, parameters};
use super::pci::{self, Slot};
use super::unique_suffix;
use urxe::verbs::faults::PortSpeed;
use urxe::verbs::{Adapter, Congestion, DeviceNames, Gid, Identity, Personality, lid_of, port_counter_files};

/// Port capabilities `PORT_CM_SUP` and `PORT_IP_BASED_GIDS`, as urxe's libibverbs reports them.
const CAP_MASK: &str = "0x04010000";
/// ABI version of the kernel's uverbs interface.
const UVERBS_ABI: &str = "6";
/// The only entry of the P_Key table: the default partition.
const PKEY: &str = "0xffff";

/// Directory of the counter totals, a file for each device, which libibverbs writes.
const COUNTERS: &str = "counters";
/// Directory of the congestion parameters, a directory for each device. The files in `/sys/class/net` and
/// debugfs are further names of these, so that they always agree, and libibverbs needs only the name of the
/// device.
const CONGESTION: &str = "congestion";
/// PCI class of RoCE NICs: Ethernet controller.
const PCI_CLASS: u32 = 0x02_0000;
/// Speed and width of the PCI link: 252 Gb/s, above the rate of the port.
const PCI_SPEED: &str = "16.0 GT/s PCIe";
const PCI_WIDTH: &str = "16";
/// Vendor (Red Hat), device (QEMU's PCIe root port) and class (PCI bridge) of a root port.
const ROOT_PORT: (u16, u16, u32) = (0x1b36, 0x000c, 0x06_0400);

/// Prefix of a tree's directory name.
const PREFIX: &str = "sysfs-";

/// Entries of a directory tree, with their paths relative to its root.
pub struct Tree {
    entries: Vec<(PathBuf, Entry)>,
    /// Network namespace in which the addresses are local. Equal addresses in different namespaces are
    /// different devices.
    namespace: String,
}

#[derive(Hash)]
enum Entry {
    /// A file with the given text, followed by a newline, which programs can only read.
    Text(String),
    /// A file that programs change: created with the given text, and never overwritten.
    Initial(String),
    /// A further name of an earlier file, whose path relative to the root is given.
    HardLink(String),
    /// A symbolic link.
    Link(String),
}

/// Properties that all devices have in common.
pub struct View {
    pub names: DeviceNames,
    pub personality: Personality,
    pub congestion: Congestion,
    /// Whether the ports have a LID ([`lid_of`]); that of RoCE is 0.
    pub has_lid: bool,
}

impl View {
    fn identity(&self) -> Identity {
        Identity::of(&self.names, &self.personality)
    }
}

impl Tree {
    pub fn of(adapters: &[Adapter], view: &View) -> Tree {
        let mut tree = Tree { entries: Vec::new(), namespace: namespace() };
        tree.line("class/infiniband_verbs/abi_version", UVERBS_ABI);
        for (n, (adapter, slot)) in adapters.iter().zip(pci::free_slots()).enumerate() {
            let name = view.names.name(n);
            let directory = format!("{}/infiniband/{name}", slot.path());
            tree.pci_function(&slot, view.identity(), adapter);
            tree.adapter(&directory, &name, view, adapter);
            tree.link(format!("{directory}/device"), format!("../../../{}", slot.address()));
            tree.link(format!("{directory}/subsystem"), "../../../../../../class/infiniband");
            tree.link(format!("class/infiniband/{name}"), format!("../../{directory}"));
            tree.uverbs(n, &name, &slot);
            tree.congestion(&name, &slot, view, adapter);
            tree.entries.push((format!("{COUNTERS}/{name}").into(), Entry::Initial(String::new())));
        }
        tree
    }

    fn line(&mut self, path: impl Into<PathBuf>, text: impl Into<String>) {
        self.entries.push((path.into(), Entry::Text(text.into())));
    }

    fn link(&mut self, path: impl Into<PathBuf>, to: impl Into<String>) {
        self.entries.push((path.into(), Entry::Link(to.into())));
    }

    fn pci_function(&mut self, slot: &Slot, identity: Identity, adapter: &Adapter) {
        let locality = Locality::of(&adapter.interface);
        let device = (identity.pci_vendor, identity.pci_device, PCI_CLASS);
        self.pci_entries(&slot.port_path(), &slot.port(), ROOT_PORT, &locality);
        self.pci_entries(&slot.path(), &slot.address(), device, &locality);
        let (bus, port) = (slot.bus(), slot.port_path());
        self.line(format!("{port}/pci_bus/{bus}/cpulistaffinity"), &*locality.local_cpulist);
        self.link(format!("class/pci_bus/{bus}"), format!("../../{port}/pci_bus/{bus}"));
        if !adapter.interface.is_empty() {
            self.link(
                format!("{}/net/{}", slot.path(), adapter.interface),
                format!("/sys/class/net/{}", adapter.interface),
            );
        }
    }

    /// Adds the files of a PCI function, given its vendor, device and class.
    fn pci_entries(
        &mut self,
        path: &str,
        address: &str,
        (vendor, device, class): (u16, u16, u32),
        locality: &Locality,
    ) {
        let uevent = format!(
            "PCI_CLASS={class:X}\nPCI_ID={vendor:04X}:{device:04X}\nPCI_SUBSYS_ID={vendor:04X}:{device:04X}\n\
             PCI_SLOT_NAME={address}"
        );
        for (file, text) in [
            ("vendor", &*format!("{vendor:#06x}")),
            ("device", &format!("{device:#06x}")),
            ("subsystem_vendor", &format!("{vendor:#06x}")),
            ("subsystem_device", &format!("{device:#06x}")),
            ("class", &format!("{class:#08x}")),
            ("revision", "0x00"),
            ("uevent", &uevent),
            ("current_link_speed", PCI_SPEED),
            ("current_link_width", PCI_WIDTH),
            ("max_link_speed", PCI_SPEED),
            ("max_link_width", PCI_WIDTH),
            ("numa_node", &locality.numa_node),
            ("local_cpus", &locality.local_cpus),
            ("local_cpulist", &locality.local_cpulist),
        ] {
            self.line(format!("{path}/{file}"), text);
        }
        self.link(format!("bus/pci/devices/{address}"), format!("../../../{path}"));
        let up = "../".repeat(path.split('/').count());
        self.link(format!("{path}/subsystem"), format!("{up}bus/pci"));
    }

    fn adapter(&mut self, directory: &str, name: &str, view: &View, adapter: &Adapter) {
        let identity = view.identity();
        let guid = hex_groups(&adapter.guid().to_be_bytes());
        for (file, text) in [
            ("node_type", "1: CA"),
            ("node_guid", &guid),
            ("sys_image_guid", &guid),
            ("node_desc", name),
            // The version of urxe also in a device with the identity of another vendor, for bug reports.
            ("fw_ver", env!("CARGO_PKG_VERSION")),
            ("hw_rev", "0x0"),
            ("hca_type", identity.hca_type),
            ("board_id", identity.board_id),
        ] {
            self.line(format!("{directory}/{file}"), text);
        }
        let directory = format!("{directory}/ports/1");
        self.port(&directory, view, adapter);
        for (file, _) in port_counter_files(|_| 0) {
            self.entries.push((format!("{directory}/{file}").into(), Entry::Initial("0\n".into())));
        }
    }

    fn congestion(&mut self, name: &str, slot: &Slot, view: &View, adapter: &Adapter) {
        let has_interface = !adapter.interface.is_empty();
        let ecn = has_interface.then(|| format!("class/net/{}/ecn", adapter.interface));
        let has_debugfs = view.identity() == Identity::CONNECTX_5;
        let cc_params = has_debugfs.then(|| format!("kernel/debug/mlx5/{}/cc_params", slot.address()));
        self.line(format!("{CONGESTION}/{name}/initial"), view.congestion.to_string());
        for (parameter, value) in parameters(&view.congestion) {
            let file = format!("{CONGESTION}/{name}/{parameter}");
            self.entries.push((file.clone().into(), Entry::Initial(format!("{value}\n"))));
            let in_ecn = ecn.iter().map(|directory| format!("{directory}/{}", ecn_name(parameter)));
            let in_debugfs =
                cc_params.iter().map(|directory| format!("{directory}/{}", debugfs_name(parameter)));
            let link = |path: String| (path.into(), Entry::HardLink(file.clone()));
            self.entries.extend(in_ecn.chain(in_debugfs).map(link));
        }
        if let Some(directory) = ecn {
            let files = enabled(&view.congestion, view.personality.quirks.cnp_scope.is_some());
            files.for_each(|(file, value)| self.line(format!("{directory}/{file}"), value));
        }
        if let Some(directory) = cc_params {
            let (file, value) = CNP_PRIO_MODE;
            self.line(format!("{directory}/{file}"), value);
        }
    }

    fn port(&mut self, directory: &str, view: &View, adapter: &Adapter) {
        let (state, phys_state) =
            if adapter.active { ("4: ACTIVE", "5: LinkUp") } else { ("1: DOWN", "3: Disabled") };
        for (file, text) in [
            ("state", state),
            ("phys_state", phys_state),
            ("link_layer", "Ethernet"),
            ("rate", &rate(view.personality.port_speed)),
            ("cap_mask", CAP_MASK),
            ("lid", &format!("{:#x}", if view.has_lid { lid_of(adapter.address().into()) } else { 0 })),
            ("lid_mask_count", "0"),
            ("sm_lid", "0x0"),
            ("sm_sl", "0"),
        ] {
            self.line(format!("{directory}/{file}"), text);
        }
        self.line(format!("{directory}/pkeys/0"), PKEY);
        for (n, gid) in adapter.gids.iter().enumerate() {
            self.line(format!("{directory}/gids/{n}"), hex_groups(&gid.0));
            self.line(format!("{directory}/gid_attrs/types/{n}"), "RoCE v2");
            if !adapter.interface.is_empty() {
                // Named like the kernel's interface for the VLAN.
                let vlan = adapter.link.vlan().map_or(String::new(), |id| format!(".{id}"));
                let ndev = format!("{}{vlan}", adapter.interface);
                self.line(format!("{directory}/gid_attrs/ndevs/{n}"), ndev);
            }
        }
    }

    fn uverbs(&mut self, n: usize, name: &str, slot: &Slot) {
        let directory = format!("{}/infiniband_verbs/uverbs{n}", slot.path());
        self.line(format!("{directory}/ibdev"), name);
        self.line(format!("{directory}/abi_version"), "1");
        self.link(format!("{directory}/device"), format!("../../../{}", slot.address()));
        self.link(format!("class/infiniband_verbs/uverbs{n}"), format!("../../{directory}"));
        // Programs expect a character device that they may read and write, but do neither. /dev/null serves,
        // also by number.
        self.link(format!("dev/infiniband/uverbs{n}"), "/dev/null");
        self.line(format!("{directory}/dev"), "1:3");
    }

    /// Returns a directory name made from a hash of the tree's contents and network namespace.
    pub fn name(&self) -> String {
        // The hasher has fixed keys, so that all processes compute the same name.
        let mut hasher = DefaultHasher::new();
        (&self.entries, &self.namespace).hash(&mut hasher);
        format!("{PREFIX}{:016x}", hasher.finish())
    }

    /// Writes the missing and outdated entries. Each appears atomically, because other processes may be
    /// reading or writing the same tree.
    ///
    /// # Errors
    /// Path of the entry that could not be created, and the error.
    pub fn write(&self, root: &Path) -> Result<(), (PathBuf, io::Error)> {
        let mut created = None;
        for (path, entry) in &self.entries {
            let path = root.join(path);
            let parent = path.parent().unwrap_or(root).to_owned();
            let write = || {
                if created.as_ref() != Some(&parent) {
                    DirBuilder::new().recursive(true).mode(0o700).create(&parent)?;
                }
                entry.write(&path, root)
            };
            write().map_err(|e| (path.clone(), e))?;
            created = Some(parent);
        }
        // Marks the tree as used now, for `remove_unused`.
        let _ = fs::File::open(root).and_then(|root| root.set_modified(SystemTime::now()));
        Ok(())
    }
}

sockopt_impl!(
    /// Number of a socket's network namespace, which the kernel never reuses.
    NetnsCookie, GetOnly, libc::SOL_SOCKET, libc::SO_NETNS_COOKIE, u64
);

/// Returns a text that identifies this thread's network namespace: its cookie, or before Linux 5.14 its inode
/// number, which a later namespace may have too.
fn namespace() -> String {
    let cookie = UnixDatagram::unbound().ok().and_then(|socket| getsockopt(&socket, NetnsCookie).ok());
    let inode =
        || fs::read_link("/proc/thread-self/ns/net").unwrap_or_default().to_string_lossy().into_owned();
    cookie.map_or_else(inode, |cookie| format!("cookie {cookie}"))
}

/// Removes the unused trees in `base`. A tree is unused if none of its addresses satisfies `is_local` (all
/// loopback addresses do, so they do not count), no `urxe run` has used it for at least `age`, and no running
/// process has it in its environment. The last condition protects the trees of programs in other network
/// namespaces, where other addresses are local.
pub fn remove_unused(base: &Path, age: Duration, is_local: impl Fn(IpAddr) -> bool) {
    let trees = fs::read_dir(base).into_iter().flatten().flatten();
    let trees =
        trees.filter(|entry| entry.file_name().to_string_lossy().starts_with(PREFIX)).map(|e| e.path());
    let is_old = |tree: &PathBuf| {
        let modified = fs::symlink_metadata(tree).and_then(|m| m.modified());
        modified.is_ok_and(|at| at.elapsed().is_ok_and(|since| since >= age))
    };
    for tree in trees.filter(is_old) {
        let is_local = |ip: IpAddr| !ip.is_loopback() && is_local(ip);
        if !addresses(&tree).into_iter().any(is_local) && !is_in_use(&tree) {
            // A tree that cannot be removed remains.
            let _ = fs::remove_dir_all(&tree);
        }
    }
}

/// Returns the addresses of the GIDs in a tree.
fn addresses(tree: &Path) -> Vec<IpAddr> {
    let list = |directory: PathBuf| fs::read_dir(directory).into_iter().flatten().flatten();
    let gids =
        list(tree.join("class/infiniband")).flat_map(|device| list(device.path().join("ports/1/gids")));
    let address = |path: PathBuf| {
        let digits = fs::read_to_string(path).ok()?.trim().replace(':', "");
        Some(Gid(u128::from_str_radix(&digits, 16).ok()?.to_be_bytes()).ip())
    };
    gids.filter_map(|gid| address(gid.path())).collect()
}

/// Reports whether a process that this user may inspect has the tree in its environment.
fn is_in_use(tree: &Path) -> bool {
    let name = tree.as_os_str().as_encoded_bytes();
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let environments = processes.filter_map(|process| fs::read(process.path().join("environ")).ok());
    environments.into_iter().any(|all| all.split(|byte| *byte == 0).any(|one| one.ends_with(name)))
}

impl Entry {
    fn write(&self, path: &Path, root: &Path) -> io::Result<()> {
        if self.is_at(path, root) {
            return Ok(());
        }
        // Created outside the tree, where no program mistakes it for a device.
        let new = root.with_extension(format!("new.{}", unique_suffix()));
        let written = self.write_as(&new, path, root);
        // The file remains after an error. It also remains if `path` was a hard link to it: the rename does
        // nothing then.
        let _ = fs::remove_file(&new);
        written
    }

    /// Writes the entry to `new`, and then moves it to `path`.
    fn write_as(&self, new: &Path, path: &Path, root: &Path) -> io::Result<()> {
        match self {
            Entry::Text(text) => {
                fs::write(new, format!("{text}\n"))?;
                fs::set_permissions(new, fs::Permissions::from_mode(0o444))?;
            }
            // Never replaced, because a program may be writing to the file already.
            Entry::Initial(text) => {
                fs::write(new, text)?;
                return fs::hard_link(new, path).or_else(|e| match e.kind() {
                    io::ErrorKind::AlreadyExists => Ok(()),
                    _ => Err(e),
                });
            }
            Entry::HardLink(to) => fs::hard_link(root.join(to), new)?,
            Entry::Link(to) => symlink(to, new)?,
        }
        fs::rename(new, path)
    }

    fn is_at(&self, path: &Path, root: &Path) -> bool {
        match self {
            Entry::Text(text) => fs::read_to_string(path).is_ok_and(|t| t.strip_suffix('\n') == Some(text)),
            Entry::Initial(_) => path.is_file(),
            Entry::HardLink(to) => {
                let inode = |file: &Path| fs::metadata(file).map(|m| (m.dev(), m.ino())).ok();
                inode(path).is_some_and(|own| Some(own) == inode(&root.join(to)))
            }
            Entry::Link(to) => fs::read_link(path).is_ok_and(|t| t == Path::new(to)),
        }
    }
}

/// Formats a speed as the kernel does in `rate`.
fn rate(speed: PortSpeed) -> String {
    let generation = match speed.gbps() / speed.lanes() {
        10 => "QDR",
        25 => "EDR",
        50 => "HDR",
        _ => "NDR",
    };
    format!("{} Gb/sec ({}X {generation})", speed.gbps(), speed.lanes())
}

/// Formats bytes as the kernel formats GUIDs and GIDs: in colon-separated groups of four hexadecimal digits.
fn hex_groups(bytes: &[u8]) -> String {
    let groups: Vec<String> =
        bytes.chunks(2).map(|b| b.iter().map(|b| format!("{b:02x}")).collect()).collect();
    groups.join(":")
}

/// Returns the first NUMA node of the machine; -1 if the kernel knows none.
fn first_node() -> String {
    let online = fs::read_to_string("/sys/devices/system/node/online").unwrap_or_default();
    let digits: String = online.chars().take_while(char::is_ascii_digit).collect();
    if digits.is_empty() { "-1".into() } else { digits }
}

/// NUMA node and local CPUs of a device, taken from its network interface if the kernel reports them.
struct Locality {
    numa_node: String,
    local_cpus: String,
    local_cpulist: String,
}

impl Locality {
    fn of(interface: &str) -> Locality {
        let read = |path: PathBuf| fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
        let own = |file: &str| {
            let directory = Path::new("/sys/class/net").join(interface).join("device");
            read(directory.join(file)).filter(|_| !interface.is_empty())
        };
        let all = || read("/sys/devices/system/cpu/online".into()).unwrap_or_else(|| "0".into());
        let local_cpulist = own("local_cpulist").unwrap_or_else(all);
        Locality {
            numa_node: own("numa_node").filter(|node| node != "-1").unwrap_or_else(first_node),
            local_cpus: own("local_cpus").unwrap_or_else(|| mask(&local_cpulist)),
            local_cpulist,
        }
    }
}

/// Converts a CPU list such as `0-3,8` to the kernel's CPU mask format: 32-bit words, the highest first.
fn mask(list: &str) -> String {
    let mut words = vec![0u32];
    for range in list.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (Ok(first), Ok(last)) = (first.parse::<u16>(), last.parse::<u16>()) else { continue };
        for cpu in first..=last {
            let (word, bit) = (usize::from(cpu / 32), cpu % 32);
            words.resize(words.len().max(word + 1), 0);
            words[word] |= 1 << bit;
        }
    }
    let words: Vec<String> = words.iter().rev().map(|word| format!("{word:08x}")).collect();
    words.join(",")
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::process::Stdio;

    use super::*;

    fn adapters() -> Vec<Adapter> {
        let link = "frames:dgram:/a,/b,ip=10.77.0.1/24,ip=fd00::1/64".parse().unwrap();
        Adapter::all(Some(&link)).unwrap()
    }

    fn tree_of(adapters: &[Adapter], name: &str) -> Tree {
        let (personality, congestion) = (Personality::DEFAULT, Congestion::default());
        Tree::of(adapters, &View { names: name.parse().unwrap(), personality, congestion, has_lid: false })
    }

    #[test]
    fn sysfs_tree_has_the_files_and_formats_of_the_kernel() {
        let dir = tempfile::tempdir().unwrap();
        let tree = tree_of(&adapters(), "urxe0");
        let root = dir.path().join(tree.name());
        tree.write(&root).unwrap();
        let read = |path: &str| fs::read_to_string(root.join(path)).unwrap();
        let port = "class/infiniband/urxe0/ports/1";
        assert_eq!(read("class/infiniband/urxe0/node_guid"), "5058:0aff:fe4d:0001\n");
        assert_eq!(read(&format!("{port}/gids/0")), "0000:0000:0000:0000:0000:ffff:0a4d:0001\n");
        assert_eq!(read(&format!("{port}/gids/1")), "fd00:0000:0000:0000:0000:0000:0000:0001\n");
        assert_eq!(read(&format!("{port}/gid_attrs/types/1")), "RoCE v2\n");
        assert!(
            !root.join(port).join("gids/2").exists() && !root.join(port).join("gid_attrs/ndevs").exists()
        );
        assert_eq!(read("class/infiniband_verbs/uverbs0/ibdev"), "urxe0\n");
        let node = read("class/infiniband_verbs/uverbs0/device/numa_node");
        assert!(node == format!("{}\n", first_node()) && node != "\n", "{node:?}");
        assert_eq!(fs::read_link(root.join("dev/infiniband/uverbs0")).unwrap(), Path::new("/dev/null"));
        let entries = fs::read_dir(dir.path()).unwrap().count();
        assert_eq!(entries, 1, "only the tree remains");
    }

    #[test]
    fn write_restores_deleted_files_of_a_sysfs_tree() {
        let dir = tempfile::tempdir().unwrap();
        let tree = tree_of(&adapters(), "urxe0");
        let root = dir.path().join("tree");
        tree.write(&root).unwrap();
        // Simulates programs that clean /tmp.
        let [file, link] =
            ["class/infiniband/urxe0/node_guid", "dev/infiniband/uverbs0"].map(|p| root.join(p));
        fs::remove_dir_all(root.join("devices")).unwrap();
        fs::remove_file(&link).unwrap();
        tree.write(&root).unwrap();
        assert!(file.is_file() && link.is_symlink());
    }

    #[test]
    fn writers_with_one_process_id_do_not_interfere() {
        let dir = tempfile::tempdir().unwrap();
        let tree = tree_of(&adapters(), "urxe0");
        let root = dir.path().join("tree");
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| tree.write(&root).unwrap());
            }
        });
        assert!(root.join("class/infiniband/urxe0/node_guid").is_file());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "only the tree remains");
    }

    #[test]
    fn write_keeps_the_values_of_counters() {
        let dir = tempfile::tempdir().unwrap();
        let tree = tree_of(&adapters(), "mlx5_0");
        let root = dir.path().join("tree");
        tree.write(&root).unwrap();
        let counter = root.join("class/infiniband/mlx5_0/ports/1/counters/port_xmit_data");
        assert_eq!(fs::read_to_string(&counter).unwrap(), "0\n");
        fs::write(&counter, "17\n").unwrap();
        tree.write(&root).unwrap();
        assert_eq!(fs::read_to_string(&counter).unwrap(), "17\n");
    }

    #[test]
    fn names_of_a_congestion_parameter_are_one_file_which_write_never_reverts() {
        let dir = tempfile::tempdir().unwrap();
        let mut adapters = adapters();
        adapters[0].interface = "eth7".into();
        let tree = tree_of(&adapters, "mlx5_0");
        let root = dir.path().join("tree");
        tree.write(&root).unwrap();
        let functions: Vec<_> = fs::read_dir(root.join("kernel/debug/mlx5")).unwrap().flatten().collect();
        let cc_params = functions[0].path().join("cc_params");
        let ecn = root.join("class/net/eth7/ecn");
        let names = [
            root.join("congestion/mlx5_0/rpg_ai_rate"),
            ecn.join("roce_rp/rpg_ai_rate"),
            cc_params.join("rp_ai_rate"),
        ];
        let values = || names.each_ref().map(|name| fs::read_to_string(name).unwrap());
        assert_eq!(values(), ["5\n"; 3]);
        fs::write(&names[1], "20\n").unwrap();
        // A name that a program has replaced.
        fs::remove_file(&names[2]).unwrap();
        fs::write(&names[2], "30\n").unwrap();
        tree.write(&root).unwrap();
        assert_eq!(values(), ["20\n"; 3]);
        fs::write(&names[2], "40\n").unwrap();
        assert_eq!(values(), ["40\n"; 3]);
        assert_eq!(fs::read_to_string(root.join("congestion/mlx5_0/initial")).unwrap(), "loss-driven\n");
        for file in [ecn.join("roce_np/enable/7"), cc_params.join("np_cnp_prio_mode")] {
            assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o444, "{}", file.display());
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "only the tree remains");
    }

    #[test]
    fn device_is_a_pci_function_with_the_identity_that_its_name_asks_for() {
        let dir = tempfile::tempdir().unwrap();
        for (name, ids) in [("urxe0", "0xffff 0x0000 urxe"), ("mlx5_4", "0x15b3 0x1017 MT4119")] {
            let root = dir.path().join(name);
            tree_of(&adapters(), name).write(&root).unwrap();
            let ib = root.join("class/infiniband").join(name);
            let read = |path: &str| fs::read_to_string(ib.join(path)).unwrap().trim().to_owned();
            assert_eq!(
                format!("{} {} {}", read("device/vendor"), read("device/device"), read("hca_type")),
                ids
            );
            assert_eq!(read("device/class"), "0x020000");
            let target = fs::read_link(&ib).unwrap().to_str().unwrap().to_owned();
            let mut parts = target.strip_prefix("../../devices/pci0000:00/").unwrap().split('/');
            let (port, address) = (parts.next().unwrap(), parts.next().unwrap());
            assert_eq!(target, format!("../../devices/pci0000:00/{port}/{address}/infiniband/{name}"));
            // The root port, whose link NCCL compares with that of the device.
            assert_eq!(
                (read("device/../class"), read("device/../max_link_width")),
                ("0x060400".into(), "16".into())
            );
            assert_eq!(
                fs::canonicalize(ib.join("subsystem")).unwrap(),
                root.join("class/infiniband").canonicalize().unwrap()
            );
            let function = fs::canonicalize(ib.join("device")).unwrap();
            assert_eq!(function.file_name().unwrap(), address);
            assert_eq!(
                fs::canonicalize(root.join("class/infiniband_verbs/uverbs0/device")).unwrap(),
                function
            );
            assert!(read("device/uevent").ends_with(&format!("PCI_SLOT_NAME={address}")));
        }
    }

    #[test]
    fn only_old_unused_trees_without_a_local_address_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let tree = |ip: &str| {
            let link = format!("frames:dgram:/a,/b,ip={ip}/24").parse().unwrap();
            let tree = tree_of(&Adapter::all(Some(&link)).unwrap(), "urxe0");
            let root = dir.path().join(tree.name());
            tree.write(&root).unwrap();
            root
        };
        let [local, unused, used, loopback] = ["10.77.0.1", "10.77.1.1", "10.77.2.1", "127.77.0.1"].map(tree);
        let other = dir.path().join("3de974ec");
        fs::create_dir(&other).unwrap();
        let is_local = |ip: IpAddr| ip == IpAddr::from([10, 77, 0, 1]) || ip.is_loopback();
        let mut user = std::process::Command::new("cat");
        user.env("URXE_SYSFS", &used).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut user = user.spawn().unwrap();
        // The environment of a process that has just been started can still be empty in /proc.
        user.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        user.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        // Trees that were used within the last hour are kept.
        remove_unused(dir.path(), Duration::from_secs(3600), is_local);
        assert!(unused.exists() && loopback.exists());
        remove_unused(dir.path(), Duration::ZERO, is_local);
        let all = [&local, &unused, &used, &loopback, &other];
        assert_eq!(all.map(|path| path.exists()), [true, false, true, false, true]);
        user.kill().unwrap();
        user.wait().unwrap();
        remove_unused(dir.path(), Duration::ZERO, is_local);
        assert_eq!([&local, &used, &other].map(|path| path.exists()), [true, false, true]);
    }

    #[test]
    fn sysfs_trees_with_different_contents_have_different_names() {
        let one = adapters();
        let mut other = one.clone();
        other[0].active = false;
        let name = |adapters: &[Adapter]| tree_of(adapters, "urxe0").name();
        assert_ne!(name(&one), name(&other));
        assert_ne!(name(&one), tree_of(&one, "urxe1").name());
        assert_eq!(name(&one), name(&adapters()));
    }

    #[test]
    fn processor_list_converts_to_a_mask() {
        assert_eq!(mask("0-1"), "00000003");
        assert_eq!(mask("0-3,8,33"), "00000002,0000010f");
        assert_eq!(mask(""), "00000000");
    }
}
