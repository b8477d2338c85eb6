//! C structs of `infiniband/verbs.h` and `rdma/rdma_cma.h` (rdma-core 44 and later), under their C names and
//! with the C layout.
//!
//! The headers are the reference: a test compares the offset and size of every field with the C compiler's. The
//! sizes of the structs are asserted at compile time.
#![allow(non_camel_case_types, non_snake_case, missing_docs)]

/// Layout of a struct, for the comparison with the C compiler.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    pub name: &'static str,
    pub size: usize,
    /// Name, offset and size in bytes of each field.
    pub fields: &'static [(&'static str, usize, usize)],
}

impl Layout {
    /// Reports whether this struct begins with another one: with the same fields at the same offsets, or with a
    /// field of the other's size.
    pub const fn begins_with(&self, other: &Layout) -> bool {
        if self.fields[0].1 == 0 && self.fields[0].2 == other.size {
            return true;
        }
        let mut i = 0;
        while i < other.fields.len() {
            let (field, same) = (self.fields[i], other.fields[i]);
            if field.1 != same.1 || field.2 != same.2 {
                return false;
            }
            i += 1;
        }
        self.size >= other.size
    }
}

/// Defines `#[repr(C)]` structs, and `LAYOUTS` with the offset and size of each field.
macro_rules! c_structs {
    ($($(#[$meta:meta])* $name:ident { $($field:ident: $kind:ty),* $(,)? })*) => {
        $(
            $(#[$meta])* #[repr(C)] #[derive(Clone, Copy)] pub struct $name { $(pub $field: $kind),* }

            impl $name {
                pub const LAYOUT: $crate::abi::Layout = $crate::abi::Layout {
                    name: stringify!($name),
                    size: size_of::<$name>(),
                    fields: &[
                        $((stringify!($field), std::mem::offset_of!($name, $field), size_of::<$kind>())),*
                    ],
                };
            }
        )*

        /// Layouts of the structs in this file.
        pub const LAYOUTS: &[$crate::abi::Layout] = &[$($name::LAYOUT),*];
    };
}

mod attr;
mod cm;
mod context;
mod object;
#[cfg(target_arch = "x86_64")]
mod sizes;
mod work;

pub use attr::*;
pub use cm::*;
pub use context::*;
pub use object::*;
pub use work::*;

/// Layouts of all structs.
pub const LAYOUTS: [&[Layout]; 5] =
    [attr::LAYOUTS, cm::LAYOUTS, context::LAYOUTS, object::LAYOUTS, work::LAYOUTS];

#[cfg(test)]
mod tests;
