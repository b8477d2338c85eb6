/* What programs may do that the usual ones do not: one corner by name. Ends with 0 if all went as it should. */

#include <dirent.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK(what)                                                                                  \
	do {                                                                                             \
		if (!(what)) {                                                                               \
			fprintf(stderr, "%s:%d: %s: errno %d\n", __FILE__, __LINE__, #what, errno);              \
			exit(1);                                                                                 \
		}                                                                                            \
	} while (0)

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;

static void open_first(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	CHECK(list && list[0]);
	CHECK(context = ibv_open_device(list[0]));
	ibv_free_device_list(list);
	CHECK(pd = ibv_alloc_pd(context));
	CHECK(cq = ibv_create_cq(context, 64, NULL, NULL, 0));
}

static struct ibv_qp *create_qp(void *qp_context)
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

/* Connects a queue pair to itself. */
static void connect_to_itself(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	union ibv_gid gid;
	CHECK(!ibv_query_gid(context, 1, 0, &gid));
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	attr.qp_state = IBV_QPS_RTR;
	attr.path_mtu = IBV_MTU_1024;
	attr.dest_qp_num = qp->qp_num;
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

/* A send without data to itself, and its two completions. */
static void exchange(struct ibv_qp *qp)
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

/* Threads that post and poll when they are ending, after the library's own thread-locals are gone. */

static pthread_key_t key;
static int exchanges;

static void when_ending(void *qp)
{
	exchange(qp);
	exchanges++;
}

static void *thread_that_ends(void *qp)
{
	exchange(qp);
	CHECK(!pthread_setspecific(key, qp));
	return NULL;
}

static void ending(void)
{
	pthread_t thread;
	open_first();
	struct ibv_qp *qp = create_qp(NULL);
	connect_to_itself(qp);
	CHECK(!pthread_key_create(&key, when_ending));
	for (int i = 0; i < 3; i++) {
		CHECK(!pthread_create(&thread, NULL, thread_that_ends, qp));
		CHECK(!pthread_join(thread, NULL));
	}
	CHECK(exchanges == 3);
}

/* The library's threads take none of the program's signals. */

static int background_threads(void)
{
	int found = 0;
	struct dirent *entry;
	DIR *tasks = opendir("/proc/self/task");
	CHECK(tasks);
	while ((entry = readdir(tasks))) {
		char path[300], line[200], name[64] = "";
		uint64_t blocked = 0;
		snprintf(path, sizeof(path), "/proc/self/task/%s/status", entry->d_name);
		FILE *status = fopen(path, "r");
		if (!status)
			continue;
		while (fgets(line, sizeof(line), status)) {
			sscanf(line, "Name: %63s", name);
			sscanf(line, "SigBlk: %" SCNx64, &blocked);
		}
		fclose(status);
		if (strncmp(name, "urxe", 4))
			continue;
		found++;
		int signals[] = { SIGINT, SIGTERM, SIGUSR1, SIGALRM, SIGCHLD, SIGHUP };
		for (unsigned i = 0; i < sizeof(signals) / sizeof(signals[0]); i++)
			CHECK(blocked & 1ull << (signals[i] - 1));
	}
	closedir(tasks);
	return found;
}

static void signals(void)
{
	sigset_t mine;
	open_first();
	/* A thread gives itself its name when it begins. */
	for (int tries = 0; !background_threads(); tries++) {
		CHECK(tries < 2000);
		usleep(1000);
	}
	CHECK(!pthread_sigmask(SIG_BLOCK, NULL, &mine));
	CHECK(!sigismember(&mine, SIGUSR1));
}

/* Events of queue pairs that another thread destroys at the same time: none is of one that is gone. */

#define ROUNDS 3000
static volatile char is_there[ROUNDS];
static volatile int last;

static void *read_events(void *nothing)
{
	struct ibv_async_event event;
	long taken = 0;
	while (!ibv_get_async_event(context, &event)) {
		CHECK(event.event_type == IBV_EVENT_SQ_DRAINED);
		int round = (int)(intptr_t)event.element.qp->qp_context;
		CHECK(round >= 0 && round < ROUNDS && is_there[round]);
		taken++;
		ibv_ack_async_event(&event);
		if (round == last)
			break;
	}
	return (void *)taken;
}

static void drain(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_SQD, .en_sqd_async_notify = 1 };
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY));
}

static void events(void)
{
	pthread_t reader;
	void *taken;
	open_first();
	last = ROUNDS - 1;
	CHECK(!pthread_create(&reader, NULL, read_events, NULL));
	for (int round = 0; round < ROUNDS; round++) {
		is_there[round] = 1;
		struct ibv_qp *qp = create_qp((void *)(intptr_t)round);
		connect_to_itself(qp);
		drain(qp);
		/* Sometimes the reader is faster, sometimes not. */
		if (round % 4)
			for (volatile int pause = 0; pause < round % 64 * 3000; pause++)
				;
		else
			usleep(200);
		if (round == last)
			CHECK(!pthread_join(reader, &taken));
		CHECK(!ibv_destroy_qp(qp));
		is_there[round] = 0;
	}
	printf("%ld of %d events were taken\n", (long)taken, ROUNDS);
	CHECK((long)taken > ROUNDS / 50);
}

int main(int argc, char **argv)
{
	const struct {
		const char *name;
		void (*run)(void);
	} corners[] = { { "ending", ending }, { "signals", signals }, { "events", events } };
	for (unsigned i = 0; i < sizeof(corners) / sizeof(corners[0]); i++) {
		if (argc == 2 && !strcmp(argv[1], corners[i].name)) {
			corners[i].run();
			return 0;
		}
	}
	fprintf(stderr, "there is no corner of that name\n");
	return 2;
}
