"""The tests of ranks.c with mpi4py: numpy arrays and pickled objects, which the receiver checks."""

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
after, before = (rank + 1) % size, (rank - 1) % size


def check(what, got, wanted):
    if not np.array_equal(got, wanted):
        print(f"rank {rank}: {what}: received {got}, expected {wanted}", flush=True)
        comm.Abort(1)


def numbers(of, count):
    """Returns numbers that differ between ranks."""
    return of * 1_000_000.0 + np.arange(count) / 8


# Point to point: short messages are sent eagerly, the receiver reads long ones.
for count in [1, 100, 10_000, 100_000]:
    there = np.empty(count)
    requests = [comm.Irecv(there, before, count), comm.Isend(numbers(rank, count), after, count)]
    MPI.Request.Waitall(requests)
    check(f"{count} numbers", there, numbers(before, count))
objects = comm.sendrecv({"from": rank, "list": list(range(rank + 3))}, after, source=before)
check("objects", [objects["from"], *objects["list"]], [before, *range(before + 3)])

# Collective operations.
for count in [1, 1000, 50_000]:
    total = np.empty(count)
    comm.Allreduce(numbers(rank, count), total)
    check(f"sum of {count}", total, sum(numbers(of, count) for of in range(size)))
    mine = np.concatenate([numbers(rank * size + to, count) for to in range(size)])
    theirs = np.empty(size * count)
    comm.Alltoall(mine, theirs)
    check(f"all-to-all of {count}", theirs, np.concatenate([numbers(of * size + rank, count) for of in range(size)]))
check("maximum", comm.allreduce(rank, MPI.MAX), size - 1)

# One-sided: all ranks add to slot 0, the previous rank puts slot 1, slot 2 is a counter; the rest is read.
slots = np.zeros(5000)
slots[3:] = numbers(rank, len(slots) - 3)
window = MPI.Win.Create(slots, slots.itemsize, comm=comm)
window.Fence()
for _ in range(10):
    window.Accumulate(np.ones(1), 0, 0, MPI.SUM)
window.Put(np.array([100.0 + rank]), after, 1)
there = np.empty(len(slots) - 3)
window.Get(there, after, 3)
window.Fence()
check("accumulate", slots[0], 10.0 * size if rank == 0 else 0)
check("put", slots[1], 100.0 + before)
check("get", there, numbers(after, len(there)))

# Each rank increments the counter under a lock, and each fetches another value.
counted = np.empty(1, dtype=np.int64)
counter = MPI.Win.Allocate(8, 8, comm=comm)
np.frombuffer(counter.tomemory(), dtype=np.int64)[:] = 0
comm.Barrier()
counter.Lock(0)
counter.Fetch_and_op(np.ones(1, dtype=np.int64), counted, 0, 0, MPI.SUM)
counter.Unlock(0)
check("fetched counts", sorted(comm.allgather(int(counted[0]))), list(range(size)))
counter.Free()
window.Free()
print(f"rank {rank} of {size} is done", flush=True)
