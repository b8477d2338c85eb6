/* Resolves each address of the arguments, and prints the errno of the call or the event with its status. */

#include "common.h"
#include <rdma/rdma_cma.h>

int main(int argc, char **argv)
{
	for (int i = 1; i < argc; i++) {
		struct rdma_event_channel *channel = rdma_create_event_channel();
		struct rdma_cm_id *id;
		struct rdma_cm_event *event;
		struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(7) };
		CHECK(channel && !rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
		CHECK(inet_pton(AF_INET, argv[i], &to.sin_addr) == 1);
		if (rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 2000)) {
			printf("%s: %s\n", argv[i], strerror(errno));
		} else {
			CHECK(!rdma_get_cm_event(channel, &event));
			printf("%s: %s, status %d\n", argv[i], rdma_event_str(event->event), event->status);
			CHECK(!rdma_ack_cm_event(event));
		}
		rdma_destroy_id(id);
		rdma_destroy_event_channel(channel);
	}
	return 0;
}
