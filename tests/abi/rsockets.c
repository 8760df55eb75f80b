/*
 * The API of rsockets: connections, data transfer, polling, shutdown, options.
 */
#include "rsockets.h"

#include <netinet/tcp.h>
#include <signal.h>
#include <sys/prctl.h>

enum { BIG = 3 << 20 };

static void connecting(void)
{
	struct sockaddr_in address, nobody = at(9), name;
	socklen_t len = sizeof(name);
	int fd, error = -1, pair[2], other;

	MINUS_ONE(rsocket(AF_UNIX, SOCK_STREAM, 0), ENOTSUP);
	MINUS_ONE(rsocket(AF_INET, SOCK_RAW, 0), ENOTSUP);
	MINUS_ONE(rsocket(AF_INET, SOCK_STREAM, IPPROTO_UDP), ENOTSUP);
	MINUS_ONE(rsend(-1, "", 1, 0), EBADF);
	MINUS_ONE(rclose(7777), EBADF);

	MUST((fd = rsocket(AF_INET, SOCK_STREAM, 0)) >= 0);
	MINUS_ONE(rsend(fd, "", 1, 0), ENOTCONN);
	MINUS_ONE(rrecv(fd, &error, 1, 0), ENOTCONN);
	MINUS_ONE(raccept(fd, NULL, NULL), EBADF);
	MINUS_ONE(rgetpeername(fd, (struct sockaddr *)&name, &len), ENOTCONN);
	MINUS_ONE(rconnect(fd, (struct sockaddr *)&nobody, 3), EINVAL);
	MINUS_ONE(rconnect(fd, (struct sockaddr *)&nobody, sizeof(nobody)), ECONNREFUSED);
	CHECK(!rclose(fd));

	/* Nonblocking. */
	fd = listener(&address);
	nonblocking(fd);
	MINUS_ONE(raccept(fd, NULL, NULL), EAGAIN);
	MUST((pair[0] = rsocket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0)) >= 0);
	MINUS_ONE(rconnect(pair[0], (struct sockaddr *)&address, sizeof(address)), EINPROGRESS);
	CHECK(polled(pair[0], POLLOUT, 20000) == POLLOUT);
	len = sizeof(error);
	CHECK(!rgetsockopt(pair[0], SOL_SOCKET, SO_ERROR, &error, &len) && error == 0);
	CHECK(polled(fd, POLLIN, 20000) == POLLIN);
	MUST((pair[1] = raccept(fd, NULL, NULL)) >= 0);
	CHECK(polled(pair[1], POLLIN, 0) == 0);
	len = sizeof(name);
	CHECK(!rgetpeername(pair[0], (struct sockaddr *)&name, &len));
	CHECK(name.sin_port == address.sin_port);
	close_pair(pair);

	/* No listener, nonblocking. The refusal may arrive before the call returns. */
	MUST((other = rsocket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0)) >= 0);
	CHECK(rconnect(other, (struct sockaddr *)&nobody, sizeof(nobody)) == -1);
	if (errno == EINPROGRESS) {
		CHECK(polled(other, POLLOUT, 20000) & POLLERR);
		len = sizeof(error);
		CHECK(!rgetsockopt(other, SOL_SOCKET, SO_ERROR, &error, &len));
		CHECK(error == ECONNREFUSED);
	} else {
		CHECK(errno == ECONNREFUSED);
	}
	CHECK(!rclose(other));

	/* A port has one listener. */
	MUST((other = rsocket(AF_INET, SOCK_STREAM, 0)) >= 0);
	MINUS_ONE(rbind(other, (struct sockaddr *)&address, sizeof(address)), EADDRINUSE);
	CHECK(!rclose(other) && !rclose(fd));
}

/* Connects without waiting. */
static int begin_to_connect(const struct sockaddr_in *address)
{
	int fd;

	MUST((fd = rsocket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0)) >= 0);
	MINUS_ONE(rconnect(fd, (const struct sockaddr *)address, sizeof(*address)), EINPROGRESS);
	return fd;
}

static int connects(int fd)
{
	return polled(fd, POLLOUT, 20000) == POLLOUT;
}

static int stays_pending(int fd)
{
	return polled(fd, POLLOUT, 200) == 0;
}

/* As for TCP, one connection more than the backlog is established before the program accepts. */
static void backlog(void)
{
	struct sockaddr_in address;
	int fd = listener(&address), clients[6], error = 0;
	socklen_t len = sizeof(error);

	CHECK(!rlisten(fd, 1));
	for (int i = 0; i < 5; i++)
		clients[i] = begin_to_connect(&address);
	CHECK(connects(clients[0]) && connects(clients[1]));
	CHECK(stays_pending(clients[2]));
	for (int i = 0; i < 2; i++) {
		int accepted = raccept(fd, NULL, NULL);

		MUST(accepted >= 0);
		CHECK(!rclose(accepted));
		/* The next one follows; the fourth has withdrawn. */
		CHECK(connects(clients[i ? 4 : 2]));
		if (i == 0) {
			CHECK(stays_pending(clients[3]) && stays_pending(clients[4]));
			CHECK(!rclose(clients[3]));
		}
	}
	/* A larger backlog has room for pending requests. */
	clients[3] = begin_to_connect(&address);
	CHECK(stays_pending(clients[3]));
	CHECK(!rlisten(fd, 2));
	CHECK(connects(clients[3]));
	/* The end of the listener rejects them. */
	clients[5] = begin_to_connect(&address);
	CHECK(stays_pending(clients[5]));
	CHECK(!rclose(fd));
	CHECK(polled(clients[5], POLLOUT, 20000) & POLLERR);
	CHECK(!rgetsockopt(clients[5], SOL_SOCKET, SO_ERROR, &error, &len));
	CHECK(error == ECONNREFUSED);
	for (int i = 0; i < 6; i++)
		CHECK(!rclose(clients[i]));
}

static void receiving(void)
{
	struct iovec pieces[3];
	struct msghdr message = { .msg_iov = pieces, .msg_iovlen = 3 };
	char data[32] = "", a[2], b[3], c[20];
	int pair[2];

	make_pair(pair);
	MINUS_ONE(rrecv(pair[1], data, sizeof(data), MSG_DONTWAIT), EAGAIN);
	CHECK(rsend(pair[0], "hello", 5, 0) == 5);
	CHECK(rrecv(pair[1], data, sizeof(data), MSG_PEEK) == 5 && !memcmp(data, "hello", 5));
	CHECK(rrecv(pair[1], data, 2, MSG_PEEK) == 2);
	CHECK(rrecv(pair[1], data, 2, 0) == 2);
	CHECK(rread(pair[1], data, sizeof(data)) == 3 && !memcmp(data, "llo", 3));
	CHECK(rwrite(pair[0], "all", 3) == 3 && rwrite(pair[0], " of it", 6) == 6);
	CHECK(rrecv(pair[1], data, 9, MSG_WAITALL) == 9 && !memcmp(data, "all of it", 9));

	/* In several buffers, in both directions. */
	pieces[0] = (struct iovec){ a, sizeof(a) };
	pieces[1] = (struct iovec){ b, sizeof(b) };
	pieces[2] = (struct iovec){ c, sizeof(c) };
	memcpy(a, "01", 2), memcpy(b, "234", 3), memcpy(c, "56789", 5);
	pieces[2].iov_len = 5;
	CHECK(rwritev(pair[0], pieces, 3) == 10);
	CHECK(rrecv(pair[1], data, 10, MSG_WAITALL) == 10 && !memcmp(data, "0123456789", 10));
	CHECK(rsendmsg(pair[1], &message, 0) == 10);
	memset(a, 0, 2), memset(b, 0, 3);
	pieces[2].iov_len = sizeof(c);
	CHECK(polled(pair[0], POLLIN, 20000) == POLLIN);
	CHECK(rrecvmsg(pair[0], &message, 0) == 10);
	CHECK(!memcmp(a, "01", 2) && !memcmp(b, "234", 3) && !memcmp(c, "56789", 5));
	message.msg_control = data;
	message.msg_controllen = sizeof(data);
	MINUS_ONE(rsendmsg(pair[0], &message, 0), ENOTSUP);
	close_pair(pair);
}

static unsigned char byte_at(size_t offset)
{
	return offset * 2654435761u >> 13;
}

static void *send_all(void *argument)
{
	int fd = *(int *)argument;
	unsigned char *data = malloc(BIG);
	size_t sent = 0;

	MUST(data);
	for (size_t i = 0; i < BIG; i++)
		data[i] = byte_at(i);
	while (sent < BIG) {
		ssize_t now = rsend(fd, data + sent, BIG - sent, 0);
		if (now < 0 && errno == EAGAIN) {
			CHECK(polled(fd, POLLOUT, 30000) & POLLOUT);
			continue;
		}
		MUST(now > 0);
		sent += now;
	}
	free(data);
	return NULL;
}

static void *receive_all(void *argument)
{
	int fd = *(int *)argument;
	unsigned char data[5000];
	size_t received = 0;

	while (received < BIG) {
		ssize_t now = rrecv(fd, data, sizeof(data), 0);
		if (now < 0 && errno == EAGAIN) {
			CHECK(polled(fd, POLLIN, 30000) & POLLIN);
			continue;
		}
		MUST(now > 0);
		for (ssize_t i = 0; i < now; i++)
			MUST(data[i] == byte_at(received + i));
		received += now;
	}
	return NULL;
}

/* Each end has a thread that sends and one that receives. */
static void both_ways(int pair[2])
{
	pthread_t threads[4];

	for (int i = 0; i < 2; i++) {
		MUST(!pthread_create(&threads[2 * i], NULL, send_all, &pair[i]));
		MUST(!pthread_create(&threads[2 * i + 1], NULL, receive_all, &pair[i]));
	}
	for (int i = 0; i < 4; i++)
		MUST(!pthread_join(threads[i], NULL));
}

static void threads(void)
{
	int pair[2];

	make_pair(pair);
	both_ways(pair);
	nonblocking(pair[0]);
	nonblocking(pair[1]);
	both_ways(pair);
	close_pair(pair);
}

static void waiting(void)
{
	struct pollfd fds[3];
	fd_set reads, writes;
	struct timeval none = { 0, 0 };
	char data[8];
	int pair[2], ends[2];
	pthread_t thread;

	make_pair(pair);
	MUST(!pipe(ends));
	fds[0] = (struct pollfd){ pair[0], POLLIN, 0 };
	fds[1] = (struct pollfd){ ends[0], POLLIN, 0 };
	fds[2] = (struct pollfd){ -1, POLLIN, 0 };
	CHECK(rpoll(fds, 3, 0) == 0);
	CHECK(rpoll(fds, 3, 30) == 0);
	CHECK(polled(pair[0], POLLIN | POLLOUT, -1) == POLLOUT);

	MUST(write(ends[1], "x", 1) == 1);
	CHECK(rpoll(fds, 3, -1) == 1 && fds[1].revents == POLLIN && !fds[0].revents);
	MUST(read(ends[0], data, 1) == 1);
	MUST(!pthread_create(&thread, NULL, say_later, &pair[1]));
	CHECK(rpoll(fds, 3, 30000) == 1 && fds[0].revents == POLLIN && !fds[1].revents);
	MUST(!pthread_join(thread, NULL));

	FD_ZERO(&reads);
	FD_ZERO(&writes);
	FD_SET(pair[0], &reads);
	FD_SET(ends[0], &reads);
	FD_SET(pair[0], &writes);
	CHECK(rselect(64, &reads, &writes, NULL, NULL) == 2);
	CHECK(FD_ISSET(pair[0], &reads) && !FD_ISSET(ends[0], &reads));
	CHECK(FD_ISSET(pair[0], &writes));
	CHECK(rrecv(pair[0], data, sizeof(data), 0) == 1);
	FD_ZERO(&reads);
	FD_SET(pair[0], &reads);
	CHECK(rselect(64, &reads, NULL, NULL, &none) == 0 && !FD_ISSET(pair[0], &reads));
	close_pair(pair);
	close(ends[0]), close(ends[1]);
}

static void endings(void)
{
	char data[16];
	fd_set writes, excepts;
	int pair[2];

	/* One direction is shut down, and the other continues. */
	make_pair(pair);
	CHECK(rsend(pair[0], "last", 4, 0) == 4);
	CHECK(!rshutdown(pair[0], SHUT_WR));
	MINUS_ONE(rsend(pair[0], "x", 1, 0), ECONNRESET);
	CHECK(rrecv(pair[1], data, sizeof(data), MSG_WAITALL) == 4);
	CHECK(polled(pair[1], POLLIN, 20000) == POLLIN);
	CHECK(rrecv(pair[1], data, sizeof(data), 0) == 0);
	CHECK(rsend(pair[1], "answer", 6, 0) == 6);
	CHECK(rrecv(pair[0], data, sizeof(data), 0) == 6);
	CHECK(!rshutdown(pair[1], SHUT_WR));
	CHECK(rrecv(pair[0], data, sizeof(data), 0) == 0);
	MINUS_ONE(rshutdown(pair[0], 7), EINVAL);
	close_pair(pair);

	/* The peer closes: the data that it sent can be read. */
	make_pair(pair);
	CHECK(rsend(pair[0], "data", 4, 0) == 4);
	CHECK(!rclose(pair[0]));
	CHECK(polled(pair[1], POLLIN, 20000) & POLLIN);
	CHECK(rrecv(pair[1], data, sizeof(data), 0) == 4);
	CHECK(rrecv(pair[1], data, sizeof(data), 0) == 0);
	CHECK(polled(pair[1], POLLIN | POLLOUT, 0) & POLLHUP);
	/* A write returns at once then. */
	FD_ZERO(&writes);
	FD_SET(pair[1], &writes);
	CHECK(rselect(pair[1] + 1, NULL, &writes, NULL, NULL) == 1 && FD_ISSET(pair[1], &writes));
	FD_ZERO(&excepts);
	FD_SET(pair[1], &excepts);
	CHECK(rselect(pair[1] + 1, NULL, NULL, &excepts, NULL) == 1 && FD_ISSET(pair[1], &excepts));
	MINUS_ONE(rsend(pair[1], "x", 1, 0), ECONNRESET);
	CHECK(!rclose(pair[1]));
	MINUS_ONE(rsend(pair[1], "x", 1, 0), EBADF);
}

/* The peer's process is killed; a waiting thread gets an error. */
static void killed(void)
{
	struct sockaddr_in address;
	int fd, peer, error = -1;
	socklen_t len = sizeof(error);
	char data[16];
	short ended;
	pid_t child;
	int ready[2];

	MUST(!pipe(ready));
	MUST((child = fork()) >= 0);
	if (!child) {
		fd = listener(&address);
		MUST(write(ready[1], &address, sizeof(address)) == sizeof(address));
		MUST((peer = raccept(fd, NULL, NULL)) >= 0);
		MUST(rsend(peer, "here", 4, 0) == 4);
		pause();
		_exit(0);
	}
	MUST(read(ready[0], &address, sizeof(address)) == sizeof(address));
	MUST((fd = rsocket(AF_INET, SOCK_STREAM, 0)) >= 0);
	MUST(!rconnect(fd, (struct sockaddr *)&address, sizeof(address)));
	MUST(rrecv(fd, data, 4, MSG_WAITALL) == 4);
	MUST(!kill(child, SIGKILL) && waitpid(child, NULL, 0) == child);
	/* It detects the end when its data is not acknowledged. */
	CHECK(rsend(fd, "gone?", 5, 0) == 5);
	CHECK((ended = polled(fd, POLLIN, 50000)) & (POLLERR | POLLHUP));
	CHECK(!rgetsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len));
	CHECK(error == (ended & POLLERR ? ECONNRESET : 0));
	CHECK(rrecv(fd, data, sizeof(data), 0) <= 0);
	CHECK(!rclose(fd));
}

static volatile sig_atomic_t alarms;

static void count_alarm(int signal)
{
	(void)signal;
	alarms++;
}

/* Raises SIGALRM after 0.1 s, with a handler that has these flags. */
static void alarm_with(int flags)
{
	struct sigaction action = { .sa_handler = count_alarm, .sa_flags = flags };

	MUST(!sigaction(SIGALRM, &action, NULL));
	ualarm(100000, 0);
}

static void *continue_later(void *child)
{
	usleep(400000);
	MUST(!kill(*(pid_t *)child, SIGCONT));
	return NULL;
}

/* The peer does not answer while it is stopped. */
static void interrupted(void)
{
	struct sockaddr_in address;
	int fd, ready[2], status;
	pthread_t thread;
	pid_t child;

	MUST(!pipe(ready));
	MUST((child = fork()) >= 0);
	if (!child) {
		MUST(!prctl(PR_SET_PDEATHSIG, SIGKILL));
		fd = listener(&address);
		MUST(write(ready[1], &address, sizeof(address)) == sizeof(address));
		pause();
		_exit(0);
	}
	MUST(read(ready[0], &address, sizeof(address)) == sizeof(address));
	MUST(!kill(child, SIGSTOP) && waitpid(child, &status, WUNTRACED) == child);
	MUST((fd = rsocket(AF_INET, SOCK_STREAM, 0)) >= 0);
	alarm_with(0);
	MINUS_ONE(rconnect(fd, (struct sockaddr *)&address, sizeof(address)), EINTR);
	CHECK(alarms == 1);
	/* The connection is still being established, and another call waits for it. */
	alarm_with(SA_RESTART);
	MUST(!pthread_create(&thread, NULL, continue_later, &child));
	CHECK(!rconnect(fd, (struct sockaddr *)&address, sizeof(address)));
	CHECK(alarms == 2);
	MUST(!pthread_join(thread, NULL));
	CHECK(!rclose(fd));
	MUST(!kill(child, SIGKILL) && waitpid(child, &status, 0) == child);
}

static int option(int fd, int level, int name)
{
	int value = -1;
	socklen_t len = sizeof(value);
	CHECK(!rgetsockopt(fd, level, name, &value, &len) && len == sizeof(value));
	return value;
}

static int set_option(int fd, int level, int name, int value)
{
	return rsetsockopt(fd, level, name, &value, sizeof(value));
}

static void options(void)
{
	struct linger linger = { 1, 5 };
	struct tcp_info info;
	socklen_t len = sizeof(linger);
	int fd, pair[2];

	MUST((fd = rsocket(AF_INET6, SOCK_STREAM, 0)) >= 0);
	CHECK(option(fd, SOL_RDMA, RDMA_SQSIZE) == 384 && option(fd, SOL_RDMA, RDMA_RQSIZE) == 384);
	CHECK(option(fd, SOL_RDMA, RDMA_INLINE) == 64 && option(fd, SOL_RDMA, RDMA_IOMAPSIZE) == 0);
	CHECK(option(fd, SOL_SOCKET, SO_SNDBUF) == 1 << 17);
	CHECK(option(fd, SOL_SOCKET, SO_TYPE) == SOCK_STREAM);
	CHECK(!set_option(fd, SOL_SOCKET, SO_RCVBUF, 5000));
	CHECK(option(fd, SOL_SOCKET, SO_RCVBUF) == 10000);
	CHECK(!set_option(fd, SOL_RDMA, RDMA_SQSIZE, 100));
	CHECK(option(fd, SOL_RDMA, RDMA_SQSIZE) == 100);
	CHECK(!set_option(fd, SOL_RDMA, RDMA_IOMAPSIZE, 5));
	CHECK(option(fd, SOL_RDMA, RDMA_IOMAPSIZE) == 5);
	CHECK(!set_option(fd, IPPROTO_IPV6, IPV6_V6ONLY, 1));
	CHECK(option(fd, IPPROTO_IPV6, IPV6_V6ONLY) == 1);
	CHECK(!set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1));
	CHECK(option(fd, SOL_SOCKET, SO_KEEPALIVE) == 1);
	MINUS_ONE(set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 0), EINVAL);
	CHECK(!set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 9));
	CHECK(option(fd, IPPROTO_TCP, TCP_KEEPIDLE) == 9);
	CHECK(!rsetsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger)));
	CHECK(!rgetsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, &len) && linger.l_onoff == 1);
	MINUS_ONE(set_option(fd, SOL_SOCKET, SO_BINDTODEVICE, 1), ENOTSUP);
	MINUS_ONE(set_option(fd, SOL_RDMA, 99, 1), ENOTSUP);
	MINUS_ONE(rsetsockopt(fd, SOL_SOCKET, SO_RCVBUF, &fd, 1), EINVAL);
	CHECK(!rfcntl(fd, F_SETFD, FD_CLOEXEC) && rfcntl(fd, F_GETFD) == FD_CLOEXEC);
	MINUS_ONE(rfcntl(fd, F_GETOWN), ENOTSUP);
	CHECK(!rclose(fd));

	make_pair(pair);
	MINUS_ONE(set_option(pair[0], SOL_RDMA, RDMA_SQSIZE, 100), EINVAL);
	CHECK(option(pair[0], IPPROTO_TCP, TCP_MAXSEG) >= 256);
	len = sizeof(info);
	CHECK(!rgetsockopt(pair[0], IPPROTO_TCP, TCP_INFO, &info, &len));
	CHECK(len == sizeof(info) && info.tcpi_state == TCP_ESTABLISHED);
	CHECK(!set_option(pair[0], SOL_SOCKET, SO_KEEPALIVE, 1));
	CHECK(!set_option(pair[0], IPPROTO_TCP, TCP_KEEPIDLE, 1));
	usleep(1500000);
	CHECK(polled(pair[0], POLLIN | POLLOUT, 0) == POLLOUT);
	close_pair(pair);
}

static void mapping(void)
{
	static char here[4096], there[4096];
	struct sockaddr_in address;
	int pair[2], fd = listener(&address), value = 2;
	char data[8];

	CHECK(!rsetsockopt(fd, SOL_RDMA, RDMA_IOMAPSIZE, &value, sizeof(value)));
	MUST((pair[0] = rsocket(AF_INET, SOCK_STREAM, 0)) >= 0);
	MINUS_ONE(riomap(pair[0], here, sizeof(here), PROT_WRITE, 0, 0), EINVAL);
	MUST(!rconnect(pair[0], (struct sockaddr *)&address, sizeof(address)));
	MUST((pair[1] = raccept(fd, NULL, NULL)) >= 0);
	/* The client maps memory for the server, whose queue has two entries. */
	MINUS_ONE(riomap(pair[1], there, sizeof(there), PROT_WRITE, 0, 0), ENOMEM);
	MINUS_ONE(riomap(pair[0], here, sizeof(here), PROT_READ, 0, 0), EINVAL);
	CHECK(riomap(pair[0], here, 1000, PROT_WRITE, 0, 5000) == 5000);
	CHECK(riomap(pair[0], here + 2000, 1000, PROT_WRITE, 0, -1) == (off_t)(uintptr_t)(here + 2000));
	MINUS_ONE(riomap(pair[0], here, sizeof(here), PROT_WRITE, 0, 0), ENOMEM);
	/* The mappings are sent with the next message. */
	CHECK(rsend(pair[0], "go", 2, 0) == 2);
	CHECK(rrecv(pair[1], data, 2, MSG_WAITALL) == 2);
	CHECK(riowrite(pair[1], "mapped", 6, 5100, 0) == 6);
	CHECK(riowrite(pair[1], "too long", 8, 5996, 0) == 4);
	CHECK(riowrite(pair[1], "nowhere", 7, 7000, 0) == 0);
	CHECK(rsend(pair[1], "ok", 2, 0) == 2);
	CHECK(rrecv(pair[0], data, 2, MSG_WAITALL) == 2);
	CHECK(!memcmp(here + 100, "mapped", 6) && !memcmp(here + 996, "too ", 4) && !here[1000]);
	CHECK(!riounmap(pair[0], here, 1000));
	MINUS_ONE(riounmap(pair[0], here, 1000), EINVAL);
	close_pair(pair);
	CHECK(!rclose(fd));
}

static void datagrams(void)
{
	struct sockaddr_in a = at(0), b = at(0), from;
	socklen_t len = sizeof(a);
	char data[3000];
	int one, two;

	MUST((one = rsocket(AF_INET, SOCK_DGRAM, 0)) >= 0);
	MUST((two = rsocket(AF_INET, SOCK_DGRAM, IPPROTO_UDP)) >= 0);
	MUST(!rbind(one, (struct sockaddr *)&a, sizeof(a)));
	MUST(!rbind(two, (struct sockaddr *)&b, sizeof(b)));
	MUST(!rgetsockname(one, (struct sockaddr *)&a, &len));
	MUST(!rgetsockname(two, (struct sockaddr *)&b, &len));
	MINUS_ONE(rsend(one, "x", 1, 0), EDESTADDRREQ);
	MINUS_ONE(rrecv(one, data, 1, MSG_DONTWAIT), EAGAIN);
	MINUS_ONE(rsendto(one, data, sizeof(data), 0, (struct sockaddr *)&b, sizeof(b)), EMSGSIZE);
	MINUS_ONE(rlisten(one, 1), EOPNOTSUPP);

	/* The first datagram is sent over UDP, the others between queue pairs. */
	for (int i = 0; i < 20; i++) {
		int size = i * 100;
		memset(data, 'a' + i, size);
		CHECK(rsendto(one, data, size, 0, (struct sockaddr *)&b, sizeof(b)) == size);
		memset(data, 0, sizeof(data));
		len = sizeof(from);
		CHECK(polled(two, POLLIN, 20000) == POLLIN);
		CHECK(rrecvfrom(two, data, sizeof(data), MSG_PEEK, NULL, NULL) == size);
		CHECK(rrecvfrom(two, data, sizeof(data), 0, (struct sockaddr *)&from, &len) == size);
		CHECK(from.sin_port == a.sin_port && from.sin_addr.s_addr == a.sin_addr.s_addr);
		CHECK(!size || (data[0] == 'a' + i && data[size - 1] == 'a' + i));
	}
	CHECK(!rconnect(two, (struct sockaddr *)&a, sizeof(a)));
	CHECK(rsend(two, "answer", 6, 0) == 6);
	CHECK(rrecv(one, data, 3, 0) == 3 && !memcmp(data, "ans", 3));
	CHECK(!rclose(one) && !rclose(two));
}

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {
		{ "connecting", connecting }, { "backlog", backlog }, { "receiving", receiving },
		{ "threads", threads }, { "waiting", waiting }, { "endings", endings },
		{ "killed", killed }, { "interrupted", interrupted }, { "options", options },
		{ "mapping", mapping }, { "datagrams", datagrams },
	};
	return run_case(cases, sizeof(cases) / sizeof(*cases), argc, argv);
}
