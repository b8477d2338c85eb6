"""Verifies MPI between ranks with mpi4py: a ring of messages from 1 byte to 4 MiB, an allreduce, and a window."""
import array

from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size


def data(sender, count):
    return (bytes((sender + i) % 251 for i in range(min(count, 4096))) * (count // 4096 + 1))[:count]


for count in [1, 100, 8192, 65536, 4 << 20]:
    received = bytearray(count)
    comm.Sendrecv(data(rank, count), (rank + 1) % size, 0, received, (rank - 1) % size, 0)
    assert received == data((rank - 1) % size, count), f"rank {rank} received other data, {count} bytes"

total = array.array("d", [0.0] * 10000)
comm.Allreduce(array.array("d", [float(rank + i) for i in range(10000)]), total)
assert list(total) == [float(sum(range(size)) + size * i) for i in range(10000)], "allreduce"

window = MPI.Win.Allocate(1 << 20, comm=comm)
window.Fence()
window.Put(data(rank, 1 << 20), (rank + 1) % size)
window.Fence()
assert bytes(window.tomemory()) == data((rank - 1) % size, 1 << 20), "window"
window.Free()
comm.Barrier()
if rank == 0:
    print(f"{size} ranks verified with", MPI.Get_library_version().splitlines()[0])
