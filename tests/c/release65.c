/* Calls that rdma-core 65 has and 44 lacks: one case by name, at an address. The installed headers may lack
 * their declarations, so the structs are declared here under other names, and the functions are looked up in
 * their version nodes. */

#define _GNU_SOURCE

#include "common.h"
#include <dlfcn.h>
#include <fcntl.h>
#include <rdma/rdma_cma.h>
#include <rdma/rsocket.h>
#include <sys/epoll.h>

struct dmah {
	struct ibv_context *context;
};

struct dmah_attr {
	uint32_t comp_mask;
	uint32_t cpu_id;
	uint8_t ph;
	uint8_t tph_mem_type;
};

struct mr_attr {
	size_t length;
	int access;
	uint64_t comp_mask;
	uint64_t iova;
	void *addr;
	int fd;
	uint64_t fd_offset;
	struct dmah *dmah;
	void *buf;
};

enum { MR_IOVA = 1, MR_ADDR = 2, MR_FD = 4, MR_FD_OFFSET = 8, MR_DMAH = 16, MR_BUF = 32 };

struct cntr {
	struct ibv_context *context;
	uint32_t handle;
};

struct cntr_caps {
	uint64_t max_value;
	uint32_t max_counters;
	uint32_t ops;
};

struct cntr_attr {
	uint32_t comp_mask;
	int type;
	uint32_t flags;
};

struct attach_attr {
	uint32_t comp_mask;
	uint32_t op_mask;
};

enum { C_SEND = 1, C_RECV = 2, C_READ = 4, C_REMOTE_READ = 8, C_WRITE = 16, C_REMOTE_WRITE = 32 };

/* The end of `struct ibv_qp_ex` in release 65. */
struct qp_ex_65 {
	struct ibv_qp qp_base;
	uint64_t comp_mask;
	uint64_t wr_id;
	unsigned int wr_flags;
	void (*others[21])(void);
	void (*wr_flush)(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote_addr, size_t len, uint8_t type, uint8_t level);
};

enum { WITH_FLUSH = 1 << 11, ACCESS_FLUSH_GLOBAL = 1 << 8, WC_FLUSH = 8, FLUSH_GLOBAL = 1, FLUSH_MR = 1 };
enum { ADDRINFO_RESOLVED = 16, ADDRINFO_ERROR = 17, EVENT_USER = 18 };
enum { RAI_FROM_SA = 16, RAI_FROM_DNS = 32 };

static void *in_node(const char *name, const char *node)
{
	void *found = dlvsym(RTLD_DEFAULT, name, node);
	if (!found)
		fprintf(stderr, "no %s@%s\n", name, node);
	CHECK(found);
	return found;
}

/* Calls the function `name` of a version node. */
#define CALL(result, name, node, types) ((result(*) types)in_node(#name, node))

#define alloc_dmah CALL(struct dmah *, ibv_alloc_dmah, "IBVERBS_1.15", (struct ibv_context *, struct dmah_attr *))
#define dealloc_dmah CALL(int, ibv_dealloc_dmah, "IBVERBS_1.15", (struct dmah *))
#define reg_mr_ex CALL(struct ibv_mr *, ibv_reg_mr_ex, "IBVERBS_1.15", (struct ibv_pd *, struct mr_attr *))
#define dm_export CALL(int, ibv_dm_export_dmabuf_fd, "IBVERBS_1.16", (struct ibv_dm *))
#define port_speed CALL(int, ibv_query_port_speed, "IBVERBS_1.16", (struct ibv_context *, uint32_t, uint64_t *))
#define alloc_buf CALL(char *, ibv_alloc_buf, "IBVERBS_1.17", (struct ibv_pd *, size_t, void **))
#define free_buf CALL(void, ibv_free_buf, "IBVERBS_1.17", (void *))
#define reg_buf_mr CALL(struct ibv_mr *, ibv_reg_buf_mr, "IBVERBS_1.17", (struct ibv_pd *, void *, void *, size_t, int))
#define export_buf CALL(int, ibv_export_buf_dmabuf_fd, "IBVERBS_1.18", (void *))
#define query_caps CALL(int, _ibv_query_comp_cntr_caps, "IBVERBS_1.18", (struct ibv_context *, struct cntr_caps *, size_t))
#define create_cntr CALL(struct cntr *, ibv_create_comp_cntr, "IBVERBS_1.18", (struct ibv_context *, struct cntr_attr *))
#define destroy_cntr CALL(int, ibv_destroy_comp_cntr, "IBVERBS_1.18", (struct cntr *))
#define set_cntr CALL(int, ibv_set_comp_cntr, "IBVERBS_1.18", (struct cntr *, uint64_t))
#define set_err_cntr CALL(int, ibv_set_err_comp_cntr, "IBVERBS_1.18", (struct cntr *, uint64_t))
#define inc_cntr CALL(int, ibv_inc_comp_cntr, "IBVERBS_1.18", (struct cntr *, uint64_t))
#define inc_err_cntr CALL(int, ibv_inc_err_comp_cntr, "IBVERBS_1.18", (struct cntr *, uint64_t))
#define read_cntr CALL(int, ibv_read_comp_cntr, "IBVERBS_1.18", (struct cntr *, uint64_t *))
#define read_err_cntr CALL(int, ibv_read_err_comp_cntr, "IBVERBS_1.18", (struct cntr *, uint64_t *))
#define attach_cntr CALL(int, ibv_qp_attach_comp_cntr, "IBVERBS_1.18", (struct ibv_qp *, struct cntr *, struct attach_attr *))
#define opcode_str(node) CALL(const char *, ibv_wr_opcode_str, node, (int))
#define write_cm_event CALL(int, rdma_write_cm_event, "RDMACM_1.4", (struct rdma_cm_id *, int, int, uint64_t))
#define resolve_addrinfo \
	CALL(int, rdma_resolve_addrinfo, "RDMACM_1.4", (struct rdma_cm_id *, const char *, const char *, const struct rdma_addrinfo *))
#define query_addrinfo CALL(int, rdma_query_addrinfo, "RDMACM_1.4", (struct rdma_cm_id *, struct rdma_addrinfo **))
#define ep_create CALL(int, repoll_create, "RDMACM_1.5", (int))
#define ep_ctl CALL(int, repoll_ctl, "RDMACM_1.5", (int, int, int, struct epoll_event *))
#define ep_wait CALL(int, repoll_wait, "RDMACM_1.5", (int, struct epoll_event *, int, int))

/* A call that returns null or -1 with this `errno`. */
#define FAILS(what, result, why)      \
	do {                              \
		errno = 0;                    \
		CHECK((what) == (result));    \
		CHECK(errno == (why));        \
	} while (0)

static const char *at;
static char memory[8192] __attribute__((aligned(4096)));
static const int ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;

static struct ibv_wc completion(void)
{
	struct ibv_wc wc;
	int n;
	while (!(n = ibv_poll_cq(cq, 1, &wc)))
		;
	CHECK(n == 1);
	return wc;
}

/* Posts a request with `len` bytes at the beginning of `memory`, signaled or not. */
static void post(struct ibv_qp *qp, int opcode, struct ibv_mr *local, uint32_t len, uint64_t to, uint32_t rkey, int flags)
{
	struct ibv_sge sge = { (uintptr_t)memory, len, local->lkey };
	struct ibv_send_wr *bad, wr = { .opcode = opcode, .send_flags = flags, .sg_list = &sge, .num_sge = 1 };
	wr.wr.rdma.remote_addr = to;
	wr.wr.rdma.rkey = rkey;
	CHECK(!ibv_post_send(qp, &wr, &bad));
}

/* Writes 8 bytes to address `to` of a peer on new queue pairs, and expects this status. */
static void write_to(uint64_t to, uint32_t rkey, enum ibv_wc_status status)
{
	struct ibv_qp *qp = create_qp(NULL), *peer = create_qp(NULL);
	struct ibv_mr *local = ibv_reg_mr(pd, memory, sizeof(memory), ACCESS);
	CHECK(local);
	connect_to(qp, peer->qp_num);
	connect_to(peer, qp->qp_num);
	post(qp, IBV_WR_RDMA_WRITE, local, 8, to, rkey, IBV_SEND_SIGNALED);
	CHECK(completion().status == status);
	CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_qp(peer) && !ibv_dereg_mr(local));
}

static void dma_handles(void)
{
	open_first();
	struct dmah_attr attr = { .comp_mask = 7, .cpu_id = 0, .ph = 3, .tph_mem_type = 1 };
	struct dmah *handle = alloc_dmah(context, &attr);
	CHECK(handle && handle->context == context);
	struct mr_attr mr = { .length = 4096, .access = ACCESS, .comp_mask = MR_ADDR | MR_DMAH, .addr = memory, .dmah = handle };
	struct ibv_mr *region = reg_mr_ex(pd, &mr);
	CHECK(region);
	write_to((uintptr_t)memory + 64, region->rkey, IBV_WC_SUCCESS);
	CHECK(dealloc_dmah(handle) == EBUSY);
	CHECK(!ibv_dereg_mr(region) && !dealloc_dmah(handle));
	CHECK(dealloc_dmah(handle) == ENOENT);
	FAILS(reg_mr_ex(pd, &mr), NULL, EINVAL);
	attr.ph = 4;
	FAILS(alloc_dmah(context, &attr), NULL, EINVAL);
	attr.ph = 0, attr.tph_mem_type = 2;
	FAILS(alloc_dmah(context, &attr), NULL, EINVAL);
	attr.tph_mem_type = 0, attr.comp_mask = 8;
	FAILS(alloc_dmah(context, &attr), NULL, EINVAL);
}

static void registration(void)
{
	open_first();
	struct mr_attr mr = { .length = 4096, .access = ACCESS, .comp_mask = MR_ADDR, .addr = memory };
	struct ibv_mr *region = reg_mr_ex(pd, &mr);
	CHECK(region && region->addr == memory && region->length == 4096);
	write_to((uintptr_t)memory + 64, region->rkey, IBV_WC_SUCCESS);
	write_to((uintptr_t)memory + 4096, region->rkey, IBV_WC_REM_ACCESS_ERR);
	CHECK(!ibv_dereg_mr(region));
	mr.comp_mask |= MR_IOVA, mr.iova = 0x5000;
	CHECK(region = reg_mr_ex(pd, &mr));
	strcpy(memory, "chosen");
	write_to(0x5000 + 64, region->rkey, IBV_WC_SUCCESS);
	CHECK(!strcmp(memory + 64, "chosen") && !ibv_dereg_mr(region));
	const uint64_t refused[] = { 0, MR_ADDR | MR_FD, MR_ADDR | MR_FD_OFFSET, MR_BUF, MR_ADDR | 64, MR_ADDR | MR_DMAH,
				     MR_ADDR | MR_BUF };
	for (unsigned i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
		mr.comp_mask = refused[i];
		FAILS(reg_mr_ex(pd, &mr), NULL, EINVAL);
	}
	/* Standard input is no DMA-buf. */
	mr.comp_mask = MR_FD, mr.fd = 0;
	errno = 0;
	CHECK(!reg_mr_ex(pd, &mr) && errno);
	struct ibv_alloc_dm_attr dm_attr = { .length = 64 };
	struct ibv_dm *dm = ibv_alloc_dm(context, &dm_attr);
	CHECK(dm);
	FAILS(dm_export(dm), -1, EOPNOTSUPP);
	uint64_t speed = 0;
	CHECK(!port_speed(context, 1, &speed) && speed == 2000);
	CHECK(port_speed(context, 2, &speed) == EINVAL && speed == 2000);
	/* A private symbol that programs use, in the nodes of two releases. */
	CHECK(!strcmp(opcode_str("IBVERBS_PRIVATE_34")(0), "rdma-write"));
	CHECK(!strcmp(opcode_str("IBVERBS_PRIVATE_65")(15), "atomic-write"));
	CHECK(!strcmp(opcode_str("IBVERBS_PRIVATE_65")(16), "unknown"));
}

static void buffers(void)
{
	open_first();
	void *buf, *other;
	struct ibv_pd *second = ibv_alloc_pd(context);
	char *bytes = alloc_buf(pd, 10000, &buf);
	CHECK(second && bytes && (uintptr_t)bytes % 4096 == 0);
	for (int i = 0; i < 10000; i++)
		CHECK(!bytes[i]);
	struct ibv_mr *part = reg_buf_mr(pd, buf, bytes + 100, 9900, ACCESS);
	CHECK(part && part->addr == bytes + 100 && part->length == 9900);
	strcpy(memory, "a buffer");
	write_to((uintptr_t)bytes + 9992, part->rkey, IBV_WC_SUCCESS);
	CHECK(!memcmp(bytes + 9992, "a buffer", 8));
	write_to((uintptr_t)bytes, part->rkey, IBV_WC_REM_ACCESS_ERR);
	CHECK(!ibv_dereg_mr(part));
	FAILS(reg_buf_mr(pd, buf, bytes + 100, 9901, ACCESS), NULL, EINVAL);
	FAILS(reg_buf_mr(pd, buf, bytes - 1, 100, ACCESS), NULL, EINVAL);
	FAILS(reg_buf_mr(pd, buf, bytes, SIZE_MAX, ACCESS), NULL, EINVAL);
	FAILS(reg_buf_mr(second, buf, bytes, 100, ACCESS), NULL, EINVAL);
	FAILS(export_buf(buf), -1, ENODATA);
	FAILS(alloc_buf(pd, 0, &other), NULL, EINVAL);
	struct mr_attr mr = { .length = 100, .access = ACCESS, .comp_mask = MR_ADDR | MR_BUF | MR_IOVA, .addr = bytes, .buf = buf };
	CHECK(part = reg_mr_ex(pd, &mr));
	write_to(8, part->rkey, IBV_WC_SUCCESS);
	CHECK(!memcmp(bytes + 8, "a buffer", 8) && !ibv_dereg_mr(part));
	mr.length = 10001;
	FAILS(reg_mr_ex(pd, &mr), NULL, EINVAL);
	free_buf(buf);
	FAILS(reg_buf_mr(pd, buf, bytes, 100, ACCESS), NULL, EINVAL);
	CHECK(!ibv_dealloc_pd(second));
}

static uint64_t completed(struct cntr *counter)
{
	uint64_t value;
	CHECK(!read_cntr(counter, &value));
	return value;
}

static uint64_t failed(struct cntr *counter)
{
	uint64_t value;
	CHECK(!read_err_cntr(counter, &value));
	return value;
}

static void counters(void)
{
	open_first();
	struct cntr_caps caps;
	CHECK(!query_caps(context, &caps, sizeof(caps)) && caps.max_value == UINT64_MAX && caps.max_counters > 1000 && caps.ops == 63);
	struct cntr_attr attr = { .type = 0 };
	struct cntr *requests = create_cntr(context, &attr), *receives = create_cntr(context, &attr), *remote = create_cntr(context, &attr);
	attr.type = 1;
	struct cntr *bytes = create_cntr(context, &attr);
	CHECK(requests && receives && remote && bytes && requests->context == context && requests->handle != bytes->handle);
	attr.flags = 1;
	FAILS(create_cntr(context, &attr), NULL, EINVAL);
	attr.flags = 0, attr.type = 2;
	FAILS(create_cntr(context, &attr), NULL, EOPNOTSUPP);

	struct ibv_qp *qp = create_qp(NULL), *peer = create_qp(NULL);
	struct attach_attr attach = { .op_mask = C_SEND | C_WRITE };
	CHECK(!attach_cntr(qp, requests, &attach));
	attach.op_mask = C_WRITE | C_READ;
	CHECK(attach_cntr(qp, bytes, &attach) == EBUSY);
	attach.op_mask = C_READ;
	CHECK(!attach_cntr(qp, bytes, &attach));
	attach.op_mask = C_RECV;
	CHECK(!attach_cntr(peer, receives, &attach));
	attach.op_mask = C_REMOTE_READ | C_REMOTE_WRITE;
	CHECK(!attach_cntr(peer, remote, &attach));
	attach.op_mask = 64;
	CHECK(attach_cntr(qp, bytes, &attach) == EOPNOTSUPP);
	attach.op_mask = C_RECV, attach.comp_mask = 1;
	CHECK(attach_cntr(qp, bytes, &attach) == EINVAL);
	connect_to(qp, peer->qp_num);
	connect_to(peer, qp->qp_num);
	attach.comp_mask = 0;
	CHECK(attach_cntr(qp, bytes, &attach) == EINVAL);

	struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof(memory), ACCESS);
	CHECK(mr);
	for (int i = 0; i < 3; i++) {
		struct ibv_recv_wr recv = { .wr_id = i }, *bad;
		CHECK(!ibv_post_recv(peer, &recv, &bad));
	}
	/* Unsignaled requests are counted too. */
	const uint64_t to = (uintptr_t)memory + 4096;
	post(qp, IBV_WR_SEND, mr, 0, 0, 0, 0);
	post(qp, IBV_WR_RDMA_WRITE, mr, 3000, to, mr->rkey, 0);
	post(qp, IBV_WR_RDMA_WRITE, mr, 0, to, mr->rkey, 0);
	post(qp, IBV_WR_RDMA_READ, mr, 3000, to, mr->rkey, 0);
	post(qp, IBV_WR_RDMA_READ, mr, 500, to, mr->rkey, IBV_SEND_SIGNALED);
	for (int i = 0; i < 2; i++)
		CHECK(completion().status == IBV_WC_SUCCESS);
	CHECK(completed(requests) == 3 && !failed(requests));
	CHECK(completed(bytes) == 3500 && !failed(bytes));
	CHECK(completed(receives) == 1 && completed(remote) == 4 && !failed(receives) && !failed(remote));

	/* A refused WRITE and a flushed SEND of one side, two flushed receives of the other. */
	post(qp, IBV_WR_RDMA_WRITE, mr, 8, to, mr->rkey ^ 0xff00, IBV_SEND_SIGNALED);
	int refused = 0, flushed = 0;
	while (refused + flushed < 3) {
		enum ibv_wc_status status = completion().status;
		CHECK(status == IBV_WC_REM_ACCESS_ERR || status == IBV_WC_WR_FLUSH_ERR);
		*(status == IBV_WC_REM_ACCESS_ERR ? &refused : &flushed) += 1;
	}
	CHECK(refused == 1 && failed(receives) == 2);
	post(qp, IBV_WR_SEND, mr, 0, 0, 0, IBV_SEND_SIGNALED);
	CHECK(completion().status == IBV_WC_WR_FLUSH_ERR);
	CHECK(completed(requests) == 3 && failed(requests) == 2 && completed(remote) == 4);

	/* The values of an attached counter can be changed. */
	CHECK(!set_cntr(requests, 100) && !inc_cntr(requests, 11) && completed(requests) == 111);
	CHECK(!set_err_cntr(requests, UINT64_MAX) && !inc_err_cntr(requests, 2) && failed(requests) == 1);
	CHECK(destroy_cntr(requests) == EBUSY);
	CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_qp(peer));
	CHECK(!destroy_cntr(requests) && !destroy_cntr(receives) && !destroy_cntr(remote) && !destroy_cntr(bytes));
	CHECK(destroy_cntr(requests) == ENOENT && set_cntr(requests, 0) == ENOENT);
}

static struct ibv_wc flush(struct ibv_qp_ex *ex, struct ibv_mr *mr, uint8_t level)
{
	ibv_wr_start(ex);
	ex->wr_id = 5, ex->wr_flags = IBV_SEND_SIGNALED;
	((struct qp_ex_65 *)ex)->wr_flush(ex, mr->rkey, (uintptr_t)memory, 4096, FLUSH_GLOBAL, level);
	CHECK(!ibv_wr_complete(ex));
	return completion();
}

static void flushes(void)
{
	open_first();
	struct ibv_qp_init_attr_ex init = {
		.send_cq = cq, .recv_cq = cq, .pd = pd, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 1, .max_recv_sge = 1 },
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = WITH_FLUSH,
	};
	struct ibv_qp *qp = ibv_create_qp_ex(context, &init);
	struct ibv_qp_ex *ex = qp ? ibv_qp_to_qp_ex(qp) : NULL;
	CHECK(ex);
	struct qp_ex_65 *with_flush = (struct qp_ex_65 *)ex;
	struct ibv_qp *peer = create_qp(NULL);
	struct ibv_qp_attr permit = { .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | ACCESS_FLUSH_GLOBAL };
	connect_to(qp, peer->qp_num);
	connect_to(peer, qp->qp_num);
	CHECK(!ibv_modify_qp(peer, &permit, IBV_QP_ACCESS_FLAGS));
	struct ibv_mr *flushable = ibv_reg_mr(pd, memory, 4096, ACCESS | ACCESS_FLUSH_GLOBAL);
	CHECK(flushable);
	ibv_wr_start(ex);
	with_flush->wr_flush(ex, flushable->rkey, (uintptr_t)memory, 4096, FLUSH_GLOBAL, 2);
	CHECK(ibv_wr_complete(ex) == EINVAL);
	ibv_wr_start(ex);
	with_flush->wr_flush(ex, flushable->rkey, (uintptr_t)memory, 4096, 4, 0);
	CHECK(ibv_wr_complete(ex) == EINVAL);
	for (uint8_t level = 0; level <= FLUSH_MR; level++) {
		struct ibv_wc wc = flush(ex, flushable, level);
		CHECK(wc.status == IBV_WC_SUCCESS && (int)wc.opcode == WC_FLUSH && wc.wr_id == 5);
	}
	struct ibv_mr *plain = ibv_reg_mr(pd, memory, 4096, ACCESS);
	CHECK(plain && flush(ex, plain, 0).status == IBV_WC_REM_ACCESS_ERR);
	/* A datagram service has no FLUSH. */
	init.qp_type = IBV_QPT_UD;
	CHECK(!ibv_create_qp_ex(context, &init) && errno == EOPNOTSUPP);
}

static struct rdma_cm_event *next(struct rdma_event_channel *channel, struct rdma_cm_id *id)
{
	struct rdma_cm_event *event;
	CHECK(!rdma_get_cm_event(channel, &event) && event->id == id && !event->listen_id);
	return event;
}

static void *wakes(void *id)
{
	CHECK(!write_cm_event(id, EVENT_USER, -7, 0x123456789abcdef0));
	return NULL;
}

static void cm_events(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *id, *synchronous;
	struct rdma_addrinfo *info = NULL, hints = { .ai_flags = RAI_FROM_DNS, .ai_port_space = RDMA_PS_TCP };
	struct rdma_cm_event *event;
	pthread_t thread;
	CHECK(channel && !rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));

	/* The program's own event wakes a waiting thread. */
	CHECK(!pthread_create(&thread, NULL, wakes, id));
	event = next(channel, id);
	uint64_t arg;
	memcpy(&arg, &event->param, sizeof(arg));
	CHECK((int)event->event == EVENT_USER && event->status == -7 && arg == 0x123456789abcdef0);
	CHECK(!strcmp(rdma_event_str(event->event), "RDMA_CM_EVENT_USER"));
	CHECK(!pthread_join(thread, NULL) && !rdma_ack_cm_event(event));
	FAILS(write_cm_event(id, RDMA_CM_EVENT_ESTABLISHED, 0, 0), -1, EINVAL);

	FAILS(query_addrinfo(id, &info), -1, ENODATA);
	CHECK(!resolve_addrinfo(id, at, "7471", &hints));
	event = next(channel, id);
	CHECK((int)event->event == ADDRINFO_RESOLVED && !event->status && !rdma_ack_cm_event(event));
	for (int i = 0; i < 2; i++) {
		CHECK(!query_addrinfo(id, &info) && info->ai_qp_type == IBV_QPT_RC && info->ai_port_space == RDMA_PS_TCP);
		struct sockaddr_in *dst = (struct sockaddr_in *)info->ai_dst_addr;
		CHECK(dst->sin_port == htons(7471) && dst->sin_addr.s_addr == inet_addr(at) && !info->ai_next);
		if (!i)
			rdma_freeaddrinfo(info);
	}
	CHECK(!rdma_resolve_addr(id, NULL, info->ai_dst_addr, 2000));
	event = next(channel, id);
	CHECK(event->event == RDMA_CM_EVENT_ADDR_RESOLVED && !rdma_ack_cm_event(event));
	rdma_freeaddrinfo(info);

	hints.ai_flags = RAI_NUMERICHOST;
	CHECK(!resolve_addrinfo(id, "host.invalid", NULL, &hints));
	event = next(channel, id);
	CHECK((int)event->event == ADDRINFO_ERROR && event->status < 0 && !rdma_ack_cm_event(event));
	FAILS(resolve_addrinfo(id, NULL, NULL, NULL), -1, EINVAL);
	hints.ai_flags = RAI_FROM_SA;
	FAILS(resolve_addrinfo(id, NULL, "1", &hints), -1, EOPNOTSUPP);
	hints.ai_flags |= RAI_FROM_DNS;
	FAILS(resolve_addrinfo(id, NULL, "1", &hints), -1, EINVAL);

	/* A synchronous id waits for the end. */
	CHECK(!rdma_create_id(NULL, &synchronous, NULL, RDMA_PS_TCP));
	CHECK(!resolve_addrinfo(synchronous, at, "7471", NULL) && !query_addrinfo(synchronous, &info));
	CHECK(!rdma_resolve_addr(synchronous, NULL, info->ai_dst_addr, 2000));
	rdma_freeaddrinfo(info);
	/* The id of a resolution in progress can be destroyed. */
	CHECK(!resolve_addrinfo(id, at, "7471", NULL));
	CHECK(!rdma_destroy_id(id) && !rdma_destroy_id(synchronous));
	rdma_destroy_event_channel(channel);
}

static struct sockaddr_in address = { .sin_family = AF_INET };

static void *connects(void *fd)
{
	CHECK(!rconnect(*(int *)fd, (struct sockaddr *)&address, sizeof(address)));
	return NULL;
}

/* A set, and a descriptor to add to it. */
static int late[2];

static void *adds(void *unused)
{
	struct epoll_event event = { .events = EPOLLIN, .data.u64 = 99 };
	usleep(50 * 1000);
	CHECK(!ep_ctl(late[0], EPOLL_CTL_ADD, late[1], &event));
	return unused;
}

static void sets(void)
{
	struct epoll_event out[4], event = { .events = EPOLLIN, .data.u64 = 1 };
	socklen_t len = sizeof(address);
	int pipes[2], set = ep_create(EPOLL_CLOEXEC), listening = rsocket(AF_INET, SOCK_STREAM, 0);
	int client = rsocket(AF_INET, SOCK_STREAM, 0);
	pthread_t thread;
	CHECK(set >= 0 && fcntl(set, F_GETFD) == FD_CLOEXEC && listening >= 0 && client >= 0 && !pipe(pipes));
	FAILS(ep_create(1), -1, EINVAL);
	CHECK(!rbind(listening, (struct sockaddr *)&address, len) && !rlisten(listening, 1));
	CHECK(!rgetsockname(listening, (struct sockaddr *)&address, &len));

	/* Like librdmacm's, the call returns the error number. */
	CHECK(!ep_ctl(set, EPOLL_CTL_ADD, listening, &event));
	CHECK(ep_ctl(set, EPOLL_CTL_ADD, listening, &event) == EEXIST && errno == EEXIST);
	CHECK(ep_ctl(set, EPOLL_CTL_MOD, client, &event) == ENOENT);
	CHECK(ep_ctl(set, EPOLL_CTL_DEL, client, NULL) == ENOENT);
	CHECK(ep_ctl(set, 77, listening, &event) == EINVAL);
	CHECK(ep_ctl(set, EPOLL_CTL_ADD, client, NULL) == EINVAL);
	CHECK(ep_ctl(listening, EPOLL_CTL_ADD, client, &event) == EINVAL);
	FAILS(ep_wait(set, out, 0, 0), -1, EINVAL);
	FAILS(ep_wait(set, NULL, 4, 0), -1, EINVAL);
	FAILS(ep_wait(listening, out, 4, 0), -1, EINVAL);
	CHECK(ep_wait(set, out, 4, 0) == 0 && ep_wait(set, out, 4, 10) == 0);

	/* An incoming connection, then its data; level-triggered. */
	CHECK(!pthread_create(&thread, NULL, connects, &client));
	CHECK(ep_wait(set, out, 4, -1) == 1 && out[0].events == EPOLLIN && out[0].data.u64 == 1);
	int server = raccept(listening, NULL, NULL);
	CHECK(server >= 0 && !pthread_join(thread, NULL));
	event.data.u64 = 2;
	CHECK(!ep_ctl(set, EPOLL_CTL_ADD, server, &event) && ep_wait(set, out, 4, 0) == 0);
	CHECK(rsend(client, "ab", 2, 0) == 2);
	for (int i = 0; i < 2; i++)
		CHECK(ep_wait(set, out, 4, -1) == 1 && out[0].events == EPOLLIN && out[0].data.u64 == 2);
	char bytes[2];
	CHECK(rrecv(server, bytes, 2, 0) == 2 && ep_wait(set, out, 4, 0) == 0);
	event.events = EPOLLIN | EPOLLOUT, event.data.u64 = 3;
	CHECK(!ep_ctl(set, EPOLL_CTL_MOD, server, &event));
	CHECK(ep_wait(set, out, 4, -1) == 1 && out[0].events == EPOLLOUT && out[0].data.u64 == 3);

	/* Other descriptors, and more events than the program asks for. */
	event.events = EPOLLIN, event.data.u64 = 4;
	CHECK(write(pipes[1], "x", 1) == 1 && !ep_ctl(set, EPOLL_CTL_ADD, pipes[0], &event));
	CHECK(ep_wait(set, out, 1, -1) == 1 && ep_wait(set, out, 4, -1) == 2 && out[0].data.u64 + out[1].data.u64 == 7);
	CHECK(!ep_ctl(set, EPOLL_CTL_DEL, server, NULL));
	CHECK(ep_wait(set, out, 4, -1) == 1 && out[0].data.u64 == 4);
	CHECK(read(pipes[0], bytes, 1) == 1 && ep_wait(set, out, 4, 0) == 0);
	CHECK(!ep_ctl(set, EPOLL_CTL_DEL, pipes[0], NULL));

	/* A thread that waits already notices a new descriptor. */
	CHECK(write(pipes[1], "x", 1) == 1);
	late[0] = set, late[1] = pipes[0];
	CHECK(!pthread_create(&thread, NULL, adds, NULL));
	CHECK(ep_wait(set, out, 4, 10000) == 1 && out[0].data.u64 == 99 && !pthread_join(thread, NULL));
	CHECK(!close(pipes[0]) && ep_wait(set, out, 4, -1) == 1 && out[0].events == (EPOLLERR | EPOLLHUP));

	CHECK(!rclose(set));
	FAILS(ep_wait(set, out, 4, 0), -1, EINVAL);
	/* Programs of release 65 close a set with `close`. */
	int second = ep_create(0);
	CHECK(second >= 0 && !close(second) && ep_create(0) == second);
	CHECK(ep_wait(second, out, 4, 0) == 0);
	CHECK(!rclose(server) && !rclose(client) && !rclose(listening));
}

int main(int argc, char **argv)
{
	const struct {
		const char *name;
		void (*run)(void);
	} cases[] = { { "dma handles", dma_handles }, { "registration", registration }, { "buffers", buffers },
		      { "counters", counters }, { "flushes", flushes }, { "cm events", cm_events }, { "sets", sets } };
	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		if (argc == 3 && !strcmp(argv[1], cases[i].name)) {
			at = argv[2];
			address.sin_addr.s_addr = inet_addr(at);
			cases[i].run();
			return 0;
		}
	}
	fprintf(stderr, "unknown case\n");
	return 2;
}
