//! Enums whose variants have names.

/// Defines an enum from a table of its variants and their names, and the function `name`.
macro_rules! named {
    ($(#[$attribute:meta])* $vis:vis enum $type:ident {
        $($(#[$doc:meta])* $variant:ident $(= $value:literal)?, $name:literal;)*
    }) => {
        $(#[$attribute])*
        $vis enum $type {
            $($(#[$doc])* $variant $(= $value)?,)*
        }

        impl $type {
            /// Returns the name.
            $vis const fn name(self) -> &'static str {
                match self {
                    $($type::$variant => $name,)*
                }
            }
        }
    };
}

pub(crate) use named;
