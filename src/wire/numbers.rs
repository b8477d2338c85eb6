//! Text of numbers: macros for typed numbers, their hexadecimal text and codes with names; counts of things.

/// Count of things as text: the number, and the noun in the singular or plural.
pub(crate) struct Counted<N>(pub N, pub &'static str);

impl<N: std::fmt::Display + PartialEq + From<u8>> std::fmt::Display for Counted<N> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let plural = if self.0 == N::from(1) { "" } else { "s" };
        write!(f, "{} {}{plural}", self.0, self.1)
    }
}

/// Implements `Debug` and `Display` for newtypes of a number, by two formats in this order.
macro_rules! hexadecimal {
    ($($name:ident: $debug:literal, $display:literal;)*) => {
        $(impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, $debug, self.0)
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, $display, self.0)
            }
        })*
    };
}

/// Defines an enum of the codes of a field. Its last variant holds the unassigned values.
macro_rules! codes {
    ($(#[$doc:meta])* $name:ident: $repr:ty {
        $($(#[$vdoc:meta])* $variant:ident = $code:literal, $text:literal;)*
        _ = $other:ident, $other_text:literal;
    }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum $name {
            $($(#[$vdoc])* $variant,)*
            /// Unassigned code.
            $other($repr),
        }

        impl $name {
            /// All assigned codes.
            pub const ALL: &'static [$name] = &[$($name::$variant),*];

            /// Returns the value on the wire.
            pub const fn code(self) -> $repr {
                match self {
                    $($name::$variant => $code,)*
                    $name::$other(code) => code,
                }
            }

            /// Returns the variant for a value on the wire.
            pub const fn from_code(code: $repr) -> $name {
                match code {
                    $($code => $name::$variant,)*
                    code => $name::$other(code),
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                match self {
                    $($name::$variant => f.write_str($text),)*
                    $name::$other(code) => write!(f, $other_text, code),
                }
            }
        }
    };
}

pub(in crate::wire) use {codes, hexadecimal};
