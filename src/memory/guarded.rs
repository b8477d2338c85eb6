//! Loads, stores and copies that access user memory, and return an error on a fault.
//!
//! A program may unmap, protect or truncate memory that it has registered. Each instruction here that
//! accesses user memory has an entry in an exception table with its fixup address, as in the kernel's
//! accessors of user memory. The signal handler in [`super::fault`] looks up the faulting instruction and
//! resumes at the fixup, which sets a flag. Without a fault the cost is one test of that flag.
//!
//! On targets other than x86-64 the accesses are those of Rust, some of them atomic, and a fault ends the
//! process. The same holds with `--cfg urxe_plain_access`: sanitizers observe these accesses, but not those
//! of assembly code.

/// Error for an access to memory that is not mapped, or not with the needed permission.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Faulted;

/// Whether the source of a copy has been read just before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CopySource {
    /// It has, so it is in the cache: the ICRC of a packet has been verified, for example.
    Read,
    /// It has not: a packet without ICRC, for example.
    Unread,
}

/// Side of a copy that other threads may access at the same time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Racing {
    Source,
    Target,
}

/// Converts the fault flag of a guarded access to a `Result`.
#[cfg(all(target_arch = "x86_64", not(any(miri, urxe_plain_access))))]
#[inline(always)]
fn check_fault(fault: u32) -> Result<(), Faulted> {
    if fault == 0 { Ok(()) } else { Err(Faulted) }
}

#[cfg(all(target_arch = "x86_64", not(any(miri, urxe_plain_access))))]
pub(super) use x86_64::*;

#[cfg(all(target_arch = "x86_64", not(any(miri, urxe_plain_access))))]
mod x86_64 {
    use std::arch::asm;
    use std::arch::x86_64::_mm256_zeroupper;
    use std::sync::LazyLock;

    use super::{CopySource, Faulted, Racing, check_fault};

    /// Expands to an `asm!` block with instructions that may fault. Every use must pass the operand `fault`,
    /// which is set to 1 on a fault.
    ///
    /// The instructions between the labels 2 and 3 form one entry of the section `urxe_guarded`: their begin,
    /// their end and the fixup address, each relative to its own field. The linker defines `__start_` and
    /// `__stop_` symbols for a section with such a name, and the flag `R` keeps the section when unused ones
    /// are collected.
    macro_rules! guarded {
        ([$($instruction:literal),+], $($operands:tt)+) => {
            asm!(
                "2:",
                $($instruction,)+
                "3:",
                ".pushsection .text.urxe_fixup, \"ax\", @progbits",
                "4: mov {fault:e}, 1",
                "jmp 3b",
                ".popsection",
                ".pushsection urxe_guarded, \"aR\", @progbits",
                ".balign 4",
                ".long 2b - .",
                ".long 3b - .",
                ".long 4b - .",
                ".popsection",
                $($operands)+,
                options(nostack)
            )
        };
    }
    pub(in crate::memory) use guarded;

    /// Exception table entry. Each field is an address relative to the field itself.
    #[repr(C)]
    struct Guarded {
        begin: i32,
        end: i32,
        fixup: i32,
    }

    unsafe extern "C" {
        #[link_name = "__start_urxe_guarded"]
        static FIRST: Guarded;
        #[link_name = "__stop_urxe_guarded"]
        static END: Guarded;
    }

    /// Returns the fixup address for a fault in the instruction at `at`; `None` if that instruction is not
    /// guarded.
    pub fn fixup_of(at: usize) -> Option<usize> {
        let (first, end) = (&raw const FIRST, &raw const END);
        let count = (end.addr() - first.addr()) / size_of::<Guarded>();
        // SAFETY: the linker defines the two symbols as the begin and the end of the section `urxe_guarded`,
        // which is read-only and consists of the entries that the macro `guarded` emits.
        let table = unsafe { std::slice::from_raw_parts(first, count) };
        let target = |field: &i32| std::ptr::from_ref(field).addr().wrapping_add_signed(*field as isize);
        let entry = table.iter().find(|entry| (target(&entry.begin)..target(&entry.end)).contains(&at))?;
        Some(target(&entry.fixup))
    }

    /// Loads a word.
    ///
    /// # Safety
    /// The 8 bytes at `from` are readable, or user memory.
    #[inline(always)]
    pub unsafe fn load_word(from: *const u8) -> Result<[u8; 8], Faulted> {
        let (mut fault, mut word) = (0_u32, 0_u64);
        // SAFETY: reads 8 bytes that the caller guarantees to be readable or user memory; a fault sets the
        // flag.
        unsafe {
            guarded!(["mov {word}, qword ptr [{from}]"],
                from = in(reg) from, word = inout(reg) word, fault = inout(reg) fault)
        };
        check_fault(fault).map(|()| word.to_ne_bytes())
    }

    /// Stores a word. A reader of the new value also sees all earlier stores, as always on this architecture.
    ///
    /// # Safety
    /// The 8 bytes at `to` are writable, or user memory.
    #[inline(always)]
    pub unsafe fn store_word(to: *mut u8, word: [u8; 8]) -> Result<(), Faulted> {
        let (mut fault, word) = (0_u32, u64::from_ne_bytes(word));
        // SAFETY: writes 8 bytes that the caller guarantees to be writable or user memory; a fault sets the
        // flag.
        unsafe {
            guarded!(["mov qword ptr [{to}], {word}"],
                to = in(reg) to, word = in(reg) word, fault = inout(reg) fault)
        };
        check_fault(fault)
    }

    /// Stores a byte. A reader of the new value also sees all earlier stores.
    ///
    /// # Safety
    /// The byte at `to` is writable, or user memory.
    #[inline(always)]
    pub unsafe fn store_byte(to: *mut u8, byte: u8) -> Result<(), Faulted> {
        let mut fault = 0_u32;
        // SAFETY: writes a byte that the caller guarantees to be writable or user memory; a fault sets the
        // flag.
        unsafe {
            guarded!(["mov byte ptr [{to}], {byte}"],
                to = in(reg) to, byte = in(reg_byte) byte, fault = inout(reg) fault)
        };
        check_fault(fault)
    }

    /// Atomically adds `add` to an aligned word, and returns the previous value.
    ///
    /// # Safety
    /// As for [`store_word`].
    pub unsafe fn fetch_add(at: *mut u8, add: u64) -> Result<u64, Faulted> {
        let (mut fault, mut word) = (0_u32, add);
        // SAFETY: changes 8 bytes that the caller guarantees to be writable or user memory; a fault sets the
        // flag.
        unsafe {
            guarded!(["lock xadd qword ptr [{at}], {word}"],
                at = in(reg) at, word = inout(reg) word, fault = inout(reg) fault)
        };
        check_fault(fault).map(|()| word)
    }

    /// Atomically replaces an aligned word with `swap` if it equals `compare`, and returns the previous
    /// value.
    ///
    /// # Safety
    /// As for [`store_word`].
    pub unsafe fn compare_exchange(at: *mut u8, compare: u64, swap: u64) -> Result<u64, Faulted> {
        let (mut fault, mut word) = (0_u32, compare);
        // SAFETY: changes 8 bytes that the caller guarantees to be writable or user memory; a fault sets the
        // flag.
        unsafe {
            guarded!(["lock cmpxchg qword ptr [{at}], {swap}"],
                at = in(reg) at, swap = in(reg) swap, fault = inout(reg) fault, inout("rax") word)
        };
        check_fault(fault).map(|()| word)
    }

    /// Minimum length of a copy by `rep movsb`.
    const MIN_STRING: usize = 1024;

    /// Copies like [`copy`]; `source` determines the instructions for a long copy.
    ///
    /// # Safety
    /// As for [`copy`].
    #[inline]
    pub unsafe fn copy_from(
        source: CopySource,
        from: *const u8,
        to: *mut u8,
        len: usize,
    ) -> Result<(), Faulted> {
        if source == CopySource::Unread && len >= MIN_STRING && *HAS_FAST_STRINGS {
            let mut fault = 0_u32;
            // SAFETY: the caller guarantees both ranges.
            unsafe {
                guarded!(["rep movsb"], inout("rdi") to => _, inout("rsi") from => _, inout("rcx") len => _,
                    fault = inout(reg) fault);
            }
            return check_fault(fault);
        }
        // SAFETY: the caller guarantees both ranges.
        unsafe { copy(from, to, len) }
    }

    /// Whether `rep movsb` copies unread bytes faster than vector instructions do. On Intel processors with
    /// ERMSB (measured on Emerald Rapids): packets of 4 KiB through rings, 66 instead of 49 Gb/s, and on
    /// the fabric, 57 instead of 41 Gb/s. Bytes that have been read are copied more slowly (packet links:
    /// 24 instead of 27 Gb/s), and so are all on AMD's Zen 3 and 4 with some alignments (glibc, bug
    /// 30994).
    static HAS_FAST_STRINGS: LazyLock<bool> = LazyLock::new(|| {
        // SAFETY: every x86-64 processor has CPUID.
        #[allow(unused_unsafe, reason = "safe since Rust 1.94")]
        let vendor = unsafe { std::arch::x86_64::__cpuid(0) };
        let name = [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes);
        is_x86_feature_detected!("ermsb") && name.as_flattened() == b"GenuineIntel"
    });

    /// Copies `len` bytes. A fault may leave the copy incomplete.
    ///
    /// # Safety
    /// `from` is readable and `to` writable for `len` bytes, or they are user memory; they do not overlap.
    #[inline]
    pub unsafe fn copy(from: *const u8, to: *mut u8, len: usize) -> Result<(), Faulted> {
        let mut fault = 0_u32;
        // Two pieces that overlap in the middle cover all bytes.
        macro_rules! ends {
            ($bytes:literal, $load:literal, $store:literal, $class:ident) => {{
                let back = len - $bytes;
                // SAFETY: `len` is at least the size of a piece, so both pieces lie inside the ranges that
                // the caller guarantees.
                unsafe {
                    guarded!([$load, $store],
                        from = in(reg) from, to = in(reg) to, x = out($class) _, fault = inout(reg) fault);
                    guarded!([$load, $store],
                        from = in(reg) from.wrapping_add(back), to = in(reg) to.wrapping_add(back),
                        x = out($class) _, fault = inout(reg) fault);
                }
            }};
        }
        match len {
            0 => {}
            1 => ends!(1, "mov {x}, byte ptr [{from}]", "mov byte ptr [{to}], {x}", reg_byte),
            2..4 => ends!(2, "mov {x:x}, word ptr [{from}]", "mov word ptr [{to}], {x:x}", reg),
            4..8 => ends!(4, "mov {x:e}, dword ptr [{from}]", "mov dword ptr [{to}], {x:e}", reg),
            8..16 => ends!(8, "mov {x}, qword ptr [{from}]", "mov qword ptr [{to}], {x}", reg),
            16..32 => {
                ends!(16, "movdqu {x}, xmmword ptr [{from}]", "movdqu xmmword ptr [{to}], {x}", xmm_reg)
            }
            // SAFETY: the processor has AVX, and `len` is at least 32; the caller guarantees both ranges.
            _ if is_x86_feature_detected!("avx") => unsafe { copy_by_32(from, to, len, &mut fault) },
            // SAFETY: `len` is at least 32; the caller guarantees both ranges.
            _ => unsafe { copy_by_16(from, to, len, &mut fault) },
        }
        check_fault(fault)
    }

    /// # Safety
    /// As for [`copy`], with at least 32 bytes, on a processor with AVX.
    #[target_feature(enable = "avx")]
    unsafe fn copy_by_32(from: *const u8, to: *mut u8, len: usize, flag: &mut u32) {
        let (mut fault, mut at) = (0_u32, 0);
        while len - at >= 128 && fault == 0 {
            // SAFETY: at least 128 bytes remain from `at` on in the ranges that the caller guarantees.
            unsafe {
                guarded!([
                    "vmovdqu {a}, ymmword ptr [{from} + {at}]", "vmovdqu {b}, ymmword ptr [{from} + {at} + 32]",
                    "vmovdqu {c}, ymmword ptr [{from} + {at} + 64]", "vmovdqu {d}, ymmword ptr [{from} + {at} + 96]",
                    "vmovdqu ymmword ptr [{to} + {at}], {a}", "vmovdqu ymmword ptr [{to} + {at} + 32], {b}",
                    "vmovdqu ymmword ptr [{to} + {at} + 64], {c}", "vmovdqu ymmword ptr [{to} + {at} + 96], {d}"],
                    from = in(reg) from, to = in(reg) to, at = in(reg) at, fault = inout(reg) fault,
                    a = out(ymm_reg) _, b = out(ymm_reg) _, c = out(ymm_reg) _, d = out(ymm_reg) _);
            }
            at += 128;
        }
        // The last piece overlaps the one before it.
        while fault == 0 && at < len {
            at = at.min(len - 32);
            // SAFETY: `at` is at most `len - 32`, so the 32 bytes from `at` on lie inside the ranges that the
            // caller guarantees.
            unsafe {
                guarded!(["vmovdqu {a}, ymmword ptr [{from} + {at}]", "vmovdqu ymmword ptr [{to} + {at}], {a}"],
                    from = in(reg) from, to = in(reg) to, at = in(reg) at, a = out(ymm_reg) _,
                    fault = inout(reg) fault);
            }
            at += 32;
        }
        // The compiler does not do this for outputs of assembly that are discarded. While the upper halves
        // are in use, every SSE instruction of the thread depends on the previous contents of its
        // target on current Intel processors: a stream of 64 KiB WRITEs from shareable regions took a
        // fifth longer.
        _mm256_zeroupper();
        *flag = fault;
    }

    /// # Safety
    /// As for [`copy`], with at least 16 bytes.
    unsafe fn copy_by_16(from: *const u8, to: *mut u8, len: usize, flag: &mut u32) {
        let (mut fault, mut at) = (0_u32, 0);
        while fault == 0 && at < len {
            at = at.min(len - 16);
            // SAFETY: `at` is at most `len - 16`, so the 16 bytes from `at` on lie inside the ranges that the
            // caller guarantees.
            unsafe {
                guarded!(["movdqu {a}, xmmword ptr [{from} + {at}]", "movdqu xmmword ptr [{to} + {at}], {a}"],
                    from = in(reg) from, to = in(reg) to, at = in(reg) at, a = out(xmm_reg) _,
                    fault = inout(reg) fault);
            }
            at += 16;
        }
        *flag = fault;
    }

    /// Copies bytes of a [`Buffer`](crate::memory::Buffer), which other threads may access at the same time.
    ///
    /// # Safety
    /// As for [`copy`].
    pub unsafe fn copy_racing(from: *const u8, to: *mut u8, len: usize, _: Racing) {
        // Instructions in assembly are no data race: the result is whatever the processor reads.
        // SAFETY: the caller guarantees both ranges, which are mapped, so there is no fault.
        let _ = unsafe { copy(from, to, len) };
    }

    #[cfg(test)]
    pub(super) unsafe fn copy_without_avx(from: *const u8, to: *mut u8, len: usize) -> Result<(), Faulted> {
        let mut fault = 0;
        // SAFETY: the test calls this with at least 16 bytes, and with ranges as `copy` requires them.
        unsafe { copy_by_16(from, to, len, &mut fault) };
        check_fault(fault)
    }
}

#[cfg(not(all(target_arch = "x86_64", not(any(miri, urxe_plain_access)))))]
pub(super) use plain::*;

#[cfg(not(all(target_arch = "x86_64", not(any(miri, urxe_plain_access)))))]
mod plain {
    use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

    use super::{CopySource, Faulted, Racing};

    /// Copies bytes of a [`Buffer`](crate::memory::Buffer), which other threads may access at the same time.
    ///
    /// # Safety
    /// As for [`copy`].
    pub unsafe fn copy_racing(from: *const u8, to: *mut u8, len: usize, racing: Racing) {
        for at in 0..len {
            // Byte by byte: atomic accesses of different sizes to the same bytes would race.
            // SAFETY: the caller guarantees both ranges, and `at` is less than `len`.
            unsafe {
                let (from, to) = (from.add(at), to.add(at));
                match racing {
                    Racing::Source => *to = AtomicU8::from_ptr(from.cast_mut()).load(Ordering::Relaxed),
                    Racing::Target => AtomicU8::from_ptr(to).store(*from, Ordering::Relaxed),
                }
            }
        }
    }

    /// # Safety
    /// The 8 bytes at `from` are readable.
    pub unsafe fn load_word(from: *const u8) -> Result<[u8; 8], Faulted> {
        // SAFETY: the caller guarantees that the 8 bytes are readable; an array of bytes needs no alignment.
        Ok(unsafe { from.cast::<[u8; 8]>().read() })
    }

    /// Stores a word, by one store with release ordering if it is aligned.
    ///
    /// # Safety
    /// The 8 bytes at `to` are writable.
    pub unsafe fn store_word(to: *mut u8, word: [u8; 8]) -> Result<(), Faulted> {
        if to.addr().is_multiple_of(8) {
            // SAFETY: the caller guarantees that the 8 bytes are writable, and they are aligned.
            unsafe { AtomicU64::from_ptr(to.cast()) }.store(u64::from_ne_bytes(word), Ordering::Release);
        } else {
            // SAFETY: the caller guarantees that the 8 bytes are writable; an array of bytes needs no
            // alignment.
            unsafe { to.cast::<[u8; 8]>().write(word) };
        }
        Ok(())
    }

    /// # Safety
    /// The byte at `to` is writable.
    pub unsafe fn store_byte(to: *mut u8, byte: u8) -> Result<(), Faulted> {
        // SAFETY: the caller guarantees that the byte is writable.
        unsafe { AtomicU8::from_ptr(to) }.store(byte, Ordering::Release);
        Ok(())
    }

    /// # Safety
    /// The 8 bytes at `at` are writable and aligned.
    pub unsafe fn fetch_add(at: *mut u8, add: u64) -> Result<u64, Faulted> {
        // SAFETY: the caller guarantees that the 8 bytes are writable and aligned.
        Ok(unsafe { AtomicU64::from_ptr(at.cast()) }.fetch_add(add, Ordering::AcqRel))
    }

    /// # Safety
    /// As for [`fetch_add`].
    pub unsafe fn compare_exchange(at: *mut u8, compare: u64, swap: u64) -> Result<u64, Faulted> {
        // SAFETY: the caller guarantees that the 8 bytes are writable and aligned.
        let word = unsafe { AtomicU64::from_ptr(at.cast()) };
        Ok(word.compare_exchange(compare, swap, Ordering::AcqRel, Ordering::Acquire).unwrap_or_else(|v| v))
    }

    /// # Safety
    /// As for [`copy`].
    pub unsafe fn copy_from(_: CopySource, from: *const u8, to: *mut u8, len: usize) -> Result<(), Faulted> {
        // SAFETY: the caller guarantees both ranges.
        unsafe { copy(from, to, len) }
    }

    /// # Safety
    /// `from` is readable and `to` writable for `len` bytes; they do not overlap.
    pub unsafe fn copy(from: *const u8, to: *mut u8, len: usize) -> Result<(), Faulted> {
        // SAFETY: the caller guarantees both ranges, and that they do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(from, to, len) };
        Ok(())
    }
}

#[cfg(all(test, target_arch = "x86_64", not(any(miri, urxe_plain_access))))]
mod tests {
    use std::arch::asm;

    use super::*;

    #[test]
    fn copy_of_any_length_writes_exactly_its_bytes() {
        let source: Vec<u8> = (0..2100u32).map(|i| (i * 7 + 3) as u8).collect();
        type Copy = unsafe fn(*const u8, *mut u8, usize) -> Result<(), Faulted>;
        let uncached: Copy = |from, to, len| {
            // SAFETY: as for the other functions below.
            unsafe { copy_from(CopySource::Unread, from, to, len) }
        };
        for (copy, lengths) in
            [(copy as Copy, 0..600), (copy_without_avx as Copy, 16..600), (uncached, 1000..2090)]
        {
            for len in lengths {
                let mut target = vec![0xee; len + 64];
                // SAFETY: both vectors are long enough for `len` bytes from these offsets on, and are
                // separate allocations.
                let copied = unsafe { copy(source[5..].as_ptr(), target[3..].as_mut_ptr(), len) };
                assert_eq!(copied, Ok(()));
                assert_eq!(target[3..][..len], source[5..][..len], "{len}");
                assert!(target[..3].iter().chain(&target[3 + len..]).all(|b| *b == 0xee), "{len}");
            }
        }
    }

    /// Reports whether the upper halves of the vector registers are in use, according to the processor's
    /// record of states in use (XINUSE).
    ///
    /// # Safety
    /// XGETBV takes the argument 1.
    unsafe fn are_upper_halves_in_use() -> bool {
        let in_use: u32;
        // SAFETY: reads a register, which the caller guarantees to exist.
        unsafe { asm!("xgetbv", in("ecx") 1, out("eax") in_use, out("edx") _) };
        in_use & 1 << 2 != 0
    }

    // The test itself must be compiled without AVX: otherwise the compiler would insert VZEROUPPER.
    #[test]
    fn copy_leaves_the_upper_halves_of_vector_registers_unused() {
        // SAFETY: every x86-64 processor has CPUID.
        #[allow(unused_unsafe, reason = "safe since Rust 1.94")]
        let xsave = unsafe { std::arch::x86_64::__cpuid_count(0xd, 1) }.eax;
        if !is_x86_feature_detected!("avx") || xsave & 1 << 2 == 0 {
            println!("skipped: the processor has no AVX, or XGETBV does not report the states in use");
            return;
        }
        if cfg!(target_feature = "avx") {
            println!("skipped: the test is compiled with AVX");
            return;
        }
        for len in [32, 100, 128, 300] {
            let (source, mut target) = ([1; 300], [0; 300]);
            // SAFETY: the processor has AVX, XGETBV takes the argument 1, and both arrays have at least `len`
            // bytes. The assembly changes `xmm0` and the upper halves, which only functions with
            // AVX use.
            unsafe {
                asm!("vpcmpeqd xmm0, xmm0, xmm0", "vinsertf128 ymm0, ymm0, xmm0, 1", out("xmm0") _);
                let is_set = are_upper_halves_in_use();
                asm!("vzeroupper");
                if !is_set || are_upper_halves_in_use() {
                    println!("skipped: the processor does not record the use of the upper halves");
                    return;
                }
                copy(source.as_ptr(), target.as_mut_ptr(), len).unwrap();
                assert!(!are_upper_halves_in_use(), "{len} bytes");
            }
        }
    }
}
