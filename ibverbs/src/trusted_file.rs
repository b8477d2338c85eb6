//! Files that the library finds by their place and executes.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::unistd::geteuid;

/// Reports whether only root and the user of this process can have put a file at `path`, which has neither
/// symbolic links nor `..`: the file and all directories above it belong to these two, and nobody else can
/// write to them. A sticky directory such as `/tmp`, where others cannot rename what is not theirs, is
/// accepted above the directory of the file.
pub(crate) fn is_trusted(path: &Path) -> bool {
    path.is_absolute()
        && path.ancestors().enumerate().all(|(level, of)| {
            std::fs::symlink_metadata(of).is_ok_and(|found| {
                let kind = if level == 0 { found.is_file() } else { found.is_dir() };
                let is_protected = found.mode() & 0o022 == 0 || level >= 2 && found.mode() & 0o1000 != 0;
                kind && is_protected && [0, geteuid().as_raw()].contains(&found.uid())
            })
        })
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn file_that_another_user_may_have_put_there_is_not_trusted() {
        let top = tempfile::tempdir().unwrap();
        let directory = top.path().canonicalize().unwrap().join("a/b");
        fs::create_dir_all(&directory).unwrap();
        let file = directory.join("urxe");
        fs::write(&file, "").unwrap();
        let set = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        let parent = directory.parent().unwrap();
        [parent, &directory].iter().for_each(|directory| set(directory, 0o755));
        assert!(is_trusted(&file));
        for (path, mode, expected) in [
            (file.as_path(), 0o777, false),
            (&file, 0o775, false),
            (&file, 0o755, true),
            (&directory, 0o777, false),
            (&directory, 0o1777, false),
            (&directory, 0o755, true),
            (parent, 0o777, false),
            (parent, 0o1777, true),
            (parent, 0o775, false),
            (parent, 0o755, true),
        ] {
            set(path, mode);
            assert_eq!(is_trusted(&file), expected, "{} {mode:o}", path.display());
        }
        symlink(&file, directory.join("link")).unwrap();
        assert!(
            !is_trusted(&directory.join("link"))
                && !is_trusted(&directory)
                && !is_trusted(&directory.join("none"))
        );
        if geteuid().is_root() {
            std::os::unix::fs::chown(&file, Some(65534), None).unwrap();
            assert!(!is_trusted(&file));
        }
    }
}
