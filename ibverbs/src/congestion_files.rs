//! Congestion parameters in a device's sysfs tree, where other programs read and change them.
//!
//! `urxe run` creates a file for each parameter, which `/sys/class/net` and debugfs show under further names,
//! and never overwrites it. A process reads the files when it opens the device and several times a second
//! after that. Only texts that differ from those of `urxe run` count, because the program may have been
//! started with another `URXE_CONGESTION`.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use urxe::verbs::{Congestion, CongestionParameter, Context, WeakContext};

use crate::log::warn;

/// Number of bytes of a file that are read; no permitted value is as long.
const MAX_LEN: u64 = 32;

/// Files with the congestion parameters of a NIC.
pub(crate) struct CongestionFiles {
    /// Name of the device.
    name: String,
    directory: PathBuf,
    /// Texts of the files when they were last read, in the order of [`CongestionParameter::ALL`].
    seen: Vec<String>,
    /// The last texts with a permitted value, in the same order.
    valid: Vec<String>,
    /// Congestion control with the values of the files.
    congestion: Congestion,
    /// Congestion control that the NIC has.
    in_effect: Congestion,
}

impl CongestionFiles {
    /// Reads the files of the device `name`, and changes the parameters of its NIC. Returns `None` if the
    /// device has no files because the program does not run under `urxe run`.
    pub(crate) fn open(sysfs: &str, name: &str, nic: &Context) -> Option<CongestionFiles> {
        let directory = PathBuf::from(format!("{sysfs}/congestion/{name}"));
        let initial: Congestion =
            fs::read_to_string(directory.join("initial")).ok()?.trim_end().parse().ok()?;
        let seen: Vec<_> = initial.parameters().map(|(_, value)| line(value)).collect();
        let (name, valid, own) = (name.into(), seen.clone(), nic.congestion());
        let mut files = CongestionFiles { name, directory, seen, valid, congestion: own, in_effect: own };
        files.read();
        nic.set_congestion(files.congestion);
        files.in_effect = files.congestion;
        Some(files)
    }

    /// Reads the files again, and changes the parameters of the NIC if the files have changed. Waits up to
    /// `timeout` for the lock of each shard; after a failure, the next call changes the parameters.
    pub(crate) fn update(&mut self, nic: &WeakContext, timeout: Duration) {
        self.read();
        if self.in_effect != self.congestion && nic.set_congestion_within(self.congestion, timeout) {
            self.in_effect = self.congestion;
        }
    }

    /// Takes the values from the files that have changed. A text that is no permitted value is warned of, and
    /// replaced by the one before. That need not be this NIC's value, which other programs must not take
    /// over.
    fn read(&mut self) {
        let texts = self.seen.iter_mut().zip(&mut self.valid);
        for (parameter, (seen, valid)) in CongestionParameter::ALL.iter().zip(texts) {
            let path = self.directory.join(parameter.to_string());
            // Parameters of the delay-based control have no file.
            let Ok(text) = read(&path) else { continue };
            let is_new = text != *seen;
            seen.clone_from(&text);
            // A shell empties a file before it writes: an empty file counts if it is still empty the next
            // time.
            if is_new == text.is_empty() {
                continue;
            }
            // The first line, because another process may have written a longer text before this one.
            if let Some(value) = text.lines().next() {
                match self.congestion.with_text(*parameter, value.trim()) {
                    Ok(changed) => {
                        self.congestion = changed;
                        *valid = line(changed.get(*parameter));
                    }
                    Err(e) => {
                        let remaining = self.congestion.get(*parameter);
                        warn(&format!("{}: {e}; {remaining} remains", self.name));
                    }
                }
            }
            if text != *valid {
                // In place, because the file has several names. If this fails, the text remains.
                let _ = fs::write(&path, &valid);
                seen.clone_from(valid);
            }
        }
    }
}

/// Returns the text of a file with a value.
fn line(value: u32) -> String {
    format!("{value}\n")
}

fn read(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX_LEN).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use urxe::verbs::{ContextOptions, Fabric};

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(60);

    /// A device `mlx5_0` in a tree of `urxe run` with default congestion control, and a NIC opened with
    /// `own`.
    struct Device {
        tree: tempfile::TempDir,
        nic: Context,
    }

    impl Device {
        fn new(own: &str) -> Device {
            let device = Device { tree: tempfile::tempdir().unwrap(), nic: nic(own) };
            fs::create_dir_all(device.file("")).unwrap();
            fs::write(device.file("initial"), "loss-driven\n").unwrap();
            fs::write(device.file("rpg_gd"), "11\n").unwrap();
            fs::write(device.file("rpg_ai_rate"), "5\n").unwrap();
            device
        }

        fn file(&self, name: &str) -> PathBuf {
            self.tree.path().join("congestion/mlx5_0").join(name)
        }

        fn open(&self) -> CongestionFiles {
            CongestionFiles::open(self.tree.path().to_str().unwrap(), "mlx5_0", &self.nic).unwrap()
        }

        /// Writes to the file of `rpg_ai_rate`, updates the NIC, and returns the text of the file and the
        /// congestion control of the NIC.
        fn after_write(&self, files: &mut CongestionFiles, text: &str) -> (String, String) {
            fs::write(self.file("rpg_ai_rate"), text).unwrap();
            files.update(&self.nic.downgrade(), TIMEOUT);
            (fs::read_to_string(self.file("rpg_ai_rate")).unwrap(), self.nic.congestion().to_string())
        }
    }

    fn nic(congestion: &str) -> Context {
        let options = ContextOptions::default().congestion(congestion.parse().unwrap());
        Fabric::new().open(&options).unwrap()
    }

    fn texts(file: &str, congestion: &str) -> (String, String) {
        (file.into(), congestion.into())
    }

    #[test]
    fn only_files_that_differ_from_the_initial_values_change_a_nic_that_is_opened() {
        let device = Device::new("dcqcn:sigcomm15");
        device.open();
        assert_eq!(device.nic.congestion(), Congestion::DCQCN_SIGCOMM15);
        fs::write(device.file("rpg_gd"), "12\n").unwrap();
        device.open();
        assert_eq!(device.nic.congestion().to_string(), "dcqcn:sigcomm15,rpg_gd=12");
    }

    #[test]
    fn changed_file_changes_an_open_nic_and_an_initial_value_changes_it_back() {
        let device = Device::new("loss-driven");
        let mut files = device.open();
        let mut after_write = |text: &str| device.after_write(&mut files, text);
        assert_eq!(after_write("20\n"), texts("20\n", "loss-driven,rpg_ai_rate=20"));
        assert_eq!(after_write("5\n"), texts("5\n", "loss-driven"));
        // The file shows the value, whatever its text.
        assert_eq!(after_write("+030"), texts("30\n", "loss-driven,rpg_ai_rate=30"));
        assert_eq!(after_write("7\n0000\n"), texts("7\n", "loss-driven,rpg_ai_rate=7"));
    }

    #[test]
    fn file_without_a_permitted_value_is_restored_and_changes_nothing() {
        let device = Device::new("loss-driven");
        fs::write(device.file("rpg_gd"), "9\n").unwrap();
        let mut files = device.open();
        assert_eq!(fs::read_to_string(device.file("rpg_gd")).unwrap(), "11\n");
        device.after_write(&mut files, "20\n");
        for text in ["0\n", "1000001", "99999999999\n", "-1\n", "0x10\n", "ten\n", "\n", "\u{fffd}"] {
            let after = device.after_write(&mut files, text);
            assert_eq!(after, texts("20\n", "loss-driven,rpg_ai_rate=20"), "{text:?}");
        }
        let after = device.after_write(&mut files, &"9".repeat(1 << 20));
        assert_eq!(after, texts("20\n", "loss-driven,rpg_ai_rate=20"));
    }

    #[test]
    fn restored_file_does_not_change_programs_with_other_values() {
        let device = Device::new("loss-driven,rpg_ai_rate=100");
        let (mut files, other) = (device.open(), nic("loss-driven,rpg_ai_rate=200"));
        let mut others_files =
            CongestionFiles::open(device.tree.path().to_str().unwrap(), "mlx5_0", &other).unwrap();
        assert_eq!(device.after_write(&mut files, "0\n"), texts("5\n", "loss-driven,rpg_ai_rate=100"));
        others_files.update(&other.downgrade(), TIMEOUT);
        files.update(&device.nic.downgrade(), TIMEOUT);
        assert_eq!(other.congestion().to_string(), "loss-driven,rpg_ai_rate=200");
        assert_eq!(device.nic.congestion().to_string(), "loss-driven,rpg_ai_rate=100");
    }

    #[test]
    fn file_that_a_writer_has_emptied_is_restored_if_it_stays_empty() {
        let device = Device::new("loss-driven");
        let mut files = device.open();
        assert_eq!(device.after_write(&mut files, ""), texts("", "loss-driven"));
        assert_eq!(device.after_write(&mut files, "20\n"), texts("20\n", "loss-driven,rpg_ai_rate=20"));
        assert_eq!(device.after_write(&mut files, "").0, "");
        assert_eq!(device.after_write(&mut files, ""), texts("20\n", "loss-driven,rpg_ai_rate=20"));
    }

    #[test]
    fn change_that_a_locked_shard_prevents_is_made_by_a_later_update() {
        let device = Device::new("loss-driven");
        let mut files = device.open();
        fs::write(device.file("rpg_gd"), "12\n").unwrap();
        // A NIC that is closed cannot be changed either.
        let closed = nic("loss-driven").downgrade();
        files.update(&closed, TIMEOUT);
        files.update(&device.nic.downgrade(), TIMEOUT);
        assert_eq!(device.nic.congestion().to_string(), "loss-driven,rpg_gd=12");
    }

    #[test]
    fn device_without_files_keeps_its_congestion_control() {
        let dir = tempfile::tempdir().unwrap();
        let nic = nic("dcqcn");
        assert!(CongestionFiles::open(dir.path().to_str().unwrap(), "mlx5_0", &nic).is_none());
    }
}
