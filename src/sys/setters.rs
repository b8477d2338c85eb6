//! Chainable setters of the structs that users fill.

/// Defines a setter for each field, which takes the struct by value and returns it. The setters of the fields
/// after `optional`, which are `Option`s, accept a value as well as an `Option`.
macro_rules! setters {
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
