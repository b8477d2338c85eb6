/* Return values of verbs calls, and the fields of the program's structs that they write: one case by name. */

#include <fcntl.h>
#include "common.h"

static void completes(enum ibv_wc_status status)
{
	struct ibv_wc wc;
	int n;
	while (!(n = ibv_poll_cq(cq, 1, &wc)))
		;
	CHECK(n == 1 && wc.status == status);
}

static char memory[4096] __attribute__((aligned(4096)));

static struct ibv_mr *bindable(void)
{
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof(memory),
				       IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
					       IBV_ACCESS_MW_BIND);
	CHECK(mr);
	return mr;
}

static void write_through(struct ibv_qp *qp, struct ibv_mr *mr, uint32_t rkey, enum ibv_wc_status status)
{
	struct ibv_sge sge = { (uintptr_t)memory, 8, mr->lkey };
	struct ibv_send_wr send = { .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED, .sg_list = &sge, .num_sge = 1 };
	struct ibv_send_wr *bad;
	send.wr.rdma.remote_addr = (uintptr_t)memory + 64;
	send.wr.rdma.rkey = rkey;
	CHECK(!ibv_post_send(qp, &send, &bad));
	completes(status);
}

/* A bind opens the window of `mw`, whatever index the key in the request has. */
static void windows(void)
{
	open_first();
	struct ibv_mr *mr = bindable();
	struct ibv_qp_init_attr_ex init = {
		.send_cq = cq, .recv_cq = cq, .pd = pd, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 1, .max_recv_sge = 1 },
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_BIND_MW | IBV_QP_EX_WITH_RDMA_WRITE,
	};
	struct ibv_qp *qp = ibv_create_qp_ex(context, &init);
	struct ibv_qp_ex *ex = qp ? ibv_qp_to_qp_ex(qp) : NULL;
	struct ibv_mw *a = ibv_alloc_mw(pd, IBV_MW_TYPE_2), *b = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
	CHECK(ex && a && b && a->rkey >> 8 != b->rkey >> 8);
	connect_to_itself(qp);
	uint32_t of_a = a->rkey, of_b = b->rkey;

	struct ibv_send_wr *bad, bind = { .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED };
	bind.bind_mw.mw = a;
	bind.bind_mw.rkey = (of_b & ~0xffu) | 0x5a;
	bind.bind_mw.bind_info = (struct ibv_mw_bind_info){ mr, (uintptr_t)memory, sizeof(memory), IBV_ACCESS_REMOTE_WRITE };
	CHECK(!ibv_post_send(qp, &bind, &bad));
	completes(IBV_WC_SUCCESS);
	CHECK(a->rkey == ((of_a & ~0xffu) | 0x5a) && b->rkey == of_b);
	write_through(qp, mr, a->rkey, IBV_WC_SUCCESS);

	/* The same with the extended post calls. An aborted session changes no key. */
	ibv_wr_start(ex);
	ex->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_bind_mw(ex, b, 0x11, &bind.bind_mw.bind_info);
	ibv_wr_abort(ex);
	CHECK(b->rkey == of_b);
	ibv_wr_start(ex);
	ibv_wr_bind_mw(ex, b, (of_a & ~0xffu) | 0x77, &bind.bind_mw.bind_info);
	CHECK(!ibv_wr_complete(ex));
	completes(IBV_WC_SUCCESS);
	CHECK(b->rkey == ((of_b & ~0xffu) | 0x77));
	write_through(qp, mr, b->rkey, IBV_WC_SUCCESS);

	/* Only the binds before the refused request of a list change keys. */
	struct ibv_send_wr list[2] = { bind, { .opcode = 99 } };
	list[0].bind_mw.rkey = 0x21, list[0].next = &list[1];
	struct ibv_mw *c = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
	CHECK(list[0].bind_mw.mw = c);
	uint32_t of_c = c->rkey;
	CHECK(ibv_post_send(qp, list, &bad) == EINVAL && bad == &list[1]);
	completes(IBV_WC_SUCCESS);
	CHECK(c->rkey == ((of_c & ~0xffu) | 0x21));
	list[0].bind_mw.mw = NULL, list[0].next = NULL;
	CHECK(ibv_post_send(qp, list, &bad) == EINVAL && bad == &list[0]);
}

/* For calls that return an error number: `errno` has to be the same. */
#define FAILS(what, why)                \
	do {                                \
		errno = 0;                      \
		CHECK((what) == (why));         \
		CHECK(errno == (why));          \
	} while (0)

static void numbers(void)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTS };
	struct ibv_srq_init_attr srq_attr = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_srq_attr limit = { .srq_limit = 5 };
	struct ibv_port_attr port;
	struct ibv_gid_entry entry;
	union ibv_gid none = { .raw = { 0xfe } };
	open_first();
	struct ibv_qp *qp = create_qp(NULL);
	struct ibv_srq *srq = ibv_create_srq(pd, &srq_attr);
	struct ibv_alloc_dm_attr dm_attr = { .length = 64 };
	struct ibv_dm *dm = ibv_alloc_dm(context, &dm_attr);
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	struct ibv_cq *on_channel = ibv_create_cq(context, 4, NULL, channel, 0);
	char bytes[8];
	CHECK(srq && dm && channel && on_channel);
	FAILS(ibv_dealloc_pd(pd), EBUSY);
	FAILS(ibv_destroy_cq(cq), EBUSY);
	FAILS(ibv_destroy_comp_channel(channel), EBUSY);
	FAILS(ibv_modify_qp(qp, &attr, IBV_QP_STATE), EINVAL);
	FAILS(ibv_modify_qp(qp, &attr, 1 << 30), EINVAL);
	FAILS(ibv_modify_srq(srq, &limit, IBV_SRQ_LIMIT), EINVAL);
	FAILS(ibv_modify_srq(srq, &limit, 1 << 30), EINVAL);
	FAILS(ibv_resize_cq(cq, -1), EINVAL);
	FAILS(ibv_attach_mcast(qp, &none, 0), EINVAL);
	FAILS(ibv_detach_mcast(qp, &none, 0), EINVAL);
	FAILS(ibv_query_port(context, 2, &port), EINVAL);
	FAILS(ibv_query_gid_ex(context, 2, 0, &entry, 0), EINVAL);
	FAILS(ibv_memcpy_from_dm(bytes, dm, 2, 4), EINVAL);
	FAILS(ibv_memcpy_to_dm(dm, 64, bytes, 4), EFAULT);
	FAILS(ibv_advise_mr(pd, 77, 0, NULL, 0), EOPNOTSUPP);
	struct ibv_qp_rate_limit_attr rate = { .rate_limit = 1, .max_burst_sz = 1 };
	FAILS(ibv_modify_qp_rate_limit(qp, &rate), EINVAL);
	/* A successful call leaves it unchanged. */
	errno = 77;
	CHECK(!ibv_query_port(context, 1, &port) && !ibv_destroy_qp(qp) && !ibv_destroy_srq(srq) && errno == 77);
}

/* The first 40 bytes of a datagram's receive hold its IP header (IBTA, A17.4.5.2), with the fields of the address. */
static void header_of_a_datagram(void)
{
	struct ibv_qp_init_attr init = { .cap = { 4, 4, 1, 1, 0 }, .qp_type = IBV_QPT_UD };
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 0x1234 };
	struct ibv_ah_attr path = { .is_global = 1, .port_num = 1, .grh = { .hop_limit = 33, .traffic_class = 0x68 } };
	struct ibv_wc wc;
	open_first();
	init.send_cq = init.recv_cq = cq;
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	CHECK(qp && !ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_QKEY));
	attr.qp_state = IBV_QPS_RTR;
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	attr.qp_state = IBV_QPS_RTS;
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN));
	CHECK(!ibv_query_gid(context, 1, 0, &path.grh.dgid));
	int is_ipv4 = path.grh.dgid.raw[10] == 0xff;
	struct ibv_ah *ah = ibv_create_ah(pd, &path);
	struct ibv_mr *mr = bindable();
	struct ibv_sge to = { (uintptr_t)memory, 1024, mr->lkey }, from = { (uintptr_t)memory + 2048, 100, mr->lkey };
	struct ibv_recv_wr recv = { .wr_id = 1, .sg_list = &to, .num_sge = 1 }, *bad_recv;
	struct ibv_send_wr *bad, send = {
		.opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED, .sg_list = &from, .num_sge = 1,
		.wr.ud = { ah, qp->qp_num, 0x1234 },
	};
	CHECK(ah && !ibv_post_recv(qp, &recv, &bad_recv) && !ibv_post_send(qp, &send, &bad));
	for (int done = 0; done < 2; done++) {
		while (!ibv_poll_cq(cq, 1, &wc))
			;
		CHECK(!wc.status && (wc.wr_id == 0 || (wc.byte_len == 140 && wc.wc_flags & IBV_WC_GRH)));
	}
	const unsigned char *header = (unsigned char *)memory;
	if (is_ipv4) {
		CHECK(header[20] == 0x45 && header[21] == 0x68 && header[28] == 33 && header[29] == 17);
		CHECK(!memcmp(header + 32, path.grh.dgid.raw + 12, 4) && !memcmp(header + 36, path.grh.dgid.raw + 12, 4));
	} else {
		CHECK(header[0] == 0x66 && (header[1] & 0xf0) == 0x80 && header[7] == 33);
		CHECK(!memcmp(header + 8, path.grh.dgid.raw, 16) && !memcmp(header + 24, path.grh.dgid.raw, 16));
	}
}

/* A port of RoCE has LID 0, and an address needs a GRH (the kernel's rdma_check_ah_attr). */
static void addresses_without_grh(void)
{
	struct ibv_port_attr port;
	memset(&port, 0xee, sizeof(port));
	open_first();
	CHECK(!ibv_query_port(context, 1, &port));
	CHECK(!port.lid && !port.sm_lid && !port.lmc && port.flags & IBV_QPF_GRH_REQUIRED);
	struct ibv_qp *qp = create_qp(NULL);
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT, .port_num = 1, .path_mtu = IBV_MTU_1024, .dest_qp_num = qp->qp_num, .min_rnr_timer = 12,
		.ah_attr = { .dlid = 1, .port_num = 1 },
	};
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS));
	attr.qp_state = IBV_QPS_RTR;
	for (int lid = 0; lid < 2; lid++) {
		attr.ah_attr.dlid = lid;
		CHECK(ibv_modify_qp(qp, &attr,
				    IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
					    IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == EINVAL);
		CHECK(!ibv_create_ah(pd, &attr.ah_attr) && errno == EINVAL);
	}
}

/* Calls that succeed leave errno as it is, whatever system calls they make. */
static void errno_after_success(void)
{
	struct ibv_srq_init_attr srq_attr = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_srq_attr limit = { .srq_limit = 1 };
	struct ibv_port_attr port;
	struct ibv_device_attr device;
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	struct ibv_wc wc;
	struct ibv_cq *on;
	void *of;
	keeps_errno = 1;
	open_first();
	struct ibv_comp_channel *channel;
	CHECK(channel = ibv_create_comp_channel(context));
	struct ibv_cq *polled;
	CHECK(polled = ibv_create_cq(context, 8, NULL, channel, 0));
	CHECK(!ibv_query_port(context, 1, &port) && !ibv_query_device(context, &device));
	struct ibv_srq *srq;
	CHECK((srq = ibv_create_srq(pd, &srq_attr)) && !ibv_modify_srq(srq, &limit, IBV_SRQ_LIMIT) && !ibv_destroy_srq(srq));
	struct ibv_qp *qp = create_qp(NULL);
	connect_to_itself(qp);
	struct ibv_mr *mr = bindable();
	for (int i = 0; i < 1000; i++) {
		struct ibv_sge sge = { (uintptr_t)memory, 2048, mr->lkey };
		struct ibv_recv_wr recv = { .sg_list = &sge, .num_sge = 1 }, *bad_recv;
		struct ibv_send_wr send = { .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED, .sg_list = &sge, .num_sge = 1 };
		struct ibv_send_wr *bad_send;
		CHECK(!ibv_post_recv(qp, &recv, &bad_recv));
		CHECK(!ibv_post_send(qp, &send, &bad_send));
		for (int done = 0, n; done < 2; done += n)
			CHECK((n = ibv_poll_cq(cq, 1, &wc)) >= 0 && (!n || !wc.status));
	}
	CHECK(!ibv_query_qp(qp, &attr, IBV_QP_STATE, &init) && !ibv_destroy_qp(qp) && !ibv_dereg_mr(mr));
	/* An event that waits already. */
	struct ibv_qp_init_attr of_polled = { .send_cq = polled, .recv_cq = polled, .cap = { 1, 1, 1, 1, 0 }, .qp_type = IBV_QPT_RC };
	struct ibv_qp_attr to_error = { .qp_state = IBV_QPS_ERR };
	struct ibv_recv_wr flushed = { 0 }, *bad;
	CHECK(qp = ibv_create_qp(pd, &of_polled));
	connect_to_itself(qp);
	CHECK(!ibv_post_recv(qp, &flushed, &bad) && !ibv_req_notify_cq(polled, 0));
	CHECK(!ibv_modify_qp(qp, &to_error, IBV_QP_STATE));
	CHECK(!ibv_get_cq_event(channel, &on, &of) && on == polled);
	ibv_ack_cq_events(polled, 1);
	CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_cq(polled) && !ibv_destroy_comp_channel(channel));
	CHECK(!ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd) && !ibv_close_device(context));
}

/* The capacity of a receive queue is ignored for a queue pair without one, with a shared receive queue or XRC. */
static void receives_of_others(void)
{
	static const struct { uint32_t wr, sge; } of[] = {
		{ 1, 1 }, { 0, 0 }, { 1 << 20, 1 }, { UINT32_MAX, 1 }, { 1, 1000 }, { 1, UINT32_MAX },
	};
	struct ibv_srq_init_attr srq_attr = { .attr = { .max_wr = 4, .max_sge = 1 } };
	open_first();
	struct ibv_srq *srq = ibv_create_srq(pd, &srq_attr);
	CHECK(srq);
	for (unsigned i = 0; i < sizeof(of) / sizeof(of[0]); i++)
		for (int extended = 0; extended < 2; extended++)
			for (int xrc = 0; xrc < 2; xrc++) {
				struct ibv_qp_init_attr_ex init = {
					.send_cq = cq, .recv_cq = cq, .srq = xrc ? NULL : srq, .cap = { 1, of[i].wr, 1, of[i].sge, 0 },
					.qp_type = xrc ? IBV_QPT_XRC_SEND : IBV_QPT_RC, .comp_mask = IBV_QP_INIT_ATTR_PD, .pd = pd,
				};
				struct ibv_qp_init_attr plain = { NULL, cq, cq, init.srq, init.cap, init.qp_type, 0 }, read;
				struct ibv_qp_attr attr;
				struct ibv_qp *qp = extended ? ibv_create_qp_ex(context, &init) : ibv_create_qp(pd, &plain);
				CHECK(qp);
				struct ibv_qp_cap *cap = extended ? &init.cap : &plain.cap;
				CHECK(!cap->max_recv_wr && !cap->max_recv_sge);
				CHECK(!ibv_query_qp(qp, &attr, IBV_QP_CAP, &read));
				CHECK(!read.cap.max_recv_wr && !read.cap.max_recv_sge && read.cap.max_send_wr == cap->max_send_wr);
				CHECK(!ibv_destroy_qp(qp));
			}
	struct ibv_qp_init_attr own = { .send_cq = cq, .recv_cq = cq, .cap = { 1, UINT32_MAX, 1, 1, 0 }, .qp_type = IBV_QPT_RC };
	CHECK(!ibv_create_qp(pd, &own) && errno == EINVAL);
}

/* Port 1 is the only one, in every address (uverbs: rdma_is_port_valid). */
static void ports(void)
{
	struct ibv_ah_attr path = { .is_global = 1, .grh.hop_limit = 64 };
	open_first();
	CHECK(!ibv_query_gid(context, 1, 0, &path.grh.dgid));
	for (int port = 0; port < 4; port++) {
		struct ibv_qp *qp = create_qp(NULL);
		path.port_num = port;
		struct ibv_qp_attr attr = {
			.qp_state = IBV_QPS_INIT, .port_num = port, .path_mtu = IBV_MTU_1024, .dest_qp_num = 5, .min_rnr_timer = 12,
			.ah_attr = path, .alt_ah_attr = path, .alt_port_num = 1,
		};
		int expected = port == 1 ? 0 : EINVAL;
		int init = IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS;
		int to_rtr = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
		CHECK(ibv_modify_qp(qp, &attr, init) == expected);
		attr.port_num = 1;
		CHECK(!ibv_modify_qp(qp, &attr, init));
		attr.qp_state = IBV_QPS_RTR;
		struct ibv_qp_attr alternate = attr;
		alternate.ah_attr.port_num = 1;
		CHECK(ibv_modify_qp(qp, &alternate, to_rtr | IBV_QP_ALT_PATH) == expected);
		if (port == 1) {
			struct ibv_qp *other_qp = create_qp(NULL);
			alternate.qp_state = IBV_QPS_INIT;
			CHECK(!ibv_modify_qp(other_qp, &alternate, init));
			alternate.qp_state = IBV_QPS_RTR;
			alternate.alt_port_num = 2;
			CHECK(ibv_modify_qp(other_qp, &alternate, to_rtr | IBV_QP_ALT_PATH) == EINVAL);
		} else {
			CHECK(ibv_modify_qp(qp, &attr, to_rtr) == EINVAL);
		}
		struct ibv_ah *ah = ibv_create_ah(pd, &path);
		CHECK(!ah == !!expected && (ah || errno == EINVAL));
	}
}

/* Objects whose handle or context was overwritten, and destroyed objects, are refused. */

static struct ibv_context *other;

#define MOVED(of, what, why)                        \
	do {                                            \
		struct ibv_context *own = (of)->context;    \
		(of)->context = other;                      \
		FAILS(what, why);                           \
		(of)->context = own;                        \
	} while (0)

#define GARBLED(of, what, why)              \
	do {                                    \
		uint32_t handle = (of)->handle;     \
		(of)->handle = ~handle;             \
		FAILS(what, why);                   \
		(of)->handle = handle;              \
		MOVED(of, what, why);               \
	} while (0)

#define TWICE(what)             \
	do {                        \
		CHECK(!(what));         \
		FAILS(what, ENOENT);    \
	} while (0)

static void handles(void)
{
	struct ibv_srq_init_attr srq_attr = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	struct ibv_qp_init_attr init;
	open_first();
	struct ibv_mr *mr = bindable();
	struct ibv_qp *qp = create_qp(NULL);
	struct ibv_srq *srq = ibv_create_srq(pd, &srq_attr);
	struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_1);
	struct ibv_ah_attr path = { .is_global = 1, .port_num = 1, .grh.hop_limit = 64 };
	CHECK(!ibv_query_gid(context, 1, 0, &path.grh.dgid));
	struct ibv_ah *ah = ibv_create_ah(pd, &path);
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	struct ibv_td_init_attr td_attr = { 0 };
	struct ibv_td *td = ibv_alloc_td(context, &td_attr);
	struct ibv_xrcd_init_attr xrcd_attr = { IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, -1, O_CREAT };
	struct ibv_xrcd *xrcd = ibv_open_xrcd(context, &xrcd_attr);
	CHECK(srq && mw && ah && channel && td && xrcd && (other = ibv_open_device(context->device)) && other != context);
	MOVED(channel, ibv_destroy_comp_channel(channel), ENOENT);
	MOVED(td, ibv_dealloc_td(td), ENOENT);
	MOVED(xrcd, ibv_close_xrcd(xrcd), ENOENT);
	TWICE(ibv_destroy_comp_channel(channel));
	CHECK(!ibv_dealloc_td(td) && !ibv_close_xrcd(xrcd));
	GARBLED(pd, ibv_dealloc_pd(pd), ENOENT);
	GARBLED(cq, ibv_destroy_cq(cq), ENOENT);
	GARBLED(cq, ibv_resize_cq(cq, 8), ENOENT);
	GARBLED(qp, ibv_destroy_qp(qp), ENOENT);
	GARBLED(qp, ibv_modify_qp(qp, &attr, IBV_QP_STATE), ENOENT);
	GARBLED(qp, ibv_query_qp(qp, &attr, IBV_QP_STATE, &init), ENOENT);
	GARBLED(srq, ibv_destroy_srq(srq), ENOENT);
	GARBLED(mr, ibv_dereg_mr(mr), ENOENT);
	GARBLED(mw, ibv_dealloc_mw(mw), ENOENT);
	GARBLED(ah, ibv_destroy_ah(ah), ENOENT);

	/* No object can be created from such an object. */
	struct ibv_qp_init_attr of = { .send_cq = cq, .recv_cq = cq, .cap = { 1, 1, 1, 1, 0 }, .qp_type = IBV_QPT_RC };
	pd->handle ^= 1;
	CHECK(!ibv_create_qp(pd, &of) && errno == EINVAL);
	CHECK(!ibv_reg_mr(pd, memory, 8, 0) && errno == EINVAL);
	CHECK(!ibv_create_srq(pd, &srq_attr) && errno == EINVAL);
	CHECK(!ibv_alloc_mw(pd, IBV_MW_TYPE_1) && errno == EINVAL);
	CHECK(!ibv_create_ah(pd, &path) && errno == EINVAL);
	struct ibv_wc wc = { .wc_flags = IBV_WC_GRH };
	struct ibv_grh grh = { 0 };
	CHECK(!ibv_create_ah_from_wc(pd, &wc, &grh, 1) && errno == EINVAL);
	CHECK(!ibv_alloc_null_mr(pd) && errno == EINVAL);
	CHECK(!ibv_import_mr(pd, mr->handle) && errno == EINVAL);
	struct ibv_alloc_dm_attr dm_attr = { .length = 64 };
	struct ibv_dm *dm = ibv_alloc_dm(pd->context, &dm_attr);
	CHECK(dm && !ibv_reg_dm_mr(pd, dm, 0, 64, IBV_ACCESS_ZERO_BASED) && errno == EINVAL);
	CHECK(!ibv_free_dm(dm));
	pd->handle ^= 1;
	cq->handle ^= 1;
	CHECK(!ibv_create_qp(pd, &of) && errno == EINVAL);
	cq->handle ^= 1;
	pd->context = other;
	CHECK(!ibv_create_qp(pd, &of) && errno == EINVAL);
	CHECK(!ibv_alloc_null_mr(pd) && errno == EINVAL);
	pd->context = context;
	/* A copy is refused too. */
	struct ibv_mr copy = *mr;
	FAILS(ibv_dereg_mr(&copy), ENOENT);

	TWICE(ibv_destroy_ah(ah));
	/* The header reads the function from the context that the window points to. */
	TWICE(ibv_dealloc_mw(mw));
	struct ibv_mw *all[64];
	for (int round = 0; round < 2; round++) {
		for (int i = 0; i < 64; i++)
			CHECK((all[i] = ibv_alloc_mw(pd, IBV_MW_TYPE_2)) && all[i]->pd == pd && (!i || all[i] != all[i - 1]));
		for (int i = 0; i < 64; i++)
			TWICE(ibv_dealloc_mw(all[i]));
	}
	TWICE(ibv_dereg_mr(mr));
	TWICE(ibv_destroy_qp(qp));
	TWICE(ibv_destroy_srq(srq));
	TWICE(ibv_destroy_cq(cq));
	TWICE(ibv_dealloc_pd(pd));
}

/* Cyclic lists of work requests. */
static void circles(void)
{
	struct ibv_srq_init_attr srq_attr = { .attr = { .max_wr = 100, .max_sge = 1 } };
	struct ibv_recv_wr ring[2] = { { .wr_id = 1, .next = &ring[1] }, { .wr_id = 2, .next = &ring[0] } }, *bad;
	struct ibv_send_wr sends[2] = { { .opcode = IBV_WR_SEND, .next = &sends[1] }, { .opcode = IBV_WR_SEND, .next = &sends[0] } };
	struct ibv_send_wr *bad_send;
	struct ibv_wc wc;
	open_first();
	struct ibv_srq *srq = ibv_create_srq(pd, &srq_attr);
	struct ibv_qp *qp = create_qp(NULL);
	CHECK(srq);
	connect_to_itself(qp);
	CHECK(ibv_post_srq_recv(srq, ring, &bad) == ENOMEM && bad == &ring[0]);
	CHECK(ibv_post_recv(qp, ring, &bad) == ENOMEM && bad == &ring[0]);
	CHECK(ibv_post_send(qp, sends, &bad_send) == ENOMEM && bad_send == &sends[0]);
	int n, receives = 0;
	while (receives < 8) {
		CHECK((n = ibv_poll_cq(cq, 1, &wc)) >= 0);
		if (n)
			CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV && ++receives);
	}
	/* In the error state each request completes at once. */
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	CHECK(ibv_post_recv(qp, ring, &bad) == ENOMEM);
	CHECK(ibv_post_send(qp, sends, &bad_send) == ENOMEM);
}

static void registered_anew(void)
{
	char *page = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	open_first();
	struct ibv_mr *mr = bindable();
	const int translation = IBV_REREG_MR_CHANGE_TRANSLATION, access = IBV_REREG_MR_CHANGE_ACCESS;
	/* Errors that libibverbs itself detects, and errors of the kernel. */
	CHECK(ibv_rereg_mr(mr, 8, NULL, NULL, 0, 0) == IBV_REREG_MR_ERR_INPUT && errno == EINVAL);
	CHECK(ibv_rereg_mr(mr, translation, NULL, memory, 0, 0) == IBV_REREG_MR_ERR_INPUT && errno == EINVAL);
	CHECK(ibv_rereg_mr(mr, translation, NULL, NULL, 8, 0) == IBV_REREG_MR_ERR_INPUT && errno == EINVAL);
	CHECK(ibv_rereg_mr(mr, translation, NULL, memory, 8, 1) == IBV_REREG_MR_ERR_INPUT && errno == EINVAL);
	CHECK(ibv_rereg_mr(mr, 0, NULL, NULL, 0, 0) == IBV_REREG_MR_ERR_CMD && errno == EINVAL);
	CHECK(ibv_rereg_mr(mr, translation, NULL, page, 4096, 0) == IBV_REREG_MR_ERR_CMD && errno == EFAULT);
	CHECK(ibv_rereg_mr(mr, access, NULL, NULL, 0, IBV_ACCESS_REMOTE_WRITE) == IBV_REREG_MR_ERR_CMD && errno == EINVAL);
	CHECK(ibv_rereg_mr(mr, access, NULL, NULL, 0, IBV_ACCESS_LOCAL_WRITE) == 0 && !ibv_dereg_mr(mr));
}

/* Whether requesting an event raises one at once for two completions from before. */
static int tells_of_missed(void)
{
	open_first();
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	CHECK(channel && !ibv_destroy_cq(cq) && (cq = ibv_create_cq(context, 8, NULL, channel, 0)));
	struct ibv_qp *qp = create_qp(NULL);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	struct ibv_recv_wr second = { .wr_id = 2 }, first = { .wr_id = 1, .next = &second }, *bad;
	connect_to_itself(qp);
	CHECK(!ibv_post_recv(qp, &first, &bad) && !ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	CHECK(!ibv_req_notify_cq(cq, 0));
	struct pollfd fd = { .fd = channel->fd, .events = POLLIN };
	int told = poll(&fd, 1, 0);
	completes(IBV_WC_WR_FLUSH_ERR);
	completes(IBV_WC_WR_FLUSH_ERR);
	return told;
}

static void missed(void)
{
	CHECK(tells_of_missed() == 1);
}

static void missed_as_rxe(void)
{
	CHECK(tells_of_missed() == 0);
}

/* A flag of later headers, for confidential guests, has no effect. */
static void unprotected(void)
{
	open_first();
	struct ibv_parent_domain_init_attr attr = { .pd = pd, .comp_mask = 1 << 2 };
	struct ibv_pd *parent = ibv_alloc_parent_domain(context, &attr);
	CHECK(parent && !ibv_dealloc_pd(parent));
	attr.comp_mask = 1 << 3;
	CHECK(!ibv_alloc_parent_domain(context, &attr) && errno == EINVAL);
}

/* The kernel does not know these devices: -1 keeps UCX from asking it for one over netlink. */
static void device_index(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	CHECK(list && list[0] && ibv_get_device_index(list[0]) == -1);
	ibv_free_device_list(list);
}

/* Posts a request for 8 bytes at offset 64 of `memory` under `rkey`, with 8 local bytes under `lkey`, on new
 * queue pairs, and expects this status. */
static void ask(enum ibv_wr_opcode opcode, uint32_t lkey, uint32_t rkey, enum ibv_wc_status status)
{
	struct ibv_qp *qp = create_qp(NULL), *peer = create_qp(NULL);
	struct ibv_sge sge = { (uintptr_t)memory, 8, lkey };
	struct ibv_send_wr *bad, wr = { .opcode = opcode, .send_flags = IBV_SEND_SIGNALED, .sg_list = &sge, .num_sge = 1 };
	connect_to(qp, peer->qp_num);
	connect_to(peer, qp->qp_num);
	wr.wr.rdma.remote_addr = (uintptr_t)memory + 64;
	wr.wr.rdma.rkey = rkey;
	CHECK(!ibv_post_send(qp, &wr, &bad));
	completes(status);
	CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_qp(peer));
}

/* The lkey of a null region is valid for local use only, and peers cannot use it. */
static void null_region(void)
{
	open_first();
	struct ibv_mr *mr = bindable(), *null = ibv_alloc_null_mr(pd);
	CHECK(null && null->lkey && null->rkey == 0 && !null->addr && null->length == SIZE_MAX);
	memset(memory, 0x55, 128);
	ask(IBV_WR_RDMA_READ, null->lkey, mr->rkey, IBV_WC_SUCCESS);
	CHECK(memory[0] == 0x55 && memory[64] == 0x55);
	ask(IBV_WR_RDMA_WRITE, null->lkey, mr->rkey, IBV_WC_SUCCESS);
	CHECK(memory[0] == 0x55 && memory[64] == 0 && memory[71] == 0 && memory[72] == 0x55);
	ask(IBV_WR_RDMA_WRITE, mr->lkey, null->lkey, IBV_WC_REM_ACCESS_ERR);
	ask(IBV_WR_RDMA_READ, mr->lkey, null->lkey, IBV_WC_REM_ACCESS_ERR);
	ask(IBV_WR_RDMA_WRITE, mr->lkey, null->rkey, IBV_WC_REM_ACCESS_ERR);
	CHECK(!ibv_dereg_mr(null));
}

/* Returns the number of other threads that wait for something. A thread that has been joined may still be listed, but it
 * no longer waits. */
static int waiting_threads(void)
{
	int count = 0;
	DIR *tasks = opendir("/proc/self/task");
	CHECK(tasks);
	for (struct dirent *entry; (entry = readdir(tasks));) {
		char path[300], state = 0;
		snprintf(path, sizeof(path), "/proc/self/task/%s/stat", entry->d_name);
		FILE *stat = entry->d_name[0] == '.' || atoi(entry->d_name) == getpid() ? NULL : fopen(path, "r");
		if (!stat)
			continue;
		if (fscanf(stat, "%*d (%*[^)]) %c", &state) == 1 && state == 'S')
			count++;
		fclose(stat);
	}
	closedir(tasks);
	return count;
}

static void threads_of_a_closed_device(void)
{
	open_first();
	while (waiting_threads() == 0)
		usleep(1000);
	CHECK(!ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd) && !ibv_close_device(context));
	CHECK(waiting_threads() == 0);
}

/* Ends without exit handlers, which fio and other programs with worker processes do. */
static void ended_by_underscore_exit(void)
{
	open_first();
	struct ibv_qp *qp = create_qp(NULL);
	connect_to_itself(qp);
	exchange(qp);
	CHECK(!ibv_destroy_qp(qp));
	_exit(0);
}

int main(int argc, char **argv)
{
	const struct {
		const char *name;
		void (*run)(void);
	} cases[] = { { "windows", windows }, { "numbers", numbers }, { "handles", handles }, { "circles", circles },
		      { "receives of others", receives_of_others }, { "ports", ports }, { "errno", errno_after_success },
		      { "no grh", addresses_without_grh }, { "header of a datagram", header_of_a_datagram },
		      { "registered anew", registered_anew }, { "unprotected", unprotected }, { "device index", device_index },
		      { "null region", null_region }, { "_exit", ended_by_underscore_exit },
		      { "threads", threads_of_a_closed_device },
		      { "missed", missed }, { "missed as rxe", missed_as_rxe } };
	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		if (argc == 2 && !strcmp(argv[1], cases[i].name)) {
			cases[i].run();
			return 0;
		}
	}
	fprintf(stderr, "unknown case\n");
	return 2;
}
