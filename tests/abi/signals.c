/*
 * Signals that a peer's access raises are delivered to the program's handlers, such as a write barrier that
 * protects pages and unprotects them in its SIGSEGV handler. The argument selects the case.
 */
#include <signal.h>

#include "program.h"

static unsigned char *barrier;
static volatile sig_atomic_t caught, caught_by;

static void lift_barrier(int signal, siginfo_t *info, void *context)
{
	unsigned char *at = info->si_addr;

	(void)signal;
	(void)context;
	if (at < barrier || at >= barrier + SIZE)
		_exit(3);
	caught++;
	caught_by = gettid();
	if (mprotect(barrier, SIZE, PROT_READ | PROT_WRITE))
		_exit(4);
}

/*
 * The program polls its memory, so the progress thread executes the WRITE, and raises the signal.
 */
static void write_barrier(void)
{
	struct sigaction action = { .sa_sigaction = lift_barrier, .sa_flags = SA_SIGINFO };
	struct ibv_context *context = open_loopback();
	struct end a = make_end(context), b = make_end(context);
	struct ibv_sge element = sge(&a, 0, 8);
	struct ibv_send_wr *bad, wr = { .sg_list = &element, .num_sge = 1,
					.opcode = IBV_WR_RDMA_WRITE,
					.send_flags = IBV_SEND_SIGNALED };
	struct ibv_mr *mr;

	connect_to(a.qp, b.qp->qp_num);
	connect_to(b.qp, a.qp->qp_num);
	MUST(!sigaction(SIGSEGV, &action, NULL));
	barrier = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	MUST(barrier != MAP_FAILED);
	MUST(mr = ibv_reg_mr(b.pd, barrier, SIZE, ALL));
	MUST(!mprotect(barrier, SIZE, PROT_READ));

	memset(a.data, 0x5a, 8);
	wr.wr.rdma.remote_addr = (uintptr_t)barrier;
	wr.wr.rdma.rkey = mr->rkey;
	MUST(!ibv_post_send(a.qp, &wr, &bad));
	while (((volatile unsigned char *)barrier)[7] != 0x5a)
		usleep(100);
	CHECK(caught == 1);
	CHECK(caught_by != gettid());
	CHECK(completion(&a).status == IBV_WC_SUCCESS);
	FAILS(ibv_dereg_mr(mr), 0);
	free_end(&a);
	free_end(&b);
	FAILS(ibv_close_device(context), 0);
}

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {
		{ "write_barrier", write_barrier },
	};
	return run_case(cases, sizeof(cases) / sizeof(*cases), argc, argv);
}
