// Executes a program under a seccomp filter that makes newer system calls and socket options fail
// as they do on an older kernel, or as a container's policy makes them fail.
//
//     restrict PROFILE... -- PROGRAM ARGUMENTS...

#define _GNU_SOURCE
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

// Numbers that are the same on all architectures of Linux, for headers that lack them.
#define PIDFD_OPEN 434
#define CLONE3 435
#define CLOSE_RANGE 436
#define ALWAYS (-1)
#define AF_UNIX_NUMBER 1
#define AF_INET6_NUMBER 10
#define AF_NETLINK_NUMBER 16
#define AF_PACKET_NUMBER 17

// A system call that fails if two of its arguments have these values.
struct rule {
	const char *profile;
	long call;
	int first, first_value;
	int second, second_value;
	int error;
};

static const struct rule RULES[] = {
	// Before Linux 5.0, and 5.1 for SO_BINDTOIFINDEX.
	{ "4.18", SYS_setsockopt, 1, 17, 2, 104, ENOPROTOOPT }, // UDP_GRO
	{ "4.18", SYS_setsockopt, 1, 1, 2, 62, ENOPROTOOPT },   // SO_BINDTOIFINDEX
	// Before Linux 4.20.
	{ "4.18", SYS_setsockopt, 1, 41, 2, 29, ENOPROTOOPT },  // IPV6_MULTICAST_ALL
	// Before Linux 5.3.
	{ "4.18", PIDFD_OPEN, ALWAYS, 0, ALWAYS, 0, ENOSYS },
	// Before Linux 5.9.
	{ "5.4", CLOSE_RANGE, ALWAYS, 0, ALWAYS, 0, ENOSYS },
	// Before Linux 5.11: CLOSE_RANGE_CLOEXEC.
	{ "5.10", CLOSE_RANGE, 2, 4, ALWAYS, 0, EINVAL },
	// Before Linux 5.14: MADV_POPULATE_READ, MADV_POPULATE_WRITE.
	{ "5.10", SYS_madvise, 2, 22, ALWAYS, 0, EINVAL },
	{ "5.10", SYS_madvise, 2, 23, ALWAYS, 0, EINVAL },
	// Before Linux 6.16.
	{ "6.1", SYS_setsockopt, 1, 1, 2, 83, ENOPROTOOPT },    // SO_PASSRIGHTS
	// The calls that the default policy of Docker refuses and urxe may make. Only older policies, or
	// those for kernels before 4.8, refuse process_vm_readv.
	{ "docker", CLONE3, ALWAYS, 0, ALWAYS, 0, ENOSYS },
	{ "docker", SYS_unshare, ALWAYS, 0, ALWAYS, 0, EPERM },
	{ "docker", SYS_mount, ALWAYS, 0, ALWAYS, 0, EPERM },
	{ "docker", SYS_umount2, ALWAYS, 0, ALWAYS, 0, EPERM },
	{ "docker", SYS_setns, ALWAYS, 0, ALWAYS, 0, EPERM },
	{ "docker", SYS_pivot_root, ALWAYS, 0, ALWAYS, 0, EPERM },
	{ "docker", SYS_bpf, ALWAYS, 0, ALWAYS, 0, EPERM },
	{ "docker", SYS_perf_event_open, ALWAYS, 0, ALWAYS, 0, EPERM },
	{ "docker", SYS_userfaultfd, ALWAYS, 0, ALWAYS, 0, EPERM },
	{ "docker", SYS_process_vm_readv, ALWAYS, 0, ALWAYS, 0, EPERM },
	{ "docker", SYS_process_vm_writev, ALWAYS, 0, ALWAYS, 0, EPERM },
	// Address families that a service manager or a kernel configuration leaves out.
	{ "no-unix", SYS_socket, 0, AF_UNIX_NUMBER, ALWAYS, 0, EAFNOSUPPORT },
	{ "no-unix", SYS_socketpair, 0, AF_UNIX_NUMBER, ALWAYS, 0, EAFNOSUPPORT },
	{ "no-ipv6", SYS_socket, 0, AF_INET6_NUMBER, ALWAYS, 0, EAFNOSUPPORT },
	{ "no-netlink", SYS_socket, 0, AF_NETLINK_NUMBER, ALWAYS, 0, EAFNOSUPPORT },
	{ "no-packet", SYS_socket, 0, AF_PACKET_NUMBER, ALWAYS, 0, EPERM },
};

enum { RULE_COUNT = sizeof RULES / sizeof *RULES, MAX_INSTRUCTIONS = 7 * RULE_COUNT + 2 };

static struct sock_filter program[MAX_INSTRUCTIONS];
static unsigned short length;

static void add(struct sock_filter instruction)
{
	program[length++] = instruction;
}

static void load(size_t offset)
{
	add((struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (unsigned)offset));
}

// Skips `behind` instructions unless the loaded value is `value`.
static void require(unsigned value, unsigned char behind)
{
	add((struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, behind));
}

// Adds the rule: a comparison for the call and for each argument, then the error.
static void add_rule(const struct rule *rule)
{
	int arguments[2] = { rule->first, rule->second };
	int values[2] = { rule->first_value, rule->second_value };
	unsigned char compared = (arguments[0] != ALWAYS) + (arguments[1] != ALWAYS);
	load(offsetof(struct seccomp_data, nr));
	require((unsigned)rule->call, (unsigned char)(2 * compared + 1));
	for (int i = 0; i < 2; i++) {
		if (arguments[i] == ALWAYS)
			continue;
		compared--;
		// The lower half of the argument, on little-endian machines.
		load(offsetof(struct seccomp_data, args) + 8 * (size_t)arguments[i]);
		require((unsigned)values[i], (unsigned char)(2 * compared + 1));
	}
	add((struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (unsigned)rule->error));
}

int main(int argc, char **argv)
{
	int at = 1;
	for (; at < argc && strcmp(argv[at], "--") != 0; at++) {
		int known = 0;
		for (size_t i = 0; i < RULE_COUNT; i++) {
			if (strcmp(RULES[i].profile, argv[at]) == 0) {
				add_rule(&RULES[i]);
				known = 1;
			}
		}
		if (!known) {
			fprintf(stderr, "restrict: no profile %s\n", argv[at]);
			return 125;
		}
	}
	if (at + 1 >= argc) {
		fprintf(stderr, "usage: restrict PROFILE... -- PROGRAM ARGUMENTS...\n");
		return 125;
	}
	add((struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
	struct sock_fprog filter = { .len = length, .filter = program };
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
	    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0) {
		perror("restrict: seccomp");
		return 125;
	}
	execvp(argv[at + 1], argv + at + 1);
	perror(argv[at + 1]);
	return 127;
}
