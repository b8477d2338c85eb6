//! Memory beyond regions: windows, fast registration, device memory, null regions.

pub use super::dm::{Dm, DmMr};
pub use super::mr::{NullMr, RawMr};
pub use super::mw::{FastMr, Mw};
pub use crate::memory::{Bind, Buffer, FastReg, WindowKind};
