/* vsh, a verbs shell: reads one command per line from stdin and prints one line of response,
 * "ok ..." or "err CALL: why (errno)", so that a program outside the guest can drive real
 * QPs without a side channel. README.md in this directory documents the commands.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MAXW 256	/* maximum number of words per line */
#define MAXSGE 32

enum kind { FREE, PD, CQ, MR, QP, SRQ, MW };

struct obj {
	enum kind kind;
	char name[24];
	union {
		struct ibv_pd *pd;
		struct ibv_cq *cq;
		struct ibv_qp *qp;
		struct ibv_srq *srq;
		struct ibv_mw *mw;
		struct {
			struct ibv_mr *mr;
			uint8_t *mem;
			size_t len;
			uint64_t addr;	/* address of byte 0 in work requests (IOVA) */
		};
	};
};

static struct ibv_context *ctx;
static struct obj objs[1024];
static char *w[MAXW];
static int nw;

/* ---- responses ---- */

static void say(const char *f, ...)
{
	va_list v;
	va_start(v, f);
	vprintf(f, v);
	va_end(v);
	putchar('\n');
	fflush(stdout);
}

#define OK(...) do { say("ok" __VA_ARGS__); return; } while (0)
#define ERR(...) do { say("err " __VA_ARGS__); return; } while (0)
#define ERRNO(what, e) ERR("%s: %s (%d)", what, strerror(e), e)
#define TRY(what, call) do { int r_ = (call); if (r_) ERRNO(what, r_ < 0 ? errno : r_); } while (0)

/* ---- arguments ---- */

static const char *opt(const char *k)
{
	size_t n = strlen(k);
	for (int i = 1; i < nw; i++)
		if (!strncmp(w[i], k, n) && w[i][n] == '=')
			return w[i] + n + 1;
	return NULL;
}

static uint64_t num(const char *k, uint64_t dflt)
{
	const char *s = opt(k);
	return s ? strtoull(s, NULL, 0) : dflt;
}

static uint64_t arg(int i)
{
	return i < nw ? strtoull(w[i], NULL, 0) : 0;
}

static struct obj *find(const char *name)
{
	for (struct obj *o = objs; name && o < objs + 1024; o++)
		if (o->kind && !strcmp(o->name, name))
			return o;
	return NULL;
}

static struct obj *find_kind(const char *name, enum kind k)
{
	struct obj *o = find(name);
	return o && o->kind == k ? o : NULL;
}

/* Returns a free entry with this name. The entry is taken once the caller sets its kind. */
static struct obj *fresh(const char *name)
{
	for (struct obj *o = objs; o < objs + 1024; o++)
		if (!o->kind) {
			memset(o, 0, sizeof *o);
			snprintf(o->name, sizeof o->name, "%s", name);
			return o;
		}
	return NULL;
}

static int access_of(const char *s)
{
	int a = 0;
	for (; *s; s++)
		a |= *s == 'l' ? IBV_ACCESS_LOCAL_WRITE :
		     *s == 'w' ? IBV_ACCESS_REMOTE_WRITE :
		     *s == 'r' ? IBV_ACCESS_REMOTE_READ :
		     *s == 'a' ? IBV_ACCESS_REMOTE_ATOMIC :
		     *s == 'b' ? IBV_ACCESS_MW_BIND :
		     *s == 'z' ? IBV_ACCESS_ZERO_BASED :
		     /* IBV_ACCESS_FLUSH_GLOBAL and _PERSISTENT, which rdma-core 44 does not define */
		     *s == 'f' ? 1 << 8 :
		     *s == 'p' ? 1 << 9 : 0;
	return a;
}

/* Returns the code of an MTU in bytes, or 0, which the kernel rejects, for any other number. */
static enum ibv_mtu mtu_of(unsigned n)
{
	return n == 4096 ? IBV_MTU_4096 : n == 2048 ? IBV_MTU_2048 : n == 1024 ? IBV_MTU_1024 :
	       n == 512 ? IBV_MTU_512 : n == 256 ? IBV_MTU_256 : 0;
}

/* Sets the address vector from the arguments. Returns 0 if gid= is missing or invalid. */
static int path(struct ibv_ah_attr *a)
{
	a->is_global = 1;
	a->port_num = 1;
	a->sl = num("sl", 0);
	a->grh.sgid_index = num("sgid", 1);
	a->grh.hop_limit = num("hop", 64);
	a->grh.traffic_class = num("tc", 0);
	a->grh.flow_label = num("flow", 0);
	return opt("gid") && inet_pton(AF_INET6, opt("gid"), &a->grh.dgid) == 1;
}

/* Parses MR OFF LEN (for an atomic MR OFF), repeated, from word I to the first key=value. Returns the number of
 * elements, or -1 after reporting an error. */
static int sges(struct ibv_sge *s, int i, int atomic)
{
	int n = 0;
	while (i < nw && !strchr(w[i], '=')) {
		struct obj *m = find_kind(w[i], MR);
		int words = atomic ? 2 : 3;
		if (!m || i + words > nw || n == MAXSGE) {
			say(!m ? "err no mr %s" : "err %s: want MR OFF LEN, at most 32 times", w[i]);
			return -1;
		}
		/* Not checked against the MR, because tests post work requests beyond its end. */
		s[n++] = (struct ibv_sge){ m->addr + arg(i + 1), atomic ? 8 : arg(i + 2), m->mr->lkey };
		i += words;
	}
	return n;
}

/* ---- device ---- */

static void device(void)
{
	struct ibv_port_attr p;
	static const char *st[] = { "NOP", "DOWN", "INIT", "ARMED", "ACTIVE", "DEFER" };
	TRY("query_port", ibv_query_port(ctx, 1, &p));
	OK(" name=%s state=%s active_mtu=%d max_mtu=%d", ibv_get_device_name(ctx->device),
	   p.state < 6 ? st[p.state] : "?", 128 << p.active_mtu, 128 << p.max_mtu);
}

static void gid(void)
{
	union ibv_gid g;
	char b[64];
	printf("ok");
	for (int i = 0; i < 16; i++)
		if (!ibv_query_gid(ctx, 1, i, &g) && (g.global.subnet_prefix || g.global.interface_id))
			printf(" %d=%s", i, inet_ntop(AF_INET6, &g, b, sizeof b));
	say("");
}

static void async(void)
{
	struct ibv_async_event e;
	struct pollfd p = { ctx->async_fd, POLLIN, 0 };
	poll(&p, 1, arg(1));
	printf("ok");
	while (!ibv_get_async_event(ctx, &e)) {
		const char *name = "";
		for (struct obj *o = objs; o < objs + 1024; o++)
			if ((o->kind == QP && o->qp == e.element.qp) || (o->kind == CQ && o->cq == e.element.cq) ||
			    (o->kind == SRQ && o->srq == e.element.srq))
				name = o->name;
		printf(" %d:%s", e.event_type, name);
		ibv_ack_async_event(&e);
	}
	say("");
}

/* ---- objects ---- */

static void make(struct obj *o, enum kind kind)
{
	struct obj *pd = find_kind(opt("pd") ? opt("pd") : "pd", PD);
	if (kind != PD && kind != CQ && !pd)
		ERR("no pd");
	if (kind == PD) {
		o->pd = ibv_alloc_pd(ctx);
		if (!o->pd) ERRNO("alloc_pd", errno);
		o->kind = kind;
		OK("");
	}
	if (kind == CQ) {
		o->cq = ibv_create_cq(ctx, num("cqe", 4096), NULL, NULL, 0);
		if (!o->cq) ERRNO("create_cq", errno);
		o->kind = kind;
		OK(" cqe=%d", o->cq->cqe);
	}
	if (kind == MR) {
		int acc = access_of(opt("access") ? opt("access") : "lwra");
		o->len = arg(2);
		o->mem = aligned_alloc(4096, (o->len + 4096) & ~4095ull);
		if (!o->mem) ERRNO("aligned_alloc", ENOMEM);
		memset(o->mem, 0, o->len);
		o->addr = num("iova", (uintptr_t)o->mem);
		o->mr = ibv_reg_mr_iova(pd->pd, o->mem, o->len, o->addr, acc);
		if (!o->mr) {
			free(o->mem);
			ERRNO("reg_mr", errno);
		}
		o->kind = kind;
		OK(" addr=%#llx lkey=%#x rkey=%#x", (unsigned long long)o->addr, o->mr->lkey, o->mr->rkey);
	}
	if (kind == SRQ) {
		struct ibv_srq_init_attr a = { .attr = { .max_wr = num("wr", 64), .max_sge = num("sge", 4) } };
		o->srq = ibv_create_srq(pd->pd, &a);
		if (!o->srq) ERRNO("create_srq", errno);
		o->kind = kind;
		OK("");
	}
	if (kind == MW) {
		o->mw = ibv_alloc_mw(pd->pd, arg(2) == 1 ? IBV_MW_TYPE_1 : IBV_MW_TYPE_2);
		if (!o->mw) ERRNO("alloc_mw", errno);
		o->kind = kind;
		OK(" rkey=%#x", o->mw->rkey);
	}
	struct obj *cq = find_kind(opt("cq") ? opt("cq") : "cq", CQ), *srq = find_kind(opt("srq"), SRQ);
	struct obj *scq = opt("scq") ? find_kind(opt("scq"), CQ) : cq, *rcq = opt("rcq") ? find_kind(opt("rcq"), CQ) : cq;
	if (!scq || !rcq) ERR("no cq");
	if (opt("srq") && !srq) ERR("no srq");
	const char *t = nw > 2 ? w[2] : "";
	struct ibv_qp_init_attr a = {
		.send_cq = scq->cq, .recv_cq = rcq->cq, .srq = srq ? srq->srq : NULL,
		.cap = { .max_send_wr = num("sq", 64), .max_recv_wr = num("rq", 64), .max_send_sge = num("sge", 4),
			 .max_recv_sge = num("sge", 4), .max_inline_data = num("inline", 64) },
		.qp_type = !strcmp(t, "rc") ? IBV_QPT_RC : !strcmp(t, "uc") ? IBV_QPT_UC :
			   !strcmp(t, "ud") ? IBV_QPT_UD : 0 };
	if (!a.qp_type) ERR("qp: want rc, uc or ud");
#ifdef WITH_FLUSH
	if (num("ex", 0)) {
		struct ibv_qp_init_attr_ex e = { .send_cq = a.send_cq, .recv_cq = a.recv_cq, .srq = a.srq, .cap = a.cap,
						 .qp_type = a.qp_type, .pd = pd->pd,
						 .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
						 .send_ops_flags = IBV_QP_EX_WITH_FLUSH | IBV_QP_EX_WITH_ATOMIC_WRITE };
		o->qp = ibv_create_qp_ex(pd->pd->context, &e);
	} else
#endif
	o->qp = ibv_create_qp(pd->pd, &a);
	if (!o->qp) ERRNO("create_qp", errno);
	o->kind = QP;
	OK(" qpn=%#x", o->qp->qp_num);
}

static void destroy(struct obj *o)
{
	switch (o->kind) {
	case PD: TRY("dealloc_pd", ibv_dealloc_pd(o->pd)); break;
	case CQ: TRY("destroy_cq", ibv_destroy_cq(o->cq)); break;
	case QP: TRY("destroy_qp", ibv_destroy_qp(o->qp)); break;
	case SRQ: TRY("destroy_srq", ibv_destroy_srq(o->srq)); break;
	case MW: TRY("dealloc_mw", ibv_dealloc_mw(o->mw)); break;
	case MR:
		TRY("dereg_mr", ibv_dereg_mr(o->mr));
		free(o->mem);
		break;
	case FREE: break;
	}
	o->kind = FREE;
	OK("");
}

/* ---- memory ---- */

static void memory(const char *c)
{
	struct obj *m = find_kind(w[1], MR);
	if (!m) ERR("no mr %s", w[1]);
	int set = !strcmp(c, "set");
	if (nw < 4) ERR("%s: want MR OFF %s", c, set ? "HEX" : "LEN");
	size_t off = arg(2), len = set ? strlen(w[3]) / 2 : arg(3);
	if (off > m->len || len > m->len - off) ERR("%s: beyond the end of %s", c, w[1]);
	uint8_t *p = m->mem + off;
	if (set) {
		for (size_t i = 0; i < len; i++) {
			char h[3] = { w[3][2 * i], w[3][2 * i + 1], 0 };
			p[i] = strtoul(h, NULL, 16);
		}
		OK("");
	}
	if (!strcmp(c, "fill")) {
		memset(p, arg(4), len);
		OK("");
	}
	if (!strcmp(c, "pattern")) {	/* differs from byte to byte and from packet to packet */
		for (size_t i = 0; i < len; i++)
			p[i] = arg(4) + i + (i >> 8);
		OK("");
	}
	if (!strcmp(c, "hash")) {	/* FNV-1a, 64 bit */
		uint64_t h = 0xcbf29ce484222325;
		for (size_t i = 0; i < len; i++)
			h = (h ^ p[i]) * 0x100000001b3;
		OK(" hash=%#llx", (unsigned long long)h);
	}
	printf("ok ");
	for (size_t i = 0; i < len; i++)
		printf("%02x", p[i]);
	say("");
}

/* ---- states ---- */

/* Moves the QP to INIT, RTR or RTS. Returns NULL, or the name of the failed step, with errno set. */
static const char *step(struct ibv_qp *qp, enum ibv_qp_state to)
{
	struct ibv_qp_attr a = { .qp_state = to, .port_num = 1 };
	int ud = qp->qp_type == IBV_QPT_UD, rc = qp->qp_type == IBV_QPT_RC, mask = IBV_QP_STATE;
	const char *what = "";
	if (to == IBV_QPS_INIT) {
		what = "init";
		a.pkey_index = num("pkey_index", 0);
		a.qkey = num("qkey", 0x11111111);
		a.qp_access_flags = access_of(opt("access") ? opt("access") : "wra");
		mask |= IBV_QP_PKEY_INDEX | IBV_QP_PORT | (ud ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS);
	} else if (to == IBV_QPS_RTR) {
		what = "rtr";
		if (!ud) {
			if (!path(&a.ah_attr)) {
				errno = EDESTADDRREQ;
				return "rtr: gid=";
			}
			a.path_mtu = mtu_of(num("mtu", 1024));
			a.dest_qp_num = num("qpn", 0);
			a.rq_psn = num("rq_psn", 0);
			a.max_dest_rd_atomic = num("dest_rd", 16);
			a.min_rnr_timer = num("rnr", 1);
			mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
			mask |= rc ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0;
		}
	} else {
		what = "rts";
		a.sq_psn = num("sq_psn", 0);
		a.timeout = num("timeout", 14);
		a.retry_cnt = num("retry", 7);
		a.rnr_retry = num("rnr_retry", 7);
		a.max_rd_atomic = num("rd", 16);
		mask |= IBV_QP_SQ_PSN;
		mask |= rc ? IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC : 0;
	}
	int r = ibv_modify_qp(qp, &a, mask);
	if (!r)
		return NULL;
	errno = r < 0 ? errno : r;
	return what;
}

static void state(const char *c, struct ibv_qp *qp)
{
	static const char *names[] = { "RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR" };
	struct ibv_qp_attr a = { 0 };
	struct ibv_qp_init_attr ia;
	const char *bad = NULL;
	if (!strcmp(c, "query")) {
		TRY("query_qp", ibv_query_qp(qp, &a, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_RQ_PSN | IBV_QP_CAP, &ia));
		OK(" state=%s sq_psn=%#x rq_psn=%#x mtu=%d inline=%u", a.qp_state < 7 ? names[a.qp_state] : "?", a.sq_psn,
		   a.rq_psn, a.path_mtu ? 128 << a.path_mtu : 0, ia.cap.max_inline_data);
	}
	int all = !strcmp(c, "connect");
	if (!strcmp(c, "err") || !strcmp(c, "reset")) {
		a.qp_state = *c == 'e' ? IBV_QPS_ERR : IBV_QPS_RESET;
		TRY(c, ibv_modify_qp(qp, &a, IBV_QP_STATE));
		OK("");
	}
	if (all || !strcmp(c, "init"))
		bad = step(qp, IBV_QPS_INIT);
	if (!bad && (all || !strcmp(c, "rtr")))
		bad = step(qp, IBV_QPS_RTR);
	if (!bad && (all || !strcmp(c, "rts")))
		bad = step(qp, IBV_QPS_RTS);
	if (bad) ERRNO(bad, errno);
	OK("");
}

/* ---- multicast ---- */

/* Makes the IP layer join or leave a group on the wire. rxe receives only packets that the IP layer accepts, and
 * leaves joining to rdma_cm. Returns 0, or -1 with errno set. */
static int ip_membership(int join, const uint8_t *gid)
{
	static int socks[2] = { -1, -1 };
	static const uint8_t mapped[12] = { [10] = 0xff, [11] = 0xff };
	int v6 = memcmp(gid, mapped, 12) != 0, *s = &socks[v6];
	if (*s < 0 && (*s = socket(v6 ? AF_INET6 : AF_INET, SOCK_DGRAM, 0)) < 0)
		return -1;
	if (v6) {
		struct ipv6_mreq r = { .ipv6mr_interface = if_nametoindex("eth0") };
		memcpy(&r.ipv6mr_multiaddr, gid, 16);
		return setsockopt(*s, IPPROTO_IPV6, join ? IPV6_JOIN_GROUP : IPV6_LEAVE_GROUP, &r, sizeof r);
	}
	struct ip_mreqn r = { .imr_ifindex = if_nametoindex("eth0") };
	memcpy(&r.imr_multiaddr, gid + 12, 4);
	return setsockopt(*s, IPPROTO_IP, join ? IP_ADD_MEMBERSHIP : IP_DROP_MEMBERSHIP, &r, sizeof r);
}

static void mcast(const char *c, struct ibv_qp *qp)
{
	union ibv_gid g;
	int join = !strcmp(c, "attach");
	if (!opt("gid") || inet_pton(AF_INET6, opt("gid"), &g) != 1) ERR("%s: want gid=", c);
	if (join)
		TRY("attach_mcast", ibv_attach_mcast(qp, &g, 0));
	else
		TRY("detach_mcast", ibv_detach_mcast(qp, &g, 0));
	if (num("ip", 1))
		TRY("membership", ip_membership(join, g.raw));
	OK("");
}

static void shared(const char *c, struct ibv_srq *srq)
{
	struct ibv_srq_attr a = { .srq_limit = arg(2) };
	if (!strcmp(c, "limit")) {
		TRY("modify_srq", ibv_modify_srq(srq, &a, IBV_SRQ_LIMIT));
		OK("");
	}
	TRY("query_srq", ibv_query_srq(srq, &a));
	OK(" max_wr=%u max_sge=%u limit=%u", a.max_wr, a.max_sge, a.srq_limit);
}

/* ---- work requests and completions ---- */

static uint64_t work_id(void)
{
	static uint64_t last;
	return last = num("id", last + 1);
}

/* Binds a window; a type 1 window with length 0 is unbound. The response contains the new key: the library
 * chooses that of a type 1 window; that of a type 2 window is rkey=, by default the next key. */
static void bind_window(struct ibv_qp *qp)
{
	struct obj *mw = find_kind(nw > 2 ? w[2] : NULL, MW);
	struct obj *mr = find_kind(nw > 5 ? w[3] : NULL, MR);
	/* A bind without a region crashes: rdma-core's driver for rxe dereferences the region. */
	if (!mw || !mr) ERR("bind: want QP MW MR OFF LEN");
	struct ibv_mw_bind_info info = { .mr = mr->mr, .addr = mr->addr + arg(4), .length = arg(5),
					 .mw_access_flags = access_of(opt("access") ? opt("access") : "wra") };
	uint64_t id = work_id();
	unsigned flags = num("signal", 1) ? IBV_SEND_SIGNALED : 0;
	if (mw->mw->type == IBV_MW_TYPE_1) {
		struct ibv_mw_bind b = { .wr_id = id, .send_flags = flags, .bind_info = info };
		TRY("bind_mw", ibv_bind_mw(qp, mw->mw, &b));
	} else {
		struct ibv_send_wr wr = { .wr_id = id, .opcode = IBV_WR_BIND_MW, .send_flags = flags }, *bad;
		wr.bind_mw.mw = mw->mw;
		wr.bind_mw.rkey = num("rkey", ibv_inc_rkey(mw->mw->rkey));
		wr.bind_mw.bind_info = info;
		TRY("post_send", ibv_post_send(qp, &wr, &bad));
		mw->mw->rkey = wr.bind_mw.rkey;
	}
	OK(" wr_id=%llu rkey=%#x", (unsigned long long)id, mw->mw->rkey);
}

static void invalidate(struct ibv_qp *qp)
{
	struct ibv_send_wr wr = { .wr_id = work_id(), .opcode = IBV_WR_LOCAL_INV }, *bad;
	wr.send_flags = num("signal", 1) ? IBV_SEND_SIGNALED : 0;
	wr.invalidate_rkey = num("rkey", 0);
	TRY("post_send", ibv_post_send(qp, &wr, &bad));
	OK(" wr_id=%llu", (unsigned long long)wr.wr_id);
}

#ifdef WITH_FLUSH
/* Posts the operations that only ibv_wr_*() can post. */
static void extended(const char *c, struct ibv_qp *qp)
{
	struct ibv_qp_ex *x = ibv_qp_to_qp_ex(qp);
	uint64_t value = num("value", 0);
	if (!x) ERR("%s: want a qp made with ex=1", c);
	ibv_wr_start(x);
	x->wr_id = work_id();
	x->wr_flags = num("signal", 1) ? IBV_SEND_SIGNALED : 0;
	if (!strcmp(c, "flush"))
		ibv_wr_flush(x, num("rkey", 0), num("addr", 0), num("len", 0), num("type", IBV_FLUSH_GLOBAL),
			     num("level", IBV_FLUSH_RANGE));
	else
		ibv_wr_atomic_write(x, num("rkey", 0), num("addr", 0), &value);
	TRY("wr_complete", ibv_wr_complete(x));
	OK(" wr_id=%llu", (unsigned long long)x->wr_id);
}
#endif

static void post(const char *c, struct obj *o)
{
	struct ibv_sge s[MAXSGE];
	int atomic = !strcmp(c, "fadd") || !strcmp(c, "cswap");
	int n = sges(s, 2, atomic);
	if (n < 0)
		return;
	uint64_t id = work_id();
	if (!strcmp(c, "recv")) {
		struct ibv_recv_wr wr = { .wr_id = id, .sg_list = s, .num_sge = n }, *bad;
		if (o->kind == SRQ)
			TRY("post_srq_recv", ibv_post_srq_recv(o->srq, &wr, &bad));
		else
			TRY("post_recv", ibv_post_recv(o->qp, &wr, &bad));
		OK(" wr_id=%llu", (unsigned long long)id);
	}
	if (o->kind != QP) ERR("no qp %s", w[1]);
	struct ibv_send_wr wr = { .wr_id = id, .sg_list = s, .num_sge = n }, *bad;
	wr.send_flags = (num("signal", 1) ? IBV_SEND_SIGNALED : 0) | (num("se", 0) ? IBV_SEND_SOLICITED : 0) |
			(num("fence", 0) ? IBV_SEND_FENCE : 0) | (num("inline", 0) ? IBV_SEND_INLINE : 0);
	wr.imm_data = htonl(num("imm", 0));
	wr.wr.rdma.remote_addr = num("addr", 0);
	wr.wr.rdma.rkey = num("rkey", 0);
	int imm = opt("imm") != NULL;
	if (!strcmp(c, "send")) {
		wr.opcode = imm ? IBV_WR_SEND_WITH_IMM : IBV_WR_SEND;
		if (o->qp->qp_type == IBV_QPT_UD) {
			struct ibv_ah_attr ah = { 0 };
			if (!path(&ah)) ERR("send: want gid=");
			/* never destroyed, because it has to outlive the send */
			wr.wr.ud.ah = ibv_create_ah(o->qp->pd, &ah);
			if (!wr.wr.ud.ah) ERRNO("create_ah", errno);
			wr.wr.ud.remote_qpn = num("qpn", 0);
			wr.wr.ud.remote_qkey = num("qkey", 0x11111111);
		}
	} else if (!strcmp(c, "sendinv")) {
		wr.opcode = IBV_WR_SEND_WITH_INV;
		wr.invalidate_rkey = num("rkey", 0);
	} else if (!strcmp(c, "write")) {
		wr.opcode = imm ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE;
	} else if (!strcmp(c, "read")) {
		wr.opcode = IBV_WR_RDMA_READ;
	} else {
		wr.opcode = *c == 'f' ? IBV_WR_ATOMIC_FETCH_AND_ADD : IBV_WR_ATOMIC_CMP_AND_SWP;
		wr.wr.atomic.remote_addr = num("addr", 0);
		wr.wr.atomic.rkey = num("rkey", 0);
		wr.wr.atomic.compare_add = *c == 'f' ? num("add", 0) : num("cmp", 0);
		wr.wr.atomic.swap = num("swap", 0);
	}
	TRY("post_send", ibv_post_send(o->qp, &wr, &bad));
	OK(" wr_id=%llu", (unsigned long long)id);
}

static const char *status_name(unsigned s)
{
	static const char *n[] = {
		"SUCCESS", "LOC_LEN_ERR", "LOC_QP_OP_ERR", "LOC_EEC_OP_ERR", "LOC_PROT_ERR", "WR_FLUSH_ERR", "MW_BIND_ERR",
		"BAD_RESP_ERR", "LOC_ACCESS_ERR", "REM_INV_REQ_ERR", "REM_ACCESS_ERR", "REM_OP_ERR", "RETRY_EXC_ERR",
		"RNR_RETRY_EXC_ERR", "LOC_RDD_VIOL_ERR", "REM_INV_RD_REQ_ERR", "REM_ABORT_ERR", "INV_EECN_ERR",
		"INV_EEC_STATE_ERR", "FATAL_ERR", "RESP_TIMEOUT_ERR", "GENERAL_ERR" };
	return s < sizeof n / sizeof *n ? n[s] : "?";
}

static const char *op_name(unsigned o)
{
	static const char *n[] = { "SEND", "RDMA_WRITE", "RDMA_READ", "COMP_SWAP", "FETCH_ADD", "BIND_MW", "LOCAL_INV",
				   "TSO", "FLUSH", "ATOMIC_WRITE" };
	return o == IBV_WC_RECV ? "RECV" : o == IBV_WC_RECV_RDMA_WITH_IMM ? "RECV_RDMA_WITH_IMM" :
	       o < sizeof n / sizeof *n ? n[o] : "?";
}

static void poll_cq(void)
{
	struct obj *cq = find_kind(opt("cq") ? opt("cq") : "cq", CQ);
	if (!cq) ERR("no cq");
	int n = nw > 1 && !strchr(w[1], '=') ? arg(1) : 1, ms = nw > 2 && !strchr(w[2], '=') ? arg(2) : 1000, got = 0;
	struct timespec a, b;
	clock_gettime(CLOCK_MONOTONIC, &a);
	printf("ok");
	while (got < n) {
		struct ibv_wc wc;
		if (ibv_poll_cq(cq->cq, 1, &wc) == 1) {
			got++;
			printf(" wr_id=%llu,status=%s", (unsigned long long)wc.wr_id, status_name(wc.status));
			/* the following fields are undefined in a failed completion */
			if (wc.status == IBV_WC_SUCCESS) {
				printf(",op=%s,len=%u,flags=%#x", op_name(wc.opcode), wc.byte_len, wc.wc_flags);
				if (wc.wc_flags & IBV_WC_WITH_IMM)
					printf(",imm=%#x", ntohl(wc.imm_data));
				/* rxe sets the kernel's flag for invalidation, whose value is IBV_WC_IP_CSUM_OK here */
				if (wc.wc_flags & (IBV_WC_WITH_INV | IBV_WC_IP_CSUM_OK))
					printf(",inv=%#x", wc.invalidated_rkey);
				if (wc.wc_flags & IBV_WC_GRH)
					printf(",grh=1,src_qp=%#x", wc.src_qp);
			}
			printf(",qpn=%#x,vendor=%#x", wc.qp_num, wc.vendor_err);
			continue;
		}
		clock_gettime(CLOCK_MONOTONIC, &b);
		if ((b.tv_sec - a.tv_sec) * 1000 + (b.tv_nsec - a.tv_nsec) / 1000000 >= ms)
			break;
		usleep(200);
	}
	say("");
}

static int is(const char *list, const char *c)
{
	size_t n = strlen(c);
	for (const char *p = list; (p = strstr(p, c)); p += n)
		if (p[-1] == ' ' && p[n] == ' ')
			return 1;
	return 0;
}

static void command(const char *c)
{
	struct obj *o;
	if (!strcmp(c, "device")) { device(); return; }
	if (!strcmp(c, "gid")) { gid(); return; }
	if (!strcmp(c, "async")) { async(); return; }
	if (!strcmp(c, "poll")) { poll_cq(); return; }
	if (!strcmp(c, "quit")) { say("ok"); exit(0); }
	if (!is(" sleep pd cq mr mw srq qp destroy set get fill pattern hash init rtr rts connect err reset query "
		"attach detach limit bind localinv recv send sendinv write read fadd cswap "
#ifdef WITH_FLUSH
		"flush awrite "
#endif
		, c))
		ERR("what is %s", c);
	if (nw < 2) ERR("%s what", c);
	if (!strcmp(c, "sleep")) {
		usleep(1000 * arg(1));
		OK("");
	}
	if (is(" set get fill pattern hash ", c)) { memory(c); return; }
	o = find(w[1]);
	if (is(" pd cq mr mw srq qp ", c)) {
		if (o) ERR("%s exists", w[1]);
		if (strlen(w[1]) >= sizeof o->name) ERR("%s: the name is too long", w[1]);
		if (!(o = fresh(w[1]))) ERR("too many objects");
		make(o, !strcmp(c, "pd") ? PD : !strcmp(c, "cq") ? CQ : !strcmp(c, "mr") ? MR : !strcmp(c, "mw") ? MW :
			!strcmp(c, "srq") ? SRQ : QP);
		return;
	}
	if (!o) ERR("no %s", w[1]);
	if (!strcmp(c, "destroy")) { destroy(o); return; }
	if (o->kind == SRQ && is(" limit query ", c)) { shared(c, o->srq); return; }
	if (is(" init rtr rts connect err reset query bind localinv ", c)) {
		if (o->kind != QP) ERR("no qp %s", w[1]);
		if (!strcmp(c, "bind")) { bind_window(o->qp); return; }
		if (!strcmp(c, "localinv")) { invalidate(o->qp); return; }
	}
#ifdef WITH_FLUSH
	if (is(" flush awrite ", c)) {
		if (o->kind != QP) ERR("no qp %s", w[1]);
		extended(c, o->qp);
		return;
	}
#endif
	if (is(" init rtr rts connect err reset query ", c)) { state(c, o->qp); return; }
	if (!strcmp(c, "limit")) ERR("no srq %s", w[1]);
	if (is(" attach detach ", c)) {
		if (o->kind != QP) ERR("no qp %s", w[1]);
		mcast(c, o->qp);
		return;
	}
	if (o->kind != QP && o->kind != SRQ) ERR("no qp %s", w[1]);
	post(c, o);
}

int main(void)
{
	static char line[1 << 20];
	int n;
	struct ibv_device **l = ibv_get_device_list(&n);
	ctx = l && n ? ibv_open_device(l[0]) : NULL;
	if (!ctx) {
		fprintf(stderr, "vsh: no verbs device\n");
		return 1;
	}
	fcntl(ctx->async_fd, F_SETFL, O_NONBLOCK);
	struct obj *pd = fresh("pd");
	pd->pd = ibv_alloc_pd(ctx);
	pd->kind = PD;
	struct obj *cq = fresh("cq");
	cq->cq = ibv_create_cq(ctx, 4096, NULL, NULL, 0);
	cq->kind = CQ;
	if (!pd->pd || !cq->cq) {
		fprintf(stderr, "vsh: no pd or cq: %s\n", strerror(errno));
		return 1;
	}
	while (fgets(line, sizeof line, stdin)) {
		nw = 0;
		for (char *t = strtok(line, " \t\n"); t && nw < MAXW; t = strtok(NULL, " \t\n"))
			w[nw++] = t;
		if (nw && w[0][0] != '#')
			command(w[0]);
	}
	return 0;
}
