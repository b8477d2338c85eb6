/* Threads that are cancelled in calls of the library: one call by name, at an address, with a third argument
 * for threads that can be cancelled asynchronously. The thread has to end as cancelled, with
 * its cleanup handlers run, and the object has to work as before in another thread. */

#define _GNU_SOURCE

#include "common.h"
#include <fcntl.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <rdma/rsocket.h>
#include <sys/syscall.h>
#include <sys/uio.h>

static struct sockaddr_in address = { .sin_family = AF_INET };
static struct sockaddr *const to = (struct sockaddr *)&address;

struct victim {
	void (*call)(void *);
	void *argument;
	int cleanups;
	_Atomic pid_t tid;
};

static void cleans_up(void *victim)
{
	((struct victim *)victim)->cleanups++;
}

/* The type of cancellation of the threads that are cancelled. */
static int type = PTHREAD_CANCEL_DEFERRED;

static void *calls(void *of)
{
	struct victim *victim = of;
	CHECK(!pthread_setcanceltype(type, NULL));
	victim->tid = syscall(SYS_gettid);
	pthread_cleanup_push(cleans_up, victim);
	victim->call(victim->argument);
	pthread_cleanup_pop(0);
	return NULL;
}

/* Whether a thread sleeps in a system call that waits for descriptors. */
static int is_blocked(pid_t tid)
{
	char path[64];
	int number = -1;
	snprintf(path, sizeof(path), "/proc/self/task/%d/syscall", tid);
	FILE *file = fopen(path, "r");
	if (!file)
		return 0;
	if (fscanf(file, "%d", &number) != 1)
		number = -1;
	fclose(file);
	return number == SYS_ppoll;
}

/* Makes a call in a new thread, and cancels the thread when the call blocks. */
static void cancel_in(void (*call)(void *), void *argument)
{
	struct victim victim = { .call = call, .argument = argument };
	pthread_t thread;
	void *result = NULL;
	CHECK(!pthread_create(&thread, NULL, calls, &victim));
	while (!victim.tid || !is_blocked(victim.tid))
		usleep(1000);
	CHECK(!pthread_cancel(thread));
	CHECK(!pthread_join(thread, &result));
	CHECK(result == PTHREAD_CANCELED && victim.cleanups == 1);
}

/* Verbs. */

static struct ibv_comp_channel *channel;

static void cq_event(void *nothing)
{
	struct ibv_cq *of;
	void *of_context;
	ibv_get_cq_event(channel, &of, &of_context);
}

static void get_cq_event(void)
{
	struct ibv_cq *of;
	void *of_context;
	open_first();
	CHECK(channel = ibv_create_comp_channel(context));
	CHECK(!ibv_destroy_cq(cq) && (cq = ibv_create_cq(context, 64, NULL, channel, 0)));
	struct ibv_qp *qp = create_qp(NULL);
	connect_to_itself(qp);
	cancel_in(cq_event, NULL);
	CHECK(!ibv_req_notify_cq(cq, 0));
	exchange(qp);
	CHECK(!ibv_get_cq_event(channel, &of, &of_context) && of == cq);
	ibv_ack_cq_events(cq, 1);
	CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_cq(cq) && !ibv_destroy_comp_channel(channel));
}

static void async_event(void *nothing)
{
	struct ibv_async_event event;
	ibv_get_async_event(context, &event);
}

static void get_async_event(void)
{
	struct ibv_async_event event;
	open_first();
	struct ibv_qp *qp = create_qp(NULL);
	connect_to_itself(qp);
	cancel_in(async_event, NULL);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_SQD, .en_sqd_async_notify = 1 };
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY));
	CHECK(!ibv_get_async_event(context, &event) && event.element.qp == qp);
	ibv_ack_async_event(&event);
	CHECK(!ibv_destroy_qp(qp));
}

/* A cancelled thread continues until it is in a call that blocks. */

static _Atomic int was_cancelled;
static _Atomic int rounds;

static void works(void *of)
{
	struct ibv_qp *qp = of;
	rounds = 1;
	while (!was_cancelled)
		;
	for (; rounds < 200; rounds++) {
		exchange(qp);
		struct ibv_comp_channel *one = ibv_create_comp_channel(context);
		struct ibv_cq *with = ibv_create_cq(context, 8, NULL, one, 0);
		CHECK(one && with && !ibv_destroy_cq(with) && !ibv_destroy_comp_channel(one));
		struct ibv_context *other = ibv_open_device(context->device);
		CHECK(other && !ibv_close_device(other));
		struct rdma_event_channel *events = rdma_create_event_channel();
		struct rdma_cm_id *id;
		CHECK(events && !rdma_create_id(events, &id, NULL, RDMA_PS_TCP) && !rdma_bind_addr(id, to));
		CHECK(!rdma_listen(id, 4) && !rdma_destroy_id(id));
		rdma_destroy_event_channel(events);
		int fd = rsocket(AF_INET, SOCK_DGRAM, 0);
		CHECK(fd >= 0 && !rbind(fd, to, sizeof(address)) && !rclose(fd));
	}
	async_event(NULL);
}

static void not_blocking(void)
{
	open_first();
	struct ibv_qp *qp = create_qp(NULL);
	connect_to_itself(qp);
	struct victim victim = { .call = works, .argument = qp };
	pthread_t thread;
	void *result;
	CHECK(!pthread_create(&thread, NULL, calls, &victim));
	while (!rounds)
		usleep(1000);
	CHECK(!pthread_cancel(thread));
	was_cancelled = 1;
	CHECK(!pthread_join(thread, &result));
	CHECK(result == PTHREAD_CANCELED && victim.cleanups == 1 && rounds == 200);
	exchange(qp);
}

/* Threads that poll without a pause may be cancelled anywhere. */

static _Atomic int polled;

static void polls_events(void *nothing)
{
	for (;; polled = 1)
		cq_event(NULL);
}

static void cancel_busy(void (*call)(void *), void *argument)
{
	for (int round = 0; round < 100; round++) {
		struct victim victim = { .call = call, .argument = argument };
		pthread_t thread;
		void *result = NULL;
		polled = 0;
		CHECK(!pthread_create(&thread, NULL, calls, &victim));
		while (!polled)
			;
		for (volatile int pause = 0; pause < round * 100; pause++)
			;
		CHECK(!pthread_cancel(thread));
		CHECK(!pthread_join(thread, &result));
		CHECK(result == PTHREAD_CANCELED && victim.cleanups == 1);
	}
}

static void busy(void)
{
	open_first();
	CHECK(channel = ibv_create_comp_channel(context));
	CHECK(!ibv_destroy_cq(cq) && (cq = ibv_create_cq(context, 64, NULL, channel, 0)));
	CHECK(!fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) | O_NONBLOCK));
	struct ibv_qp *qp = create_qp(NULL);
	connect_to_itself(qp);
	cancel_busy(polls_events, NULL);
	exchange(qp);
}

/* The connection manager. */

static struct rdma_event_channel *events;

static void cm_event(void *nothing)
{
	struct rdma_cm_event *event;
	rdma_get_cm_event(events, &event);
}

static void get_cm_event(void)
{
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;
	CHECK(events = rdma_create_event_channel());
	CHECK(!rdma_create_id(events, &id, NULL, RDMA_PS_TCP));
	cancel_in(cm_event, NULL);
	CHECK(!rdma_resolve_addr(id, NULL, to, 2000));
	CHECK(!rdma_get_cm_event(events, &event) && event->event == RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(!rdma_ack_cm_event(event) && !rdma_destroy_id(id));
	rdma_destroy_event_channel(events);
}

static struct ibv_qp_init_attr queues(void)
{
	return (struct ibv_qp_init_attr){
		.cap = { .max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
	};
}

static struct rdma_cm_id *endpoint(int flags)
{
	struct rdma_addrinfo hints = { .ai_flags = flags, .ai_port_space = RDMA_PS_TCP }, *found;
	struct ibv_qp_init_attr init = queues();
	struct rdma_cm_id *id;
	char host[64], port[16];
	CHECK(inet_ntop(AF_INET, &address.sin_addr, host, sizeof(host)));
	snprintf(port, sizeof(port), "%d", ntohs(address.sin_port));
	CHECK(!rdma_getaddrinfo(host, address.sin_port ? port : NULL, &hints, &found));
	CHECK(!rdma_create_ep(&id, found, NULL, &init));
	rdma_freeaddrinfo(found);
	return id;
}

static void request(void *listener)
{
	struct rdma_cm_id *id;
	rdma_get_request(listener, &id);
}

static void connection(void *id)
{
	rdma_connect(id, NULL);
}

static void *connects(void *id)
{
	CHECK(!rdma_connect(id, NULL));
	return NULL;
}

static void get_request(void)
{
	struct rdma_cm_id *listener = endpoint(RAI_PASSIVE), *client, *id;
	pthread_t thread;
	CHECK(!rdma_listen(listener, 4));
	address.sin_port = rdma_get_src_port(listener);
	cancel_in(request, listener);

	/* Connecting blocks as well while the request is not accepted. */
	client = endpoint(0);
	cancel_in(connection, client);
	CHECK(!rdma_get_request(listener, &id));
	rdma_destroy_ep(client);
	rdma_destroy_ep(id);

	client = endpoint(0);
	CHECK(!pthread_create(&thread, NULL, connects, client));
	CHECK(!rdma_get_request(listener, &id) && !rdma_accept(id, NULL) && !pthread_join(thread, NULL));
	rdma_destroy_ep(client);
	rdma_destroy_ep(id);
	rdma_destroy_ep(listener);
}

/* Rsockets. */

static void accepts(void *fd)
{
	raccept(*(int *)fd, NULL, NULL);
}

static void connects_socket(void *fd)
{
	rconnect(*(int *)fd, to, sizeof(address));
}

static void *does_connect(void *fd)
{
	CHECK(!rconnect(*(int *)fd, to, sizeof(address)));
	return NULL;
}

static void receives(void *fd)
{
	char byte;
	rrecv(*(int *)fd, &byte, 1, 0);
}

static void receives_parts(void *fd)
{
	char bytes[8];
	struct iovec parts[] = { { bytes, 4 }, { bytes + 4, 4 } };
	struct msghdr message = { .msg_iov = parts, .msg_iovlen = 2 };
	rrecvmsg(*(int *)fd, &message, 0);
}

static void reads(void *fd)
{
	char bytes[8];
	struct iovec parts[] = { { bytes, 4 }, { bytes + 4, 4 } };
	rreadv(*(int *)fd, parts, 2);
}

static void receives_from(void *fd)
{
	char byte;
	struct sockaddr_in from;
	socklen_t len = sizeof(from);
	rrecvfrom(*(int *)fd, &byte, 1, 0, (struct sockaddr *)&from, &len);
}

static char much[16 << 20];

static void sends(void *fd)
{
	while (rsend(*(int *)fd, much, sizeof(much), 0) > 0)
		;
}

static void polls(void *fd)
{
	struct pollfd poll = { .fd = *(int *)fd, .events = POLLIN };
	rpoll(&poll, 1, -1);
}

static void selects(void *fd)
{
	fd_set set;
	FD_ZERO(&set);
	FD_SET(*(int *)fd, &set);
	rselect(*(int *)fd + 1, &set, NULL, NULL, NULL);
}

static void streams(void)
{
	socklen_t len = sizeof(address);
	int listening = rsocket(AF_INET, SOCK_STREAM, 0), one, other;
	pthread_t thread;
	char byte = 'x';
	CHECK(listening >= 0 && !rbind(listening, to, len) && !rlisten(listening, 4));
	CHECK(!rgetsockname(listening, to, &len));
	cancel_in(accepts, &listening);
	cancel_in(polls, &listening);
	cancel_in(selects, &listening);

	CHECK((one = rsocket(AF_INET, SOCK_STREAM, 0)) >= 0);
	cancel_in(connects_socket, &one);
	/* The connection is established all the same. */
	CHECK((other = raccept(listening, NULL, NULL)) >= 0 && rsend(one, "w", 1, 0) == 1);
	CHECK(rrecv(other, &byte, 1, 0) == 1 && byte == 'w' && !rclose(one) && !rclose(other));

	CHECK((one = rsocket(AF_INET, SOCK_STREAM, 0)) >= 0);
	CHECK(!pthread_create(&thread, NULL, does_connect, &one));
	CHECK((other = raccept(listening, NULL, NULL)) >= 0 && !pthread_join(thread, NULL));
	void (*all[])(void *) = { receives, receives_parts, reads, receives_from, polls, selects };
	for (unsigned i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		cancel_in(all[i], &other);
		CHECK(rsend(one, "y", 1, 0) == 1 && rrecv(other, &byte, 1, 0) == 1 && byte == 'y');
	}
	/* Data sent before the thread was cancelled arrives, however much it is. */
	cancel_in(sends, &one);
	CHECK(!rshutdown(one, SHUT_WR));
	ssize_t got, total = 0;
	while ((got = rrecv(other, much, sizeof(much), 0)) > 0)
		total += got;
	CHECK(got == 0 && total > 0);
	CHECK(!rclose(one) && !rclose(other) && !rclose(listening));
}

static void datagrams(void)
{
	socklen_t len = sizeof(address);
	char byte = 0;
	int one = rsocket(AF_INET, SOCK_DGRAM, 0), other = rsocket(AF_INET, SOCK_DGRAM, 0);
	CHECK(one >= 0 && other >= 0 && !rbind(other, to, len) && !rgetsockname(other, to, &len));
	void (*all[])(void *) = { receives, receives_parts, reads, receives_from, polls, selects };
	for (unsigned i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		cancel_in(all[i], &other);
		CHECK(rsendto(one, "z", 1, 0, to, len) == 1 && rrecv(other, &byte, 1, 0) == 1 && byte == 'z');
	}
	CHECK(!rclose(one) && !rclose(other));
}

int main(int argc, char **argv)
{
	const struct {
		const char *name;
		void (*run)(void);
	} cases[] = { { "cq event", get_cq_event }, { "async event", get_async_event }, { "not blocking", not_blocking },
		      { "busy", busy },
		      { "cm event", get_cm_event }, { "request", get_request }, { "streams", streams },
		      { "datagrams", datagrams } };
	CHECK(argc >= 3 && inet_pton(AF_INET, argv[2], &address.sin_addr) == 1);
	if (argc == 4)
		type = PTHREAD_CANCEL_ASYNCHRONOUS;
	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		if (!strcmp(argv[1], cases[i].name)) {
			cases[i].run();
			return 0;
		}
	}
	fprintf(stderr, "unknown case\n");
	return 2;
}
