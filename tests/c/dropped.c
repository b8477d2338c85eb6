/* A server that opens its device as root, changes to another user, and then listens. Exits with the errno of
 * the failure. */

#include "common.h"

#include <grp.h>
#include <rdma/rdma_cma.h>

int main(int argc, char **argv)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(7471) };
	CHECK(argc == 2 && inet_pton(AF_INET, argv[1], &to.sin_addr) == 1);
	open_first();
	struct rdma_event_channel *events = rdma_create_event_channel();
	struct rdma_cm_id *id;
	CHECK(events && !rdma_create_id(events, &id, NULL, RDMA_PS_TCP));
	CHECK(!setgroups(0, NULL) && !setgid(65534) && !setuid(65534));
	if (rdma_bind_addr(id, (struct sockaddr *)&to) || rdma_listen(id, 1))
		return errno;
	return 0;
}
