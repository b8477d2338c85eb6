/* Cases that the usual programs do not cover: one by name. Exits with 0 on success. */

#define _GNU_SOURCE
#include "common.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/time.h>

/* Threads that post and poll during their exit, after the library's own thread-locals are gone. */

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

/* Threads of the library handle no signals of the program. */

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
	/* A thread sets its name after it has started. */
	for (int tries = 0; !background_threads(); tries++) {
		CHECK(tries < 2000);
		usleep(1000);
	}
	CHECK(!pthread_sigmask(SIG_BLOCK, NULL, &mine));
	CHECK(!sigismember(&mine, SIGUSR1));
}

/* Events of queue pairs that another thread destroys at the same time: no event names a destroyed one. */

#define ROUNDS 3000
static _Atomic char is_there[ROUNDS];
static _Atomic int last;

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
		/* Varies whether the reader or the destruction is first. */
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
	printf("received %ld of %d events\n", (long)taken, ROUNDS);
	CHECK((long)taken > ROUNDS / 50);
}

/* Work requests by the extended post calls. */

/* Returns which of two descriptors are readable according to epoll: 1, 2, or both. */
static uint32_t ready(int epoll)
{
	struct epoll_event found[2];
	int n = epoll_wait(epoll, found, 2, 0);
	uint32_t both = 0;
	CHECK(n >= 0);
	for (int i = 0; i < n; i++)
		both |= found[i].data.u32;
	return both;
}

static void descriptors(void)
{
	struct ibv_comp_channel *channel;
	struct ibv_async_event event;
	struct ibv_cq *of;
	void *of_context;
	open_first();
	CHECK(channel = ibv_create_comp_channel(context));
	CHECK(!ibv_destroy_cq(cq) && (cq = ibv_create_cq(context, 64, &exchanges, channel, 0)));
	struct ibv_qp *qp = create_qp(NULL);
	connect_to_itself(qp);

	int epoll = epoll_create1(0), fds[] = { channel->fd, context->async_fd };
	CHECK(epoll >= 0);
	for (uint32_t i = 0; i < 2; i++) {
		struct epoll_event watch = { .events = EPOLLIN, .data.u32 = i + 1 };
		CHECK(!epoll_ctl(epoll, EPOLL_CTL_ADD, fds[i], &watch));
		CHECK(!fcntl(fds[i], F_SETFL, fcntl(fds[i], F_GETFL) | O_NONBLOCK));
	}
	for (int i = 0; i < 20; i++) {
		CHECK(ready(epoll) == 0);
		CHECK(ibv_get_cq_event(channel, &of, &of_context) == -1 && errno == EAGAIN);
		CHECK(ibv_get_async_event(context, &event) == -1 && errno == EAGAIN);

		CHECK(!ibv_req_notify_cq(cq, 0));
		exchange(qp);
		CHECK(ready(epoll) == 1);
		CHECK(!ibv_get_cq_event(channel, &of, &of_context) && of == cq && of_context == &exchanges);
		ibv_ack_cq_events(cq, 1);
		CHECK(ready(epoll) == 0);
	}
	drain(qp);
	struct epoll_event found[2];
	CHECK(epoll_wait(epoll, found, 2, 10000) == 1 && found[0].data.u32 == 2);
	CHECK(!ibv_get_async_event(context, &event));
	CHECK(event.event_type == IBV_EVENT_SQ_DRAINED && event.element.qp == qp);
	ibv_ack_async_event(&event);
	CHECK(ready(epoll) == 0);
	CHECK(ibv_get_async_event(context, &event) == -1 && errno == EAGAIN);
	CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_cq(cq) && !ibv_destroy_comp_channel(channel));
	CHECK(!close(epoll) && !ibv_dealloc_pd(pd) && !ibv_close_device(context));
}

static void session(void)
{
	static union {
		char bytes[4096];
		uint64_t words[512];
	} memory __attribute__((aligned(4096)));
	open_first();
	struct ibv_mr *mr = ibv_reg_mr(pd, &memory, sizeof(memory),
				       IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
					       IBV_ACCESS_REMOTE_ATOMIC);
	CHECK(mr);
	struct ibv_qp_init_attr_ex init = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = { .max_send_wr = 16, .max_recv_wr = 8, .max_send_sge = 2, .max_recv_sge = 1, .max_inline_data = 64 },
		.qp_type = IBV_QPT_RC,
		.pd = pd,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_TSO,
	};
	CHECK(!ibv_create_qp_ex(context, &init) && errno == EOPNOTSUPP);
	init.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_WRITE |
			      IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ |
			      IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD |
			      IBV_QP_EX_WITH_ATOMIC_WRITE;
	struct ibv_qp *qp = ibv_create_qp_ex(context, &init), *plain = create_qp(NULL);
	CHECK(qp && !ibv_qp_to_qp_ex(plain));
	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(qp);
	CHECK(ex && !ex->wr_local_inv);
	connect_to_itself(qp);

	/* Receives: 0 and 1 for two SENDs, 2 for a WRITE with immediate. */
	for (int i = 0; i < 3; i++) {
		struct ibv_sge sge = { (uintptr_t)memory.bytes + 1024 + 64 * i, 64, mr->lkey };
		struct ibv_recv_wr recv = { .wr_id = 100 + i, .sg_list = &sge, .num_sge = 1 }, *bad;
		CHECK(!ibv_post_recv(qp, &recv, &bad));
	}
	memcpy(memory.bytes, "0123456789", 10);
	memory.words[256] = 5;
	uint64_t at = (uintptr_t)memory.bytes, word = (uintptr_t)&memory.words[256], value = 77;

	/* An aborted session sends nothing. */
	ibv_wr_start(ex);
	ibv_wr_send(ex);
	ibv_wr_abort(ex);

	ibv_wr_start(ex);
	ex->wr_flags = 0;
	ibv_wr_send(ex);
	struct ibv_data_buf parts[] = { { "of ", 3 }, { NULL, 0 }, { "parts", 5 } };
	ibv_wr_set_inline_data_list(ex, 3, parts);
	ibv_wr_send_imm(ex, htonl(0x01020304));
	struct ibv_sge two[] = { { at + 5, 5, mr->lkey }, { at, 5, mr->lkey } };
	ibv_wr_set_sge_list(ex, 2, two);
	ibv_wr_rdma_write(ex, mr->rkey, at + 512);
	ibv_wr_set_inline_data(ex, "inline", 6);
	ibv_wr_rdma_write_imm(ex, mr->rkey, at + 520, htonl(9));
	ibv_wr_set_sge(ex, mr->lkey, at, 4);
	ibv_wr_atomic_write(ex, mr->rkey, at + 640, &value);
	ex->wr_flags = IBV_SEND_SIGNALED;
	ex->wr_id = 1;
	ibv_wr_rdma_read(ex, mr->rkey, at + 512);
	ibv_wr_set_sge(ex, mr->lkey, at + 600, 16);
	ex->wr_id = 2;
	ibv_wr_atomic_fetch_add(ex, mr->rkey, word, 2);
	ibv_wr_set_sge(ex, mr->lkey, at + 704, 8);
	ex->wr_id = 3;
	ibv_wr_atomic_cmp_swp(ex, mr->rkey, word, 7, 9);
	ibv_wr_set_sge(ex, mr->lkey, at + 712, 8);
	CHECK(!ibv_wr_complete(ex));

	struct ibv_wc wc[6];
	int got = 0, sends = 0;
	while (got < 6) {
		int n = ibv_poll_cq(cq, 6 - got, wc + got);
		CHECK(n >= 0);
		got += n;
	}
	for (int i = 0; i < 6; i++) {
		CHECK(wc[i].status == IBV_WC_SUCCESS);
		if (wc[i].wr_id < 100)
			CHECK(wc[i].wr_id == (uint64_t)++sends);
		if (wc[i].wr_id == 101)
			CHECK(wc[i].imm_data == htonl(0x01020304) && wc[i].byte_len == 10);
		if (wc[i].wr_id == 102)
			CHECK(wc[i].opcode == IBV_WC_RECV_RDMA_WITH_IMM && wc[i].imm_data == htonl(9));
	}
	CHECK(sends == 3);
	CHECK(!memcmp(memory.bytes + 1024, "of parts", 8) && !memcmp(memory.bytes + 1088, "5678901234", 10));
	CHECK(!memcmp(memory.bytes + 600, "inline\0\0" "0123", 12));
	CHECK(memory.words[80] == 77 && memory.words[88] == 5 && memory.words[89] == 7 && memory.words[256] == 9);

	/* A refused request discards the whole session. */
	ibv_wr_start(ex);
	ibv_wr_send(ex);
	ibv_wr_set_inline_data(ex, memory.bytes, 65);
	CHECK(ibv_wr_complete(ex) == EINVAL);
	CHECK(ibv_wr_complete(ex) == EINVAL);
	ibv_wr_start(ex);
	ibv_wr_send(ex);
	ibv_wr_set_sge_list(ex, 1, NULL);
	CHECK(ibv_wr_complete(ex) == EINVAL);
	CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_qp(plain) && !ibv_dereg_mr(mr));
}

/* A program that sends and exits with everything open, as MPI programs do. */

static void leave(void)
{
	open_first();
	struct ibv_qp *qp = create_qp(NULL);
	connect_to_itself(qp);
	exchange(qp);
}

/* A program whose signal handler ends it, perhaps in the middle of a call: a lock held by the call is never
 * released. */

static void ends_it(int signal)
{
	exit(signal == SIGALRM ? 0 : 1);
}

static void interrupted(void)
{
	struct itimerval soon = { .it_value.tv_usec = 20000 + getpid() % 64 * 100 };
	open_first();
	struct ibv_qp *qp = create_qp(NULL);
	connect_to_itself(qp);
	signal(SIGALRM, ends_it);
	CHECK(!setitimer(ITIMER_REAL, &soon, NULL));
	for (;;)
		exchange(qp);
}

/* A program that sends, prints that, and ends only when it is killed. */

static void linger(void)
{
	open_first();
	struct ibv_qp *qp = create_qp(NULL);
	connect_to_itself(qp);
	exchange(qp);
	puts("ready");
	fflush(stdout);
	sleep(60);
}

/* A program that sends much. */

static void much(void)
{
	open_first();
	struct ibv_qp *qp = create_qp(NULL);
	connect_to_itself(qp);
	for (int i = 0; i < 3000; i++)
		exchange(qp);
}

/* Memory that a device could not pin cannot be registered. */

static void memory(void)
{
	long page = sysconf(_SC_PAGESIZE);
	char *two = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(two != MAP_FAILED);
	open_first();
	struct ibv_mr *mr = ibv_reg_mr(pd, two + 100, 2 * page - 100, IBV_ACCESS_LOCAL_WRITE);
	CHECK(mr && !ibv_dereg_mr(mr));
	CHECK(!mprotect(two + page, page, PROT_READ));
	CHECK(!ibv_reg_mr(pd, two, 2 * page, IBV_ACCESS_LOCAL_WRITE) && errno == EFAULT);
	CHECK((mr = ibv_reg_mr(pd, two, 2 * page, IBV_ACCESS_REMOTE_READ)) && !ibv_dereg_mr(mr));
	CHECK((mr = ibv_reg_mr(pd, two, page, IBV_ACCESS_LOCAL_WRITE)));
	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, two + page, page, 0) ==
	      IBV_REREG_MR_ERR_CMD);
	CHECK(errno == EFAULT && mr->addr == two);
	int both = IBV_REREG_MR_CHANGE_TRANSLATION | IBV_REREG_MR_CHANGE_ACCESS;
	CHECK(!ibv_rereg_mr(mr, both, NULL, two + page, page, IBV_ACCESS_REMOTE_READ) && !ibv_dereg_mr(mr));
	CHECK(!munmap(two + page, page));
	CHECK(!ibv_reg_mr(pd, two, page + 1, IBV_ACCESS_REMOTE_READ) && errno == EFAULT);
	CHECK(!ibv_reg_mr(pd, (void *)-4096, 8192, 0) && errno == EFAULT);

	/* An inaccessible page in the middle, and pages behind the end of a file. */
	char *three = mmap(NULL, 3 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(three != MAP_FAILED && !mprotect(three + page, page, PROT_NONE));
	CHECK(!ibv_reg_mr(pd, three, 3 * page, IBV_ACCESS_LOCAL_WRITE) && errno == EFAULT);
	CHECK(!ibv_reg_mr(pd, three, 2 * page, IBV_ACCESS_REMOTE_READ) && errno == EFAULT);
	FILE *file = tmpfile();
	CHECK(file && !ftruncate(fileno(file), page));
	char *of_file = mmap(NULL, 2 * page, PROT_READ, MAP_SHARED, fileno(file), 0);
	CHECK(of_file != MAP_FAILED && (mr = ibv_reg_mr(pd, of_file, page, 0)) && !ibv_dereg_mr(mr));
	CHECK(!ibv_reg_mr(pd, of_file, 2 * page, 0) && errno == EFAULT);
}

/* Registering an unused tebibyte makes only its ends resident. */

static long resident_or_in_tables(void)
{
	char line[200];
	long total = 0, kib;
	FILE *status = fopen("/proc/self/status", "r");
	CHECK(status);
	while (fgets(line, sizeof(line), status))
		if (sscanf(line, "VmPTE: %ld", &kib) == 1 || sscanf(line, "VmRSS: %ld", &kib) == 1)
			total += kib;
	fclose(status);
	return total;
}

static void sparse(void)
{
	size_t len = (size_t)1 << 40;
	long page = sysconf(_SC_PAGESIZE);
	char *bytes = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	CHECK(bytes != MAP_FAILED);
	open_first();
	long before = resident_or_in_tables();
	struct ibv_mr *mr = ibv_reg_mr(pd, bytes, len, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	CHECK(mr && resident_or_in_tables() - before < 64 * 1024);
	CHECK(!ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, bytes + page, len - page, 0));
	CHECK(resident_or_in_tables() - before < 64 * 1024 && !ibv_dereg_mr(mr));
	/* A hole in the middle is found all the same. */
	CHECK(!munmap(bytes + len / 2, page));
	CHECK(!ibv_reg_mr(pd, bytes, len, IBV_ACCESS_LOCAL_WRITE) && errno == EFAULT);
}

/* Registering unused memory makes it resident if the device may write to it, so that transfers cause no page faults. */

static void populated(void)
{
	const long kib = 16 * 1024, other = 2 * 1024;
	char *bytes = mmap(NULL, kib << 10, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(bytes != MAP_FAILED);
	open_first();
	long before = resident_or_in_tables();
	struct ibv_mr *mr = ibv_reg_mr(pd, bytes, kib << 10, IBV_ACCESS_REMOTE_READ);
	CHECK(mr && !ibv_dereg_mr(mr) && resident_or_in_tables() - before < other);
	mr = ibv_reg_mr(pd, bytes, kib << 10, IBV_ACCESS_LOCAL_WRITE);
	CHECK(mr && !ibv_dereg_mr(mr) && resident_or_in_tables() - before > kib - other);
}

/* A device that is opened more than once: one NIC with independent contexts. */

static int event_waits(struct ibv_context *of)
{
	struct pollfd fd = { .fd = of->async_fd, .events = POLLIN };
	return poll(&fd, 1, 0) == 1;
}

static void twice(void)
{
	struct ibv_async_event event;
	struct ibv_wc wc;
	open_first();
	struct ibv_context *first = context;
	struct ibv_pd *first_pd = pd;
	struct ibv_cq *first_cq = cq;
	open_first();
	CHECK(context != first && context->async_fd != first->async_fd);

	/* Both carry traffic, and see their own completions only. */
	struct ibv_qp *ours = create_qp(NULL);
	connect_to_itself(ours);
	exchange(ours);
	CHECK(ibv_poll_cq(first_cq, 1, &wc) == 0);
	struct ibv_context *second = context;
	struct ibv_pd *second_pd = pd;
	struct ibv_cq *second_cq = cq;
	context = first, pd = first_pd, cq = first_cq;
	struct ibv_qp *theirs = create_qp(NULL);
	connect_to_itself(theirs);
	exchange(theirs);
	CHECK(ibv_poll_cq(second_cq, 1, &wc) == 0);
	context = second, pd = second_pd, cq = second_cq;

	/* Objects of different contexts cannot be combined. */
	struct ibv_qp_init_attr mixed = {
		.send_cq = first_cq, .recv_cq = cq, .cap = { .max_send_wr = 1, .max_recv_wr = 1 }, .qp_type = IBV_QPT_RC
	};
	CHECK(!ibv_create_qp(pd, &mixed) && errno == EINVAL);

	/* Events are reported to the context of their queue pair. */
	drain(ours);
	CHECK(event_waits(context) && !event_waits(first));
	CHECK(!ibv_get_async_event(context, &event) && event.element.qp == ours);
	ibv_ack_async_event(&event);
	CHECK(!event_waits(context));

	/* Closing one context does not affect the other. */
	CHECK(!ibv_destroy_qp(theirs));
	CHECK(!ibv_destroy_cq(first_cq) && !ibv_dealloc_pd(first_pd) && !ibv_close_device(first));
	struct ibv_qp *another = create_qp(NULL);
	connect_to_itself(another);
	exchange(another);

	/* The device is closed and opened again many times. */
	CHECK(!ibv_destroy_qp(ours) && !ibv_destroy_qp(another));
	CHECK(!ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd) && !ibv_close_device(context));
	for (int i = 0; i < 20; i++) {
		open_first();
		struct ibv_qp *qp = create_qp(NULL);
		connect_to_itself(qp);
		exchange(qp);
		CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd) && !ibv_close_device(context));
	}
}

static volatile sig_atomic_t told_of_children;

static void told_of_child(int signal)
{
	(void)signal;
	told_of_children++;
}

/* Processes that a device starts are no children of the program. */
static void children(void)
{
	signal(SIGCHLD, told_of_child);
	open_first();
	usleep(100000);
	CHECK(told_of_children == 0);
	CHECK(waitpid(-1, NULL, WNOHANG) == -1 && errno == ECHILD);
}

/* Status of a request that the queue pair, which is its own peer, refuses as responder: it enters the error
 * state before it receives its own NAK. */
#define REFUSED IBV_WC_WR_FLUSH_ERR

/* Expects one completion with this status. */
static void completes(enum ibv_wc_status status)
{
	struct ibv_wc wc;
	int n;
	while (!(n = ibv_poll_cq(cq, 1, &wc)))
		;
	CHECK(n == 1 && wc.status == status);
}

/* Writes from one region to another, and expects the first completion to have this status. */
static void writes(struct ibv_qp *qp, struct ibv_mr *from, struct ibv_mr *to, uint64_t at, enum ibv_wc_status status)
{
	struct ibv_sge sge = { .addr = (uintptr_t)from->addr, .length = 8, .lkey = from->lkey };
	struct ibv_send_wr send = { .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED, .sg_list = &sge, .num_sge = 1 };
	struct ibv_send_wr *bad;
	send.wr.rdma.remote_addr = at;
	send.wr.rdma.rkey = to->rkey;
	CHECK(!ibv_post_send(qp, &send, &bad));
	completes(status);
}

static void begin_anew(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RESET };
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	connect_to_itself(qp);
}

/* A message from and to an on-demand region, half of which is unmapped, over a transport service without
 * acknowledgements. */
static void unacknowledged(enum ibv_qp_type type, struct ibv_mr *mr, char *there, char *gone)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = type,
		.cap = { .max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	struct ibv_ah_attr path = { .is_global = 1, .port_num = 1, .grh.hop_limit = 64 };
	CHECK(qp && !ibv_query_gid(context, 1, 0, &path.grh.dgid));
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 5, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE };
	attr.path_mtu = IBV_MTU_1024, attr.dest_qp_num = qp->qp_num, attr.ah_attr = path;
	int own = type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS;
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | own));
	attr.qp_state = IBV_QPS_RTR;
	int to = type == IBV_QPT_UD ? 0 : IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | to));
	attr.qp_state = IBV_QPS_RTS;
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN));

	struct ibv_sge from = { .addr = (uintptr_t)there, .length = 8, .lkey = mr->lkey };
	struct ibv_sge into = { .addr = (uintptr_t)there + 100, .length = 48, .lkey = mr->lkey };
	struct ibv_recv_wr recv = { .sg_list = &into, .num_sge = 1 }, *bad_recv;
	struct ibv_send_wr send = { .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED, .sg_list = &from, .num_sge = 1 };
	struct ibv_send_wr *bad_send;
	if (type == IBV_QPT_UD) {
		CHECK(send.wr.ud.ah = ibv_create_ah(pd, &path));
		send.wr.ud.remote_qpn = qp->qp_num, send.wr.ud.remote_qkey = 5;
	}
	CHECK(!ibv_post_recv(qp, &recv, &bad_recv) && !ibv_post_send(qp, &send, &bad_send));
	completes(IBV_WC_SUCCESS);
	completes(IBV_WC_SUCCESS);
	CHECK(!memcmp(there + 100 + (type == IBV_QPT_UD ? 40 : 0), there, 8));
	if (type == IBV_QPT_UC) {
		writes(qp, mr, mr, (uintptr_t)there + 200, IBV_WC_SUCCESS);
		while (memcmp(there + 200, there, 8))
			CHECK(ibv_poll_cq(cq, 1, &(struct ibv_wc){ 0 }) == 0);
	}
	from.addr = (uintptr_t)gone;
	CHECK(!ibv_post_send(qp, &send, &bad_send));
	completes(IBV_WC_LOC_PROT_ERR);
	CHECK(!ibv_destroy_qp(qp));
}

/* On-demand regions whose pages are unmapped and mapped again: access to an unmapped page fails. */

static void on_demand(void)
{
	const int all = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_ON_DEMAND;
	const int anonymous = MAP_PRIVATE | MAP_ANONYMOUS;
	long page = sysconf(_SC_PAGESIZE);
	open_first();
	struct ibv_device_attr_ex attr;
	CHECK(!ibv_query_device_ex(context, NULL, &attr) && attr.odp_caps.general_caps & IBV_ODP_SUPPORT);
	struct ibv_qp *qp = create_qp(NULL);
	connect_to_itself(qp);
	/* Unmapped only now, because the start of a thread may map a page, which could take this one's place. */
	char *two = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, anonymous, -1, 0);
	CHECK(two != MAP_FAILED && !munmap(two + page, page));
	struct ibv_mr *mr = ibv_reg_mr(pd, two, 2 * page, all);
	CHECK(mr);
	strcpy(two, "on it");
	writes(qp, mr, mr, (uintptr_t)two + 64, IBV_WC_SUCCESS);
	CHECK(!strcmp(two + 64, "on it"));

	unacknowledged(IBV_QPT_UC, mr, two, two + page);
	unacknowledged(IBV_QPT_UD, mr, two, two + page);

	/* One half was never mapped, or is no longer mapped. */
	writes(qp, mr, mr, (uintptr_t)two + page, REFUSED);
	struct ibv_sge gone = { .addr = (uintptr_t)two + page, .length = 8, .lkey = mr->lkey };
	struct ibv_sge there = { .addr = (uintptr_t)two, .length = 8, .lkey = mr->lkey };
	CHECK(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, 0, &gone, 1) == EFAULT);
	CHECK(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, IBV_ADVISE_MR_FLAG_FLUSH, &there, 1) == 0);
	there.lkey ^= 0x100;
	CHECK(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &there, 1) == ENOENT);
	CHECK(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 2, &there, 1) == EINVAL);
	CHECK(ibv_advise_mr(pd, 77, 0, &there, 1) == EOPNOTSUPP);
	begin_anew(qp);
	CHECK(mmap(two + page, page, PROT_READ | PROT_WRITE, anonymous | MAP_FIXED, -1, 0) == two + page);
	CHECK(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &gone, 1) == 0);
	writes(qp, mr, mr, (uintptr_t)two + page, IBV_WC_SUCCESS);
	CHECK(!strcmp(two + page, "on it"));

	/* A window on the region has the same limits. */
	struct ibv_mr *bindable = ibv_reg_mr(pd, two, 2 * page, all | IBV_ACCESS_MW_BIND);
	struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_1);
	CHECK(bindable && mw);
	struct ibv_mw_bind bind = { .send_flags = IBV_SEND_SIGNALED };
	bind.bind_info = (struct ibv_mw_bind_info){ bindable, (uintptr_t)two, 2 * page, IBV_ACCESS_REMOTE_WRITE };
	CHECK(!ibv_bind_mw(qp, mw, &bind));
	completes(IBV_WC_SUCCESS);
	struct ibv_mr window = { .rkey = mw->rkey };
	writes(qp, mr, &window, (uintptr_t)two + page, IBV_WC_SUCCESS);
	CHECK(!munmap(two + page, page));
	writes(qp, mr, &window, (uintptr_t)two + page, REFUSED);

	/* Memory that rereg_mr changes to a pinned region has to be mapped. */
	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_LOCAL_WRITE) ==
	      IBV_REREG_MR_ERR_CMD);
	CHECK(errno == EFAULT && !ibv_dereg_mr(mr));
}

/* Device memory. */

static void device_memory(void)
{
	const unsigned access = IBV_ACCESS_ZERO_BASED | IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
	struct ibv_alloc_dm_attr attr = { .length = 64 };
	char bytes[64] = "from the program", back[64] = "";
	open_first();
	struct ibv_dm *dm = ibv_alloc_dm(context, &attr);
	CHECK(dm && !ibv_memcpy_to_dm(dm, 8, bytes, 32) && !ibv_memcpy_from_dm(back, dm, 8, 32));
	CHECK(!strcmp(back, bytes));
	CHECK(ibv_memcpy_to_dm(dm, 40, bytes, 32) == EFAULT && ibv_memcpy_to_dm(dm, 2, bytes, 4) == EINVAL);
	CHECK(!ibv_reg_dm_mr(pd, dm, 0, 64, IBV_ACCESS_LOCAL_WRITE) && errno == EINVAL);
	CHECK(!ibv_reg_dm_mr(pd, dm, UINT64_MAX, 64, access) && errno == EINVAL);
	struct ibv_mr *mr = ibv_reg_dm_mr(pd, dm, 8, 32, access), *ours = ibv_reg_mr(pd, back, 64, IBV_ACCESS_LOCAL_WRITE);
	CHECK(mr && ours && ibv_free_dm(dm) == EBUSY);
	struct ibv_qp *qp = create_qp(NULL);
	connect_to_itself(qp);
	strcpy(back, "by RDMA");
	writes(qp, ours, mr, 0, IBV_WC_SUCCESS);
	CHECK(!ibv_memcpy_from_dm(bytes, dm, 8, 8) && !strcmp(bytes, "by RDMA"));
	CHECK(!ibv_dereg_mr(mr) && !ibv_free_dm(dm));
	attr.length = SIZE_MAX;
	CHECK(!ibv_alloc_dm(context, &attr));
}

/* A parent domain keeps the objects it consists of in use. */

static void *never(struct ibv_pd *of, void *pd_context, size_t size, size_t alignment, uint64_t type)
{
	abort();
}

static void free_never(struct ibv_pd *of, void *pd_context, void *ptr, uint64_t type)
{
	abort();
}

static void parents(void)
{
	struct ibv_td_init_attr td_attr = { 0 };
	open_first();
	struct ibv_td *td = ibv_alloc_td(context, &td_attr);
	struct ibv_parent_domain_init_attr attr = {
		.pd = pd, .td = td, .comp_mask = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS, .alloc = never, .free = free_never
	};
	struct ibv_pd *inner = pd, *parent = ibv_alloc_parent_domain(context, &attr);
	CHECK(td && parent && ibv_dealloc_td(td) == EBUSY && ibv_dealloc_pd(pd) == EBUSY);
	attr.free = NULL;
	CHECK(!ibv_alloc_parent_domain(context, &attr) && errno == EINVAL);
	struct ibv_cq_init_attr_ex cq_attr = {
		.cqe = 16, .comp_mask = IBV_CQ_INIT_ATTR_MASK_PD, .parent_domain = parent
	};
	struct ibv_cq_ex *in_parent = ibv_create_cq_ex(context, &cq_attr);
	CHECK(in_parent && ibv_dealloc_pd(parent) == EBUSY);
	CHECK(!ibv_destroy_cq(ibv_cq_ex_to_cq(in_parent)));

	/* Objects of the parent domain and of its protection domain belong together. */
	char bytes[16] = "";
	struct ibv_mr *mr = ibv_reg_mr(inner, bytes, 16, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	pd = parent;
	struct ibv_qp *qp = create_qp(NULL);
	connect_to_itself(qp);
	writes(qp, mr, mr, (uintptr_t)bytes + 8, IBV_WC_SUCCESS);
	CHECK(ibv_dealloc_pd(parent) == EBUSY);
	CHECK(!ibv_destroy_qp(qp) && !ibv_dereg_mr(mr));
	CHECK(!ibv_dealloc_pd(parent) && !ibv_dealloc_td(td) && !ibv_dealloc_pd(inner));
}

/* Objects of one context that another context of the process imports. */

static void imported(void)
{
	open_first();
	struct ibv_context *first = context;
	struct ibv_pd *first_pd = pd;
	struct ibv_cq *first_cq = cq;
	char bytes[16] = "as it is";
	struct ibv_mr *mr = ibv_reg_mr(pd, bytes, 16, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	CHECK(mr && !ibv_import_device(0) && errno == EINVAL && !ibv_import_device(-1));
	CHECK(context = ibv_import_device(dup(first->cmd_fd)));
	CHECK(context != first && !strcmp(context->device->name, first->device->name));
	CHECK(pd = ibv_import_pd(context, first_pd->handle));
	CHECK(cq = ibv_create_cq(context, 64, NULL, NULL, 0));
	struct ibv_mr *again = ibv_import_mr(pd, mr->handle);
	CHECK(again && again->lkey == mr->lkey && again->rkey == mr->rkey && !again->addr);
	CHECK(!ibv_import_pd(context, 4711) && !ibv_import_mr(pd, 4711) && errno == ENOENT);
	CHECK(!ibv_import_dm(context, 4711) && errno == ENOENT);
	struct ibv_qp *qp = create_qp(NULL);
	connect_to_itself(qp);
	again->addr = bytes;
	writes(qp, again, again, (uintptr_t)bytes + 8, IBV_WC_SUCCESS);
	CHECK(!memcmp(bytes, bytes + 8, 8));

	/* Cleanup in the order of the manual, and in that of pyverbs, which unimports the domain before its queue
	 * pairs are destroyed. */
	ibv_unimport_mr(again);
	ibv_unimport_pd(pd);
	exchange(qp);
	CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_cq(cq) && !ibv_close_device(context));
	context = first, pd = first_pd, cq = first_cq;
	qp = create_qp(NULL);
	connect_to_itself(qp);
	exchange(qp);
	CHECK(!ibv_destroy_qp(qp) && !ibv_dereg_mr(mr) && !ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd));
	int left = dup(context->cmd_fd);
	CHECK(!ibv_close_device(context) && !ibv_import_device(left) && errno == EINVAL);
}

/* Reset with completions from before, a rate limit, and the entries of the GID table. */

static void anew(void)
{
	union ibv_gid gid, zero = { .raw = { 0 } };
	struct ibv_gid_entry entries[2];
	struct ibv_port_attr port;
	struct ibv_wc wc;
	open_first();
	struct ibv_qp *qp = create_qp(NULL), *other = create_qp(NULL);
	connect_to_itself(qp);
	connect_to_itself(other);
	struct ibv_recv_wr recv = { .wr_id = 1 }, *bad;
	CHECK(!ibv_post_recv(qp, &recv, &bad) && !ibv_post_recv(qp, &recv, &bad) && !ibv_post_recv(other, &recv, &bad));
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE) && !ibv_modify_qp(other, &attr, IBV_QP_STATE));
	begin_anew(qp);
	CHECK(ibv_poll_cq(cq, 1, &wc) == 1 && wc.status == IBV_WC_WR_FLUSH_ERR && wc.qp_num == other->qp_num);
	CHECK(ibv_poll_cq(cq, 1, &wc) == 0);
	exchange(qp);

	/* A rate limit, which cannot be set in the error state. */
	struct ibv_qp_rate_limit_attr rate = { .rate_limit = 100000 }, burst = { .rate_limit = 1, .max_burst_sz = 1 };
	struct ibv_qp_init_attr init;
	CHECK(!ibv_modify_qp_rate_limit(qp, &rate) && ibv_modify_qp_rate_limit(qp, &burst) == EINVAL);
	CHECK(!ibv_query_qp(qp, &attr, IBV_QP_RATE_LIMIT, &init) && attr.rate_limit == 100000);
	exchange(qp);
	CHECK(ibv_modify_qp_rate_limit(other, &rate) == EINVAL);

	/* One address means one entry, with no zero entries behind it. */
	CHECK(!ibv_query_port(context, 1, &port) && port.gid_tbl_len == 1);
	CHECK(!ibv_query_gid(context, 1, 0, &gid) && memcmp(&gid, &zero, 16));
	CHECK(ibv_query_gid(context, 1, 1, &gid) == -1);
	CHECK(ibv_query_gid_ex(context, 1, 1, entries, 0) == ENODATA);
	ssize_t there = ibv_query_gid_table(context, entries, 2, 0);
	CHECK(there >= 1 && there <= 2 && ibv_query_gid_table(context, entries, there - 1, 0) == -EINVAL);
}

int main(int argc, char **argv)
{
	const struct {
		const char *name;
		void (*run)(void);
	} corners[] = { { "ending", ending }, { "signals", signals }, { "events", events }, { "descriptors", descriptors }, { "twice", twice }, { "session", session }, { "memory", memory }, { "sparse", sparse }, { "populated", populated }, { "linger", linger }, { "leave", leave }, { "much", much }, { "interrupted", interrupted },
		{ "children", children },
		{ "on demand", on_demand }, { "device memory", device_memory }, { "parents", parents }, { "imported", imported },
		{ "anew", anew } };
	for (unsigned i = 0; i < sizeof(corners) / sizeof(corners[0]); i++) {
		if (argc == 2 && !strcmp(argv[1], corners[i].name)) {
			corners[i].run();
			return 0;
		}
	}
	fprintf(stderr, "unknown case\n");
	return 2;
}
