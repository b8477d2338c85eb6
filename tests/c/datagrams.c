/* Datagram rsockets. `datagrams serve OWN PORT` echoes everything to its sender until it receives "end"; at
 * "again" it starts over with another socket on the same port. `datagrams CASE PEER PORT [OWN]` is a client
 * of it that tests one part of the interface. Addresses are IPv4 or IPv6. Exits with 0 on success. */

/* POLLRDHUP. */
#define _GNU_SOURCE

#include "common.h"
#include <fcntl.h>
#include <rdma/rsocket.h>
#include <sys/uio.h>
#include <time.h>

/* Greatest length that librdmacm has room for, and the headers in it. */
enum { LONGEST = 2048, HEADER = 8, HEADER6 = 24, ROOM = 4096, SOON = 20000 };

struct address {
	union {
		struct sockaddr any;
		struct sockaddr_in v4;
		struct sockaddr_in6 v6;
	};
	socklen_t len;
};

static struct address peer, own;

#define FAILS(what, why)              \
	do {                              \
		errno = 0;                    \
		CHECK((what) == -1);          \
		CHECK(errno == (why));        \
	} while (0)

static struct address address(const char *ip, int port)
{
	struct address a = { .len = sizeof(a.v4) };
	if (inet_pton(AF_INET, ip, &a.v4.sin_addr) == 1) {
		a.v4.sin_family = AF_INET;
		a.v4.sin_port = htons(port);
	} else {
		CHECK(inet_pton(AF_INET6, ip, &a.v6.sin6_addr) == 1);
		a.v6.sin6_family = AF_INET6;
		a.v6.sin6_port = htons(port);
		a.len = sizeof(a.v6);
	}
	return a;
}

static int is_v6(void)
{
	return peer.any.sa_family == AF_INET6;
}

static int same(const struct address *a, const struct address *b)
{
	if (a->any.sa_family != b->any.sa_family || a->len != b->len)
		return 0;
	if (a->any.sa_family == AF_INET)
		return a->v4.sin_port == b->v4.sin_port && a->v4.sin_addr.s_addr == b->v4.sin_addr.s_addr;
	return a->v6.sin6_port == b->v6.sin6_port && !memcmp(&a->v6.sin6_addr, &b->v6.sin6_addr, 16);
}

static int made(void)
{
	int fd = rsocket(peer.any.sa_family, SOCK_DGRAM, 0);
	CHECK(fd >= 0);
	return fd;
}

static short events(int fd, short wanted, int timeout)
{
	struct pollfd poll = { .fd = fd, .events = wanted };
	int count = rpoll(&poll, 1, timeout);
	CHECK(count == !!poll.revents);
	return poll.revents;
}

static void fill(char *bytes, int len, int seed)
{
	for (int i = 0; i < len; i++)
		bytes[i] = (char)(seed + i + (i >> 8));
}

static void send_to_peer(int fd, int len, int seed)
{
	char out[ROOM];
	fill(out, len, seed);
	CHECK(rsendto(fd, out, len, 0, &peer.any, peer.len) == len);
}

/* Expects this datagram next, from the peer. */
static void expect(int fd, int len, int seed)
{
	char in[ROOM], wanted[ROOM];
	struct address from = { .len = sizeof(from.v6) };
	fill(wanted, len, seed);
	CHECK(events(fd, POLLIN, SOON) & POLLIN);
	ssize_t got = rrecvfrom(fd, in, sizeof(in), 0, &from.any, &from.len);
	if (got != len)
		fprintf(stderr, "received %zd bytes, expected %d\n", got, len);
	CHECK(got == len && !memcmp(in, wanted, len));
	CHECK(same(&from, &peer));
}

static void serve(void)
{
	char bytes[ROOM];
	for (;;) {
		int fd = made();
		CHECK(!rbind(fd, &own.any, own.len));
		for (;;) {
			struct address from = { .len = sizeof(from.v6) };
			ssize_t len = rrecvfrom(fd, bytes, sizeof(bytes), 0, &from.any, &from.len);
			CHECK(len >= 0);
			CHECK(rsendto(fd, bytes, len, 0, &from.any, from.len) == len);
			if (len == 3 && !memcmp(bytes, "end", 3)) {
				CHECK(!rclose(fd));
				return;
			}
			if (len == 5 && !memcmp(bytes, "again", 5))
				break;
		}
		CHECK(!rclose(fd));
	}
}

static int largest(void)
{
	return LONGEST - (is_v6() ? HEADER6 : HEADER);
}

/* One datagram of each length alone, then all of them in a row. */
static void sizes(void)
{
	const int lengths[] = { 1, 0, 2, 7, 8, 24, 100, 1000, 1024, 1500, largest() - 1, largest() };
	const int count = sizeof(lengths) / sizeof(lengths[0]);
	int fd = made();
	for (int i = 0; i < count; i++) {
		send_to_peer(fd, lengths[i], i);
		expect(fd, lengths[i], i);
	}
	for (int i = 0; i < count; i++)
		send_to_peer(fd, lengths[i], i);
	for (int i = 0; i < count; i++)
		expect(fd, lengths[i], i);
	CHECK(!events(fd, POLLIN, 20));
	CHECK(!rclose(fd));
}

static void too_long(void)
{
	char bytes[ROOM] = { 0 };
	int fd = made();
	for (int i = 0; i < 2; i++) {
		FAILS(rsendto(fd, bytes, largest() + 1, 0, &peer.any, peer.len), EMSGSIZE);
		send_to_peer(fd, largest(), i);
		expect(fd, largest(), i);
	}
	CHECK(!rclose(fd));
}

static void in_pieces(void)
{
	char a[3], b[4], all[16];
	struct address from;
	struct iovec out[3] = { { "ab", 2 }, { NULL, 0 }, { "cdefgh", 6 } }, in[2] = { { a, 3 }, { b, 4 } };
	struct msghdr message = { .msg_name = &peer.any, .msg_namelen = peer.len, .msg_iov = out, .msg_iovlen = 3 };
	int fd = made();
	/* The first goes by UDP, the second by the queue pair. */
	for (int i = 0; i < 2; i++) {
		message.msg_name = &peer.any, message.msg_namelen = peer.len;
		message.msg_iov = out, message.msg_iovlen = 3;
		CHECK(rsendmsg(fd, &message, 0) == 8);
		CHECK(events(fd, POLLIN, SOON) & POLLIN);
		CHECK(rrecv(fd, all, sizeof(all), MSG_PEEK) == 8 && !memcmp(all, "abcdefgh", 8));
		CHECK(rrecv(fd, all, 2, MSG_PEEK | MSG_TRUNC) == 8);
		message.msg_name = &from.any, message.msg_namelen = sizeof(from.v6);
		message.msg_iov = in, message.msg_iovlen = 2;
		CHECK(rrecvmsg(fd, &message, 0) == 7);
		from.len = message.msg_namelen;
		CHECK(message.msg_flags == MSG_TRUNC && same(&from, &peer));
		CHECK(!memcmp(a, "abc", 3) && !memcmp(b, "defg", 4));
		/* The rest that did not fit is discarded. */
		FAILS(rrecv(fd, all, sizeof(all), MSG_DONTWAIT), EAGAIN);
	}
	CHECK(!rclose(fd));
}

static void connected(void)
{
	char in[16];
	struct address name = { .len = sizeof(name.v6) }, mine = { .len = sizeof(mine.v6) }, to;
	struct sockaddr nobody = { .sa_family = AF_UNSPEC };
	int fd = made(), stranger = made();
	FAILS(rsend(fd, "x", 1, 0), EDESTADDRREQ);
	FAILS(rgetpeername(fd, &name.any, &name.len), ENOTCONN);
	FAILS(rshutdown(fd, SHUT_RD), ENOTCONN);
	CHECK(!rclose(fd));
	fd = made();
	/* The flow label is no part of a peer's identity. */
	to = peer;
	if (is_v6())
		to.v6.sin6_flowinfo = htonl(0x12345);
	CHECK(!rconnect(fd, &to.any, to.len));
	CHECK(!rgetpeername(fd, &name.any, &name.len) && same(&name, &peer));
	CHECK(!rgetsockname(fd, &mine.any, &mine.len) && mine.len == peer.len);
	CHECK(is_v6() ? mine.v6.sin6_port && !IN6_IS_ADDR_UNSPECIFIED(&mine.v6.sin6_addr)
		      : mine.v4.sin_port && mine.v4.sin_addr.s_addr);
	for (int i = 0; i < 3; i++) {
		CHECK(rsend(fd, "hello", 5, 0) == 5 && rwrite(fd, "you", 3) == 3);
		CHECK(rrecv(fd, in, sizeof(in), 0) == 5 && !memcmp(in, "hello", 5));
		CHECK(rread(fd, in, sizeof(in)) == 3 && !memcmp(in, "you", 3));
		/* From a socket that is not the peer, first by UDP. */
		CHECK(rsendto(stranger, "stranger", 8, 0, &mine.any, mine.len) == 8);
		CHECK(!events(fd, POLLIN, 50));
	}
	CHECK(!rconnect(fd, &nobody, sizeof(nobody)));
	FAILS(rsend(fd, "x", 1, 0), EDESTADDRREQ);
	CHECK(rsendto(stranger, "stranger", 8, 0, &mine.any, mine.len) == 8);
	CHECK(rrecv(fd, in, sizeof(in), 0) == 8);
	CHECK(!rconnect(fd, &peer.any, peer.len));
	CHECK(!rshutdown(fd, SHUT_WR));
	FAILS(rsend(fd, "x", 1, 0), EPIPE);
	CHECK(!rshutdown(fd, SHUT_RD) && rrecv(fd, in, 1, 0) == 0);
	CHECK(events(fd, POLLIN | POLLRDHUP, 0) == (POLLIN | POLLRDHUP | POLLHUP));
	CHECK(!rclose(fd) && !rclose(stranger));
}

static void *sends_late(void *fd)
{
	usleep(200000);
	send_to_peer(*(int *)fd, 10, 10);
	return NULL;
}

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static void waiting(void)
{
	char in[16];
	struct timeval time = { .tv_usec = 100000 };
	pthread_t thread;
	fd_set set;
	int fd = rsocket(peer.any.sa_family, SOCK_DGRAM | SOCK_NONBLOCK, IPPROTO_UDP);
	CHECK(fd >= 0 && rfcntl(fd, F_GETFL) & O_NONBLOCK);
	FAILS(rrecv(fd, in, 1, 0), EAGAIN);
	CHECK(!rfcntl(fd, F_SETFL, 0));
	FAILS(rrecv(fd, in, 1, MSG_DONTWAIT), EAGAIN);
	CHECK(!events(fd, POLLIN, 0) && events(fd, POLLOUT, 0) == POLLOUT);
	CHECK(!rsetsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof(time)));
	double begin = now();
	FAILS(rrecv(fd, in, 1, 0), EAGAIN);
	CHECK(now() - begin > 0.09);
	/* Sleeping threads are woken both by UDP and by the queue pair. */
	for (int i = 0; i < 2; i++) {
		begin = now();
		CHECK(!pthread_create(&thread, NULL, sends_late, &fd));
		CHECK(events(fd, POLLIN, 10000) == POLLIN);
		CHECK(now() - begin > 0.19 && now() - begin < 5);
		CHECK(!pthread_join(thread, NULL));
		expect(fd, 10, 10);
	}
	time.tv_sec = time.tv_usec = 0;
	CHECK(!rsetsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof(time)));
	CHECK(!pthread_create(&thread, NULL, sends_late, &fd));
	CHECK(rrecv(fd, in, sizeof(in), 0) == 10);
	CHECK(!pthread_join(thread, NULL));
	CHECK(!pthread_create(&thread, NULL, sends_late, &fd));
	FD_ZERO(&set);
	FD_SET(fd, &set);
	CHECK(rselect(fd + 1, &set, NULL, NULL, NULL) == 1 && FD_ISSET(fd, &set));
	CHECK(!pthread_join(thread, NULL) && rrecv(fd, in, sizeof(in), 0) == 10);
	CHECK(!rclose(fd));
}

/* Each of many sockets receives its own datagrams. */
static void many(void)
{
	enum { MANY = 40 };
	int fds[MANY];
	for (int i = 0; i < MANY; i++)
		fds[i] = made();
	for (int round = 0; round < 3; round++) {
		for (int i = 0; i < MANY; i++)
			send_to_peer(fds[i], 10 + i, i + round);
		for (int i = MANY; i--;)
			expect(fds[i], 10 + i, i + round);
	}
	for (int i = 0; i < MANY; i++)
		CHECK(!rclose(fds[i]));
}

/* The peer closes its socket, and another one takes over its port, with another queue pair. */
static void again(void)
{
	char in[ROOM];
	int fd = made(), sent = 0;
	send_to_peer(fd, 100, 1);
	expect(fd, 100, 1);
	send_to_peer(fd, 100, 2);
	expect(fd, 100, 2);
	CHECK(rsendto(fd, "again", 5, 0, &peer.any, peer.len) == 5);
	CHECK(rrecv(fd, in, sizeof(in), 0) == 5);
	double begin = now();
	do {
		send_to_peer(fd, 100, 3);
		sent++;
	} while (!events(fd, POLLIN, 10) && now() - begin < 10);
	fprintf(stderr, "peer resolved again after %d datagrams, %.2f s\n", sent, now() - begin);
	expect(fd, 100, 3);
	/* Datagrams go to the new queue pair directly now. Echoes of earlier datagrams may come first, however
	 * late. */
	char wanted[50];
	ssize_t len;
	fill(wanted, 50, 4);
	send_to_peer(fd, 50, 4);
	do {
		CHECK(events(fd, POLLIN, SOON) & POLLIN);
		len = rrecv(fd, in, sizeof(in), 0);
	} while (len == 100);
	CHECK(len == 50 && !memcmp(in, wanted, 50));
	CHECK(!rclose(fd));
}

/* A buffer for more datagrams than a queue pair has receives. */
static void large(void)
{
	int value = 1 << 27, fd = made();
	CHECK(!rsetsockopt(fd, SOL_SOCKET, SO_RCVBUF, &value, sizeof(value)));
	for (int i = 0; i < 3; i++) {
		send_to_peer(fd, 1000, i);
		expect(fd, 1000, i);
	}
	CHECK(!rclose(fd));
}

/* A socket connected to the wildcard exchanges datagrams with its own address. */
static void wildcard(void)
{
	char in[8];
	struct address name = { .len = sizeof(name.v6) }, from = { .len = sizeof(from.v6) };
	struct address any = address(is_v6() ? "::" : "0.0.0.0", 0);
	int fd = made(), other = made();
	CHECK(!rbind(fd, &own.any, own.len) && !rgetsockname(fd, &name.any, &name.len));
	if (is_v6())
		any.v6.sin6_port = name.v6.sin6_port;
	else
		any.v4.sin_port = name.v4.sin_port;
	CHECK(!rconnect(other, &any.any, any.len));
	CHECK(!rgetpeername(other, &from.any, &from.len) && same(&from, &name));
	for (int i = 0; i < 3; i++) {
		CHECK(rsend(other, "hello", 5, 0) == 5);
		from.len = sizeof(from.v6);
		CHECK(events(fd, POLLIN, SOON) && rrecvfrom(fd, in, 8, 0, &from.any, &from.len) == 5);
		CHECK(rsendto(fd, "you", 3, 0, &from.any, from.len) == 3);
		CHECK(events(other, POLLIN, SOON) && rrecv(other, in, 8, 0) == 3);
	}
	CHECK(!rclose(fd) && !rclose(other));
}

/* An IPv6 socket with an IPv4 peer. */
static void mapped(void)
{
	char in[8];
	struct address to = { .len = sizeof(to.v6) }, from = { .len = sizeof(from.v6) };
	int fd = rsocket(AF_INET6, SOCK_DGRAM, 0);
	CHECK(fd >= 0 && !is_v6());
	to.v6.sin6_family = AF_INET6;
	to.v6.sin6_port = peer.v4.sin_port;
	memset(&to.v6.sin6_addr.s6_addr[10], 0xff, 2);
	memcpy(&to.v6.sin6_addr.s6_addr[12], &peer.v4.sin_addr, 4);
	for (int i = 0; i < 3; i++) {
		CHECK(rsendto(fd, "mapped", 6, 0, &to.any, to.len) == 6);
		CHECK(rrecvfrom(fd, in, sizeof(in), 0, &from.any, &from.len) == 6 && same(&from, &to));
	}
	CHECK(!rconnect(fd, &to.any, to.len) && rsend(fd, "mapped", 6, 0) == 6 && rrecv(fd, in, sizeof(in), 0) == 6);
	CHECK(!rgetsockname(fd, &from.any, &from.len) && IN6_IS_ADDR_V4MAPPED(&from.v6.sin6_addr));
	CHECK(!rclose(fd));
}

static void *waits_for_ever(void *fd)
{
	char c;
	FAILS(rrecv(*(int *)fd, &c, 1, 0), EBADF);
	return NULL;
}

/* A thread that waits for a socket fails when the socket is closed. Datagrams that arrive afterwards are
 * dropped. */
static void closed(void)
{
	pthread_t thread;
	int fd = made();
	for (int i = 0; i < 3; i++)
		send_to_peer(fd, 500, i);
	for (int i = 0; i < 3; i++)
		expect(fd, 500, i);
	CHECK(!pthread_create(&thread, NULL, waits_for_ever, &fd));
	usleep(50000);
	CHECK(!rclose(fd));
	CHECK(!pthread_join(thread, NULL));
	for (int i = 0; i < 20; i++) {
		fd = made();
		for (int j = 0; j < 20; j++)
			send_to_peer(fd, 100, j);
		CHECK(!rclose(fd));
	}
}

static void refused(void)
{
	int value = 0, fd = made(), other;
	socklen_t len = sizeof(value);
	struct address name = { .len = sizeof(name.v6) }, wrong = address(is_v6() ? "10.0.0.1" : "::1", 7);
	FAILS(rsocket(AF_INET, SOCK_DGRAM, IPPROTO_TCP), EPROTONOSUPPORT);
	CHECK(!rgetsockopt(fd, SOL_SOCKET, SO_TYPE, &value, &len) && value == SOCK_DGRAM);
	CHECK(!rgetsockopt(fd, SOL_SOCKET, SO_ERROR, &value, &len) && !value);
	value = 1 << 19;
	CHECK(!rsetsockopt(fd, SOL_SOCKET, SO_RCVBUF, &value, sizeof(value)));
	CHECK(!rsetsockopt(fd, SOL_SOCKET, SO_SNDBUF, &value, sizeof(value)));
	CHECK(!rgetsockopt(fd, SOL_SOCKET, SO_RCVBUF, &value, &len) && value == 1 << 20);
	value = 16;
	CHECK(!rsetsockopt(fd, SOL_RDMA, RDMA_SQSIZE, &value, sizeof(value)));
	CHECK(!rgetsockopt(fd, SOL_RDMA, RDMA_SQSIZE, &value, &len) && value == 16);
	FAILS(rsendto(fd, "x", 1, 0, &wrong.any, wrong.len), EAFNOSUPPORT);
	FAILS(rsendto(fd, "x", 1, 0, &peer.any, 4), EINVAL);
	FAILS(rsendto(fd, "x", 1, MSG_OOB, &peer.any, peer.len), EOPNOTSUPP);
	FAILS(rlisten(fd, 1), EOPNOTSUPP);
	FAILS(raccept(fd, NULL, NULL), EOPNOTSUPP);
	FAILS(riomap(fd, &value, 4, PROT_WRITE, 0, 0), EOPNOTSUPP);
	/* No device has this address. */
	wrong = address(is_v6() ? "fd99::9" : "192.0.2.9", 0);
	FAILS(rbind(fd, &wrong.any, wrong.len), EADDRNOTAVAIL);
	CHECK(!rbind(fd, &own.any, own.len));
	FAILS(rbind(fd, &own.any, own.len), EINVAL);
	CHECK(!rgetsockname(fd, &name.any, &name.len));
	other = made();
	FAILS(rbind(other, &name.any, name.len), EADDRINUSE);
	CHECK(!rclose(other));
	value = 1;
	CHECK((other = made()) >= 0);
	CHECK(!rclose(fd));
	/* As a restarted server does. */
	CHECK(!rsetsockopt(other, SOL_SOCKET, SO_REUSEADDR, &value, sizeof(value)));
	CHECK(!rbind(other, &name.any, name.len));
	CHECK(!rclose(other));
	FAILS(rsend(other, "x", 1, 0), EBADF);
}

static void *deletes_the_link(void *command)
{
	usleep(200000);
	CHECK(!system(command));
	return NULL;
}

/* A waiting thread is notified once of the removal of the device, both in a receive and in a poll. */
static void lost(void)
{
	pthread_t thread;
	int value = 1, reads = made(), polls = made();
	socklen_t len = sizeof(value);
	char c;
	send_to_peer(reads, 10, 0);
	send_to_peer(polls, 10, 0);
	CHECK(!pthread_create(&thread, NULL, deletes_the_link, "ip link del v0"));
	FAILS(rrecv(reads, &c, 1, 0), ENETDOWN);
	CHECK(!pthread_join(thread, NULL));
	FAILS(rrecv(reads, &c, 1, MSG_DONTWAIT), EAGAIN);
	CHECK(events(polls, POLLIN, SOON) == POLLERR);
	CHECK(!rgetsockopt(polls, SOL_SOCKET, SO_ERROR, &value, &len) && value == ENETDOWN);
	CHECK(!rgetsockopt(polls, SOL_SOCKET, SO_ERROR, &value, &len) && !value);
	CHECK(!events(polls, POLLIN, 50));
	/* There is no other device. */
	CHECK(rsendto(polls, "x", 1, 0, &peer.any, peer.len) == -1);
	CHECK(!rclose(reads) && !rclose(polls));
}

static void end(void)
{
	char in[4];
	int fd = made();
	CHECK(rsendto(fd, "end", 3, 0, &peer.any, peer.len) == 3);
	CHECK(events(fd, POLLIN, SOON) && rrecv(fd, in, 4, 0) == 3);
	CHECK(!rclose(fd));
}

int main(int argc, char **argv)
{
	const struct {
		const char *name;
		void (*run)(void);
	} corners[] = {
		{ "serve", serve }, { "sizes", sizes }, { "long", too_long }, { "pieces", in_pieces },
		{ "connected", connected }, { "waiting", waiting }, { "many", many }, { "again", again },
		{ "large", large }, { "lost", lost }, { "wildcard", wildcard }, { "mapped", mapped }, { "closed", closed }, { "refused", refused }, { "end", end },
	};
	CHECK(argc >= 4);
	peer = own = address(argv[2], atoi(argv[3]));
	if (argc > 4)
		own = address(argv[4], 0);
	for (size_t i = 0; i < sizeof(corners) / sizeof(corners[0]); i++) {
		if (!strcmp(corners[i].name, argv[1])) {
			corners[i].run();
			return 0;
		}
	}
	fprintf(stderr, "unknown case: %s\n", argv[1]);
	return 2;
}
