/* interop_backlog ADDRESS: two clients connect to a listener with a backlog of 1, which takes the first request only after the second
 * client has waited in vain; then the same with datagrams. Prints the events at both ends. */

#include <netdb.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(what)                                \
	do {                                       \
		if (!(what)) {                     \
			perror(#what);             \
			exit(1);                   \
		}                                  \
	} while (0)

/* Time limit in milliseconds for events that must come, and time to wait for one that must not. */
enum { LONG = 60000, SHORT = 2000 };

static int is_readable(struct rdma_event_channel *channel, int limit)
{
	struct pollfd fd = { channel->fd, POLLIN, 0 };
	return poll(&fd, 1, limit) > 0;
}

static struct rdma_cm_id *next(struct rdma_event_channel *channel, const char *who)
{
	struct rdma_cm_event *event;
	CHECK(is_readable(channel, LONG) && !rdma_get_cm_event(channel, &event));
	printf("%s: %s, status %d\n", who, rdma_event_str(event->event), event->status);
	struct rdma_cm_id *id = event->id;
	CHECK(!rdma_ack_cm_event(event));
	return id;
}

static struct rdma_event_channel *connecting(enum rdma_port_space space, struct sockaddr *to)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	/* A second request for the same queue pair would be rejected as stale. */
	static int qp_num = 0x100;
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1, .qp_num = qp_num++ };
	struct rdma_cm_id *id;
	CHECK(channel && !rdma_create_id(channel, &id, NULL, space));
	CHECK(!rdma_resolve_addr(id, NULL, to, LONG) && next(channel, "client"));
	CHECK(!rdma_resolve_route(id, LONG) && next(channel, "client"));
	CHECK(!rdma_connect(id, &param));
	return channel;
}

static void connect_two(enum rdma_port_space space, struct sockaddr *to)
{
	struct rdma_event_channel *server = rdma_create_event_channel();
	struct rdma_cm_id *listener;
	CHECK(server && !rdma_create_id(server, &listener, NULL, space));
	CHECK(!rdma_bind_addr(listener, to) && !rdma_listen(listener, 1));
	struct rdma_event_channel *first = connecting(space, to);
	CHECK(is_readable(server, LONG));
	struct rdma_event_channel *second = connecting(space, to);
	if (space == RDMA_PS_UDP) {
		next(second, "second client");
		return;
	}
	printf("second client gets a response: %d\n", is_readable(second, SHORT));
	/* Taking the first request makes room for the second, which its client repeats. */
	struct rdma_cm_id *requests[] = { next(server, "server"), next(server, "server") };
	CHECK(!rdma_reject(requests[0], NULL, 0) && !rdma_reject(requests[1], NULL, 0));
	next(first, "first client");
	next(second, "second client");
}

int main(int argc, char **argv)
{
	struct addrinfo *address;
	CHECK(argc == 2 && !getaddrinfo(argv[1], "7007", NULL, &address));
	connect_two(RDMA_PS_TCP, address->ai_addr);
	connect_two(RDMA_PS_UDP, address->ai_addr);
	return 0;
}
