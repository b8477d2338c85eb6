/* private_data server|client|idle-client ADDRESS PORT: both ends of two connections with as much private data as the messages hold. The
 * server rejects the first connection. Both ends print the content of each event. The idle client keeps the second connection until
 * it is killed. */

#include <netdb.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK(what)                                \
	do {                                       \
		if (!(what)) {                     \
			perror(#what);             \
			exit(1);                   \
		}                                  \
	} while (0)

/* Maximum private data in bytes of a REQ (after the addresses), a REJ and a REP. */
enum { ASKED = 56, REFUSED = 148, ACCEPTED = 196 };

static struct rdma_event_channel *channel;
static struct addrinfo *address;
static unsigned char data[ACCEPTED];

static struct rdma_cm_id *next(enum rdma_cm_event_type type)
{
	struct rdma_cm_event *event;
	CHECK(!rdma_get_cm_event(channel, &event));
	printf("%s %d", rdma_event_str(event->event), event->status);
	if (event->event == RDMA_CM_EVENT_CONNECT_REQUEST || event->event == RDMA_CM_EVENT_ESTABLISHED ||
	    event->event == RDMA_CM_EVENT_REJECTED) {
		const struct rdma_conn_param *with = &event->param.conn;
		const unsigned char *bytes = with->private_data;
		printf(": resources %u, depth %u, flow %u, retries %u, rnr %u, srq %u, %u bytes:", with->responder_resources,
		       with->initiator_depth, with->flow_control, with->retry_count, with->rnr_retry_count, with->srq,
		       with->private_data_len);
		for (int i = 0; bytes && i < with->private_data_len; i++)
			printf(" %02x", bytes[i]);
	}
	printf("\n");
	CHECK(event->event == type);
	struct rdma_cm_id *id = event->id;
	CHECK(!rdma_ack_cm_event(event));
	return id;
}

/* Returns parameters with `len` bytes of private data that count up from `first`. */
static struct rdma_conn_param with(int first, int len)
{
	for (int i = 0; i < len; i++)
		data[i] = first + i;
	return (struct rdma_conn_param){ .private_data = data,
					 .private_data_len = len,
					 .responder_resources = 3,
					 .initiator_depth = 2,
					 .retry_count = 5,
					 .rnr_retry_count = 6 };
}

static void add_qp(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr init = {
		.cap = { .max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
	};
	CHECK(!rdma_create_qp(id, NULL, &init));
}

static void client(int is_idle)
{
	for (int i = 0; i < 2; i++) {
		struct rdma_conn_param param = with(1, ASKED);
		struct rdma_cm_id *id;
		CHECK(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
		CHECK(!rdma_resolve_addr(id, NULL, address->ai_addr, 5000));
		next(RDMA_CM_EVENT_ADDR_RESOLVED);
		CHECK(!rdma_resolve_route(id, 5000));
		next(RDMA_CM_EVENT_ROUTE_RESOLVED);
		add_qp(id);
		CHECK(!rdma_connect(id, &param));
		next(i == 0 ? RDMA_CM_EVENT_REJECTED : RDMA_CM_EVENT_ESTABLISHED);
		if (i == 1) {
			CHECK(!fflush(stdout));
			while (is_idle)
				pause();
			CHECK(!rdma_disconnect(id));
			next(RDMA_CM_EVENT_DISCONNECTED);
		}
		rdma_destroy_qp(id);
		CHECK(!rdma_destroy_id(id));
	}
}

static void server(void)
{
	struct rdma_cm_id *listening, *id;
	CHECK(!rdma_create_id(channel, &listening, NULL, RDMA_PS_TCP));
	CHECK(!rdma_bind_addr(listening, address->ai_addr));
	CHECK(!rdma_listen(listening, 4));
	id = next(RDMA_CM_EVENT_CONNECT_REQUEST);
	struct rdma_conn_param param = with(2, REFUSED);
	CHECK(!rdma_reject(id, param.private_data, param.private_data_len));
	CHECK(!rdma_destroy_id(id));
	id = next(RDMA_CM_EVENT_CONNECT_REQUEST);
	add_qp(id);
	param = with(3, ACCEPTED);
	CHECK(!rdma_accept(id, &param));
	next(RDMA_CM_EVENT_ESTABLISHED);
	next(RDMA_CM_EVENT_DISCONNECTED);
	CHECK(!rdma_disconnect(id));
	rdma_destroy_qp(id);
	CHECK(!rdma_destroy_id(id));
	CHECK(!rdma_destroy_id(listening));
}

int main(int argc, char **argv)
{
	CHECK(argc == 4);
	CHECK(!getaddrinfo(argv[2], argv[3], &(struct addrinfo){ .ai_flags = AI_NUMERICHOST }, &address));
	CHECK(channel = rdma_create_event_channel());
	strcmp(argv[1], "server") ? client(!strcmp(argv[1], "idle-client")) : server();
	rdma_destroy_event_channel(channel);
	return 0;
}
