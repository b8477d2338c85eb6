//! Structs of options with defaults.

/// Defines a struct with [`Default`], and a setter for each field ([`setters`](crate::sys::setters)). Fields
/// after `optional` are `None` by default.
macro_rules! options {
    ($(#[$attribute:meta])* pub struct $type:ident {
        $($(#[$doc:meta])* pub $field:ident: $ty:ty = $default:expr,)*
        optional $($(#[$option_doc:meta])* pub $option:ident: Option<$some:ty>,)*
    }) => {
        $(#[$attribute])*
        pub struct $type {
            $($(#[$doc])* pub $field: $ty,)*
            $($(#[$option_doc])* pub $option: Option<$some>,)*
        }

        impl Default for $type {
            fn default() -> $type {
                $type { $($field: $default,)* $($option: None,)* }
            }
        }

        $crate::sys::setters::setters!($type { $($field: $ty),* } optional { $($option: $some),* });
    };
}

pub(crate) use options;
