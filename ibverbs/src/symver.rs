//! Symbol names and versions: export of this crate's Rust functions under their C names.

/// Exports functions under their C names, each in one of the library's version nodes (`build.rs`): `"NODE":
/// name = path, ...;`.
///
/// A symbol version can only be given to an assembler symbol, so each export is a jump to the Rust function.
macro_rules! export {
    ($($node:literal: $($name:ident = $path:path),* $(,)?;)*) => {
        $($(std::arch::global_asm!(
            ".pushsection .text",
            concat!(".globl urxe_export_", stringify!($name)),
            concat!(".type urxe_export_", stringify!($name), ",@function"),
            concat!("urxe_export_", stringify!($name), ":"),
            // Call frame information, for a thread that is unwound from this instruction by an asynchronous
            // cancellation.
            ".cfi_startproc",
            concat!(env!("URXE_JUMP"), " {f}"),
            ".cfi_endproc",
            concat!(".symver urxe_export_", stringify!($name), ",", stringify!($name), "@@", $node),
            ".popsection",
            f = sym $path,
        );)*)*
    };
}
