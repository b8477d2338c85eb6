/* A program that forks while its device is busy: the child may do without it, destroy what it has a copy of, and open a device
 * of its own; the parent notices nothing. Ends with 0 if all went as it should. */

#include "common.h"

static volatile int stopping;

static void *talk(void *qp)
{
	while (!stopping)
		exchange(qp);
	return NULL;
}

static void in_child(struct ibv_qp *qp, struct ibv_mr *mr)
{
	struct ibv_context *parents = context;
	struct ibv_pd *parents_pd = pd;
	struct ibv_cq *parents_cq = cq;

	/* One of its own, beside what its parent has. */
	open_first();
	struct ibv_qp *own = create_qp(NULL);
	connect_to_itself(own);
	for (int i = 0; i < 100; i++)
		exchange(own);
	CHECK(!ibv_destroy_qp(own) && !ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd) && !ibv_close_device(context));

	/* Its parent's, as a program does that cleans up at its end. */
	CHECK(!ibv_destroy_qp(qp) && !ibv_dereg_mr(mr) && !ibv_destroy_cq(parents_cq));
	CHECK(!ibv_dealloc_pd(parents_pd) && !ibv_close_device(parents));
}

int main(void)
{
	static char buffer[4096];
	pthread_t thread;
	open_first();
	struct ibv_mr *mr = ibv_reg_mr(pd, buffer, sizeof(buffer), IBV_ACCESS_LOCAL_WRITE);
	struct ibv_qp *qp = create_qp(NULL);
	CHECK(mr);
	connect_to_itself(qp);
	CHECK(!pthread_create(&thread, NULL, talk, qp));
	for (int i = 0; i < 20; i++) {
		int status;
		pid_t child = fork();
		CHECK(child >= 0);
		if (child == 0) {
			alarm(20);
			in_child(qp, mr);
			/* With all that is done at the end of a program. */
			exit(0);
		}
		CHECK(waitpid(child, &status, 0) == child);
		CHECK(status == 0);
	}
	CHECK(system("true") == 0);
	stopping = 1;
	CHECK(!pthread_join(thread, NULL));
	exchange(qp);
	CHECK(!ibv_destroy_qp(qp) && !ibv_dereg_mr(mr) && !ibv_destroy_cq(cq));
	CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(context));
	return 0;
}
