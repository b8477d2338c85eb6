//! The structs of `infiniband/verbs.h` and `rdma/rdma_cma.h` (rdma-core 44 and later), as C lays them out. Names are C's.
//!
//! The headers are the contract; a test asks the C compiler for the place and size of every field.
#![allow(non_camel_case_types, non_snake_case, missing_docs)]

/// What the C compiler must agree with.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    pub name: &'static str,
    pub size: usize,
    /// Name, offset and size of each field.
    pub fields: &'static [(&'static str, usize, usize)],
}

/// Structs as C has them, and `LAYOUTS` with the place of each field.
macro_rules! c_structs {
    ($($(#[$meta:meta])* $name:ident { $($field:ident: $kind:ty),* $(,)? })*) => {
        $($(#[$meta])* #[repr(C)] #[derive(Clone, Copy)] pub struct $name { $(pub $field: $kind),* })*

        /// Of this file's structs.
        pub const LAYOUTS: &[$crate::abi::Layout] = &[$($crate::abi::Layout {
            name: stringify!($name),
            size: size_of::<$name>(),
            fields: &[$((stringify!($field), std::mem::offset_of!($name, $field), size_of::<$kind>())),*],
        }),*];
    };
}

mod attr;
mod cm;
mod context;
mod object;
mod work;

pub use attr::*;
pub use cm::*;
pub use context::*;
pub use object::*;
pub use work::*;

/// Of all structs.
pub const LAYOUTS: [&[Layout]; 5] =
    [attr::LAYOUTS, cm::LAYOUTS, context::LAYOUTS, object::LAYOUTS, work::LAYOUTS];

#[cfg(test)]
mod tests;
