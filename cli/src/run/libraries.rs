//! The shared libraries that `urxe run` makes programs load: where they are, and the copies inside the
//! command.

use std::env;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::sys::statvfs::{FsFlags, statvfs};

use super::{create_error, create_private_dir, unique_suffix};
use crate::CliError;

/// A shared library that belongs to the executable.
pub enum Library {
    /// Contents, inside the executable.
    Contents(&'static [u8]),
    /// File that was built together with a debug build of the executable.
    File(PathBuf),
}

/// Returns the library that belongs to the executable, given its name without suffix.
pub type Libraries = fn(&str) -> Option<Library>;

/// Returns the path of the library `name`: that in the environment variable `variable`, otherwise that of the
/// executable, which is written below `base` if it is inside. No other file is searched for: another user may
/// have put it there.
pub fn find_library(
    base: &Path,
    variable: &str,
    name: &str,
    libraries: Libraries,
) -> Result<PathBuf, CliError> {
    if let Some(named) = env::var_os(variable) {
        let what = format!("{variable} is {}", named.display());
        return fs::canonicalize(named).map_err(CliError::io(what));
    }
    match libraries(name.trim_end_matches(".so")) {
        Some(Library::Contents(contents)) => unpack(base, name, contents),
        Some(Library::File(path)) => fs::canonicalize(&path).map_err(|_| {
            CliError::Usage(format!(
                "library not found at {}: build it (cargo build --workspace), or set {variable}",
                path.display()
            ))
        }),
        None => Err(CliError::Usage(format!("this executable contains no {name}: set {variable}"))),
    }
}

/// Writes an embedded library to a directory named after the version and the contents, unless it is there
/// already, and returns its path.
fn unpack(base: &Path, name: &str, contents: &[u8]) -> Result<PathBuf, CliError> {
    let directory = base.join(format!("{}-{:08x}", env!("CARGO_PKG_VERSION"), crc32fast::hash(contents)));
    create_private_dir(&directory).map_err(create_error(&directory))?;
    if statvfs(&directory).is_ok_and(|fs| fs.flags().contains(FsFlags::ST_NOEXEC)) {
        return Err(CliError::Usage(format!(
            "no library can be loaded from {}, whose file system is mounted with noexec: set XDG_RUNTIME_DIR \
             or TMPDIR to a directory on another file system",
            directory.display()
        )));
    }
    let path = directory.join(name);
    // The whole file is compared: one that another program has cut short or changed would crash programs.
    if !fs::read(&path).is_ok_and(|found| found == contents) {
        write_atomically(&path, contents).map_err(create_error(&path))?;
    }
    Ok(path)
}

/// Writes an executable file under a temporary name and renames it, because other programs may be loading the
/// file that it replaces.
fn write_atomically(path: &Path, contents: &[u8]) -> io::Result<()> {
    let new = path.with_extension(format!("so.{}", unique_suffix()));
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o755).open(&new)?;
    let written = file.write_all(contents);
    drop(file);
    let renamed = written.and_then(|()| fs::rename(&new, path));
    // Removed because an incomplete library would occupy a full file system.
    renamed.inspect_err(|_| drop(fs::remove_file(&new)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn library_is_unpacked_once_and_restored_if_it_was_changed() {
        let base = tempfile::tempdir().unwrap();
        let path = unpack(base.path(), "libx.so", b"contents").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"contents");
        let modified = || fs::metadata(&path).unwrap().modified().unwrap();
        let first = modified();
        assert_eq!(unpack(base.path(), "libx.so", b"contents").unwrap(), path);
        assert_eq!(modified(), first);
        fs::write(&path, b"cont").unwrap();
        unpack(base.path(), "libx.so", b"contents").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"contents");
        let other = unpack(base.path(), "libx.so", b"another build").unwrap();
        assert_ne!(other, path);
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "a temporary file is left");
        // The rename fails if a directory is at the library's path.
        fs::remove_file(&path).unwrap();
        fs::create_dir_all(path.join("x")).unwrap();
        unpack(base.path(), "libx.so", b"contents").unwrap_err();
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "a temporary file is left");
    }
}
