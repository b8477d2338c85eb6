/* What calls of verbs return, and what they write into the program's structs: one case by name. */

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
				       IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_MW_BIND);
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

/* A bind opens the window of `mw`, whatever index the request's key has. */
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

	/* The same call by call. What is given up changes no key. */
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

	/* Of a list only the binds before the refused request change keys. */
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

int main(int argc, char **argv)
{
	const struct {
		const char *name;
		void (*run)(void);
	} cases[] = { { "windows", windows } };
	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		if (argc == 2 && !strcmp(argv[1], cases[i].name)) {
			cases[i].run();
			return 0;
		}
	}
	fprintf(stderr, "there is no case of that name\n");
	return 2;
}
