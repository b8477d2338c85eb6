//! Memory limit of the cgroup that this process belongs to.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Returns the smallest memory limit of this process's cgroup and those around it, in bytes; `u64::MAX` if
/// they have none. The limits are read once.
pub(crate) fn memory_limit() -> u64 {
    static LIMIT: OnceLock<u64> = OnceLock::new();
    *LIMIT.get_or_init(|| {
        let cgroups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        smallest(files(&cgroups).into_iter().filter_map(|file| fs::read_to_string(file).ok()))
    })
}

/// Returns the files that may contain a limit, given the contents of /proc/self/cgroup: those of cgroup v2,
/// whose line names no controllers, and of v1. A container without a cgroup namespace sees the path on the
/// host, but its own cgroup as the root.
fn files(cgroups: &str) -> Vec<PathBuf> {
    let of_line = |line: &str| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        let (root, file) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max"),
            _ if controllers.split(',').any(|name| name == "memory") => {
                ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
            }
            _ => return None,
        };
        let directories = Path::new(path.trim_start_matches('/')).ancestors();
        Some(directories.map(|directory| Path::new(root).join(directory).join(file)).collect::<Vec<_>>())
    };
    cgroups.lines().filter_map(of_line).flatten().collect()
}

/// Returns the smallest of the limits in the contents of files; `max` means no limit.
fn smallest(contents: impl Iterator<Item = String>) -> u64 {
    contents.filter_map(|text| text.trim().parse().ok()).min().unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_in_the_files_of_the_cgroup_and_those_around_it() {
        let of = |cgroups: &str| {
            files(cgroups).into_iter().map(|file| file.to_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        let v2 = ["user.slice/a:b/memory.max", "user.slice/memory.max", "memory.max"];
        assert_eq!(of("0::/user.slice/a:b\n"), v2.map(|file| format!("/sys/fs/cgroup/{file}")));
        let v1 = ["docker/c0/memory", "docker/memory", "memory"]
            .map(|file| format!("/sys/fs/cgroup/memory/{file}.limit_in_bytes"));
        assert_eq!(of("5:cpu,cpuacct:/x\n4:blkio,memory:/docker/c0\n"), v1);
        assert!(of("").is_empty() && of("nonsense\n1:name=memory:/\n").is_empty());
    }

    #[test]
    fn smallest_limit_counts_and_max_is_none() {
        let of = |texts: &[&str]| smallest(texts.iter().map(|text| (*text).to_owned()));
        assert_eq!(of(&["max\n", "209715200\n", "9223372036854771712\n"]), 200 << 20);
        assert_eq!((of(&["max\n", "-1\n", ""]), of(&[])), (u64::MAX, u64::MAX));
    }
}
