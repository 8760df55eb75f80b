/*
 * Half of the round trip of 8 bytes, and the bandwidth of 1 MiB messages in one direction, between
 * rank 0 and the last rank.
 */
#include <mpi.h>
#include <stdio.h>
#include <string.h>

enum { ROUND_TRIPS = 2000, LARGE = 1 << 20, WINDOW = 8, WINDOWS = 20 };

static char data[WINDOW][LARGE];

static double round_trips(int rank, int last)
{
	double started = MPI_Wtime();

	for (int round = 0; round < ROUND_TRIPS; round++) {
		if (rank == 0)
			MPI_Send(data, 8, MPI_BYTE, last, 1, MPI_COMM_WORLD);
		if (rank == 0 || rank == last)
			MPI_Recv(data, 8, MPI_BYTE, last - rank, 1, MPI_COMM_WORLD,
				 MPI_STATUS_IGNORE);
		if (rank == last)
			MPI_Send(data, 8, MPI_BYTE, 0, 1, MPI_COMM_WORLD);
	}
	return (MPI_Wtime() - started) / ROUND_TRIPS / 2;
}

static double stream(int rank, int last)
{
	double started = MPI_Wtime();
	MPI_Request requests[WINDOW];

	for (int round = 0; round < WINDOWS; round++) {
		for (int at = 0; at < WINDOW; at++) {
			if (rank == 0)
				MPI_Isend(data[at], LARGE, MPI_BYTE, last, 2, MPI_COMM_WORLD,
					  &requests[at]);
			else if (rank == last)
				MPI_Irecv(data[at], LARGE, MPI_BYTE, 0, 2, MPI_COMM_WORLD,
					  &requests[at]);
			else
				requests[at] = MPI_REQUEST_NULL;
		}
		MPI_Waitall(WINDOW, requests, MPI_STATUSES_IGNORE);
	}
	/* The last message has arrived. */
	if (rank == last)
		MPI_Send(data, 1, MPI_BYTE, 0, 3, MPI_COMM_WORLD);
	if (rank == 0)
		MPI_Recv(data, 1, MPI_BYTE, last, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	return (double)WINDOWS * WINDOW * LARGE / (MPI_Wtime() - started);
}

int main(int argc, char **argv)
{
	int rank, ranks;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	memset(data, rank, sizeof data);
	/* The first run establishes the connections. */
	for (int run = 0; run < 2; run++) {
		double latency = round_trips(rank, ranks - 1);
		double bandwidth = stream(rank, ranks - 1);

		if (rank == 0 && run == 1)
			printf("%.2f us, %.0f MB/s\n", latency * 1e6, bandwidth / 1e6);
	}
	MPI_Finalize();
	return 0;
}
