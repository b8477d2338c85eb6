//! Names and versions: the functions here have Rust's names, and programs find them by C's.

#[cfg(target_arch = "x86_64")]
macro_rules! jump {
    () => {
        "jmp {f}"
    };
}

#[cfg(target_arch = "aarch64")]
macro_rules! jump {
    () => {
        "b {f}"
    };
}

/// `"NODE": name = path, …;`: each function under its C name, in a version node of the library (`build.rs`).
///
/// A version belongs to a symbol of the assembler's, so each is a jump to the function.
macro_rules! export {
    ($($node:literal: $($name:ident = $path:path),* $(,)?;)*) => {
        $($(std::arch::global_asm!(
            ".pushsection .text",
            concat!(".globl urxe_export_", stringify!($name)),
            concat!(".type urxe_export_", stringify!($name), ",@function"),
            concat!("urxe_export_", stringify!($name), ":"),
            // For a thread that is unwound from here, as by an asynchronous cancellation.
            ".cfi_startproc",
            jump!(),
            ".cfi_endproc",
            concat!(".symver urxe_export_", stringify!($name), ",", stringify!($name), "@@", $node),
            ".popsection",
            f = sym $path,
        );)*)*
    };
}
