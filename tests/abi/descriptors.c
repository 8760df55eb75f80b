/*
 * A program that closes descriptors of the library, as daemons do with closefrom(3). The argument selects
 * the case.
 */
#include <dirent.h>
#include <sys/syscall.h>

#include "program.h"

/* Whether each thread of the library has ended or sleeps. */
static int library_sleeps(void)
{
	DIR *tasks = opendir("/proc/self/task");
	struct dirent *task;
	int sleeps = 1;

	MUST(tasks);
	while ((task = readdir(tasks))) {
		char path[300], name[32] = "", state = 0;
		FILE *file;

		snprintf(path, sizeof(path), "/proc/self/task/%s/stat", task->d_name);
		if (!(file = fopen(path, "r")))
			continue;
		if (fscanf(file, "%*d (%31[^)]) %c", name, &state) == 2 &&
		    !strncmp(name, "urxe-", 5) && state != 'S')
			sleeps = 0;
		fclose(file);
	}
	closedir(tasks);
	return sleeps;
}

/* A thread that spins on a closed descriptor is never asleep in so many consecutive checks. */
static void wait_until_library_sleeps(void)
{
	for (int in_a_row = 0; in_a_row < 100; usleep(1000))
		in_a_row = library_sleeps() ? in_a_row + 1 : 0;
}

static void write_word(struct end *from, struct end *to, uint64_t value)
{
	struct ibv_sge element = sge(from, 0, sizeof(value));
	struct ibv_send_wr *bad, wr = {
		.sg_list = &element, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { .remote_addr = (uintptr_t)to->data, .rkey = to->mr->rkey },
	};

	memcpy(from->data, &value, sizeof(value));
	MUST(!ibv_post_send(from->qp, &wr, &bad));
}

static enum ibv_qp_state state_of(struct ibv_qp *qp)
{
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;

	MUST(!ibv_query_qp(qp, &attr, IBV_QP_STATE, &init));
	return attr.qp_state;
}

/* Queue pairs fail, threads of the library do not spin, and objects created later work. */
static void closed(void)
{
	struct ibv_context *context = open_loopback();
	struct end a = make_end(context), b = make_end(context);
	enum { FILES = 64 };
	int files[FILES];
	char name[] = "/tmp/urxe-descriptors-XXXXXX";

	connect_to(a.qp, b.qp->qp_num);
	connect_to(b.qp, a.qp->qp_num);
	post_recv(&a, 1, 0);
	write_word(&a, &b, 1);
	CHECK(completion(&a).status == IBV_WC_SUCCESS);

	fflush(stdout);
	MUST(!syscall(SYS_close_range, 3, ~0U, 0));
	/* The library may use the descriptors once more. */
	write_word(&a, &b, 2);
	while (state_of(a.qp) != IBV_QPS_ERR || state_of(b.qp) != IBV_QPS_ERR)
		usleep(1000);
	wait_until_library_sleeps();
	CHECK(completion(&a).status == IBV_WC_WR_FLUSH_ERR);

	/* The numbers now belong to files of the program, which the library neither writes nor closes. */
	MUST((files[0] = mkstemp(name)) >= 0);
	MUST(!unlink(name));
	for (int i = 1; i < FILES; i++)
		MUST((files[i] = dup(files[0])) >= 0);
	FAILS(ibv_destroy_qp(a.qp), 0);
	FAILS(ibv_destroy_qp(b.qp), 0);
	for (int i = 0; i < FILES; i++)
		CHECK(fcntl(files[i], F_GETFD) >= 0);
	CHECK(lseek(files[0], 0, SEEK_END) == 0);

	context = open_loopback();
	a = make_end(context);
	b = make_end(context);
	connect_to(a.qp, b.qp->qp_num);
	connect_to(b.qp, a.qp->qp_num);
	write_word(&a, &b, 3);
	while (*(volatile uint64_t *)b.data != 3)
		usleep(100);
	CHECK(completion(&a).status == IBV_WC_SUCCESS);
	free_end(&a);
	free_end(&b);
	FAILS(ibv_close_device(context), 0);
	CHECK(lseek(files[0], 0, SEEK_END) == 0);
}

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {
		{ "closed", closed },
	};
	own_network();
	return run_case(cases, sizeof(cases) / sizeof(*cases), argc, argv);
}
