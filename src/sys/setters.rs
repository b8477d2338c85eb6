//! Chainable setters for public configuration structs.

/// Defines a setter for each listed field, which takes the struct by value and returns it. Setters for fields
/// after `optional`, which must be `Option`s, accept either a value or an `Option`. Given a struct, defines
/// it with setters for all its fields.
#[cfg_attr(feature = "unstable-internals", macro_export)]
macro_rules! setters {
    ($(#[$attribute:meta])* pub struct $type:ident { $($(#[$doc:meta])* pub $field:ident: $ty:ty),* $(,)? }) => {
        $(#[$attribute])*
        pub struct $type {
            $($(#[$doc])* pub $field: $ty,)*
        }

        $crate::sys::setters::setters!($type { $($field: $ty),* });
    };
    ($type:ident { $($field:ident: $ty:ty),* $(,)? } $(optional { $($option:ident: $some:ty),* $(,)? })?) => {
        impl $type {
            $(
                #[doc = concat!("Sets the field [`", stringify!($field), "`](#structfield.", stringify!($field), ").")]
                #[must_use]
                pub fn $field(mut self, $field: $ty) -> $type {
                    self.$field = $field;
                    self
                }
            )*
            $($(
                #[doc = concat!("Sets the field [`", stringify!($option), "`](#structfield.", stringify!($option), ").")]
                #[must_use]
                pub fn $option(mut self, $option: impl Into<Option<$some>>) -> $type {
                    self.$option = $option.into();
                    self
                }
            )*)?
        }
    };
}

pub(crate) use setters;
