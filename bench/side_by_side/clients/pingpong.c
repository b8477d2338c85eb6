/* Throughput or half round-trip time between two ranks of MPI: pingpong stream|ping SIZE SECONDS.
 * Rank 0 prints metrics, one "NAME VALUE" a line. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Messages that the sender posts before it waits for an answer, as in osu_bw. */
#define WINDOW 64
/* Limit of the number of turns. */
#define MOST (1 << 20)

static char *buffer;
static int size, rank;

/* The first byte of the buffer, which rank 0 sets, says whether this turn is the last. */
static void stream_turn(void)
{
	MPI_Request requests[WINDOW];
	for (int i = 0; i < WINDOW; i++) {
		if (rank == 0)
			MPI_Isend(buffer, size, MPI_BYTE, 1, 1, MPI_COMM_WORLD, &requests[i]);
		else
			MPI_Irecv(buffer, size, MPI_BYTE, 0, 1, MPI_COMM_WORLD, &requests[i]);
	}
	MPI_Waitall(WINDOW, requests, MPI_STATUSES_IGNORE);
	if (rank == 0)
		MPI_Recv(NULL, 0, MPI_BYTE, 1, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	else
		MPI_Send(NULL, 0, MPI_BYTE, 0, 2, MPI_COMM_WORLD);
}

static void ping_turn(void)
{
	if (rank == 0) {
		MPI_Send(buffer, size, MPI_BYTE, 1, 1, MPI_COMM_WORLD);
		MPI_Recv(buffer, size, MPI_BYTE, 1, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	} else {
		MPI_Recv(buffer, size, MPI_BYTE, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		MPI_Send(buffer, size, MPI_BYTE, 0, 1, MPI_COMM_WORLD);
	}
}

static int ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	if (argc != 4)
		MPI_Abort(MPI_COMM_WORLD, 2);
	int stream = !strcmp(argv[1], "stream");
	void (*turn)(void) = stream ? stream_turn : ping_turn;
	size = atoi(argv[2]);
	double seconds = atof(argv[3]);
	buffer = malloc(size);
	memset(buffer, 0, size);
	for (int i = 0; i < (stream ? 4 : 100); i++)
		turn();

	static double times[MOST];
	double begin = MPI_Wtime(), before = begin;
	int turns = 0;
	while (!buffer[0]) {
		if (rank == 0)
			buffer[0] = before - begin >= seconds || turns + 1 == MOST;
		turn();
		double now = MPI_Wtime();
		times[turns++ % MOST] = now - before;
		before = now;
	}
	if (rank == 0 && stream) {
		printf("Gb/s %f\n", 8e-9 * size * WINDOW * turns / (before - begin));
	} else if (rank == 0) {
		qsort(times, turns, sizeof *times, ascending);
		printf("p50 %f\np99 %f\n", 0.5e9 * times[turns / 2], 0.5e9 * times[(int)(turns * 0.99)]);
	}
	MPI_Finalize();
	return 0;
}
