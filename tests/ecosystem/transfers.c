/*
 * Checks MPI by results that each rank knows in advance: messages of all sizes between all pairs,
 * messages that overtake their receive, collectives, and one-sided operations. Prints one line for
 * each part on rank 0, and aborts at the first wrong byte.
 *
 * Usage: transfers [LARGEST [two-sided]]: the largest message between pairs, in bytes; without
 * one-sided operations.
 */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, ranks;

static void fail(const char *part, size_t size, size_t at)
{
	fprintf(stderr, "rank %d: %s, size %zu: wrong at %zu\n", rank, part, size, at);
	MPI_Abort(MPI_COMM_WORLD, 1);
}

static void done(const char *part)
{
	MPI_Barrier(MPI_COMM_WORLD);
	if (rank == 0) {
		printf("%s: correct\n", part);
		fflush(stdout);
	}
}

/* The byte at an index of the message from one rank to another. */
static unsigned char pattern(int from, int to, size_t size, size_t at)
{
	uint64_t x = at / 8 + 1;

	x = (x + (uint64_t)from * 0x9e3779b97f4a7c15u) * 0xbf58476d1ce4e5b9u;
	x ^= (x >> 29) + (uint64_t)to * 0x94d049bb133111ebu + size;
	x *= 0xd6e8feb86659fd93u;
	return x >> (at % 8 * 8);
}

static void fill(unsigned char *data, int from, int to, size_t size)
{
	for (size_t at = 0; at < size; at++)
		data[at] = pattern(from, to, size, at);
}

static void check(const char *part, const unsigned char *data, int from, int to, size_t size)
{
	for (size_t at = 0; at < size; at++)
		if (data[at] != pattern(from, to, size, at))
			fail(part, size, at);
	/* The byte after the message is untouched. */
	if (data[size] != 0xa5)
		fail(part, size, size);
}

/* Sizes around powers of two, at which implementations change their protocol. */
static size_t next_size(size_t size)
{
	size_t power = 1;

	if (size < 3)
		return size + 1;
	while (power < size)
		power *= 2;
	if (size == power - 1)
		return power;
	return size == power ? power + 1 : 2 * (size - 1) - 1;
}

static void exchange(unsigned char *out, unsigned char *in, size_t size)
{
	/* In step k, each rank sends to the rank k after it. */
	for (int step = 0; step < ranks; step++) {
		int to = (rank + step) % ranks, from = (rank - step + ranks) % ranks;
		MPI_Request requests[2];

		fill(out, rank, to, size);
		memset(in, 0xa5, size + 1);
		MPI_Irecv(in, (int)size, MPI_BYTE, from, 7, MPI_COMM_WORLD, &requests[0]);
		MPI_Isend(out, (int)size, MPI_BYTE, to, 7, MPI_COMM_WORLD, &requests[1]);
		MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
		check("exchange", in, from, rank, size);
	}
}

static void point_to_point(size_t largest)
{
	unsigned char *out = malloc(largest + 1), *in = malloc(largest + 1);

	for (size_t size = 0; size <= largest; size = next_size(size))
		exchange(out, in, size);
	free(out);
	free(in);
	done("point-to-point");
}

/* Messages arrive before their receives, which are posted in the reverse order of tags. */
static void unexpected(void)
{
	enum { COUNT = 64, SIZE = 3000 };
	int to = (rank + 1) % ranks, from = (rank - 1 + ranks) % ranks;
	unsigned char *out = malloc((size_t)COUNT * SIZE), in[SIZE + 1];
	MPI_Request requests[COUNT];

	for (int tag = 0; tag < COUNT; tag++) {
		fill(out + tag * SIZE, rank + tag * ranks, to, SIZE);
		MPI_Isend(out + tag * SIZE, SIZE, MPI_BYTE, to, tag, MPI_COMM_WORLD,
			  &requests[tag]);
	}
	for (int tag = COUNT - 1; tag >= 0; tag--) {
		in[SIZE] = 0xa5;
		MPI_Recv(in, SIZE, MPI_BYTE, from, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		check("unexpected", in, from + tag * ranks, rank, SIZE);
	}
	MPI_Waitall(COUNT, requests, MPI_STATUSES_IGNORE);
	free(out);
	done("unexpected messages");
}

static void reductions(size_t count)
{
	int64_t *mine = malloc(count * sizeof *mine), *sum = malloc(count * sizeof *sum);
	int64_t n = ranks;

	for (size_t at = 0; at < count; at++)
		mine[at] = (int64_t)at * (rank + 1);
	MPI_Allreduce(mine, sum, (int)count, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
	for (size_t at = 0; at < count; at++)
		if (sum[at] != (int64_t)at * n * (n + 1) / 2)
			fail("allreduce", count, at);
	for (int root = 0; root < ranks; root++) {
		memset(sum, 0, count * sizeof *sum);
		MPI_Reduce(mine, sum, (int)count, MPI_INT64_T, MPI_MAX, root, MPI_COMM_WORLD);
		for (size_t at = 0; rank == root && at < count; at++)
			if (sum[at] != (int64_t)at * n)
				fail("reduce", count, at);
	}
	MPI_Scan(mine, sum, (int)count, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
	for (size_t at = 0; at < count; at++)
		if (sum[at] != (int64_t)at * (rank + 1) * (rank + 2) / 2)
			fail("scan", count, at);
	free(mine);
	free(sum);
}

static void movements(size_t size)
{
	unsigned char *out = malloc(size * ranks + 1), *in = malloc(size * ranks + 1);
	unsigned char *one = malloc(size + 1);

	for (int root = 0; root < ranks; root++) {
		memset(one, 0xa5, size + 1);
		if (rank == root)
			fill(one, root, root, size);
		MPI_Bcast(one, (int)size, MPI_BYTE, root, MPI_COMM_WORLD);
		check("broadcast", one, root, root, size);
	}
	for (int to = 0; to < ranks; to++)
		fill(out + size * to, rank, to, size);
	memset(in, 0xa5, size * ranks + 1);
	MPI_Alltoall(out, (int)size, MPI_BYTE, in, (int)size, MPI_BYTE, MPI_COMM_WORLD);
	for (int from = 0; from < ranks; from++) {
		memcpy(one, in + size * from, size);
		one[size] = 0xa5;
		check("alltoall", one, from, rank, size);
	}
	fill(one, rank, rank, size);
	MPI_Allgather(one, (int)size, MPI_BYTE, in, (int)size, MPI_BYTE, MPI_COMM_WORLD);
	for (int from = 0; from < ranks; from++) {
		memcpy(one, in + size * from, size);
		check("allgather", one, from, from, size);
	}
	/* The last root gathers what it scatters. */
	for (int to = 0; to < ranks; to++)
		fill(out + size * to, ranks - 1, to, size);
	MPI_Scatter(out, (int)size, MPI_BYTE, one, (int)size, MPI_BYTE, ranks - 1, MPI_COMM_WORLD);
	check("scatter", one, ranks - 1, rank, size);
	MPI_Gather(one, (int)size, MPI_BYTE, in, (int)size, MPI_BYTE, ranks - 1, MPI_COMM_WORLD);
	if (rank == ranks - 1 && memcmp(in, out, size * ranks) != 0)
		fail("gather", size, 0);
	free(out);
	free(in);
	free(one);
}

static void one_sided(size_t size)
{
	int to = (rank + 1) % ranks, from = (rank - 1 + ranks) % ranks;
	unsigned char *shared, *local = malloc(size + 1);
	MPI_Win window;

	MPI_Win_allocate((MPI_Aint)size + 1, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &shared, &window);
	memset(shared, 0xa5, size + 1);
	MPI_Win_fence(0, window);
	fill(local, rank, to, size);
	MPI_Put(local, (int)size, MPI_BYTE, to, 0, (int)size, MPI_BYTE, window);
	MPI_Win_fence(0, window);
	check("put", shared, from, rank, size);
	memset(local, 0xa5, size + 1);
	MPI_Get(local, (int)size, MPI_BYTE, to, 0, (int)size, MPI_BYTE, window);
	MPI_Win_fence(0, window);
	check("get", local, rank, to, size);
	MPI_Win_free(&window);
	free(local);
}

/*
 * Every rank increments a counter of each rank, and takes a lock of the next rank by
 * compare-and-swap. Open MPI 4.1.4 has a null pointer access in a compare-and-swap to the own rank
 * over shared memory.
 */
static void atomics(void)
{
	enum { ROUNDS = 50 };
	int64_t *counters, one = 1, free_value = 0, taken = 1, old;
	int next = (rank + 1) % ranks;
	MPI_Win window;

	MPI_Win_allocate(3 * sizeof *counters, sizeof *counters, MPI_INFO_NULL, MPI_COMM_WORLD,
			 &counters, &window);
	memset(counters, 0, 3 * sizeof *counters);
	MPI_Barrier(MPI_COMM_WORLD);
	MPI_Win_lock_all(0, window);
	for (int round = 0; round < ROUNDS; round++)
		for (int to = 0; to < ranks; to++) {
			MPI_Fetch_and_op(&one, &old, MPI_INT64_T, to, 0, MPI_SUM, window);
			MPI_Win_flush(to, window);
			if (old < round || old >= (int64_t)ROUNDS * ranks)
				fail("fetch-and-add", (size_t)to, (size_t)old);
			MPI_Accumulate(&one, 1, MPI_INT64_T, to, 1, 1, MPI_INT64_T, MPI_SUM,
				       window);
		}
	do {
		MPI_Compare_and_swap(&taken, &free_value, &old, MPI_INT64_T, next, 2, window);
		MPI_Win_flush(next, window);
	} while (old != 0);
	MPI_Compare_and_swap(&free_value, &taken, &old, MPI_INT64_T, next, 2, window);
	MPI_Win_flush(next, window);
	if (old != 1)
		fail("compare-and-swap", 0, (size_t)old);
	MPI_Win_unlock_all(window);
	MPI_Barrier(MPI_COMM_WORLD);
	MPI_Win_lock(MPI_LOCK_SHARED, rank, 0, window);
	for (size_t at = 0; at < 2; at++)
		if (counters[at] != (int64_t)ROUNDS * ranks)
			fail("counter", at, (size_t)counters[at]);
	MPI_Win_unlock(rank, window);
	MPI_Win_free(&window);
	done("atomics");
}

int main(int argc, char **argv)
{
	size_t largest = argc > 1 ? strtoul(argv[1], NULL, 0) : 1 << 20;
	size_t sizes[] = { 1, 8, 1000, 8192, 65537 };

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	point_to_point(largest);
	unexpected();
	for (size_t at = 0; at < sizeof sizes / sizeof *sizes; at++) {
		reductions(sizes[at]);
		movements(sizes[at]);
	}
	done("collectives");
	if (argc > 2) {
		MPI_Finalize();
		return 0;
	}
	for (size_t at = 0; at < sizeof sizes / sizeof *sizes; at++)
		one_sided(sizes[at]);
	done("one-sided");
	atomics();
	MPI_Finalize();
	return 0;
}
