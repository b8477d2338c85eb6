//! Memory regions: memory of the NIC's own that Python sees as a buffer, and buffers of Python that the NIC
//! accesses.

use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyBufferError, PyMemoryError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PySlice};
use urxe::verbs::memory::RawMr;
use urxe::verbs::{self, Access, Context, LKey, Mr, RKey};

use crate::context::Pd;
use crate::convert::{OrRaise, copy_bytes};
use crate::held::Held;

/// A scatter/gather element: a range of registered memory. The NIC checks the range when the element is used.
#[pyclass(frozen, get_all, module = "urxe")]
#[derive(Clone, Copy)]
pub(crate) struct Sge {
    /// Address of the first byte.
    pub addr: u64,
    /// Length in bytes.
    pub length: u32,
    /// Local key of the region.
    pub lkey: u32,
}

#[pymethods]
impl Sge {
    #[new]
    fn new(addr: u64, length: u32, lkey: u32) -> Sge {
        Sge { addr, length, lkey }
    }

    fn __repr__(&self) -> String {
        format!("Sge(addr={:#x}, length={}, lkey={:#x})", self.addr, self.length, self.lkey)
    }
}

/// Address and key of a peer's memory.
#[pyclass(frozen, module = "urxe")]
#[derive(Clone, Copy)]
pub(crate) struct RemoteAddr(pub verbs::RemoteAddr);

#[pymethods]
impl RemoteAddr {
    #[new]
    fn new(addr: u64, rkey: u32) -> RemoteAddr {
        RemoteAddr(verbs::RemoteAddr { va: addr, rkey: RKey(rkey) })
    }

    /// Address of the first byte.
    #[getter]
    fn addr(&self) -> u64 {
        self.0.va
    }

    /// Key of the region.
    #[getter]
    fn rkey(&self) -> u32 {
        self.0.rkey.0
    }

    fn __repr__(&self) -> String {
        format!("RemoteAddr(addr={:#x}, rkey={:#x})", self.0.va, self.0.rkey.0)
    }
}

/// Memory of a registered region.
enum Memory {
    /// Memory that the region owns.
    Owned(Mr),
    /// A buffer of another object. The registration is declared, and so dropped, before the buffer.
    Foreign { registration: RawMr, buffer: PyUntypedBuffer },
}

impl Memory {
    /// Returns the address and length of the memory, and whether it must not be written.
    fn extent(&self) -> (*mut u8, usize, bool) {
        match self {
            Memory::Owned(mr) => {
                (ptr::with_exposed_provenance_mut(mr.buffer().addr()), mr.buffer().len(), false)
            }
            Memory::Foreign { buffer, .. } => {
                (buffer.buf_ptr().cast(), buffer.len_bytes(), buffer.readonly())
            }
        }
    }
}

/// A registered memory region. It supports the buffer protocol, without a copy: peers change the memory at
/// any time, also while Python code runs, so read it after a completion.
#[pyclass(frozen, module = "urxe")]
pub(crate) struct Region {
    /// `None` once the region is deregistered.
    memory: Held<Mutex<Option<Memory>>>,
    /// Number of buffers exported and not yet released.
    exports: AtomicUsize,
    /// Address of the first byte, for work requests and peers.
    #[pyo3(get)]
    addr: u64,
    len: usize,
    /// Local key.
    #[pyo3(get)]
    lkey: u32,
    /// Remote key.
    #[pyo3(get)]
    rkey: u32,
}

impl Region {
    fn new(context: &Context, memory: Memory) -> Region {
        let registration = match &memory {
            Memory::Owned(mr) => mr,
            Memory::Foreign { registration, .. } => registration,
        };
        Region {
            exports: AtomicUsize::new(0),
            addr: registration.addr(),
            len: registration.len(),
            lkey: registration.lkey().0,
            rkey: registration.rkey().0,
            memory: Held::new(Mutex::new(Some(memory)), context),
        }
    }

    /// Registers zeroed memory that the region owns.
    pub fn allocate(py: Python<'_>, pd: &Pd, length: usize, access: Access) -> PyResult<Region> {
        // `reg_mr` ends the process if the memory cannot be allocated.
        Vec::<u8>::new()
            .try_reserve_exact(length)
            .map_err(|_| PyMemoryError::new_err(format!("{length} bytes cannot be allocated")))?;
        let mr = pd.0.reg_mr(length, access).or_raise(py)?;
        Ok(Region::new(pd.0.context(), Memory::Owned(mr)))
    }

    /// Registers the memory of an object with a buffer.
    pub fn register(pd: &Pd, object: &Bound<'_, PyAny>, access: Access) -> PyResult<Region> {
        let buffer = PyUntypedBuffer::get(object)?;
        if !buffer.is_c_contiguous() {
            return Err(PyBufferError::new_err("the buffer is not C-contiguous"));
        }
        let writes = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        if buffer.readonly() && access.intersects(writes) {
            let message = "the buffer is read-only: register it with access REMOTE_READ or 0";
            return Err(PyBufferError::new_err(message));
        }
        // SAFETY: the exporter keeps the `len_bytes()` bytes at `buf_ptr()` in place until the buffer is
        // released, which `Memory` does after it has deregistered them, and permits writing unless
        // the buffer is read-only, in which case `access` permits none. Python defines no exclusive
        // access to an exported buffer: every holder may write to it at any time, and so may the NIC.
        let registered = unsafe { pd.0.reg_mr_raw(buffer.buf_ptr().cast(), buffer.len_bytes(), access) };
        let registration = registered.or_raise(object.py())?;
        Ok(Region::new(pd.0.context(), Memory::Foreign { registration, buffer }))
    }

    /// Returns the whole region as a scatter/gather element; `None` if it is too long for one.
    pub fn whole(&self) -> Option<verbs::Sge> {
        Some(verbs::Sge { addr: self.addr, length: u32::try_from(self.len).ok()?, lkey: LKey(self.lkey) })
    }

    /// Returns a memoryview of the given range.
    fn view<'py>(slf: &Bound<'py, Region>, offset: usize, len: usize) -> PyResult<Bound<'py, PyAny>> {
        let (py, size) = (slf.py(), slf.get().len);
        if size.checked_sub(offset).is_none_or(|rest| len > rest) {
            return Err(verbs::errors::MemoryAccessError { offset, len, size }).or_raise(py);
        }
        let view = py.import("builtins")?.getattr("memoryview")?.call1((slf,))?;
        view.get_item(PySlice::new(py, offset as isize, (offset + len) as isize, 1))
    }
}

#[pymethods]
impl Region {
    fn __len__(&self) -> usize {
        self.len
    }

    /// Returns a scatter/gather element for `length` bytes at `offset`, by default for all bytes from there
    /// to the end. A range outside the region is rejected only when the element is used.
    #[pyo3(signature = (offset=0, length=None))]
    fn sge(&self, offset: u64, length: Option<u32>) -> PyResult<Sge> {
        let rest = (self.len as u64).saturating_sub(offset);
        let length = match length {
            Some(length) => length,
            None => u32::try_from(rest).map_err(|_| {
                PyValueError::new_err("the rest of the region is longer than 2^32-1 bytes: give a length")
            })?,
        };
        Ok(Sge { addr: self.addr.wrapping_add(offset), length, lkey: self.lkey })
    }

    /// Returns the remote address of the byte at `offset`, for use by a peer.
    #[pyo3(signature = (offset=0))]
    fn remote(&self, offset: u64) -> RemoteAddr {
        RemoteAddr(verbs::RemoteAddr { va: self.addr.wrapping_add(offset), rkey: RKey(self.rkey) })
    }

    /// Returns a copy of `length` bytes at `offset`, by default of all bytes from there to the end.
    #[pyo3(signature = (offset=0, length=None))]
    fn read<'py>(
        slf: &Bound<'py, Self>,
        offset: usize,
        length: Option<usize>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let length = length.unwrap_or(slf.get().len.saturating_sub(offset));
        Region::view(slf, offset, length)?.call_method0("tobytes")
    }

    /// Copies the bytes of an object with a buffer into the region, starting at `offset`.
    fn write(slf: &Bound<'_, Self>, offset: usize, data: &Bound<'_, PyAny>) -> PyResult<()> {
        let data = copy_bytes(data)?;
        let target = Region::view(slf, offset, data.len())?;
        target.set_item(PySlice::full(slf.py()), PyBytes::new(slf.py(), &data))
    }

    /// Deregisters the region: its keys become invalid, and its memory is freed or its buffer released.
    /// Raises BufferError while a memoryview of it exists. A second call has no effect.
    fn deregister(&self) -> PyResult<()> {
        let exports = self.exports.load(Ordering::Relaxed);
        if exports > 0 {
            let message =
                format!("{exports} buffers of the region are exported: release the memoryviews first");
            return Err(PyBufferError::new_err(message));
        }
        // Dropped without the mutex.
        let memory = self.memory.lock().take();
        drop(memory);
        Ok(())
    }

    /// Exports the memory as a buffer.
    ///
    /// # Safety
    /// Python calls this function with a `view` that it may fill.
    unsafe fn __getbuffer__(slf: &Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let region = slf.get();
        let memory = region.memory.lock();
        let Some((start, len, is_readonly)) = memory.as_ref().map(Memory::extent) else {
            return Err(PyBufferError::new_err("the region is deregistered"));
        };
        let len = isize::try_from(len).expect("an allocation is shorter than isize::MAX bytes");
        // SAFETY: Python passes a `view` to be filled. The `len` bytes at `start` stay valid until the view
        // is released: the view holds a reference to the region, and `deregister` keeps the memory
        // while there are exports. No Rust reference to the bytes exists, so Python may read and
        // write them.
        let filled = unsafe {
            ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start.cast(), len, is_readonly.into(), flags)
        };
        if filled != 0 {
            return Err(PyErr::fetch(slf.py()));
        }
        region.exports.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Counts the end of an export.
    ///
    /// # Safety
    /// Python calls this function once for each successful `__getbuffer__`.
    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        self.exports.fetch_sub(1, Ordering::Relaxed);
    }

    fn __repr__(&self) -> String {
        format!("<Region of {} bytes at {:#x}>", self.len, self.addr)
    }
}
