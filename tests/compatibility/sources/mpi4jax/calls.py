"""Verifies MPI calls of mpi4jax inside compiled JAX functions: an allreduce and its gradient, and messages in a ring."""
import jax
import jax.numpy as jnp
import mpi4jax
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size


@jax.jit
def total(values):
    return mpi4jax.allreduce(values, op=MPI.SUM, comm=comm)


@jax.jit
def shift(values):
    return mpi4jax.sendrecv(values, values, source=(rank - 1) % size, dest=(rank + 1) % size, comm=comm)


for count in [1, 1000, 1 << 18]:
    values = jnp.arange(count, dtype=jnp.float32) % 1000
    assert np.array_equal(total(values + rank), values * size + sum(range(size))), f"allreduce of {count}"
    assert np.array_equal(shift(values + rank), values + (rank - 1) % size), f"ring of {count}"

found, gradient = jax.value_and_grad(lambda values: jnp.sum(total(values) ** 2))(jnp.full(1000, rank + 1.0))
expected = size * (size + 1) / 2
assert found == 1000 * expected**2, found
assert np.array_equal(gradient, np.full(1000, 2 * expected)), gradient
comm.Barrier()
print(f"rank {rank} is done", flush=True)
