//! Output of captures and event logs to a file or a stream, and the choice of a separate file for each process.

use std::ffi::OsString;
use std::fs::{File, FileType, TryLockError};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

/// Output for whole blocks: a failed write to a file is undone, so that the file remains readable.
pub(super) enum Output {
    /// A regular file, and the total length of the blocks written to it.
    File(File, u64),
    Stream(Box<dyn Write + Send>),
}

impl Output {
    pub fn new(file: File) -> io::Result<Output> {
        let is_regular = file.metadata()?.is_file();
        Ok(if is_regular { Output::File(file, 0) } else { Output::Stream(Box::new(file)) })
    }

    /// Reports whether a write can succeed after a failed one. Streams are not recoverable, because they may
    /// end in a partial block.
    pub fn is_recoverable(&self) -> bool {
        matches!(self, Output::File(..))
    }

    pub fn append(&mut self, blocks: &[u8]) -> io::Result<()> {
        match self {
            Output::Stream(stream) => stream.write_all(blocks).and_then(|()| stream.flush()),
            Output::File(file, len) => match file.write_all(blocks) {
                Ok(()) => {
                    *len += blocks.len() as u64;
                    Ok(())
                }
                Err(e) => {
                    let repaired = file.set_len(*len).and_then(|()| file.seek(SeekFrom::Start(*len)));
                    if repaired.is_err() {
                        // Blocks after a partial one would not be readable.
                        *self = Output::Stream(Box::new(io::sink()));
                    }
                    Err(e)
                }
            },
        }
    }
}

fn open(path: &Path) -> io::Result<(File, FileType)> {
    let file = File::options().write(true).create(true).truncate(false).open(path)?;
    let kind = file.metadata()?.file_type();
    Ok((file, kind))
}

/// Locks a file until this process closes it. Returns false if another process holds the lock. Character
/// devices such as `/dev/null` need no lock.
fn lock(file: &File, kind: FileType) -> io::Result<bool> {
    if kind.is_char_device() {
        return Ok(true);
    }
    match file.try_lock() {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        // Some file systems do not support locks; their files are treated as unlocked.
        Err(TryLockError::Error(e))
            if matches!(e.raw_os_error(), Some(libc::ENOSYS | libc::EOPNOTSUPP | libc::ENOLCK)) =>
        {
            Ok(true)
        }
        Err(TryLockError::Error(e)) => Err(e),
    }
}

fn file_in_use() -> io::Error {
    io::Error::new(io::ErrorKind::ResourceBusy, "another process writes to this file")
}

/// Creates a file, or truncates an existing one that no process writes to.
pub(super) fn replace(path: &Path) -> io::Result<File> {
    let (file, kind) = open(path)?;
    if !lock(&file, kind)? {
        return Err(file_in_use());
    }
    if kind.is_file() {
        file.set_len(0)?;
    }
    Ok(file)
}

/// Empties a file for the processes that will [`claim`] it, unless a process writes to it.
pub(super) fn clear(path: &Path) -> io::Result<()> {
    // The reader of a pipe would see end of file if the pipe were opened and closed here.
    if std::fs::metadata(path).is_ok_and(|metadata| !metadata.is_file()) {
        return Ok(());
    }
    let (file, kind) = open(path)?;
    if kind.is_file() && lock(&file, kind)? { file.set_len(0) } else { Ok(()) }
}

/// Opens the file at `path` if it is empty and no other process writes to it; otherwise creates a file with
/// the PID in its name. Returns the file with its path.
pub(super) fn claim(path: &Path, pid: u32) -> io::Result<(File, PathBuf)> {
    let (file, kind) = open(path)?;
    let locked = lock(&file, kind)?;
    if !kind.is_file() {
        return if locked { Ok((file, path.to_owned())) } else { Err(file_in_use()) };
    }
    if locked && file.metadata()?.len() == 0 {
        return Ok((file, path.to_owned()));
    }
    // A name in /dev/fd refers to a file elsewhere.
    let path = path.canonicalize()?;
    let mut number = 0;
    loop {
        number += 1;
        let path = path_with_pid(&path, pid, number);
        match File::create_new(&path) {
            Ok(file) => {
                lock(&file, kind)?;
                return Ok((file, path));
            }
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(e),
        }
    }
}

/// Inserts the PID into a file name: `dir/out.pcapng` becomes `dir/out-PID.pcapng`, or `dir/out-PID-2.pcapng`
/// if `number` is 2.
fn path_with_pid(path: &Path, pid: u32, number: u32) -> PathBuf {
    with_suffix(path, &if number > 1 { format!("-{pid}-{number}") } else { format!("-{pid}") })
}

/// Inserts a suffix into a file name, before its extension.
pub(super) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.file_stem().map(OsString::from).unwrap_or_default();
    name.push(suffix);
    if let Some(extension) = path.extension() {
        name.push(".");
        name.push(extension);
    }
    path.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_process_claims_a_file_of_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.b.pcapng");
        let (mut first, name) = claim(&path, 7).unwrap();
        assert_eq!(name, path);
        // Claims before the first process has written, while it writes, and after it has closed the file.
        let (_second, name) = claim(&path, 8).unwrap();
        assert_eq!(name.file_name().unwrap(), "a.b-8.pcapng");
        assert!(replace(&path).unwrap_err().to_string().contains("another process"));
        first.write_all(b"x").unwrap();
        drop(first);
        let (_third, name) = claim(&path, 8).unwrap();
        assert_eq!(name.file_name().unwrap(), "a.b-8-2.pcapng");
        assert_eq!(std::fs::read(&path).unwrap(), b"x");
        drop(replace(&path).unwrap());
        assert_eq!(claim(&path, 9).unwrap().1, path);
    }
}
