/*
 * MPI_Alltoall of blocks that depend on sender, receiver and round, for a number of rounds, each of
 * which is checked. Prints the rounds on rank 0.
 *
 * Usage: alltoall ROUNDS COUNT: COUNT numbers of 8 bytes in a block.
 */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
	int rank, ranks;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	int64_t rounds = argc > 1 ? atol(argv[1]) : 10;
	int64_t count = argc > 2 ? atol(argv[2]) : 1000;
	int64_t *out = malloc(sizeof *out * ranks * count), *in = malloc(sizeof *in * ranks * count);

	for (int64_t round = 0; round < rounds; round++) {
		for (int64_t at = 0; at < ranks * count; at++)
			out[at] = ((rank * ranks + at / count) * rounds + round) * count + at % count;
		MPI_Alltoall(out, (int)count, MPI_INT64_T, in, (int)count, MPI_INT64_T,
			     MPI_COMM_WORLD);
		for (int64_t at = 0; at < ranks * count; at++) {
			int64_t due = ((at / count * ranks + rank) * rounds + round) * count;

			if (in[at] != due + at % count) {
				fprintf(stderr, "rank %d, round %d: wrong at %d\n", rank,
					(int)round, (int)at);
				MPI_Abort(MPI_COMM_WORLD, 1);
			}
		}
		if (rank == 0) {
			printf("round %d: correct, %d ranks\n", (int)round, ranks);
			fflush(stdout);
		}
	}
	MPI_Finalize();
	return 0;
}
