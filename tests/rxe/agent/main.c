/* agent ROLE DEVICE v4|v6 SOCKET PLAN RESULTS: executes the plan's cells.
 * agent gid DEVICE v4|v6: prints the index of the device's GID of that kind. */
#include "agent.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The number of attempts at a cell whose only problem is lost messages. */
#define TRIES 3

char problem[256];
bool lost;

void complain(const char *format, ...)
{
	va_list arguments;

	if (problem[0])
		return;
	va_start(arguments, format);
	vsnprintf(problem, sizeof(problem), format, arguments);
	va_end(arguments);
}

static const char *const operations[] = {
	[OP_SEND] = "send",
	[OP_SEND_IMM] = "send-imm",
	[OP_SEND_INV] = "send-inv",
	[OP_WRITE] = "write",
	[OP_WRITE_IMM] = "write-imm",
	[OP_READ] = "read",
	[OP_CAS] = "cas",
	[OP_FADD] = "fadd",
};

static void die(const char *what, const char *about)
{
	fprintf(stderr, "agent: %s: %s\n", what, about);
	exit(2);
}

static enum operation operation(const char *name)
{
	for (size_t i = 0; i < sizeof(operations) / sizeof(*operations); i++)
		if (!strcmp(operations[i], name))
			return i;
	die("unknown operation", name);
	return 0;
}

static enum ibv_qp_type transport(const char *name)
{
	if (!strcmp(name, "rc"))
		return IBV_QPT_RC;
	if (!strcmp(name, "uc"))
		return IBV_QPT_UC;
	if (!strcmp(name, "ud"))
		return IBV_QPT_UD;
	die("unknown transport", name);
	return 0;
}

static void parse(char *line, struct cell *cell)
{
	char *rest, *word = strtok_r(line, " \n", &rest);

	*cell = (struct cell){
		.transport = IBV_QPT_RC,
		.mtu = 1024,
		.count = 1,
		.depth = 1,
		.sges = 1,
		.requester = 'a',
		.limit = 60,
	};
	snprintf(cell->name, sizeof(cell->name), "%s", word);
	while ((word = strtok_r(NULL, " \n", &rest))) {
		char *value = strchr(word, '=');

		if (!value)
			die("no value", word);
		*value++ = 0;
		if (!strcmp(word, "transport"))
			cell->transport = transport(value);
		else if (!strcmp(word, "op"))
			cell->op = operation(value);
		else if (!strcmp(word, "size"))
			cell->size = strtoull(value, NULL, 0);
		else if (!strcmp(word, "mtu"))
			cell->mtu = atoi(value);
		else if (!strcmp(word, "count"))
			cell->count = atoi(value);
		else if (!strcmp(word, "depth"))
			cell->depth = atoi(value);
		else if (!strcmp(word, "sges"))
			cell->sges = atoi(value);
		else if (!strcmp(word, "inline"))
			cell->inlined = atoi(value);
		else if (!strcmp(word, "srq"))
			cell->shared_receives = atoi(value);
		else if (!strcmp(word, "window"))
			cell->window = atoi(value);
		else if (!strcmp(word, "limit"))
			cell->limit = atoi(value);
		else if (!strcmp(word, "requester"))
			cell->requester = *value;
		else if (!strcmp(word, "error"))
			snprintf(cell->error, sizeof(cell->error), "%s", value);
		else
			die("unknown key", word);
	}
}

static void open_device(struct side *side, const char *name)
{
	struct ibv_device **list = ibv_get_device_list(NULL);

	if (!list)
		die("no list of devices", strerror(errno));
	for (int i = 0; list[i]; i++)
		if (!strcmp(ibv_get_device_name(list[i]), name))
			side->context = ibv_open_device(list[i]);
	if (!side->context)
		die("no such device", name);
	ibv_free_device_list(list);
	side->pd = ibv_alloc_pd(side->context);
	if (!side->pd)
		die("ibv_alloc_pd", strerror(errno));
}

/* Returns the first GID that is an IPv4 address, or the first IPv6 one that is not link-local. */
static int gid_index(struct ibv_context *context, const char *kind)
{
	static const uint8_t mapped[12] = { [10] = 0xff, [11] = 0xff }, link_local[2] = { 0xfe, 0x80 };
	struct ibv_port_attr port;
	union ibv_gid gid, none = { 0 };

	if (ibv_query_port(context, 1, &port))
		die("ibv_query_port", strerror(errno));
	for (int i = 0; i < port.gid_tbl_len; i++) {
		bool v4;

		if (ibv_query_gid(context, 1, i, &gid) || !memcmp(&gid, &none, sizeof(gid)))
			continue;
		v4 = !memcmp(gid.raw, mapped, sizeof(mapped));
		if (!strcmp(kind, "v4") ? v4 : !v4 && memcmp(gid.raw, link_local, sizeof(link_local)))
			return i;
	}
	die("no GID of the kind", kind);
	return -1;
}

struct verdict {
	char problem[256];
	char outcome[256];
	bool lost;
	bool repeated;		/* rxe's requesters of this device have retransmitted */
};

/* Returns rxe's count of retransmissions of the device; 0 for other devices. */
static unsigned long repetitions(const struct side *side)
{
	unsigned long count = 0;
	char path[256];
	FILE *file;

	snprintf(path, sizeof(path), "/sys/class/infiniband/%s/ports/1/hw_counters/completer_retry_err",
		 ibv_get_device_name(side->context->device));
	file = fopen(path, "r");
	if (file) {
		if (fscanf(file, "%lu", &count) != 1)
			die("not a number", path);
		fclose(file);
	}
	return count;
}

static bool is_excused(const struct verdict *verdict)
{
	return !verdict->problem[0] || verdict->lost;
}

static void run_once(struct side *side, const struct cell *cell, struct verdict *mine)
{
	unsigned long before = repetitions(side);

	*mine = (struct verdict){ 0 };
	problem[0] = 0;
	lost = false;
	if (cell->transport == IBV_QPT_UD)
		run_datagrams(side, cell);
	else if (cell->error[0])
		run_error(side, cell, mine->outcome, sizeof(mine->outcome));
	else if (cell->op == OP_SEND_INV)
		run_invalidate(side, cell);
	else if (cell->op == OP_CAS || cell->op == OP_FADD)
		run_atomics(side, cell);
	else
		run_transfer(side, cell);
	memcpy(mine->problem, problem, sizeof(problem));
	mine->lost = lost;
	mine->repeated = repetitions(side) != before;
}

static void run(struct side *side, const struct cell *cell, FILE *results)
{
	struct verdict mine, theirs;
	const struct verdict *a = side->role == 'a' ? &mine : &theirs;
	const struct verdict *b = side->role == 'a' ? &theirs : &mine;
	double start = now();
	int tries = 0;
	bool failed;

	do {
		tries++;
		run_once(side, cell, &mine);
		control_swap(side, &mine, &theirs, sizeof(mine));
		failed = a->problem[0] || b->problem[0];
	} while (failed && is_excused(a) && is_excused(b) && tries < TRIES);
	if (side->role != 'a')
		return;

	fprintf(results, "%s\t%s\t%.0f\t", cell->name, failed ? "FAIL" : "ok", (now() - start) * 1000);
	if (a->problem[0])
		fprintf(results, "a: %s; ", a->problem);
	if (b->problem[0])
		fprintf(results, "b: %s; ", b->problem);
	if (failed && (a->repeated || b->repeated))
		fprintf(results, "rxe repeated; ");
	if (tries > 1)
		fprintf(results, "%d tries; ", tries);
	if (cell->error[0] && cell->transport != IBV_QPT_UD)
		fprintf(results, "requester: %s; responder: %s", (cell->requester == 'a' ? a : b)->outcome,
			(cell->requester == 'a' ? b : a)->outcome);
	fprintf(results, "\n");
	fflush(results);
}

int main(int argc, char **argv)
{
	struct side side = { 0 };
	char line[512];
	FILE *plan, *results;

	if (argc == 4 && !strcmp(argv[1], "gid")) {
		open_device(&side, argv[2]);
		printf("%d\n", gid_index(side.context, argv[3]));
		return 0;
	}
	if (argc != 7)
		die("usage", "agent a|b DEVICE v4|v6 SOCKET PLAN RESULTS");
	side.role = argv[1][0];
	open_device(&side, argv[2]);
	side.gid_index = gid_index(side.context, argv[3]);
	plan = fopen(argv[5], "r");
	results = fopen(argv[6], "a");
	if (!plan || !results)
		die("cannot open the plan or the results", strerror(errno));
	side.control = control_open(side.role, argv[4]);
	while (fgets(line, sizeof(line), plan)) {
		struct cell cell;

		parse(line, &cell);
		run(&side, &cell, results);
	}
	ibv_dealloc_pd(side.pd);
	ibv_close_device(side.context);
	return 0;
}
