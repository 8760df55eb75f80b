/* The agent: one side of a cell of the matrix, a verbs program.
 *
 * Two agents execute one list of cells in lockstep, one on each side of the link. The loader selects the
 * provider of each, rdma-core over rxe or urxe; the program is the same. They synchronize through a Unix
 * socket, which netem does not affect and which crosses network namespaces.
 */
#ifndef AGENT_H
#define AGENT_H

#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum operation {
	OP_SEND,
	OP_SEND_IMM,
	OP_SEND_INV,
	OP_WRITE,
	OP_WRITE_IMM,
	OP_READ,
	OP_CAS,
	OP_FADD,
};

/* A cell: a line `NAME KEY=VALUE ...` of the plan. */
struct cell {
	char name[160];
	enum ibv_qp_type transport;
	enum operation op;
	size_t size;		/* bytes of a message */
	unsigned int mtu;	/* path MTU in bytes */
	unsigned int count;	/* messages in each direction */
	unsigned int depth;	/* of them in flight */
	unsigned int sges;	/* scatter/gather elements of each message at both ends */
	bool inlined;		/* IBV_SEND_INLINE */
	bool shared_receives;	/* an SRQ */
	unsigned int window;	/* type of the memory window that the requester uses, or 0 */
	char requester;		/* 'a', 'b', or '2' for both at once */
	char error[32];		/* the deliberate error, or empty */
	unsigned int limit;	/* time limit in seconds */
};

/* The data that the two sides exchange before a cell. */
struct hello {
	union ibv_gid gid;
	uint32_t qpn;
	uint32_t psn;
	uint32_t rkey;
	uint32_t window_key;
	uint64_t addr;
};

struct side {
	char role;		/* 'a' or 'b' */
	int control;
	struct ibv_context *context;
	struct ibv_pd *pd;
	int gid_index;
};

/* Registered memory, page-aligned. */
struct memory {
	uint8_t *data;
	size_t length;
	struct ibv_mr *mr;
};

/* One end of a connection. */
struct end {
	struct side *side;
	struct ibv_cq *cq;
	struct ibv_srq *srq;	/* or NULL */
	struct ibv_qp *qp;
	struct hello mine;
	struct hello theirs;
};

/* The parameters of a queue pair; zero selects the default. */
struct tuning {
	enum ibv_qp_type transport;
	unsigned int depth;
	unsigned int receives;
	bool shared_receives;
	unsigned int sges;
	unsigned int inline_size;
	unsigned int mtu;
	unsigned int access;	/* of the queue pair */
	uint8_t timeout;
	uint8_t retries;
	uint8_t rnr_retries;
};

/* The queue key of every UD queue pair. */
#define QKEY 0x11223344

#define ALL_ACCESS \
	(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)

/* The first problem of the present cell. */
extern char problem[256];
void complain(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Whether that problem is a lost message of an unreliable connection, which is permitted. */
extern bool lost;

/* control.c: the other agent. An agent without its peer exits. */
int control_open(char role, const char *path);
void control_swap(struct side *side, const void *mine, void *theirs, size_t size);
void control_meet(struct side *side);
/* Whether the other agent is at the next barrier with a problem. */
bool control_other_failed(const struct side *side);

/* end.c: verbs objects */
bool memory_make(struct memory *memory, struct ibv_pd *pd, size_t length, unsigned int access);
void memory_free(struct memory *memory);
bool end_make(struct end *end, struct side *side, const struct tuning *tuning);
bool end_connect(struct end *end, const struct tuning *tuning);
void end_free(struct end *end);
/* Creates and binds a window over memory, and waits for the bind. NULL is a problem. */
struct ibv_mw *window_make(struct end *end, unsigned int type, const struct memory *memory, unsigned int access,
			   uint32_t *key);
bool window_free(struct ibv_mw *window);
bool post_receive(struct end *end, uint64_t id, struct ibv_sge *sges, int count);
bool post_send(struct end *end, struct ibv_send_wr *wr);
double now(void);
/* Pauses after an empty poll; `empty` is the number of consecutive empty polls. */
void idle(unsigned int *empty);
uint64_t scramble(uint64_t x);
uint64_t seed_of(const char *name);

/* transfer.c, atomic.c, invalidate.c, datagram.c, error.c: the kinds of cells */
void run_transfer(struct side *side, const struct cell *cell);
void run_atomics(struct side *side, const struct cell *cell);
void run_datagrams(struct side *side, const struct cell *cell);
void run_invalidate(struct side *side, const struct cell *cell);
void run_error(struct side *side, const struct cell *cell, char *outcome, size_t size);

#endif
