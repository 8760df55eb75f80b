/*
 * An echo server that forks for each connection, and its clients. The program does not use RDMA itself; each end
 * only reports at its end whether its socket is an rsocket or TCP.
 *
 *   forking serve COUNT    serves COUNT connections
 *   forking late COUNT     the same; its children first wait for data of the client
 *   forking ask            sends data and checks the echo
 *   forking leave          connects and closes without sending
 */
#include <errno.h>
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define SOL_RDMA 0x10000
#define PORT 7700
#define ROUNDS 10

static char block[100000];

static void must(int is, const char *what)
{
	if (!is) {
		perror(what);
		exit(1);
	}
}

static void report(const char *end, int fd)
{
	int value;
	socklen_t len = sizeof(value);

	/* Kernel sockets have no options of this level. */
	printf("%s: %s\n", end, getsockopt(fd, SOL_RDMA, 0, &value, &len) ? "tcp" : "rdma");
	fflush(stdout);
}

static void write_all(int fd, ssize_t len)
{
	for (ssize_t done = 0; done < len;) {
		ssize_t put = write(fd, block + done, len - done);
		must(put > 0, "write");
		done += put;
	}
}

static void echo(int fd)
{
	ssize_t got, total = 0;

	while ((got = read(fd, block, sizeof(block))) > 0) {
		write_all(fd, got);
		total += got;
	}
	/* A client that leaves at once may reset the connection. */
	must(got == 0 || (!total && errno == ECONNRESET), "read");
	if (total)
		report("server", fd);
	close(fd);
}

static void wait_for_data(int fd)
{
	int waiting = 0;

	while (!ioctl(fd, FIONREAD, &waiting) && !waiting)
		usleep(1000);
}

static void serve(int listener, int count, int late)
{
	for (int i = 0; i < count; i++) {
		int fd = accept(listener, NULL, NULL);
		pid_t child;

		must(fd >= 0, "accept");
		child = fork();
		must(child >= 0, "fork");
		if (!child) {
			close(listener);
			if (late)
				wait_for_data(fd);
			echo(fd);
			exit(0);
		}
		close(fd);
	}
	for (int status; wait(&status) > 0;)
		must(WIFEXITED(status) && WEXITSTATUS(status) == 0, "a child");
}

static void ask(int fd)
{
	for (int round = 0; round < ROUNDS; round++) {
		ssize_t got;

		memset(block, round, sizeof(block));
		write_all(fd, sizeof(block));
		for (size_t done = 0; done < sizeof(block); done += got) {
			got = read(fd, block, sizeof(block) - done);
			must(got > 0, "read");
			for (ssize_t at = 0; at < got; at++)
				must(block[at] == round, "the same bytes");
		}
	}
	report("client", fd);
}

int main(int argc, char **argv)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(PORT),
				       .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	const struct sockaddr *at = (const struct sockaddr *)&address;
	int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;

	must(fd >= 0 && argc > 1, "socket");
	if (!strcmp(argv[1], "serve") || !strcmp(argv[1], "late")) {
		must(argc > 2, "how many");
		setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
		must(!bind(fd, at, sizeof(address)), "bind");
		must(!listen(fd, 16), "listen");
		serve(fd, atoi(argv[2]), !strcmp(argv[1], "late"));
	} else {
		must(!connect(fd, at, sizeof(address)), "connect");
		if (!strcmp(argv[1], "ask"))
			ask(fd);
	}
	close(fd);
	return 0;
}
