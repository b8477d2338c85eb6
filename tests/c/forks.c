/* A program that forks while its device is busy: the child may leave the device alone, destroy its copies of
 * the objects, and open a device of its own, without any effect on the parent. Exits with 0 on success. */

#include "common.h"

static _Atomic int stopping;

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

	/* A device of its own, beside the inherited one. */
	open_first();
	struct ibv_qp *own = create_qp(NULL);
	connect_to_itself(own);
	for (int i = 0; i < 100; i++)
		exchange(own);
	CHECK(!ibv_destroy_qp(own) && !ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd) && !ibv_close_device(context));

	/* The inherited objects, as a program destroys them when it cleans up. */
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
			/* With the exit handlers. */
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
