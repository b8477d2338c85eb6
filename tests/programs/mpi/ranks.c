// An MPI program that checks the data it receives: messages of many sizes in a ring, all-to-all messages, a
// reduction, and one-sided communication.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { LONGEST = 1 << 18, ROUNDS = 3, BLOCK = 5000, SLOTS = 4, TIMES = 10 };

static int rank, size;

static void fail(const char *what, long got)
{
	fprintf(stderr, "rank %d: %s: %ld\n", rank, what, got);
	MPI_Abort(MPI_COMM_WORLD, 1);
}

static unsigned char byte(int from, int round, int length, int i)
{
	return from * 101 + round * 31 + length + i * 7;
}

static void ring(void)
{
	int to = (rank + 1) % size, from = (rank + size - 1) % size;
	unsigned char *out = malloc(LONGEST), *in = malloc(LONGEST);
	for (int length = 1; length <= LONGEST; length *= 4)
		for (int round = 0; round < ROUNDS; round++) {
			for (int i = 0; i < length; i++)
				out[i] = byte(rank, round, length, i);
			MPI_Sendrecv(out, length, MPI_BYTE, to, round, in, length, MPI_BYTE, from, round, MPI_COMM_WORLD,
				     MPI_STATUS_IGNORE);
			for (int i = 0; i < length; i++)
				if (in[i] != byte(from, round, length, i))
					fail("wrong byte at offset", i);
		}
	free(out);
	free(in);
}

static void reduction(void)
{
	long mine[1000], sum[1000];
	for (int i = 0; i < 1000; i++)
		mine[i] = rank + i;
	MPI_Allreduce(mine, sum, 1000, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
	for (int i = 0; i < 1000; i++)
		if (sum[i] != size * i + size * (size - 1) / 2)
			fail("wrong sum", sum[i]);
}

static void all_to_all(void)
{
	int *out = malloc(size * BLOCK * sizeof *out), *in = malloc(size * BLOCK * sizeof *in);
	for (int length = 1; length <= BLOCK; length *= 10) {
		for (int i = 0; i < size * length; i++)
			out[i] = rank * 1000000 + i;
		MPI_Alltoall(out, length, MPI_INT, in, length, MPI_INT, MPI_COMM_WORLD);
		for (int i = 0; i < size * length; i++)
			if (in[i] != i / length * 1000000 + rank * length + i % length)
				fail("wrong element", in[i]);
	}
	free(out);
	free(in);
}

static void remote_memory(void)
{
	long *slots, one = 1, mine = 100 + rank, old = -1, there = -1;
	MPI_Win window;
	MPI_Win_allocate(SLOTS * sizeof *slots, sizeof *slots, MPI_INFO_NULL, MPI_COMM_WORLD, &slots, &window);
	for (int i = 0; i < SLOTS; i++)
		slots[i] = 0;
	MPI_Win_fence(0, window);
	for (int i = 0; i < TIMES; i++)
		MPI_Accumulate(&one, 1, MPI_LONG, 0, 0, 1, MPI_LONG, MPI_SUM, window);
	MPI_Put(&mine, 1, MPI_LONG, (rank + 1) % size, 1, 1, MPI_LONG, window);
	MPI_Win_fence(0, window);
	if (rank == 0 && slots[0] != TIMES * size)
		fail("wrong accumulated value", slots[0]);
	if (slots[1] != 100 + (rank + size - 1) % size)
		fail("wrong value after MPI_Put", slots[1]);
	MPI_Get(&there, 1, MPI_LONG, (rank + 1) % size, 1, 1, MPI_LONG, window);
	MPI_Win_fence(0, window);
	if (there != mine)
		fail("wrong value from MPI_Get", there);
	MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, window);
	MPI_Fetch_and_op(&one, &old, MPI_LONG, 0, 2, MPI_SUM, window);
	MPI_Win_unlock(0, window);
	if (old < 0 || old >= size)
		fail("wrong value from MPI_Fetch_and_op", old);
	MPI_Barrier(MPI_COMM_WORLD);
	MPI_Win_free(&window);
}

int main(int argc, char **argv)
{
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	ring();
	reduction();
	all_to_all();
	remote_memory();
	printf("rank %d of %d is done\n", rank, size);
	MPI_Finalize();
	return 0;
}
