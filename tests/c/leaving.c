/* A process receives a message and ends at once, with nothing closed, in the way that the argument names. Hardware has
 * acknowledged the message by then, so its peer must see a success. */

#include "common.h"

static int to_child[2], to_parent[2];

static void tell(int fd, uint32_t word)
{
	CHECK(write(fd, &word, sizeof word) == sizeof word);
}

static uint32_t hear(int fd)
{
	uint32_t word;
	CHECK(read(fd, &word, sizeof word) == sizeof word);
	return word;
}

static struct ibv_qp *meet(int from, int to)
{
	open_first();
	struct ibv_qp *qp = create_qp(NULL);
	tell(to, qp->qp_num);
	connect_to(qp, hear(from));
	return qp;
}

static struct ibv_wc next(void)
{
	struct ibv_wc wc;
	int n;
	while (!(n = ibv_poll_cq(cq, 1, &wc)))
		;
	CHECK(n == 1);
	return wc;
}

static int leave_with_a_message(const char *way)
{
	struct ibv_qp *qp = meet(to_child[0], to_parent[1]);
	struct ibv_recv_wr recv = { .wr_id = 1 }, *bad;
	CHECK(!ibv_post_recv(qp, &recv, &bad));
	tell(to_parent[1], 0);
	CHECK(next().status == IBV_WC_SUCCESS);
	if (!strcmp(way, "_exit"))
		_exit(0);
	if (!strcmp(way, "SIGKILL"))
		kill(getpid(), SIGKILL);
	if (!strcmp(way, "exec"))
		execl("/bin/true", "true", NULL);
	CHECK(!strcmp(way, "return"));
	return 0;
}

int main(int argc, char **argv)
{
	int status;
	CHECK(argc == 2);
	CHECK(!pipe(to_child) && !pipe(to_parent));
	pid_t child = fork();
	CHECK(child >= 0);
	if (!child)
		return leave_with_a_message(argv[1]);
	struct ibv_qp *qp = meet(to_parent[0], to_child[1]);
	hear(to_parent[0]);
	struct ibv_send_wr send = { .wr_id = 2, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad;
	CHECK(!ibv_post_send(qp, &send, &bad));
	struct ibv_wc wc = next();
	CHECK(waitpid(child, &status, 0) == child && status == (strcmp(argv[1], "SIGKILL") ? 0 : SIGKILL));
	printf("%s\n", ibv_wc_status_str(wc.status));
	CHECK(wc.status == IBV_WC_SUCCESS);
	return 0;
}
