//! C structs from `infiniband/verbs.h` and `rdma/rdma_cma.h` (rdma-core 44 and later), under their C names
//! and with the C layout.
//!
//! The headers are the reference: a test compares the offset and size of every field with the C compiler's.
//! The sizes of the structs are asserted at compile time.
#![allow(non_camel_case_types, non_snake_case)]

/// Layout of a struct.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    pub size: usize,
    /// Name, offset and size in bytes of each field.
    pub fields: &'static [(&'static str, usize, usize)],
}

impl Layout {
    /// Reports whether this struct begins with the struct `other`: either its first fields match the fields
    /// of `other` in offset and size, or its first field is as large as `other`.
    pub(crate) const fn begins_with(&self, other: &Layout) -> bool {
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

/// Defines `#[repr(C)]` structs, each with a constant `LAYOUT`, and the list `LAYOUTS` of all of them. The
/// number is the size of the struct on x86-64, as the C compiler computes it. It is asserted at compile time,
/// because the comparison of all fields in `tests.rs` does not run on machines without the C headers.
macro_rules! c_structs {
    ($($(#[$meta:meta])* $name:ident: $size:literal { $($field:ident: $kind:ty),* $(,)? })*) => {
        $(
            #[cfg(target_arch = "x86_64")]
            const _: () = assert!(size_of::<$name>() == $size);

            $(#[$meta])* #[repr(C)] #[derive(Clone, Copy)] pub(crate) struct $name { $(pub $field: $kind),* }

            impl $name {
                #[allow(dead_code, reason = "product code reads those of objects only")]
                pub(crate) const LAYOUT: $crate::abi::Layout = $crate::abi::Layout {
                    size: size_of::<$name>(),
                    fields: &[
                        $((stringify!($field), std::mem::offset_of!($name, $field), size_of::<$kind>())),*
                    ],
                };
            }
        )*

        /// Names and layouts of the structs in this file.
        #[cfg(test)]
        pub(crate) const LAYOUTS: &[(&str, $crate::abi::Layout)] = &[$((stringify!($name), $name::LAYOUT)),*];
    };
}

mod attr;
mod cm;
mod context;
mod later;
mod object;
mod work;

pub(crate) use attr::*;
pub(crate) use cm::*;
pub(crate) use context::*;
pub(crate) use later::*;
pub(crate) use object::*;
pub(crate) use work::*;

/// Names and layouts of all structs but those in `later`.
#[cfg(test)]
const LAYOUTS: [&[(&str, Layout)]; 5] =
    [attr::LAYOUTS, cm::LAYOUTS, context::LAYOUTS, object::LAYOUTS, work::LAYOUTS];

#[cfg(test)]
mod tests;
