/*
 * Solves the heat equation on a square grid by Jacobi iterations, in strips of rows, and compares
 * the result bit by bit with that of one rank, which computes the whole grid by itself: each point
 * has the same operands in the same order. Prints a checksum on rank 0.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SIDE = 512, ROUNDS = 200 };

/* The rows first to first + rows of the grid, with a row before and after them. */
struct strip {
	int first, rows;
	double *now, *next;
};

static void start(struct strip *strip)
{
	size_t points = (size_t)(strip->rows + 2) * SIDE;

	strip->now = calloc(points, sizeof(double));
	strip->next = calloc(points, sizeof(double));
	for (int row = -1; row <= strip->rows; row++)
		for (int column = 0; column < SIDE; column++) {
			int y = strip->first + row;
			size_t at = (size_t)(row + 1) * SIDE + column;

			strip->now[at] = (y * 31 + column * 17) % 101 / 100.0;
			strip->next[at] = strip->now[at];
		}
}

static void iterate(struct strip *strip)
{
	double *swapped;

	for (int row = 1; row <= strip->rows; row++) {
		int y = strip->first + row - 1;

		/* The edge of the grid is constant. */
		if (y == 0 || y == SIDE - 1)
			continue;
		for (int column = 1; column < SIDE - 1; column++) {
			double *at = strip->now + (size_t)row * SIDE + column;

			strip->next[(size_t)row * SIDE + column] =
				0.25 * (at[-SIDE] + at[-1] + at[1] + at[SIDE]);
		}
	}
	swapped = strip->now;
	strip->now = strip->next;
	strip->next = swapped;
}

static void exchange_edges(struct strip *strip, int up, int down)
{
	double *rows = strip->now;

	MPI_Sendrecv(rows + SIDE, SIDE, MPI_DOUBLE, up, 1,
		     rows + (size_t)(strip->rows + 1) * SIDE, SIDE, MPI_DOUBLE, down, 1,
		     MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	MPI_Sendrecv(rows + (size_t)strip->rows * SIDE, SIDE, MPI_DOUBLE, down, 2,
		     rows, SIDE, MPI_DOUBLE, up, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

int main(int argc, char **argv)
{
	int rank, ranks, equal = 1, all;
	struct strip strip, whole = { .first = 0, .rows = SIDE };
	double residue = 0, total;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	strip.first = SIDE * rank / ranks;
	strip.rows = SIDE * (rank + 1) / ranks - strip.first;
	start(&strip);
	for (int round = 0; round < ROUNDS; round++) {
		exchange_edges(&strip, rank > 0 ? rank - 1 : MPI_PROC_NULL,
			       rank < ranks - 1 ? rank + 1 : MPI_PROC_NULL);
		iterate(&strip);
	}
	start(&whole);
	for (int round = 0; round < ROUNDS; round++)
		iterate(&whole);
	if (memcmp(strip.now + SIDE, whole.now + (size_t)(strip.first + 1) * SIDE,
		   (size_t)strip.rows * SIDE * sizeof(double)) != 0) {
		fprintf(stderr, "rank %d: wrong values in rows %d to %d\n", rank, strip.first,
			strip.first + strip.rows - 1);
		equal = 0;
	}
	for (size_t at = SIDE; at < (size_t)(strip.rows + 1) * SIDE; at++)
		residue += strip.now[at];
	MPI_Reduce(&residue, &total, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
	MPI_Allreduce(&equal, &all, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
	if (rank == 0 && all)
		printf("stencil: correct, %d ranks, sum %.6f\n", ranks, total);
	MPI_Finalize();
	return !all;
}
