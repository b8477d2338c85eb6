/* A peer process that SIGSTOP stops, as a debugger does at a breakpoint. `fails`: a SEND to it ends in RETRY_EXC_ERR. `survives`:
 * the SEND stays outstanding for several times the retry budget, and succeeds after SIGCONT. */

#include "common.h"

#include <sys/prctl.h>
#include <time.h>

/* connect_to() sets timeout 14 and 7 retries: 4.096 us * 2^14 * (1 + 7 * 1.5), as each retry waits half as long again. */
#define BUDGET (4.096e-6 * (1 << 14) * (1 + 7 * 1.5))

static double now(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec + time.tv_nsec / 1e9;
}

static void tell(int fd, uint32_t number)
{
	CHECK(write(fd, &number, sizeof(number)) == sizeof(number));
}

static uint32_t told(int fd)
{
	uint32_t number;
	CHECK(read(fd, &number, sizeof(number)) == sizeof(number));
	return number;
}

static struct ibv_qp *connected(int from, int to)
{
	open_first();
	struct ibv_qp *qp = create_qp(NULL);
	tell(to, qp->qp_num);
	connect_to(qp, told(from));
	return qp;
}

static struct ibv_wc completed(void)
{
	struct ibv_wc wc;
	int n;
	while (!(n = ibv_poll_cq(cq, 1, &wc)))
		;
	CHECK(n == 1);
	return wc;
}

static void receive_two(int from, int to)
{
	struct ibv_recv_wr recv = { .wr_id = 1 }, *bad;
	struct ibv_qp *qp = connected(from, to);
	CHECK(!ibv_post_recv(qp, &recv, &bad) && !ibv_post_recv(qp, &recv, &bad));
	for (int i = 0; i < 2; i++) {
		tell(to, i);
		CHECK(completed().status == IBV_WC_SUCCESS);
	}
	/* Waits until the peer has its acknowledgement. */
	told(from);
}

static void post(struct ibv_qp *qp)
{
	struct ibv_send_wr send = { .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad;
	CHECK(!ibv_post_send(qp, &send, &bad));
}

int main(int argc, char **argv)
{
	int down[2], up[2], status;
	CHECK(argc == 2 && !pipe(down) && !pipe(up));
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		receive_two(down[0], up[1]);
		return 0;
	}
	struct ibv_qp *qp = connected(up[0], down[1]);
	told(up[0]);
	post(qp);
	CHECK(completed().status == IBV_WC_SUCCESS);
	told(up[0]);

	CHECK(!kill(child, SIGSTOP) && waitpid(child, &status, WUNTRACED) == child && WIFSTOPPED(status));
	double begun = now();
	post(qp);
	if (!strcmp(argv[1], "fails")) {
		CHECK(completed().status == IBV_WC_RETRY_EXC_ERR);
		printf("failed after %.2f s\n", now() - begun);
		CHECK(!kill(child, SIGKILL) && waitpid(child, &status, 0) == child);
		return 0;
	}
	struct ibv_wc wc;
	while (now() - begun < 6 * BUDGET)
		CHECK(ibv_poll_cq(cq, 1, &wc) == 0);
	CHECK(!kill(child, SIGCONT));
	CHECK(completed().status == IBV_WC_SUCCESS);
	tell(down[1], 0);
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	return 0;
}
