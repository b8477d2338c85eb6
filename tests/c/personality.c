/* Prints the results of the same calls on any device, one line for each. The argument is the GID index, 0 by
 * default. */

#include "common.h"

static char memory[4096] __attribute__((aligned(4096)));
static struct ibv_mr *mr;
static int gid_index;
static union ibv_gid gid;

static const char *name(int e)
{
	return e == 0 ? "taken" : e == EINVAL ? "EINVAL" : e == ENOMEM ? "ENOMEM" : strerror(e);
}

static const char *status(enum ibv_wc_status s)
{
	switch (s) {
	case IBV_WC_SUCCESS: return "SUCCESS";
	case IBV_WC_LOC_QP_OP_ERR: return "LOC_QP_OP_ERR";
	case IBV_WC_WR_FLUSH_ERR: return "WR_FLUSH_ERR";
	case IBV_WC_REM_ACCESS_ERR: return "REM_ACCESS_ERR";
	case IBV_WC_LOC_LEN_ERR: return "LOC_LEN_ERR";
	default: return ibv_wc_status_str(s);
	}
}

/* Prints up to `n` completions that arrive within `ms` milliseconds, or 5 s if `ms` is 0. */
static int completions(int n, int ms)
{
	struct ibv_wc wc;
	int got = 0;
	for (int i = 0; got < n && i < (ms ? ms : 5000); i++) {
		while (got < n && ibv_poll_cq(cq, 1, &wc) == 1) {
			printf(" %" PRIu64 ":%s", wc.wr_id, status(wc.status));
			got++;
		}
		if (got < n)
			usleep(1000);
	}
	return got;
}

static struct ibv_qp *make(enum ibv_qp_type type)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = type, .sq_sig_all = 1,
		.cap = { .max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 2, .max_recv_sge = 2 },
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	CHECK(qp);
	return qp;
}

/* Number of the queue pair that all others connect to; if 0, each connects to itself. */
static uint32_t peer;

/* Changes to the next state. */
static void step(struct ibv_qp *qp, enum ibv_qp_state to)
{
	struct ibv_qp_attr a = {
		.qp_state = to, .port_num = 1, .qkey = 0x1111, .max_rd_atomic = 4, .max_dest_rd_atomic = 4,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
		.path_mtu = IBV_MTU_1024, .dest_qp_num = peer ? peer : qp->qp_num, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7,
		.min_rnr_timer = 1,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = gid, .hop_limit = 64, .sgid_index = gid_index } },
	};
	int ud = qp->qp_type == IBV_QPT_UD, mask = IBV_QP_STATE;
	if (to == IBV_QPS_INIT)
		mask |= IBV_QP_PKEY_INDEX | IBV_QP_PORT | (ud ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS);
	else if (to == IBV_QPS_RTR && !ud)
		mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
			IBV_QP_MIN_RNR_TIMER;
	else if (to == IBV_QPS_RTS)
		mask |= IBV_QP_SQ_PSN |
			(ud ? 0 : IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC);
	CHECK(!ibv_modify_qp(qp, &a, mask));
}

static struct ibv_qp *connected(enum ibv_qp_type type)
{
	struct ibv_qp *qp = make(type);
	for (int to = IBV_QPS_INIT; to <= IBV_QPS_RTS; to++)
		step(qp, to);
	return qp;
}

static const char *state(struct ibv_qp *qp)
{
	static const char *names[] = { "RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR" };
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	CHECK(!ibv_query_qp(qp, &attr, IBV_QP_STATE, &init) && attr.qp_state <= IBV_QPS_ERR);
	return names[attr.qp_state];
}

static struct ibv_sge sge;

/* Returns a work request on the first `length` bytes of the memory; it accesses the last 64 bytes remotely. */
static struct ibv_send_wr request(uint64_t id, enum ibv_wr_opcode opcode, uint32_t length)
{
	sge = (struct ibv_sge){ (uintptr_t)memory, length, mr->lkey };
	struct ibv_send_wr wr = { .wr_id = id, .opcode = opcode, .sg_list = &sge, .num_sge = 1 };
	if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr.wr.atomic.remote_addr = (uintptr_t)memory + 4032;
		wr.wr.atomic.rkey = mr->rkey;
		wr.wr.atomic.compare_add = 1;
	} else {
		wr.wr.rdma.remote_addr = (uintptr_t)memory + 4032;
		wr.wr.rdma.rkey = mr->rkey;
	}
	return wr;
}

static int post(struct ibv_qp *qp, struct ibv_send_wr wr)
{
	struct ibv_send_wr *bad;
	return ibv_post_send(qp, &wr, &bad);
}

static int post_recv(struct ibv_qp *qp, uint64_t id)
{
	struct ibv_sge to = { (uintptr_t)memory + 1024, 1024, mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = id, .sg_list = &to, .num_sge = 1 }, *bad;
	return ibv_post_recv(qp, &wr, &bad);
}

static void limits(void)
{
	struct ibv_device_attr a;
	CHECK(!ibv_query_device(context, &a));
	printf("limits: max_qp_wr %d max_sge %d max_cqe %d max_qp_rd_atom %d\n", a.max_qp_wr, a.max_sge, a.max_cqe,
	       a.max_qp_rd_atom);
}

static void empty_region(void)
{
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
	struct ibv_mr *at_a_page = ibv_reg_mr(pd, memory, 0, access);
	printf("region of length 0: %s", name(at_a_page ? 0 : errno));
	struct ibv_mr *none = ibv_reg_mr(pd, memory + 16, 0, access);
	printf(", not at a page boundary %s", name(none ? 0 : errno));
	struct ibv_qp *qp = make(IBV_QPT_RC);
	peer = qp->qp_num;
	struct ibv_qp *responder = connected(IBV_QPT_RC);
	peer = responder->qp_num;
	for (int to = IBV_QPS_INIT; to <= IBV_QPS_RTS; to++)
		step(qp, to);
	peer = 0;
	for (uint32_t length = 0; none && length < 2; length++) {
		struct ibv_send_wr wr = request(length, IBV_WR_RDMA_WRITE, length);
		wr.wr.rdma.remote_addr = (uintptr_t)memory + 16;
		wr.wr.rdma.rkey = none->rkey;
		if (!length)
			sge.lkey = none->lkey;
		printf(", WRITE of %u", length);
		CHECK(!post(qp, wr));
		completions(1, 0);
	}
	printf("\n");
	ibv_destroy_qp(qp);
	ibv_destroy_qp(responder);
}

static void long_atomic(void)
{
	struct ibv_qp *qp = connected(IBV_QPT_RC);
	memset(memory, 0x55, sizeof(memory));
	int taken = post(qp, request(1, IBV_WR_ATOMIC_FETCH_AND_ADD, 16));
	printf("FETCH_ADD into 16 bytes: %s", name(taken));
	if (!taken) {
		completions(1, 0);
		int written = 0;
		memory[4032]--;
		for (int i = 0; i < 16; i++)
			written += memory[i] != 0x55;
		printf(", bytes after the eighth changed: %d, added: %s", written, memory[4032] == 0x55 ? "yes" : "no");
	}
	printf("\n");
	ibv_destroy_qp(qp);
}

/* The second of three work requests is one that a UD queue pair does not support. */
static void datagram(const char *what, enum ibv_wr_opcode opcode, struct ibv_pd *of)
{
	struct ibv_qp *qp = connected(IBV_QPT_UD);
	struct ibv_ah_attr attr = { .is_global = 1, .port_num = 1,
				    .grh = { .dgid = gid, .hop_limit = 64, .sgid_index = gid_index } };
	struct ibv_ah *ah = ibv_create_ah(pd, &attr), *other = ibv_create_ah(of, &attr);
	CHECK(ah && other);
	printf("UD, %s:", what);
	int expected = 0;
	for (int i = 1; i <= 3; i++) {
		struct ibv_send_wr wr = request(i, i == 2 ? opcode : IBV_WR_SEND, 8);
		wr.wr.ud.ah = i == 2 ? other : ah;
		wr.wr.ud.remote_qpn = 0xffffff & ~qp->qp_num;
		wr.wr.ud.remote_qkey = 0x1111;
		int taken = post(qp, wr);
		if (i == 2)
			printf(" %s", name(taken));
		expected += !taken;
	}
	completions(expected, 0);
	printf(", then %s\n", state(qp));
	ibv_destroy_qp(qp);
	ibv_destroy_ah(ah);
	ibv_destroy_ah(other);
}

static void early_send(enum ibv_qp_state where)
{
	static const char *names[] = { "RESET", "INIT", "RTR" };
	struct ibv_qp *qp = make(IBV_QPT_RC);
	for (int to = IBV_QPS_INIT; to <= (int)where; to++)
		step(qp, to);
	int taken = post(qp, request(1, IBV_WR_RDMA_WRITE, 8));
	printf("send in %s: %s, in RTS:", names[where], name(taken));
	for (int to = where + 1; to <= IBV_QPS_RTS; to++)
		step(qp, to);
	if (!completions(1, 300))
		printf(" nothing");
	printf(", after the next post:");
	CHECK(!post(qp, request(2, IBV_WR_RDMA_WRITE, 8)));
	completions(2, 500);
	printf("\n");
	ibv_destroy_qp(qp);
}

static void early_receive(void)
{
	struct ibv_qp *qp = make(IBV_QPT_RC);
	printf("receive in RESET: %s", name(post_recv(qp, 1)));
	for (int to = IBV_QPS_INIT; to <= IBV_QPS_RTS; to++)
		step(qp, to);
	CHECK(!post_recv(qp, 2));
	CHECK(!post(qp, request(3, IBV_WR_SEND, 8)));
	struct ibv_wc wc;
	for (int got = 0; got < 2;) {
		if (ibv_poll_cq(cq, 1, &wc) != 1)
			continue;
		CHECK(wc.status == IBV_WC_SUCCESS);
		if (wc.opcode & IBV_WC_RECV)
			printf(", a SEND takes receive %" PRIu64 ", wc_flags %#x\n", wc.wr_id, wc.wc_flags);
		got++;
	}
	ibv_destroy_qp(qp);
}

/* Requests an event after the completion. */
static void late_request(void)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	struct ibv_cq *before = cq, *of;
	void *data;
	CHECK(channel);
	CHECK(cq = ibv_create_cq(context, 8, NULL, channel, 0));
	struct ibv_qp *qp = connected(IBV_QPT_RC);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	CHECK(!post_recv(qp, 1) && !post_recv(qp, 2) && !ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	printf("request for an event behind a completion:");
	/* The kernel may flush gradually: one of the two is polled, and the other follows soon. */
	completions(1, 0);
	usleep(100000);
	CHECK(!ibv_req_notify_cq(cq, 0));
	struct pollfd fd = { .fd = channel->fd, .events = POLLIN };
	int raised = poll(&fd, 1, 300) == 1;
	printf(" %s", raised ? "event" : "no event");
	completions(1, 0);
	printf("\n");
	if (raised) {
		CHECK(!ibv_get_cq_event(channel, &of, &data) && of == cq);
		ibv_ack_cq_events(cq, 1);
	}
	ibv_destroy_qp(qp);
	CHECK(!ibv_destroy_cq(cq));
	cq = before;
}

int main(int argc, char **argv)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	gid_index = argc > 1 ? atoi(argv[1]) : 0;
	open_first();
	CHECK(mr = ibv_reg_mr(pd, memory, sizeof(memory),
			      IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
				      IBV_ACCESS_REMOTE_ATOMIC));
	CHECK(!ibv_query_gid(context, 1, gid_index, &gid));
	struct ibv_pd *other = ibv_alloc_pd(context);
	CHECK(other);
	limits();
	empty_region();
	long_atomic();
	datagram("READ", IBV_WR_RDMA_READ, pd);
	datagram("WRITE", IBV_WR_RDMA_WRITE, pd);
	datagram("FETCH_ADD", IBV_WR_ATOMIC_FETCH_AND_ADD, pd);
	datagram("address handle of another domain", IBV_WR_SEND, other);
	for (int where = IBV_QPS_RESET; where <= IBV_QPS_RTR; where++)
		early_send(where);
	early_receive();
	late_request();
	return 0;
}
