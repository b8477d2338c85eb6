/* Common parts of the test programs: a device, and a queue pair connected to itself or to another process. */

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define UNUSED __attribute__((unused))

/* Whether CHECK demands that what succeeds leaves errno as it is. */
UNUSED static int keeps_errno;

#define CHECK(what)                                                                                  \
	do {                                                                                             \
		if (keeps_errno)                                                                             \
			errno = 77;                                                                              \
		if (!(what) || (keeps_errno && errno != 77)) {                                                                               \
			fprintf(stderr, "%s:%d: %s: errno %d\n", __FILE__, __LINE__, #what, errno);              \
			exit(1);                                                                                 \
		}                                                                                            \
	} while (0)

#ifdef __SANITIZE_ADDRESS__
static pid_t first_process;

__attribute__((constructor)) static void record_process(void)
{
	first_process = getpid();
}

/* Called by LeakSanitizer, which must report nothing in a forked child: the library forgets the objects of the parent
 * there without freeing them. */
int __lsan_is_turned_off(void)
{
	return getpid() != first_process;
}
#endif

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;

UNUSED static void open_first(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	CHECK(list && list[0]);
	CHECK(context = ibv_open_device(list[0]));
	ibv_free_device_list(list);
	CHECK(pd = ibv_alloc_pd(context));
	CHECK(cq = ibv_create_cq(context, 64, NULL, NULL, 0));
}

UNUSED static struct ibv_qp *create_qp(void *qp_context)
{
	struct ibv_qp_init_attr init = {
		.qp_context = qp_context,
		.send_cq = cq,
		.recv_cq = cq,
		.cap = { .max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	CHECK(qp);
	return qp;
}

/* Connects a queue pair to one at the same address. */
UNUSED static void connect_to(struct ibv_qp *qp, uint32_t peer)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.port_num = 1,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
		.max_rd_atomic = 4,
		.max_dest_rd_atomic = 4,
	};
	union ibv_gid gid;
	CHECK(!ibv_query_gid(context, 1, 0, &gid));
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	attr.qp_state = IBV_QPS_RTR;
	attr.path_mtu = IBV_MTU_1024;
	attr.dest_qp_num = peer;
	attr.ah_attr.is_global = 1;
	attr.ah_attr.port_num = 1;
	attr.ah_attr.grh.dgid = gid;
	attr.ah_attr.grh.hop_limit = 64;
	CHECK(!ibv_modify_qp(qp, &attr,
			     IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	attr.qp_state = IBV_QPS_RTS;
	attr.timeout = 14;
	attr.retry_cnt = attr.rnr_retry = 7;
	CHECK(!ibv_modify_qp(qp, &attr,
			     IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
				     IBV_QP_MAX_QP_RD_ATOMIC));
}

UNUSED static void connect_to_itself(struct ibv_qp *qp)
{
	connect_to(qp, qp->qp_num);
}

/* Sends a message without data to the queue pair itself, and expects both completions. */
UNUSED static void exchange(struct ibv_qp *qp)
{
	struct ibv_recv_wr recv = { .wr_id = 1 }, *bad_recv;
	struct ibv_send_wr send = { .wr_id = 2, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad_send;
	struct ibv_wc wc[2];
	int done = 0;
	CHECK(!ibv_post_recv(qp, &recv, &bad_recv));
	CHECK(!ibv_post_send(qp, &send, &bad_send));
	while (done < 2) {
		int n = ibv_poll_cq(cq, 2, wc);
		CHECK(n >= 0);
		for (int i = 0; i < n; i++)
			CHECK(wc[i].status == IBV_WC_SUCCESS);
		done += n;
	}
}
