//! The pieces behind the `urxe` command line.

pub mod exchange;
