/* Numbered messages between two processes in both directions, whose contents each side verifies.
 *
 * `transfer ADDRESS PORT` serves one connection after the other at an address, `transfer ADDRESS PORT to PEER COUNT` connects
 * from it to a peer, and ends after COUNT messages in each direction; 0 stands for no end. With HOARD in the environment, the
 * process opens all descriptors that its limit leaves it before it connects.
 *
 * Prints `exchanged` after every 16 messages of a connection, `done` at its end, and `status N` if a work request fails.
 * SIGUSR1 ends the current connection. */

#include "common.h"
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <sched.h>

enum { WORDS = 8 << 10, DEPTH = 4 };

static uint64_t out[DEPTH][WORDS], in[DEPTH][WORDS];
static volatile sig_atomic_t is_told_to_end;

static void end_connection(int signal)
{
	is_told_to_end = signal;
}

static void say(const char *text, int number)
{
	printf(text, number);
	fflush(stdout);
}

static void hoard(void)
{
	if (getenv("HOARD"))
		while (dup(0) >= 0)
			;
}

static void send_next(struct rdma_cm_id *id, struct ibv_mr *mr, uint64_t number)
{
	uint64_t *message = out[number % DEPTH];
	for (int i = 0; i < WORDS; i++)
		message[i] = number + i;
	CHECK(!rdma_post_send(id, NULL, message, sizeof(out[0]), mr, IBV_SEND_SIGNALED));
}

static void verify(uint64_t number)
{
	for (int i = 0; i < WORDS; i++)
		CHECK(in[number % DEPTH][i] == number + i);
	memset(in[number % DEPTH], 0, sizeof(in[0]));
}

static void receive_next(struct rdma_cm_id *id, struct ibv_mr *mr, uint64_t number)
{
	CHECK(!rdma_post_recv(id, NULL, in[number % DEPTH], sizeof(in[0]), mr));
}

/* Sends and receives `count` messages. Returns whether the connection has failed. */
static int transfer(struct rdma_cm_id *id, struct ibv_mr *mrs[2], uint64_t count)
{
	uint64_t posted = 0, sent = 0, received = 0;
	while (!is_told_to_end && (!count || sent < count || received < count)) {
		struct ibv_wc wc;
		for (; posted < sent + DEPTH && (!count || posted < count); posted++)
			send_next(id, mrs[0], posted);
		int sends = ibv_poll_cq(id->send_cq, 1, &wc);
		int receives = sends ? 0 : ibv_poll_cq(id->recv_cq, 1, &wc);
		CHECK(sends >= 0 && receives >= 0);
		if (!sends && !receives) {
			sched_yield();
			continue;
		}
		/* The flushed receive requests of a failed connection can complete before the send request that says why it failed. */
		if (receives && wc.status == IBV_WC_WR_FLUSH_ERR)
			continue;
		if (wc.status) {
			say("status %d\n", wc.status);
			return 1;
		}
		sent += sends;
		if (receives) {
			verify(received);
			receive_next(id, mrs[1], received + DEPTH);
			if (++received % 16 == 0)
				say("exchanged\n", 0);
		}
	}
	return 0;
}

static void prepare(struct rdma_cm_id *id, struct ibv_mr *mrs[2])
{
	CHECK((mrs[0] = rdma_reg_msgs(id, out, sizeof(out))) && (mrs[1] = rdma_reg_msgs(id, in, sizeof(in))));
	for (int i = 0; i < DEPTH; i++)
		receive_next(id, mrs[1], i);
}

static void finish(struct rdma_cm_id *id, struct ibv_mr *mrs[2])
{
	CHECK(!rdma_dereg_mr(mrs[0]) && !rdma_dereg_mr(mrs[1]));
	rdma_destroy_ep(id);
	say("done\n", 0);
}

int main(int argc, char **argv)
{
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP }, own_hints = { .ai_flags = RAI_PASSIVE };
	struct rdma_addrinfo *to, *own;
	struct ibv_qp_init_attr init = {
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = 2 * DEPTH, .max_send_sge = 1, .max_recv_sge = 1 },
		.sq_sig_all = 1,
	};
	struct rdma_conn_param param = { .retry_count = 7, .rnr_retry_count = 7 };
	struct rdma_cm_id *listener, *id;
	struct ibv_mr *mrs[2];

	CHECK(argc == 3 || argc == 6);
	signal(SIGUSR1, end_connection);
	own_hints.ai_port_space = RDMA_PS_TCP;
	if (argc == 6) {
		struct sockaddr_in from = { .sin_family = AF_INET };
		CHECK(inet_pton(AF_INET, argv[1], &from.sin_addr) == 1);
		hints.ai_src_addr = (struct sockaddr *)&from;
		hints.ai_src_len = sizeof(from);
		CHECK(!rdma_getaddrinfo(argv[4], argv[2], &hints, &to));
		CHECK(!rdma_create_ep(&id, to, NULL, &init));
		prepare(id, mrs);
		hoard();
		CHECK(!rdma_connect(id, &param));
		int has_failed = transfer(id, mrs, strtoull(argv[5], NULL, 10));
		finish(id, mrs);
		return has_failed;
	}
	CHECK(!rdma_getaddrinfo(argv[1], argv[2], &own_hints, &own));
	CHECK(!rdma_create_ep(&listener, own, NULL, &init));
	CHECK(!rdma_listen(listener, 8));
	say("listens\n", 0);
	for (;;) {
		CHECK(!rdma_get_request(listener, &id));
		prepare(id, mrs);
		hoard();
		is_told_to_end = 0;
		CHECK(!rdma_accept(id, &param));
		transfer(id, mrs, 0);
		finish(id, mrs);
	}
}
