//! Structs of counters.

/// Defines a struct of counters, and their sum. With a literal before the name of the struct, `named` returns
/// the counters by name, which begins with the literal. Counters after `by` are arrays, one counter for each
/// of so many subjects.
macro_rules! counters {
    (
        $(#[$meta:meta])*
        $type:ident { $($(#[$doc:meta])* $name:ident,)* }
        $(by $count:ident { $($(#[$array_doc:meta])* $array:ident,)* })?
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        #[non_exhaustive]
        pub struct $type {
            $($(#[$doc])* pub $name: u64,)*
            $($($(#[$array_doc])* pub $array: [u64; $count],)*)?
        }

        impl std::ops::AddAssign for $type {
            fn add_assign(&mut self, other: $type) {
                $(self.$name += other.$name;)*
                $($(self.$array.iter_mut().zip(other.$array).for_each(|(sum, n)| *sum += n);)*)?
            }
        }
    };
    (
        $(#[$meta:meta])*
        $prefix:literal $type:ident { $($(#[$doc:meta])* $name:ident,)* }
        $($arrays:tt)*
    ) => {
        $crate::sys::counters::counters! { $(#[$meta])* $type { $($(#[$doc])* $name,)* } $($arrays)* }

        impl $type {
            /// Iterates over names and values, in declaration order.
            fn named(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
                [$((concat!($prefix, stringify!($name)), self.$name)),*].into_iter()
            }
        }
    };
}

pub(crate) use counters;
