/* Faults on calls and objects (URXE_FAULTS): one case by name. The test sets the faults that each case states. */

/* RTLD_DEFAULT. */
#define _GNU_SOURCE

#include <dlfcn.h>
#include <rdma/rdma_cma.h>
#include <rdma/rsocket.h>
#include <sys/epoll.h>
#include <time.h>

#include "common.h"

static char memory[4096];

static void open_device(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	CHECK(list && list[0]);
	CHECK(context = ibv_open_device(list[0]));
	ibv_free_device_list(list);
	CHECK(pd = ibv_alloc_pd(context));
}

/* call:ibv_create_cq=ENOMEM@1 */
static void creation(void)
{
	open_device();
	errno = 0;
	CHECK(!ibv_create_cq(context, 64, NULL, NULL, 0) && errno == ENOMEM);
	CHECK(cq = ibv_create_cq(context, 64, NULL, NULL, 0));
	struct ibv_qp *qp = create_qp(NULL);
	connect_to_itself(qp);
	exchange(qp);
}

/* call:ibv_post_*=ENOSPC@1 for each of the three functions */
static void posts(void)
{
	open_first();
	struct ibv_qp *qp = create_qp(NULL);
	connect_to_itself(qp);
	struct ibv_send_wr second = { .wr_id = 2 }, send = { .wr_id = 1, .next = &second, .opcode = IBV_WR_SEND };
	struct ibv_send_wr *bad_send = NULL;
	CHECK(ibv_post_send(qp, &send, &bad_send) == ENOSPC && bad_send == &send);
	struct ibv_recv_wr recv = { .wr_id = 1 }, *bad_recv = NULL;
	CHECK(ibv_post_recv(qp, &recv, &bad_recv) == ENOSPC && bad_recv == &recv);
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(pd, &init);
	CHECK(srq);
	bad_recv = NULL;
	CHECK(ibv_post_srq_recv(srq, &recv, &bad_recv) == ENOSPC && bad_recv == &recv);
	/* Nothing was posted before. */
	exchange(qp);
}

/* call:*=EIO@1 for one function of each convention */
static void conventions(void)
{
	open_first();
	struct ibv_qp *qp = create_qp(NULL);
	union ibv_gid gid;
	struct ibv_wc wc;
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	int access = IBV_ACCESS_LOCAL_WRITE;
	/* Through a function pointer, and not constant, so that verbs.h chooses the function. */
	volatile int *chosen = &access;
	errno = 0;
	CHECK(!ibv_reg_mr(pd, memory, sizeof(memory), *chosen) && errno == EIO);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof(memory), *chosen);
	CHECK(mr);
	errno = 0;
	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, access) == IBV_REREG_MR_ERR_CMD && errno == EIO);
	errno = 0;
	CHECK(ibv_query_gid(context, 1, 0, &gid) == -1 && errno == EIO);
	CHECK(ibv_poll_cq(cq, 1, &wc) == -EIO);
	CHECK(ibv_req_notify_cq(cq, 0) == EIO);
	errno = 0;
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == EIO && errno == EIO);
	struct ibv_qp_attr now;
	struct ibv_qp_init_attr init;
	CHECK(!ibv_query_qp(qp, &now, IBV_QP_STATE, &init) && now.qp_state == IBV_QPS_RESET);
	errno = 0;
	CHECK(!rdma_create_event_channel() && errno == EIO);
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *id;
	CHECK(channel);
	errno = 0;
	CHECK(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == -1 && errno == EIO);
	CHECK(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
}

#define FAILS(what, why)                                  \
	do {                                                  \
		errno = 0;                                        \
		CHECK((what) && errno == (why));                  \
	} while (0)

/* The first call of each of these functions of rsockets fails. */
static void rsockets(void)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(1) };
	socklen_t len = sizeof(to);
	struct epoll_event event = { .events = EPOLLIN };
	/* Newer than the headers of some distributions. */
	int (*create)(int) = (int (*)(int))dlsym(RTLD_DEFAULT, "repoll_create");
	int (*ctl)(int, int, int, struct epoll_event *) =
		(int (*)(int, int, int, struct epoll_event *))dlsym(RTLD_DEFAULT, "repoll_ctl");
	int fd;
	CHECK(create && ctl);
	FAILS(rsocket(AF_INET, SOCK_STREAM, 0) == -1, ENFILE);
	CHECK((fd = rsocket(AF_INET, SOCK_STREAM, 0)) >= 0);
	FAILS(rconnect(fd, (struct sockaddr *)&to, len) == -1, ECONNREFUSED);
	FAILS(rgetpeername(fd, (struct sockaddr *)&to, &len) == -1, EIO);
	FAILS(rgetpeername(fd, (struct sockaddr *)&to, &len) == -1, ENOTCONN);
	FAILS(rsend(fd, memory, 1, 0) == -1, ECONNRESET);
	FAILS(rrecv(fd, memory, 1, 0) == -1, ECONNABORTED);
	FAILS(riomap(fd, memory, 1, PROT_WRITE, 0, -1) == -1, ENOMEM);
	FAILS(riowrite(fd, memory, 1, 0, 0) == (size_t)-1, EIO);
	FAILS(create(0) == -1, EMFILE);
	FAILS(ctl(fd, EPOLL_CTL_ADD, fd, &event) == ENOSPC, ENOSPC);
	FAILS(rclose(fd) == -1, EINTR);
	CHECK(!rclose(fd));
}

/* call:ibv_alloc_pd=slow@2,by=200ms */
static void slow(void)
{
	struct timespec start, end;
	open_device();
	CHECK(!clock_gettime(CLOCK_MONOTONIC, &start));
	CHECK(ibv_alloc_pd(context));
	CHECK(!clock_gettime(CLOCK_MONOTONIC, &end));
	double seconds = (double)(end.tv_sec - start.tv_sec) + (double)(end.tv_nsec - start.tv_nsec) / 1e9;
	CHECK(seconds >= 0.2);
}

/* call:ibv_open_device=ENODEV */
static void closed(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	CHECK(list && list[0]);
	errno = 0;
	CHECK(!ibv_open_device(list[0]) && errno == ENODEV);
	ibv_free_device_list(list);
}

/* port=down@50ms */
static void port(void)
{
	struct ibv_async_event event;
	struct ibv_port_attr attr;
	open_device();
	CHECK(!ibv_get_async_event(context, &event) && event.event_type == IBV_EVENT_PORT_ERR);
	ibv_ack_async_event(&event);
	CHECK(!ibv_query_port(context, 1, &attr) && attr.state == IBV_PORT_DOWN);
}

int main(int argc, char **argv)
{
	const struct {
		const char *name;
		void (*run)(void);
	} cases[] = {
		{ "creation", creation }, { "posts", posts }, { "conventions", conventions }, { "slow", slow }, { "closed", closed },
		{ "port", port }, { "rsockets", rsockets },
	};
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		if (argc == 2 && !strcmp(argv[1], cases[i].name)) {
			cases[i].run();
			return 0;
		}
	}
	return 2;
}
