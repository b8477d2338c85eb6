/* Stream rsockets of a program connected to itself, for cases that the usual programs do not cover: one case
 * by name, at an address and, if needed, a port. Exits with 0 on success. */

/* POLLRDHUP. */
#define _GNU_SOURCE

#include "common.h"
#include <fcntl.h>
#include <netinet/tcp.h>
#include <rdma/rsocket.h>
#include <sys/uio.h>

static struct sockaddr_in address = { .sin_family = AF_INET };
static const struct sockaddr *to = (const struct sockaddr *)&address;
enum { LONG = 3 << 20, HOSTILE = 5 };

#define FAILS(what, why)              \
	do {                              \
		errno = 0;                    \
		CHECK((what) == -1);          \
		CHECK(errno == (why));        \
	} while (0)

static char pattern(size_t at)
{
	return (char)(at * 7 + (at >> 8) * 13);
}

/* Listens on a port that the library chooses and stores it in `address`. */
static int listener(void)
{
	socklen_t len = sizeof(address);
	int fd = rsocket(AF_INET, SOCK_STREAM, 0);
	CHECK(fd >= 0);
	CHECK(!rbind(fd, to, len));
	CHECK(!rlisten(fd, 4));
	CHECK(!rgetsockname(fd, (struct sockaddr *)&address, &len));
	CHECK(address.sin_port && len == sizeof(address));
	return fd;
}

static void *connects(void *fd)
{
	CHECK(!rconnect(*(int *)fd, to, sizeof(address)));
	return NULL;
}

/* Connects two sockets with these sizes of buffers and tables of mapped memory. */
static void pair_with(int ends[2], int bytes, int maps)
{
	pthread_t thread;
	int listening = listener();
	CHECK((ends[0] = rsocket(AF_INET, SOCK_STREAM, IPPROTO_TCP)) >= 0);
	for (int i = 0; i < 2; i++) {
		int fd = i ? listening : ends[0];
		CHECK(!bytes || !rsetsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes)));
		CHECK(!bytes || !rsetsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof(bytes)));
		CHECK(!rsetsockopt(fd, SOL_RDMA, RDMA_IOMAPSIZE, &maps, sizeof(maps)));
	}
	CHECK(!pthread_create(&thread, NULL, connects, &ends[0]));
	CHECK((ends[1] = raccept(listening, NULL, NULL)) >= 0);
	CHECK(!pthread_join(thread, NULL));
	CHECK(!rclose(listening));
}

static void pair(int ends[2])
{
	pair_with(ends, 0, 0);
}

static void close_both(int ends[2])
{
	CHECK(!rclose(ends[0]) && !rclose(ends[1]));
	FAILS(rclose(ends[0]), EBADF);
}

static short events(int fd, short wanted, int timeout)
{
	struct pollfd poll = { .fd = fd, .events = wanted };
	int count = rpoll(&poll, 1, timeout);
	CHECK(count == !!poll.revents);
	return poll.revents;
}

static void connecting(void)
{
	char name[sizeof(address)];
	struct sockaddr_in peer;
	socklen_t len = sizeof(peer), four = 4;
	int error = -1, listening = listener(), fd = rsocket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	CHECK(fd >= 0 && fd != listening);
	CHECK(rfcntl(fd, F_GETFL) & O_NONBLOCK);
	CHECK(!rfcntl(listening, F_SETFL, O_NONBLOCK));
	FAILS(raccept(listening, NULL, NULL), EAGAIN);
	CHECK(!events(listening, POLLIN, 0));
	FAILS(rrecv(fd, name, 1, 0), ENOTCONN);
	FAILS(rgetpeername(fd, (struct sockaddr *)&peer, &len), ENOTCONN);
	FAILS(rconnect(fd, to, sizeof(address)), EINPROGRESS);
	CHECK(!events(fd, POLLOUT, 20));
	FAILS(rconnect(fd, to, sizeof(address)), EALREADY);
	CHECK(events(listening, POLLIN, 5000) == POLLIN);
	int new = raccept(listening, (struct sockaddr *)&peer, &len);
	CHECK(new >= 0 && new != fd && peer.sin_addr.s_addr == address.sin_addr.s_addr && peer.sin_port);
	CHECK(!(rfcntl(new, F_GETFL) & O_NONBLOCK));
	CHECK(events(fd, POLLOUT, 5000) == POLLOUT);
	CHECK(!rgetsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &four) && !error);
	FAILS(rconnect(fd, to, sizeof(address)), EISCONN);
	CHECK(!rgetpeername(fd, (struct sockaddr *)&peer, &len) && peer.sin_port == address.sin_port);
	FAILS(rrecv(fd, name, 1, 0), EAGAIN);
	FAILS(rrecv(new, name, 1, MSG_DONTWAIT), EAGAIN);
	CHECK(!rclose(new) && !rclose(listening));
	/* There is no listener any more. */
	int refused = rsocket(AF_INET, SOCK_STREAM, 0);
	FAILS(rconnect(refused, to, sizeof(address)), ECONNREFUSED);
	CHECK(!rfcntl(refused, F_SETFL, O_NONBLOCK));
	FAILS(rconnect(refused, to, sizeof(address)), EINPROGRESS);
	CHECK(events(refused, POLLOUT, 5000) & POLLERR);
	CHECK(!rgetsockopt(refused, SOL_SOCKET, SO_ERROR, &error, &four) && error == ECONNREFUSED);
	CHECK(!rclose(refused) && !rclose(fd));
}

static void refused(void)
{
	int value = 1, pipes[2];
	FAILS(rsocket(AF_UNIX, SOCK_STREAM, 0), EAFNOSUPPORT);
	FAILS(rsocket(AF_INET, SOCK_RAW, 0), ESOCKTNOSUPPORT);
	CHECK(!pipe(pipes));
	FAILS(rsend(pipes[1], "x", 1, 0), EBADF);
	FAILS(rclose(-1), EBADF);
	int fd = listener(), other = rsocket(AF_INET, SOCK_STREAM, 0);
	FAILS(rbind(other, to, sizeof(address)), EADDRINUSE);
	FAILS(rbind(other, to, 4), EINVAL);
	FAILS(rsetsockopt(other, SOL_SOCKET, 4711, &value, sizeof(value)), ENOPROTOOPT);
	FAILS(rfcntl(other, F_SETOWN, 1), EINVAL);
	FAILS(rshutdown(other, SHUT_WR), ENOTCONN);
	CHECK(!rsetsockopt(other, IPPROTO_TCP, TCP_NODELAY, &value, sizeof(value)));
	CHECK(!rsetsockopt(other, SOL_SOCKET, SO_KEEPALIVE, &value, sizeof(value)));
	CHECK(!rclose(fd) && !rclose(other));
}

static void half_closed(void)
{
	char got[8];
	int ends[2];
	pair(ends);
	CHECK(rsend(ends[0], "question", 8, 0) == 8);
	CHECK(!rshutdown(ends[0], SHUT_WR));
	FAILS(rsend(ends[0], "x", 1, 0), EPIPE);
	CHECK(rrecv(ends[1], got, 8, MSG_WAITALL) == 8 && !memcmp(got, "question", 8));
	CHECK(rrecv(ends[1], got, 8, 0) == 0);
	CHECK(events(ends[1], POLLIN | POLLRDHUP | POLLOUT, 5000) == (POLLIN | POLLRDHUP | POLLOUT));
	CHECK(rsend(ends[1], "answer", 6, 0) == 6);
	CHECK(!rclose(ends[1]));
	CHECK(rrecv(ends[0], got, 6, MSG_WAITALL) == 6 && !memcmp(got, "answer", 6));
	CHECK(rrecv(ends[0], got, 6, 0) == 0);
	CHECK(events(ends[0], POLLIN, 5000) & POLLHUP);
	CHECK(!rclose(ends[0]));
}

static void pieces(void)
{
	char a[4], b[4], c[8];
	int ends[2];
	struct iovec out[3] = { { "ab", 2 }, { NULL, 0 }, { "cdef", 4 } }, in[2] = { { a, 4 }, { b, 4 } };
	struct msghdr message = { .msg_iov = in, .msg_iovlen = 2 };
	pair(ends);
	CHECK(rwritev(ends[0], out, 3) == 6);
	CHECK(rrecv(ends[1], c, 6, MSG_WAITALL | MSG_PEEK) > 0);
	CHECK(rrecv(ends[1], c, 6, MSG_PEEK) == 6 && !memcmp(c, "abcdef", 6));
	CHECK(rreadv(ends[1], in, 2) == 6 && !memcmp(a, "abcd", 4) && !memcmp(b, "ef", 2));
	message.msg_iov = out, message.msg_iovlen = 3;
	CHECK(rsendmsg(ends[0], &message, 0) == 6);
	message.msg_iov = in, message.msg_iovlen = 2;
	CHECK(rrecvmsg(ends[1], &message, 0) == 6 && !memcmp(b, "ef", 2));
	CHECK(rwrite(ends[1], "x", 1) == 1 && rread(ends[0], c, 8) == 1 && *c == 'x');
	CHECK(rread(ends[0], c, 0) == 0);
	FAILS(rread(ends[0], NULL, 1), EFAULT);
	close_both(ends);
}

static void *sends_long(void *fd)
{
	char *out = malloc(LONG);
	for (size_t i = 0; i < LONG; i++)
		out[i] = pattern(i);
	CHECK(rsend(*(int *)fd, out, LONG, 0) == LONG);
	free(out);
	return NULL;
}

static void *receives_long(void *fd)
{
	char *in = malloc(LONG);
	size_t got = 0;
	while (got < LONG) {
		size_t some = 1 + got % 9973;
		ssize_t n = rrecv(*(int *)fd, in + got, some < LONG - got ? some : LONG - got, 0);
		CHECK(n > 0);
		got += n;
	}
	for (size_t i = 0; i < LONG; i++)
		CHECK(in[i] == pattern(i));
	free(in);
	return NULL;
}

/* Data in both directions at once, with four threads, small buffers and odd lengths. */
static void both_ways(void)
{
	int ends[2];
	pthread_t threads[4];
	pair_with(ends, 10000, 0);
	for (int i = 0; i < 2; i++) {
		CHECK(!pthread_create(&threads[i], NULL, sends_long, &ends[i]));
		CHECK(!pthread_create(&threads[2 + i], NULL, receives_long, &ends[i]));
	}
	for (int i = 0; i < 4; i++)
		CHECK(!pthread_join(threads[i], NULL));
	close_both(ends);
}

/* Unread data fills the buffers and then blocks; data sent before a close arrives. */
static void full(void)
{
	static char buffer[1 << 16];
	int ends[2];
	size_t sent = 0, got = 0;
	ssize_t n;
	pair_with(ends, 1 << 16, 0);
	memset(buffer, 'x', sizeof(buffer));
	while ((n = rsend(ends[0], buffer, sizeof(buffer), MSG_DONTWAIT)) > 0 || events(ends[0], POLLOUT, 100))
		sent += n > 0 ? n : 0;
	FAILS(rsend(ends[0], buffer, 1, MSG_DONTWAIT), EAGAIN);
	/* The size of half the receive buffer, or of both halves if the receiver has announced the second one. */
	CHECK(sent == 1 << 16 || sent == 2 << 16);
	CHECK(!rclose(ends[0]));
	while ((n = rrecv(ends[1], buffer, sizeof(buffer), 0)) > 0)
		got += n;
	CHECK(n == 0 && got == sent);
	/* The peer has closed the connection. */
	FAILS(rsend(ends[1], buffer, 1, 0), EPIPE);
	CHECK(!rclose(ends[1]));
}

static void *writes_later(void *fd)
{
	usleep(50000);
	CHECK(write(*(int *)fd, "x", 1) == 1);
	return NULL;
}

/* Rsockets and other descriptors in one call. */
static void polled(void)
{
	int ends[2], pipes[2];
	pthread_t thread;
	char c;
	fd_set set;
	struct timeval soon = { .tv_usec = 1000 };
	pair(ends);
	CHECK(!pipe(pipes));
	struct pollfd fds[3] = { { .fd = ends[0], .events = POLLIN }, { .fd = pipes[0], .events = POLLIN }, { .fd = -1 } };
	CHECK(rpoll(fds, 3, 10) == 0);
	CHECK(!pthread_create(&thread, NULL, writes_later, &pipes[1]));
	CHECK(rpoll(fds, 3, -1) == 1 && !fds[0].revents && fds[1].revents == POLLIN);
	CHECK(!pthread_join(thread, NULL));
	CHECK(rsend(ends[1], "y", 1, 0) == 1);
	fds[1].events = 0;
	CHECK(rpoll(fds, 3, 5000) == 1 && fds[0].revents == POLLIN);
	FD_ZERO(&set);
	FD_SET(ends[0], &set);
	FD_SET(pipes[0], &set);
	CHECK(rselect(FD_SETSIZE, &set, NULL, NULL, NULL) == 2 && FD_ISSET(ends[0], &set) && FD_ISSET(pipes[0], &set));
	CHECK(rread(ends[0], &c, 1) == 1 && c == 'y');
	FD_ZERO(&set);
	FD_SET(ends[0], &set);
	CHECK(rselect(ends[0] + 1, &set, NULL, NULL, &soon) == 0 && !FD_ISSET(ends[0], &set));
	close_both(ends);
	FD_SET(ends[0], &set);
	FAILS(rselect(ends[0] + 1, &set, NULL, NULL, NULL), EBADF);
}

static void mapped(void)
{
	static char memory[20000], out[20000], c;
	int ends[2];
	memset(out, 'm', sizeof(out));
	pair_with(ends, 0, 2);
	FAILS(riowrite(ends[0], out, 1, 0, 0), EINVAL);
	CHECK(riomap(ends[1], memory, 5000, PROT_WRITE, 0, 0) == 0);
	CHECK(riomap(ends[1], memory + 5000, 15000, PROT_WRITE, 0, 5000) == 5000);
	FAILS(riomap(ends[1], memory, 8, PROT_WRITE, 0, 70000), ENOMEM);
	CHECK(rsend(ends[1], "x", 1, 0) == 1 && rrecv(ends[0], &c, 1, 0) == 1);
	/* A write across the border of both mappings. */
	CHECK(riowrite(ends[0], out, 10000, 1000, 0) == 10000);
	CHECK(rsend(ends[0], "y", 1, 0) == 1 && rrecv(ends[1], &c, 1, 0) == 1 && c == 'y');
	CHECK(!memcmp(memory + 1000, out, 10000) && !memory[999] && !memory[11000]);
	CHECK(!riounmap(ends[1], memory, 5000));
	FAILS(riounmap(ends[1], memory, 5000), EINVAL);
	CHECK(rsend(ends[1], "x", 1, 0) == 1 && rrecv(ends[0], &c, 1, 0) == 1);
	FAILS(riowrite(ends[0], out, 1, 0, 0), EINVAL);
	CHECK(riowrite(ends[0], out, 1, 5000, 0) == 1);
	close_both(ends);
}

/* Memory that is mapped before the connection is established is announced to the peer once it is. */
static void mapped_early(void)
{
	static char memory[64];
	char out = 'm', name[sizeof(address)];
	CHECK(!setenv("URXE_FAULTS", "delay=1..,by=50ms,cm=rtu", 1));
	for (int i = 0; i < 3; i++) {
		int maps = 1, listening = listener(), fd = rsocket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
		CHECK(fd >= 0);
		CHECK(!rsetsockopt(fd, SOL_RDMA, RDMA_IOMAPSIZE, &maps, sizeof(maps)));
		CHECK(!rsetsockopt(listening, SOL_RDMA, RDMA_IOMAPSIZE, &maps, sizeof(maps)));
		FAILS(rconnect(fd, to, sizeof(address)), EINPROGRESS);
		int new = raccept(listening, NULL, NULL);
		CHECK(new >= 0);
		CHECK(riomap(new, memory, sizeof(memory), PROT_WRITE, 0, 0) == 0);
		CHECK(events(new, POLLOUT, 10000) == POLLOUT);
		CHECK(events(fd, POLLOUT, 10000) == POLLOUT);
		CHECK(rsend(new, "x", 1, 0) == 1 && events(fd, POLLIN, 10000) == POLLIN);
		CHECK(rrecv(fd, name, 1, 0) == 1);
		CHECK(riowrite(fd, &out, 1, i, 0) == 1);
		CHECK(rsend(fd, "y", 1, 0) == 1 && rrecv(new, name, 1, 0) == 1);
		CHECK(memory[i] == 'm');
		CHECK(!rclose(fd) && !rclose(new) && !rclose(listening));
	}
}

/* Data sent by a program that exits without a close arrives; a forked child has none of its parent's sockets. */
static void exits(void)
{
	static char buffer[50000];
	int listening = listener(), go[2], status;
	CHECK(!pipe(go));
	/* The child cannot use the inherited listener, sends on a socket of its own, and exits without closing
	 * it. */
	pid_t child = fork();
	CHECK(child >= 0);
	if (!child) {
		FAILS(rsend(listening, "x", 1, 0), EBADF);
		int fd = rsocket(AF_INET, SOCK_STREAM, 0);
		CHECK(fd >= 0 && !rconnect(fd, to, sizeof(address)));
		CHECK(rsend(fd, buffer, sizeof(buffer), 0) == sizeof(buffer));
		exit(0);
	}
	int fd = raccept(listening, NULL, NULL);
	CHECK(fd >= 0);
	CHECK(waitpid(child, &status, 0) == child && !status);
	CHECK(rrecv(fd, buffer, sizeof(buffer), MSG_WAITALL) == sizeof(buffer));
	CHECK(rrecv(fd, buffer, 1, 0) == 0);
	CHECK(!rclose(fd) && !rclose(listening));
}

/* Calls of a forked child on inherited sockets affect neither process. */
static void forked(void)
{
	int ends[2], status;
	char got[8];
	pid_t child;
	pair(ends);
	child = fork();
	CHECK(child >= 0);
	if (!child) {
		FAILS(rsend(ends[0], "x", 1, 0), EBADF);
		CHECK(!rclose(ends[0]));
		/* The number of the descriptor is reused. */
		close(ends[1]);
		exit(rsocket(AF_INET, SOCK_STREAM, 0) >= 0 ? 0 : 3);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	CHECK(rsend(ends[0], "all well", 8, 0) == 8);
	CHECK(rrecv(ends[1], got, 8, MSG_WAITALL) == 8 && !memcmp(got, "all well", 8));
	close_both(ends);
}

static void *polls(void *fd)
{
	CHECK(events(*(int *)fd, POLLOUT, 20000) & POLLOUT);
	return NULL;
}

/* The thread that processes an event wakes the others that wait for the same socket. */
static void beside(void)
{
	for (int i = 0; i < 20; i++) {
		int server = listener(), client = rsocket(AF_INET, SOCK_STREAM, 0), accepted;
		pthread_t polling, connecting;
		CHECK(client >= 0);
		CHECK(!pthread_create(&connecting, NULL, connects, &client));
		usleep(2000);
		CHECK(!pthread_create(&polling, NULL, polls, &client));
		usleep(2000);
		accepted = raccept(server, NULL, NULL);
		CHECK(accepted >= 0);
		CHECK(!pthread_join(connecting, NULL) && !pthread_join(polling, NULL));
		CHECK(!rclose(client) && !rclose(accepted) && !rclose(server));
	}
}

/* A peer that sends one invalid message per connection: the connection ends, and the listener goes on. */
static void hostile(void)
{
	char c;
	int listening = rsocket(AF_INET, SOCK_STREAM, 0);
	CHECK(!rbind(listening, to, sizeof(address)) && !rlisten(listening, 4));
	for (int i = 0; i < HOSTILE; i++) {
		int fd = raccept(listening, NULL, NULL);
		CHECK(fd >= 0);
		FAILS(rrecv(fd, &c, 1, 0), EPROTO);
		CHECK(rrecv(fd, &c, 1, 0) == 0);
		FAILS(rsend(fd, &c, 1, 0), EPIPE);
		CHECK(!rclose(fd));
	}
	CHECK(!rclose(listening));
}

/* A thread in a blocking call that is interrupted by a signal before the awaited event happens. */
static struct waiter {
	pthread_t thread;
	pid_t id;
	_Atomic int handled, ended;
	int fds[2];
	void (*bring)(struct waiter *);
} waiter;

static void handle(int signal)
{
	(void)signal;
	waiter.handled++;
}

/* Reports whether a thread of this process sleeps, as in a blocking call. */
static int is_asleep(pid_t thread)
{
	char path[64], state = 0;
	snprintf(path, sizeof(path), "/proc/self/task/%d/stat", thread);
	FILE *stat = fopen(path, "r");
	CHECK(stat && fscanf(stat, "%*d (%*[^)]) %c", &state) == 1 && !fclose(stat));
	return state == 'S';
}

/* Waits until the call sleeps, or has ended. A call that is about to return is not asleep, however long it has to wait for a core. */
static void until_asleep(void)
{
	for (int asleep = 0; asleep < 20 && !waiter.ended; asleep += is_asleep(waiter.id))
		usleep(10000);
}

static void *interrupts(void *none)
{
	(void)none;
	until_asleep();
	CHECK(!waiter.ended);
	CHECK(!pthread_kill(waiter.thread, SIGUSR1));
	for (int i = 0; i < 2000 && !waiter.handled; i++)
		usleep(10000);
	CHECK(waiter.handled == 1);
	until_asleep();
	if (waiter.bring && !waiter.ended)
		waiter.bring(&waiter);
	return NULL;
}

/* Checks the result of an interrupted call, with (1) and without (0) SA_RESTART, or with a handler that
 * removes itself (2). */
#define INTERRUPTED(what, brings, restarts, says)                                    \
	do {                                                                             \
		struct sigaction action = { .sa_handler = handle };                          \
		pthread_t other;                                                             \
		action.sa_flags = (int[]){ 0, SA_RESTART, SA_RESETHAND }[restarts];          \
		CHECK(!sigaction(SIGUSR1, &action, NULL));                                   \
		waiter.thread = pthread_self(), waiter.id = gettid(), waiter.bring = (brings);\
		waiter.handled = waiter.ended = 0;                                           \
		CHECK(!pthread_create(&other, NULL, interrupts, NULL));                      \
		errno = 0;                                                                   \
		long said = (what);                                                          \
		int why = errno;                                                             \
		waiter.ended = 1;                                                            \
		CHECK(!pthread_join(other, NULL));                                           \
		errno = why;                                                                 \
		CHECK((says) == EINTR ? said == -1 && why == EINTR : said == (says));        \
	} while (0)

static void brings_a_byte(struct waiter *w)
{
	CHECK(rsend(w->fds[1], "x", 1, 0) == 1);
}

static void brings_room(struct waiter *w)
{
	static char in[LONG];
	CHECK(rrecv(w->fds[1], in, LONG, MSG_WAITALL) == LONG);
}

static void *accepts(void *fd)
{
	int new = raccept(*(int *)fd, NULL, NULL);
	CHECK(new >= 0);
	CHECK(!rclose(new));
	return NULL;
}

static void brings_an_answer(struct waiter *w)
{
	accepts(&w->fds[0]);
}

static void brings_a_connection(struct waiter *w)
{
	/* The waiting thread accepts it, and this one closes it. */
	CHECK((w->fds[1] = rsocket(AF_INET, SOCK_STREAM, 0)) >= 0);
	CHECK(!rconnect(w->fds[1], to, sizeof(address)));
}

static void interrupted(void)
{
	static char out[LONG];
	char in[2];
	int ends[2], listening, fd;
	struct timeval time = { .tv_sec = 5 };
	pair(ends);
	memcpy(waiter.fds, ends, sizeof(ends));
	INTERRUPTED(rrecv(ends[0], in, 2, 0), brings_a_byte, 0, EINTR);
	INTERRUPTED(rrecv(ends[0], in, 2, 0), brings_a_byte, 1, 1);
	INTERRUPTED(rrecv(ends[0], in, 2, 0), NULL, 2, EINTR);
	/* After a partial transfer the call returns the number of bytes. */
	CHECK(rsend(ends[1], "x", 1, 0) == 1);
	INTERRUPTED(rrecv(ends[0], in, 2, MSG_WAITALL), brings_a_byte, 1, 1);
	/* Polls, and calls with a timeout, are interrupted even so. */
	struct pollfd poll = { .fd = ends[0], .events = POLLIN };
	INTERRUPTED(rpoll(&poll, 1, 5000), brings_a_byte, 1, EINTR);
	INTERRUPTED(rpoll(&poll, 1, -1), brings_a_byte, 1, EINTR);
	CHECK(!rsetsockopt(ends[0], SOL_SOCKET, SO_RCVTIMEO, &time, sizeof(time)));
	INTERRUPTED(rrecv(ends[0], in, 2, 0), brings_a_byte, 1, EINTR);
	/* All buffers are filled beforehand, so the interrupted call has sent nothing. */
	CHECK(!rfcntl(ends[0], F_SETFL, O_NONBLOCK));
	ssize_t sent = 0, n;
	while ((n = rsend(ends[0], out, LONG - sent, 0)) > 0 || events(ends[0], POLLOUT, 200))
		sent += n > 0 ? n : 0;
	CHECK(sent < LONG - 1000 && !rfcntl(ends[0], F_SETFL, 0));
	INTERRUPTED(rsend(ends[0], out, LONG - sent, 0), brings_room, 0, EINTR);
	INTERRUPTED(rsend(ends[0], out, LONG - sent, 0), brings_room, 1, LONG - sent);
	close_both(ends);
	waiter.fds[0] = listening = listener();
	INTERRUPTED(raccept(listening, NULL, NULL), brings_a_connection, 0, EINTR);
	long accepted;
	INTERRUPTED((accepted = raccept(listening, NULL, NULL)), brings_a_connection, 1, accepted);
	CHECK(accepted >= 0 && !rclose(accepted) && !rclose(waiter.fds[1]));
	CHECK((fd = rsocket(AF_INET, SOCK_STREAM, 0)) >= 0);
	INTERRUPTED(rconnect(fd, to, sizeof(address)), NULL, 0, EINTR);
	FAILS(rconnect(fd, to, sizeof(address)), EALREADY);
	brings_an_answer(&waiter);
	CHECK(events(fd, POLLOUT, 5000) & POLLOUT);
	CHECK(!rclose(fd));
	CHECK((fd = rsocket(AF_INET, SOCK_STREAM, 0)) >= 0);
	INTERRUPTED(rconnect(fd, to, sizeof(address)), brings_an_answer, 1, 0);
	CHECK(!rclose(fd) && !rclose(listening));
}

/* The keepalive thread releases sockets that are closed. */
static void kept_and_closed(void)
{
	int ends[2], one = 1, idle = 1000;
	pair(ends);
	for (int i = 0; i < 2; i++) {
		CHECK(!rsetsockopt(ends[i], IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle)));
		CHECK(!rsetsockopt(ends[i], SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one)));
	}
	usleep(100000);
	close_both(ends);
	for (int i = 0; i < 2000 && (fcntl(ends[0], F_GETFD) >= 0 || fcntl(ends[1], F_GETFD) >= 0); i++)
		usleep(10000);
	FAILS(fcntl(ends[0], F_GETFD), EBADF);
	FAILS(fcntl(ends[1], F_GETFD), EBADF);
}

/* Answers one byte, and then is killed or stopped by this signal; without a signal it is only silent for a
 * while. */
static void dies(int signal)
{
	char in;
	int one = 1, idle = 1, listening = rsocket(AF_INET, SOCK_STREAM, 0);
	CHECK(!rsetsockopt(listening, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one)));
	CHECK(!rsetsockopt(listening, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle)));
	CHECK(!rbind(listening, to, sizeof(address)) && !rlisten(listening, 1));
	int fd = raccept(listening, NULL, NULL);
	CHECK(fd >= 0 && rrecv(fd, &in, 1, 0) == 1 && rsend(fd, "x", 1, 0) == 1);
	if (!signal) {
		/* The NICs of both ends keep acknowledging, though neither program makes calls. */
		sleep(4);
		CHECK(rrecv(fd, &in, 1, 0) == 1 && in == 'y');
		CHECK(!rclose(fd));
		return;
	}
	usleep(300000);
	kill(getpid(), signal);
	pause();
}

static void is_killed(void)
{
	dies(SIGKILL);
}

static void is_stopped(void)
{
	dies(SIGSTOP);
}

static void is_silent(void)
{
	dies(0);
}

static int connected_to_the_other(int keeps)
{
	char in;
	int idle = 1, fd = rsocket(AF_INET, SOCK_STREAM, 0);
	CHECK(!rsetsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &keeps, sizeof(keeps)));
	CHECK(!rsetsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle)));
	CHECK(!rconnect(fd, to, sizeof(address)));
	CHECK(rsend(fd, "x", 1, 0) == 1 && rrecv(fd, &in, 1, 0) == 1);
	return fd;
}

static void notices(void)
{
	char in;
	int error = 0, fd = connected_to_the_other(1);
	socklen_t len = sizeof(error);
	CHECK(events(fd, POLLIN, 30000) & POLLERR);
	CHECK(!rgetsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len) && error == ETIMEDOUT);
	CHECK(rrecv(fd, &in, 1, 0) == 0);
	CHECK(!rclose(fd));
}

static void hears_while_it_waits(void)
{
	char in;
	int fd = connected_to_the_other(1);
	FAILS(rrecv(fd, &in, 1, 0), ETIMEDOUT);
	CHECK(!rclose(fd));
}

static void does_not_notice(void)
{
	int fd = connected_to_the_other(0);
	CHECK(!events(fd, POLLIN, 8000));
}

static void keeps_on(void)
{
	int fd = connected_to_the_other(1);
	sleep(3);
	CHECK(!events(fd, POLLIN, 0) && rsend(fd, "y", 1, 0) == 1);
	CHECK(!rclose(fd));
}

int main(int argc, char **argv)
{
	const struct {
		const char *name;
		void (*run)(void);
	} corners[] = {
		{ "connecting", connecting }, { "refused", refused }, { "half closed", half_closed },
		{ "pieces", pieces }, { "both ways", both_ways }, { "full", full }, { "polled", polled },
		{ "mapped", mapped }, { "mapped early", mapped_early }, { "exits", exits }, { "forked", forked }, { "beside", beside }, { "hostile", hostile },
		{ "interrupted", interrupted }, { "is killed", is_killed }, { "is stopped", is_stopped },
		{ "is silent", is_silent }, { "notices", notices }, { "hears", hears_while_it_waits },
		{ "does not notice", does_not_notice }, { "keeps on", keeps_on }, { "kept and closed", kept_and_closed },
	};
	CHECK(argc >= 3 && inet_pton(AF_INET, argv[2], &address.sin_addr) == 1);
	address.sin_port = htons(argc > 3 ? atoi(argv[3]) : 0);
	for (size_t i = 0; i < sizeof(corners) / sizeof(corners[0]); i++) {
		if (!strcmp(corners[i].name, argv[1])) {
			corners[i].run();
			return 0;
		}
	}
	fprintf(stderr, "unknown case: %s\n", argv[1]);
	return 2;
}
