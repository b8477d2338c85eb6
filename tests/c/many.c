/* Many connections between two programs: one after the other, then at once, each made by address and port and
 * ended. None may fail, and none may leak descriptors or memory. `many ADDRESS PORT SEQUENCE AT_ONCE
 * [client]`. */

#include "common.h"
#include <rdma/rdma_cma.h>
#include <sys/time.h>

static struct rdma_event_channel *channel;
static struct sockaddr_in address = { .sin_family = AF_INET };
static int in_sequence, at_once;

static struct rdma_cm_event *next_event(void)
{
	struct rdma_cm_event *event;
	CHECK(!rdma_get_cm_event(channel, &event));
	return event;
}

static void unexpected(const struct rdma_cm_event *event)
{
	fprintf(stderr, "%s, status %d\n", rdma_event_str(event->event), event->status);
	exit(1);
}

static struct rdma_cm_id *expect(enum rdma_cm_event_type type)
{
	struct rdma_cm_event *event = next_event();
	struct rdma_cm_id *id = event->id;
	if (event->event != type)
		unexpected(event);
	CHECK(!rdma_ack_cm_event(event));
	return id;
}

static void add_queues(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr init = {
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
	};
	CHECK(!rdma_create_qp(id, NULL, &init));
}

static const struct rdma_conn_param usual = { .responder_resources = 1, .initiator_depth = 1, .retry_count = 7, .rnr_retry_count = 7 };

static void ask(struct rdma_cm_id *id)
{
	struct rdma_conn_param param = usual;
	add_queues(id);
	CHECK(!rdma_connect(id, &param));
}

static void end(struct rdma_cm_id *id)
{
	rdma_destroy_qp(id);
	CHECK(!rdma_destroy_id(id));
}

/* Resources of this process: descriptors, and kilobytes of memory. */
static int descriptors(void)
{
	int count = 0;
	DIR *dir = opendir("/proc/self/fd");
	CHECK(dir);
	while (readdir(dir))
		count++;
	closedir(dir);
	return count;
}

static long kilobytes(void)
{
	long all, resident;
	FILE *statm = fopen("/proc/self/statm", "r");
	CHECK(statm && fscanf(statm, "%ld %ld", &all, &resident) == 2);
	fclose(statm);
	return resident * (sysconf(_SC_PAGESIZE) / 1024);
}

static double now(void)
{
	struct timeval tv;
	gettimeofday(&tv, NULL);
	return tv.tv_sec + tv.tv_usec / 1e6;
}

/* Resources before most of the connections, for comparison with those afterwards. */
static int descriptors_before;
static long kilobytes_before;

static void begin(void)
{
	descriptors_before = descriptors();
	kilobytes_before = kilobytes();
}

static void compare(const char *what)
{
	printf("%s: %d and %d descriptors, %ld and %ld KiB\n", what, descriptors_before, descriptors(), kilobytes_before,
	       kilobytes());
	CHECK(descriptors() == descriptors_before);
	/* A leaked queue pair alone would take more than half a kilobyte. */
	CHECK(kilobytes() < kilobytes_before + 3 * 1024);
}

static void serve(void)
{
	struct rdma_cm_id *listener;
	int ended = 0, open = 0;
	CHECK(!rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP));
	CHECK(!rdma_bind_addr(listener, (struct sockaddr *)&address));
	CHECK(!rdma_listen(listener, 1024));
	while (ended < in_sequence + at_once) {
		struct rdma_cm_event *event = next_event();
		struct rdma_cm_id *id = event->id;
		enum rdma_cm_event_type type = event->event;
		struct rdma_conn_param param = usual;
		switch (type) {
		case RDMA_CM_EVENT_CONNECT_REQUEST:
			CHECK(!rdma_ack_cm_event(event));
			add_queues(id);
			CHECK(!rdma_accept(id, &param));
			open++;
			break;
		case RDMA_CM_EVENT_ESTABLISHED:
			CHECK(!rdma_ack_cm_event(event));
			break;
		case RDMA_CM_EVENT_DISCONNECTED:
			CHECK(!rdma_ack_cm_event(event));
			end(id);
			open--;
			ended++;
			if (!open && ended == in_sequence / 5)
				begin();
			if (!open && ended == in_sequence)
				compare("server");
			break;
		default:
			unexpected(event);
		}
	}
	CHECK(!open);
	CHECK(descriptors() == descriptors_before);
	CHECK(!rdma_destroy_id(listener));
}

static void connect_in_sequence(void)
{
	double began = now(), longest = 0;
	for (int i = 0; i < in_sequence; i++) {
		struct rdma_cm_id *id;
		double start = now();
		if (i == in_sequence / 5)
			begin();
		CHECK(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
		CHECK(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&address, 2000));
		CHECK(expect(RDMA_CM_EVENT_ADDR_RESOLVED) == id);
		CHECK(!rdma_resolve_route(id, 2000));
		CHECK(expect(RDMA_CM_EVENT_ROUTE_RESOLVED) == id);
		ask(id);
		CHECK(expect(RDMA_CM_EVENT_ESTABLISHED) == id);
		CHECK(!rdma_disconnect(id));
		CHECK(expect(RDMA_CM_EVENT_DISCONNECTED) == id);
		end(id);
		longest = now() - start > longest ? now() - start : longest;
	}
	compare("client");
	printf("%d in sequence: %.0f us each, %.0f ms the longest\n", in_sequence, (now() - began) * 1e6 / in_sequence,
	       longest * 1e3);
}

static void connect_at_once(void)
{
	double began = now();
	struct rdma_cm_id **ids = calloc(at_once, sizeof(*ids));
	CHECK(ids);
	for (int i = 0; i < at_once; i++) {
		CHECK(!rdma_create_id(channel, &ids[i], NULL, RDMA_PS_TCP));
		CHECK(!rdma_resolve_addr(ids[i], NULL, (struct sockaddr *)&address, 2000));
	}
	for (int ready = 0; ready < at_once;) {
		struct rdma_cm_event *event = next_event();
		struct rdma_cm_id *id = event->id;
		enum rdma_cm_event_type type = event->event;
		if (type == RDMA_CM_EVENT_ADDR_RESOLVED)
			CHECK(!rdma_resolve_route(id, 2000));
		else if (type == RDMA_CM_EVENT_ROUTE_RESOLVED)
			ask(id);
		else if (type == RDMA_CM_EVENT_ESTABLISHED)
			ready++;
		else
			unexpected(event);
		CHECK(!rdma_ack_cm_event(event));
	}
	for (int i = 0; i < at_once; i++)
		CHECK(ids[i]->qp->state == IBV_QPS_RTS && !rdma_disconnect(ids[i]));
	for (int i = 0; i < at_once; i++)
		end(expect(RDMA_CM_EVENT_DISCONNECTED));
	free(ids);
	CHECK(descriptors() == descriptors_before);
	printf("%d at once: %.0f ms\n", at_once, (now() - began) * 1e3);
}

int main(int argc, char **argv)
{
	CHECK(argc >= 5 && inet_pton(AF_INET, argv[1], &address.sin_addr) == 1);
	address.sin_port = htons(atoi(argv[2]));
	in_sequence = atoi(argv[3]);
	at_once = atoi(argv[4]);
	CHECK(channel = rdma_create_event_channel());
	if (argc == 5) {
		serve();
	} else {
		connect_in_sequence();
		connect_at_once();
	}
	rdma_destroy_event_channel(channel);
	return 0;
}
