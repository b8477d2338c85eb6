/* Connections of a program to itself, for cases that the usual programs do not cover: one case by name, at an
 * address. Exits with 0 on success. */

#include "common.h"
#include <endian.h>
#include <fcntl.h>
#include <infiniband/ib.h>
#include <netdb.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <sys/time.h>

static struct rdma_event_channel *channel;
static struct sockaddr_in address = { .sin_family = AF_INET };

static struct rdma_cm_event *next_event(enum rdma_cm_event_type type)
{
	struct rdma_cm_event *event;
	CHECK(!rdma_get_cm_event(channel, &event));
	if (event->event != type)
		fprintf(stderr, "%s, status %d\n", rdma_event_str(event->event), event->status);
	CHECK(event->event == type);
	return event;
}

static void expect(enum rdma_cm_event_type type)
{
	CHECK(!rdma_ack_cm_event(next_event(type)));
}

/* Listens on a port that the library chooses and stores it in `address`. */
static struct rdma_cm_id *listener(void)
{
	struct rdma_cm_id *id;
	CHECK(!rdma_create_id(channel, &id, "listener", RDMA_PS_TCP));
	CHECK(!rdma_bind_addr(id, (struct sockaddr *)&address));
	CHECK(!rdma_listen(id, 8));
	CHECK(address.sin_port = rdma_get_src_port(id));
	CHECK(id->verbs && id->port_num == 1 && id->pd);
	return id;
}

static struct ibv_qp_init_attr queues(void)
{
	return (struct ibv_qp_init_attr){
		.cap = { .max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
	};
}

/* An ID with a resolved route to the listener, and with a queue pair. */
static struct rdma_cm_id *resolved(void)
{
	struct rdma_cm_id *id;
	struct ibv_qp_init_attr init = queues();
	CHECK(!rdma_create_id(channel, &id, "client", RDMA_PS_TCP));
	CHECK(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&address, 2000));
	expect(RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(id->verbs && rdma_get_dst_port(id) == address.sin_port);
	CHECK(!rdma_resolve_route(id, 2000));
	expect(RDMA_CM_EVENT_ROUTE_RESOLVED);
	CHECK(id->route.num_paths == 1 && id->route.path_rec->mtu);
	CHECK(!rdma_create_qp(id, NULL, &init));
	CHECK(id->qp && id->send_cq && id->recv_cq && id->recv_cq_channel && id->qp->state == IBV_QPS_INIT);
	return id;
}

static struct rdma_conn_param with(const char *data)
{
	return (struct rdma_conn_param){ .private_data = data,
					 .private_data_len = strlen(data) + 1,
					 .responder_resources = RDMA_MAX_RESP_RES,
					 .initiator_depth = RDMA_MAX_INIT_DEPTH,
					 .retry_count = 7,
					 .rnr_retry_count = 7 };
}

static int says(struct rdma_cm_event *event, const char *data)
{
	struct rdma_conn_param *param = &event->param.conn;
	return param->private_data && param->private_data_len > strlen(data) && !strcmp(param->private_data, data);
}

static void end(struct rdma_cm_id *id)
{
	if (id->qp)
		rdma_destroy_qp(id);
	CHECK(!id->qp && !id->send_cq && !id->recv_cq);
	CHECK(!rdma_destroy_id(id));
}

/* Private data reaches both sides, and then data is sent in both directions. */
static void private_data(void)
{
	static char buffer[64];
	struct rdma_cm_id *serving = listener(), *asking = resolved(), *answering;
	struct rdma_conn_param param = with("a question");
	struct ibv_qp_init_attr init = queues();
	CHECK(!rdma_connect(asking, &param));
	struct rdma_cm_event *event = next_event(RDMA_CM_EVENT_CONNECT_REQUEST);
	CHECK(event->listen_id == serving && says(event, "a question"));
	answering = event->id;
	CHECK(answering != serving && !strcmp(answering->context, "listener") && answering->channel == channel);
	CHECK(answering->verbs == serving->verbs && rdma_get_src_port(answering) == address.sin_port);
	CHECK(event->param.conn.qp_num == asking->qp->qp_num && event->param.conn.rnr_retry_count == 7);
	CHECK(!rdma_create_qp(answering, NULL, &init));
	CHECK(!rdma_ack_cm_event(event));

	struct ibv_mr *mine = rdma_reg_msgs(answering, buffer, 32), *theirs = rdma_reg_msgs(asking, buffer + 32, 32);
	CHECK(mine && theirs);
	CHECK(!rdma_post_recv(answering, NULL, buffer, 32, mine));
	param = with("an answer");
	CHECK(!rdma_accept(answering, &param));
	/* One event for each side, in any order. */
	int heard = 0;
	for (int i = 0; i < 2; i++) {
		event = next_event(RDMA_CM_EVENT_ESTABLISHED);
		if (event->id == asking)
			heard = says(event, "an answer") && event->param.conn.qp_num == answering->qp->qp_num;
		CHECK(!rdma_ack_cm_event(event));
	}
	CHECK(heard);
	CHECK(asking->qp->state == IBV_QPS_RTS && answering->qp->state == IBV_QPS_RTS);

	struct ibv_wc wc;
	strcpy(buffer + 32, "data");
	CHECK(!rdma_post_send(asking, NULL, buffer + 32, 32, theirs, IBV_SEND_SIGNALED));
	CHECK(rdma_get_send_comp(asking, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	CHECK(rdma_get_recv_comp(answering, &wc) == 1 && wc.status == IBV_WC_SUCCESS && !strcmp(buffer, "data"));

	/* A side that is disconnected by the other confirms by disconnecting too. */
	CHECK(!rdma_disconnect(asking) && asking->qp->state == IBV_QPS_ERR);
	event = next_event(RDMA_CM_EVENT_DISCONNECTED);
	CHECK(event->id == answering);
	CHECK(!rdma_ack_cm_event(event));
	CHECK(!rdma_disconnect(answering) && answering->qp->state == IBV_QPS_ERR);
	event = next_event(RDMA_CM_EVENT_DISCONNECTED);
	CHECK(event->id == asking);
	CHECK(!rdma_ack_cm_event(event));
	struct ibv_qp_attr attr;
	CHECK(!ibv_query_qp(answering->qp, &attr, IBV_QP_STATE, &init) && attr.qp_state == IBV_QPS_ERR);
	CHECK(!rdma_dereg_mr(mine) && !rdma_dereg_mr(theirs));
	end(asking);
	end(answering);
	end(serving);
}

/* A rejected peer receives the reason, whether the listener has rejected it or there is no listener. */
static void rejected(void)
{
	struct rdma_cm_id *serving = listener(), *asking = resolved();
	struct rdma_conn_param param = with("please");
	CHECK(!rdma_connect(asking, &param));
	struct rdma_cm_event *event = next_event(RDMA_CM_EVENT_CONNECT_REQUEST);
	struct rdma_cm_id *answering = event->id;
	CHECK(!rdma_ack_cm_event(event));
	CHECK(!rdma_reject(answering, "no", 3));
	event = next_event(RDMA_CM_EVENT_REJECTED);
	CHECK(event->id == asking && event->status == 28 && says(event, "no"));
	CHECK(asking->qp->state == IBV_QPS_ERR);
	CHECK(!rdma_ack_cm_event(event));
	end(answering);
	end(asking);

	/* There is no listener any more. */
	asking = resolved();
	end(serving);
	CHECK(!rdma_connect(asking, &param));
	event = next_event(RDMA_CM_EVENT_REJECTED);
	CHECK(event->id == asking && event->status == 8);
	CHECK(!rdma_ack_cm_event(event));
	end(asking);
}

/* A nonblocking channel. */
static void nonblocking(void)
{
	struct rdma_cm_event *event;
	struct rdma_cm_id *serving = listener(), *id;
	struct pollfd ready = { .fd = channel->fd, .events = POLLIN };
	CHECK(!fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) | O_NONBLOCK));
	CHECK(rdma_get_cm_event(channel, &event) == -1 && errno == EAGAIN);
	CHECK(poll(&ready, 1, 0) == 0);
	CHECK(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	CHECK(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&address, 2000));
	CHECK(poll(&ready, 1, 60000) == 1);
	expect(RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(poll(&ready, 1, 0) == 0);
	end(id);
	end(serving);
}

/* Destroying an ID waits until its events are acknowledged. */

static int acknowledged;

static void *acknowledge(void *event)
{
	usleep(200000);
	__atomic_store_n(&acknowledged, 1, __ATOMIC_SEQ_CST);
	CHECK(!rdma_ack_cm_event(event));
	return NULL;
}

static void unacknowledged(void)
{
	pthread_t thread;
	struct rdma_cm_id *serving = listener(), *id;
	CHECK(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	CHECK(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&address, 2000));
	struct rdma_cm_event *event = next_event(RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(!pthread_create(&thread, NULL, acknowledge, event));
	CHECK(!rdma_destroy_id(id));
	CHECK(__atomic_load_n(&acknowledged, __ATOMIC_SEQ_CST));
	CHECK(!pthread_join(thread, NULL));
	/* There are no events of a destroyed ID. */
	CHECK(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	CHECK(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&address, 2000));
	usleep(100000);
	CHECK(!rdma_destroy_id(id));
	CHECK(!fcntl(channel->fd, F_SETFL, O_NONBLOCK));
	CHECK(rdma_get_cm_event(channel, &event) == -1 && errno == EAGAIN);
	end(serving);
}

/* Calls without a channel, which block, with IDs created as endpoints. */

static void *ask(void *unused)
{
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP }, *info;
	struct rdma_cm_id *id;
	struct ibv_qp_init_attr init = queues();
	struct rdma_conn_param param = with("hello");
	char host[INET_ADDRSTRLEN], service[8];
	inet_ntop(AF_INET, &address.sin_addr, host, sizeof(host));
	snprintf(service, sizeof(service), "%d", ntohs(address.sin_port));
	CHECK(!rdma_getaddrinfo(host, service, &hints, &info));
	CHECK(!rdma_create_ep(&id, info, NULL, &init) && id->qp);
	rdma_freeaddrinfo(info);
	CHECK(!rdma_connect(id, &param));
	CHECK(id->event->event == RDMA_CM_EVENT_ESTABLISHED && says(id->event, "welcome"));
	CHECK(!rdma_disconnect(id));
	rdma_destroy_ep(id);
	return unused;
}

static void endpoints(void)
{
	pthread_t thread;
	struct rdma_addrinfo hints = { .ai_flags = RAI_PASSIVE, .ai_port_space = RDMA_PS_TCP }, *info;
	struct rdma_cm_id *serving, *id, *asking;
	struct ibv_qp_init_attr init = queues();
	struct rdma_conn_param param = with("welcome");
	char host[INET_ADDRSTRLEN];
	inet_ntop(AF_INET, &address.sin_addr, host, sizeof(host));
	CHECK(!rdma_getaddrinfo(host, NULL, &hints, &info));
	CHECK(!rdma_create_ep(&serving, info, NULL, &init) && !serving->qp);
	rdma_freeaddrinfo(info);
	CHECK(!rdma_listen(serving, 0));
	address.sin_port = rdma_get_src_port(serving);
	CHECK(!pthread_create(&thread, NULL, ask, NULL));
	CHECK(!rdma_get_request(serving, &id) && id->qp);
	CHECK(id->event->event == RDMA_CM_EVENT_CONNECT_REQUEST && says(id->event, "hello"));
	CHECK(!rdma_accept(id, &param));
	CHECK(!rdma_disconnect(id));
	CHECK(!pthread_join(thread, NULL));
	rdma_destroy_ep(id);
	rdma_destroy_ep(serving);

	/* There is no listener any more. */
	CHECK(!rdma_create_id(NULL, &asking, NULL, RDMA_PS_TCP));
	CHECK(!rdma_resolve_addr(asking, NULL, (struct sockaddr *)&address, 2000));
	CHECK(asking->event->event == RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(!rdma_resolve_route(asking, 2000));
	CHECK(!rdma_create_qp(asking, NULL, &init));
	CHECK(rdma_connect(asking, &param) == -1 && errno == ECONNREFUSED);
	CHECK(asking->event->event == RDMA_CM_EVENT_REJECTED);
	rdma_destroy_ep(asking);
}

/* An ID that migrates to another channel, with its pending events. */
static void migrated(void)
{
	struct rdma_event_channel *first = channel, *second = rdma_create_event_channel();
	struct rdma_cm_id *serving = listener(), *id;
	CHECK(second);
	CHECK(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	CHECK(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&address, 2000));
	usleep(100000);
	CHECK(!rdma_migrate_id(id, second) && id->channel == second);
	channel = second;
	expect(RDMA_CM_EVENT_ADDR_RESOLVED);
	/* Without a channel, calls block. */
	CHECK(!rdma_migrate_id(id, NULL) && id->channel != second);
	CHECK(!rdma_resolve_route(id, 2000) && id->event->event == RDMA_CM_EVENT_ROUTE_RESOLVED);
	CHECK(!rdma_migrate_id(id, second) && !id->event);
	end(id);
	rdma_destroy_event_channel(second);
	channel = first;
	end(serving);
}

/* A connection is accepted with the queue pair of another id, which the program moves from id to id, and which
 * survives the other id. */
static void moved(void)
{
	static char buffer[64];
	struct rdma_cm_id *serving = listener(), *other = resolved(), *client = resolved();
	struct rdma_conn_param param = with("hello");
	struct ibv_mr *mr = rdma_reg_msgs(other, buffer, sizeof(buffer));
	struct ibv_wc wc;
	CHECK(mr && !rdma_post_recv(other, NULL, buffer, sizeof(buffer), mr));
	CHECK(!rdma_connect(client, &param));
	struct rdma_cm_event *event = next_event(RDMA_CM_EVENT_CONNECT_REQUEST);
	struct rdma_cm_id *id = event->id;
	CHECK(!id->qp);
	id->qp = other->qp, id->send_cq = other->send_cq, id->recv_cq = other->recv_cq;
	id->send_cq_channel = other->send_cq_channel, id->recv_cq_channel = other->recv_cq_channel;
	other->qp = NULL, other->send_cq = other->recv_cq = NULL;
	other->send_cq_channel = other->recv_cq_channel = NULL;
	CHECK(!rdma_destroy_id(other));
	CHECK(!rdma_accept(id, &param) && !rdma_ack_cm_event(event));
	expect(RDMA_CM_EVENT_ESTABLISHED);
	expect(RDMA_CM_EVENT_ESTABLISHED);
	CHECK(id->qp->state == IBV_QPS_RTS);
	CHECK(!rdma_post_send(client, NULL, "moved", 6, NULL, IBV_SEND_INLINE));
	/* rdma_get_recv_comp() checks that the context of the completion queue is `id`, if it has to wait. */
	while (!ibv_poll_cq(id->recv_cq, 1, &wc))
		;
	CHECK(!wc.status && !strcmp(buffer, "moved"));
	CHECK(!rdma_disconnect(client));
	expect(RDMA_CM_EVENT_DISCONNECTED);
	CHECK(!rdma_disconnect(id));
	expect(RDMA_CM_EVENT_DISCONNECTED);
	CHECK(!rdma_dereg_mr(mr));
	end(id);
	end(client);
	end(serving);
}

/* Invalid calls fail and have no other effect. */
static void refused(void)
{
	struct rdma_cm_id *serving = listener(), *id;
	struct rdma_addrinfo *info;
	struct sockaddr unknown = { .sa_family = AF_UNIX };
	uint8_t tos = 32;
	int on = 1;
	CHECK(rdma_create_id(channel, &id, NULL, 7) == -1 && errno == EPROTONOSUPPORT);
	CHECK(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	CHECK(rdma_bind_addr(id, (struct sockaddr *)&address) == -1 && errno == EADDRINUSE);
	CHECK(rdma_bind_addr(id, &unknown) == -1 && errno == EINVAL);
	CHECK(rdma_connect(id, NULL) == -1 && errno == EINVAL);
	CHECK(rdma_establish(id) == -1 && rdma_disconnect(id) == -1 && rdma_accept(id, NULL) == -1);
	CHECK(rdma_reject(id, NULL, 0) == -1 && errno == EINVAL);
	CHECK(!rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &tos, sizeof(tos)));
	CHECK(!rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &on, sizeof(on)));
	CHECK(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &on, 1) == -1 && errno == EINVAL);
	CHECK(rdma_set_option(id, 9, 0, &on, sizeof(on)) == -1 && errno == ENOSYS);
	CHECK(rdma_get_request(serving, &id) == -1 && errno == EINVAL);
	CHECK(rdma_getaddrinfo(NULL, NULL, NULL, &info) == -1);
	end(id);
	end(serving);
}

/* An address may be given as its GID, with a service ID in place of a port. */
static void gids(void)
{
	struct rdma_cm_id *serving = listener(), *id;
	struct sockaddr_ib ib = { .sib_family = AF_IB, .sib_sid_mask = htobe64(~0ull) };
	struct rdma_addrinfo hints = { .ai_flags = RAI_FAMILY | RAI_PASSIVE, .ai_family = AF_IB }, *info;
	ib.sib_addr.sib_addr16[5] = 0xffff;
	memcpy(&ib.sib_addr.sib_addr32[3], &address.sin_addr, 4);
	ib.sib_sid = htobe64((uint64_t)RDMA_PS_TCP << 16 | ntohs(address.sin_port));
	CHECK(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	CHECK(rdma_bind_addr(id, (struct sockaddr *)&ib) == -1 && errno == EADDRINUSE);
	CHECK(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&ib, 2000));
	expect(RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(rdma_get_peer_addr(id)->sa_family == AF_INET && rdma_get_dst_port(id) == address.sin_port);
	end(id);
	/* A service ID that stands for no port is refused. */
	ib.sib_sid = htobe64(0x1000000001061234ull);
	CHECK(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	CHECK(rdma_bind_addr(id, (struct sockaddr *)&ib) == -1 && errno == EINVAL);
	end(id);
	/* Names resolve to IP addresses only. */
	CHECK(rdma_getaddrinfo("localhost", NULL, &hints, &info) == EAI_FAMILY);
	end(serving);
}

/* A forked child cannot use its parent's connections, and may have its own. */
static void forked(void)
{
	struct rdma_cm_id *serving = listener(), *asking = resolved();
	struct rdma_event_channel *parents = channel;
	struct rdma_conn_param param = with("hello");
	int status;
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		alarm(60);
		CHECK(!rdma_destroy_id(asking) && !rdma_destroy_id(serving));
		rdma_destroy_event_channel(parents);
		/* The listener belongs to the parent. */
		CHECK(channel = rdma_create_event_channel());
		asking = resolved();
		CHECK(!rdma_connect(asking, &param));
		expect(RDMA_CM_EVENT_ESTABLISHED);
		expect(RDMA_CM_EVENT_DISCONNECTED);
		end(asking);
		exit(0);
	}
	struct rdma_cm_event *event = next_event(RDMA_CM_EVENT_CONNECT_REQUEST);
	struct rdma_cm_id *answering = event->id;
	struct ibv_qp_init_attr init = queues();
	CHECK(!rdma_ack_cm_event(event));
	CHECK(!rdma_create_qp(answering, NULL, &init));
	CHECK(!rdma_accept(answering, NULL));
	expect(RDMA_CM_EVENT_ESTABLISHED);
	CHECK(!rdma_disconnect(answering));
	expect(RDMA_CM_EVENT_DISCONNECTED);
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	end(answering);
	end(asking);
	end(serving);
}

/* A forked child that keeps running holds no port of its parent. */
static void lingering(void)
{
	struct rdma_cm_id *serving = listener();
	int pipes[2];
	char byte = 0;
	CHECK(!pipe(pipes));
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		CHECK(write(pipes[1], &byte, 1) == 1);
		for (;;)
			pause();
	}
	CHECK(read(pipes[0], &byte, 1) == 1);
	end(serving);
	/* The same port is free again. */
	serving = listener();
	CHECK(!kill(child, SIGKILL) && waitpid(child, NULL, 0) == child);
	end(serving);
}

/* Connections that a program leaves open are ended when it exits. */
static void exiting(void)
{
	struct rdma_cm_id *serving = listener(), *answering;
	struct rdma_conn_param param = with("hello");
	struct ibv_qp_init_attr init = queues();
	int status;
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		alarm(20);
		CHECK(channel = rdma_create_event_channel());
		struct rdma_cm_id *asking = resolved();
		CHECK(!rdma_connect(asking, &param));
		expect(RDMA_CM_EVENT_ESTABLISHED);
		exit(0);
	}
	struct rdma_cm_event *event = next_event(RDMA_CM_EVENT_CONNECT_REQUEST);
	answering = event->id;
	CHECK(!rdma_ack_cm_event(event));
	CHECK(!rdma_create_qp(answering, NULL, &init));
	CHECK(!rdma_accept(answering, NULL));
	expect(RDMA_CM_EVENT_ESTABLISHED);
	expect(RDMA_CM_EVENT_DISCONNECTED);
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	end(answering);
	end(serving);
}

/* A signal handler exits at any point of its thread: while it polls, or in a call of the connection manager. */

static void leave(int unused UNUSED)
{
	exit(0);
}

static void interrupted(void)
{
	struct rdma_cm_id *serving = listener();
	const struct itimerval soon = { .it_value.tv_usec = 30000 };
	for (int round = 0; round < 8; round++) {
		pid_t child = fork(), ended = 0;
		CHECK(child >= 0);
		if (child == 0) {
			struct rdma_conn_param param = with("hello");
			struct ibv_wc wc;
			uint8_t tos = 0;
			CHECK(channel = rdma_create_event_channel());
			struct rdma_cm_id *asking = resolved();
			CHECK(!rdma_connect(asking, &param));
			CHECK(signal(SIGALRM, leave) != SIG_ERR && !setitimer(ITIMER_REAL, &soon, NULL));
			for (;;) {
				if (round % 2)
					CHECK(!rdma_set_option(asking, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &tos, 1));
				else
					CHECK(!ibv_poll_cq(asking->send_cq, 1, &wc));
			}
		}
		int status = -1;
		for (int i = 0; i < 5000 && !ended; i++) {
			usleep(10000);
			CHECK((ended = waitpid(child, &status, WNOHANG)) >= 0);
		}
		if (!ended)
			kill(child, SIGKILL);
		CHECK(ended == child && status == 0);
	}
	end(serving);
}

/* A queue pair may be destroyed before its ESTABLISHED event is read. */
static void gone(void)
{
	struct rdma_cm_id *serving = listener(), *asking = resolved(), *answering;
	struct rdma_conn_param param = with("hello");
	struct ibv_qp_init_attr init = queues();
	struct pollfd ready = { .fd = channel->fd, .events = POLLIN };
	CHECK(!rdma_connect(asking, &param));
	struct rdma_cm_event *event = next_event(RDMA_CM_EVENT_CONNECT_REQUEST);
	answering = event->id;
	CHECK(!rdma_ack_cm_event(event));
	CHECK(!rdma_create_qp(answering, NULL, &init));
	CHECK(!rdma_accept(answering, &param));
	CHECK(poll(&ready, 1, 60000) == 1);
	CHECK(!ibv_destroy_qp(asking->qp));
	expect(RDMA_CM_EVENT_ESTABLISHED);
	expect(RDMA_CM_EVENT_ESTABLISHED);
	asking->qp = NULL;
	CHECK(answering->qp->state == IBV_QPS_RTS);
	CHECK(!ibv_destroy_cq(asking->send_cq) && !ibv_destroy_cq(asking->recv_cq));
	CHECK(!rdma_destroy_id(asking));
	end(answering);
	end(serving);
}

/* The context of a join comes back with its event, however often the program joins. */
static void groups(void)
{
	struct sockaddr_in group = { .sin_family = AF_INET };
	struct sockaddr_in6 other = { .sin6_family = AF_INET6 };
	struct rdma_cm_id *id;
	CHECK(inet_pton(AF_INET, "239.1.2.3", &group.sin_addr) == 1);
	CHECK(inet_pton(AF_INET6, "ff0e::77", &other.sin6_addr) == 1);
	CHECK(!rdma_create_id(channel, &id, NULL, RDMA_PS_UDP));
	CHECK(!rdma_bind_addr(id, (struct sockaddr *)&address));
	CHECK(!rdma_join_multicast(id, (struct sockaddr *)&group, "first"));
	CHECK(rdma_join_multicast(id, (struct sockaddr *)&group, "second") == -1);
	struct rdma_cm_event *event = next_event(RDMA_CM_EVENT_MULTICAST_JOIN);
	CHECK(event->param.ud.private_data && !strcmp(event->param.ud.private_data, "first"));
	CHECK(!rdma_ack_cm_event(event));
	/* The device has no address of that family. */
	CHECK(!rdma_join_multicast(id, (struct sockaddr *)&other, "other"));
	event = next_event(RDMA_CM_EVENT_MULTICAST_ERROR);
	CHECK(event->status == -EADDRNOTAVAIL);
	CHECK(event->param.ud.private_data && !strcmp(event->param.ud.private_data, "other"));
	CHECK(!rdma_ack_cm_event(event));
	CHECK(!rdma_leave_multicast(id, (struct sockaddr *)&group));
	end(id);
}

static void *wait_for_ever(void *at)
{
	struct rdma_cm_event *event;
	rdma_get_cm_event(at, &event);
	return NULL;
}

/* A channel may be destroyed while a thread waits for its events, or before it waits. */
static void abandoned(void)
{
	pthread_t waiting;
	struct rdma_cm_event *event;
	struct rdma_event_channel *abandoned = rdma_create_event_channel();
	CHECK(abandoned && !pthread_create(&waiting, NULL, wait_for_ever, abandoned));
	usleep(100000);
	rdma_destroy_event_channel(abandoned);
	CHECK(rdma_get_cm_event(abandoned, &event) == -1 && errno == EBADF);
	usleep(100000);
}

/* A path record as programs set it, to the address. */
static struct ibv_path_data path_to(struct rdma_cm_id *id)
{
	struct ibv_path_data data = {
		.flags = IBV_PATH_FLAG_GMP | IBV_PATH_FLAG_PRIMARY | IBV_PATH_FLAG_BIDIRECTIONAL,
		.path = {
			.sgid = id->route.addr.addr.ibaddr.sgid,
			.flowlabel_hoplimit = htobe32(0x12345 << 8 | 33),
			.tclass = 0x28,
			.reversible_numpath = IBV_PATH_RECORD_REVERSIBLE | 1,
			.pkey = 0xffff,
			.qosclass_sl = htobe16(3),
			.mtu = 2 << 6 | IBV_MTU_512,
			.rate = 2 << 6 | IBV_RATE_10_GBPS,
			.packetlifetime = 2 << 6 | 18,
		},
	};
	data.path.dgid.raw[10] = data.path.dgid.raw[11] = 0xff;
	memcpy(data.path.dgid.raw + 12, &address.sin_addr, 4);
	return data;
}

static int set_path(struct rdma_cm_id *id, const struct ibv_path_data *data, size_t len)
{
	return rdma_set_option(id, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, (void *)data, len);
}

#define NO_PATH(what, len)                                                    \
	do {                                                                      \
		errno = 0;                                                            \
		CHECK(set_path(id, what, len) == -1 && errno == EINVAL);              \
	} while (0)

/* An ID resolved to an unused address next to ours. */
static struct rdma_cm_id *beside(void)
{
	struct rdma_cm_id *id;
	struct sockaddr_in nobody = address;
	nobody.sin_addr.s_addr ^= htobe32(0x80);
	CHECK(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	CHECK(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&nobody, 2000));
	expect(RDMA_CM_EVENT_ADDR_RESOLVED);
	return id;
}

static struct ibv_qp_attr attributes(struct rdma_cm_id *id)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	CHECK(!ibv_query_qp(id->qp, &attr, IBV_QP_PATH_MTU | IBV_QP_AV | IBV_QP_TIMEOUT, &init));
	return attr;
}

/* Accepts a connection on any address, from a client whose path was set. */
static void path_taken(void)
{
	struct rdma_cm_id *serving, *id;
	struct ibv_qp_init_attr init = queues();
	struct rdma_conn_param param = with("welcome");
	address.sin_addr.s_addr = INADDR_ANY;
	CHECK(!rdma_create_id(channel, &serving, NULL, RDMA_PS_TCP));
	CHECK(!rdma_bind_addr(serving, (struct sockaddr *)&address) && !rdma_listen(serving, 1));
	struct rdma_cm_event *event = next_event(RDMA_CM_EVENT_CONNECT_REQUEST);
	id = event->id;
	CHECK(!rdma_create_qp(id, NULL, &init) && !rdma_accept(id, &param));
	CHECK(!rdma_ack_cm_event(event));
	expect(RDMA_CM_EVENT_ESTABLISHED);
	struct ibv_qp_attr attr = attributes(id);
	CHECK(attr.path_mtu == IBV_MTU_512 && attr.ah_attr.grh.traffic_class == 0x28);
	CHECK(attr.ah_attr.grh.flow_label == 0x12345 && attr.ah_attr.grh.hop_limit == 33);
	expect(RDMA_CM_EVENT_DISCONNECTED);
	end(id);
	end(serving);
}

static void path_given(void)
{
	struct ibv_qp_init_attr init = queues();
	struct rdma_conn_param param = with("hello");
	struct rdma_cm_id *id;
	struct ibv_path_data two[2];
	char odd[1 + sizeof(two)];
	CHECK(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	memset(two, 0, sizeof(two));
	two[0].flags = IBV_PATH_FLAG_GMP | IBV_PATH_FLAG_PRIMARY | IBV_PATH_FLAG_BIDIRECTIONAL;
	NO_PATH(two, sizeof(*two)); /* before the address */
	end(id);

	id = beside();
	const struct ibv_path_data good = path_to(id);
	struct ibv_path_data bad = good;
	NO_PATH(&good, 0);
	NO_PATH(&good, sizeof(good) - 1);
	NO_PATH(NULL, sizeof(good));
	bad.flags = IBV_PATH_FLAG_PRIMARY;
	NO_PATH(&bad, sizeof(bad));
	bad.flags = good.flags | IBV_PATH_FLAG_ALTERNATE;
	NO_PATH(&bad, sizeof(bad));
	bad = good, bad.path.mtu = 9;
	NO_PATH(&bad, sizeof(bad));
	bad = good, bad.path.pkey = 0x1234;
	NO_PATH(&bad, sizeof(bad));
	bad = good, bad.path.packetlifetime = 32;
	NO_PATH(&bad, sizeof(bad));
	bad = good, bad.path.sgid.raw[15] ^= 0x40; /* is not ours */
	NO_PATH(&bad, sizeof(bad));
	bad = good, bad.path.dgid.raw[0] = 0xff, bad.path.dgid.raw[1] = 0x0e; /* is a group */
	NO_PATH(&bad, sizeof(bad));
	bad = good, bad.path.dgid.raw[10] = 0; /* is of another version */
	NO_PATH(&bad, sizeof(bad));
	memset(&bad.path.dgid, 0, sizeof(bad.path.dgid));
	NO_PATH(&bad, sizeof(bad));
	/* The path for general use is the second one. Path records may be unaligned. */
	two[0] = two[1] = good, two[0].flags = IBV_PATH_FLAG_GMP;
	memcpy(odd + 1, two, sizeof(two));
	CHECK(!set_path(id, (void *)(odd + 1), sizeof(two)));
	expect(RDMA_CM_EVENT_ROUTE_RESOLVED);
	NO_PATH(&good, sizeof(good)); /* has one */
	struct ibv_sa_path_rec *path = id->route.path_rec;
	CHECK(id->route.num_paths == 1 && !memcmp(&path->dgid, &good.path.dgid, 16));
	CHECK(path->mtu == IBV_MTU_512 && path->packet_life_time == 18 && path->traffic_class == 0x28);
	CHECK(path->hop_limit == 33 && path->flow_label == htobe32(0x12345) && path->pkey == 0xffff);
	CHECK(!rdma_create_qp(id, NULL, &init) && !rdma_connect(id, &param));
	expect(RDMA_CM_EVENT_ESTABLISHED);
	struct ibv_qp_attr attr = attributes(id);
	/* The timeout covers the path in both directions and the ACK delay of the peer: it is longer than without
	 * a path. */
	CHECK(attr.path_mtu == IBV_MTU_512 && attr.timeout >= 19 && attr.timeout <= 20);
	CHECK(!memcmp(&attr.ah_attr.grh.dgid, &good.path.dgid, 16));
	CHECK(!rdma_disconnect(id));
	expect(RDMA_CM_EVENT_DISCONNECTED);
	end(id);

	/* An endpoint is created with the route in its address info. */
	struct rdma_addrinfo to = { .ai_family = AF_INET, .ai_port_space = RDMA_PS_TCP, .ai_qp_type = IBV_QPT_RC };
	to.ai_dst_addr = (struct sockaddr *)&address, to.ai_dst_len = sizeof(address);
	to.ai_route = (void *)&good, to.ai_route_len = sizeof(good);
	init = queues();
	CHECK(!rdma_create_ep(&id, &to, NULL, &init));
	CHECK(id->event->event == RDMA_CM_EVENT_ROUTE_RESOLVED && id->route.path_rec->mtu == IBV_MTU_512);
	rdma_destroy_ep(id);
	to.ai_route_len--;
	CHECK(rdma_create_ep(&id, &to, NULL, &init) == -1 && errno == EINVAL);
}

static void errno_after_success(void)
{
	keeps_errno = 1;
	private_data();
}

int main(int argc, char **argv)
{
	const struct {
		const char *name;
		void (*run)(void);
	} corners[] = {
		{ "private data", private_data }, { "rejected", rejected }, { "nonblocking", nonblocking },
		{ "unacknowledged", unacknowledged }, { "endpoints", endpoints }, { "migrated", migrated },
		{ "refused", refused }, { "forked", forked }, { "exiting", exiting },
		{ "interrupted", interrupted }, { "gone", gone }, { "groups", groups },
		{ "gids", gids }, { "lingering", lingering }, { "abandoned", abandoned },
		{ "path given", path_given }, { "path taken", path_taken }, { "moved", moved },
		{ "errno", errno_after_success },
	};
	CHECK(argc >= 3 && inet_pton(AF_INET, argv[2], &address.sin_addr) == 1);
	address.sin_port = htons(argc > 3 ? atoi(argv[3]) : 0);
	CHECK(channel = rdma_create_event_channel());
	for (size_t i = 0; i < sizeof(corners) / sizeof(corners[0]); i++) {
		if (!strcmp(corners[i].name, argv[1])) {
			corners[i].run();
			rdma_destroy_event_channel(channel);
			return 0;
		}
	}
	fprintf(stderr, "unknown case: %s\n", argv[1]);
	return 2;
}
