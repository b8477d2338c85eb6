//! Lock of the machine's huge pages. The suite of pyverbs needs those that its test reserves, and UCX, Open
//! MPI and libfabric take whatever huge pages there are.

use std::fs::File;

fn open() -> File {
    let path = crate::artifacts::directory().join("huge-pages");
    File::create(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Waits until no test has reserved huge pages, and keeps it so as long as the file is open.
pub fn leave() -> File {
    let file = open();
    file.lock_shared().expect("a lock of a file");
    file
}

/// Waits until no test takes huge pages, and keeps it so as long as the file is open.
pub fn take() -> File {
    let file = open();
    file.lock().expect("a lock of a file");
    file
}
