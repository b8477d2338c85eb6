/* Registered memory that the program unmaps, protects or truncates: the work request fails, and there is no
 * signal. A fault of the program itself is still delivered to the program. */

#define _GNU_SOURCE
#include <malloc.h>
#include <setjmp.h>

#include "common.h"

enum loss { NO_ACCESS, READ_ONLY, TRUNCATED, UNMAPPED, REPLACED, MOVED, DISCARDED, LOSSES };
static const char *const losses[] = { "without access", "read-only",	  "truncated", "unmapped",
				      "replaced",	"moved away", "discarded" };
/* Whether the preloaded library reports to urxe what this program unmaps. Without it, only faults are noticed. */
static int is_reported;

#define LEN (64 * 1024)

static long page;

/* A region on LEN bytes of a file, which become inaccessible from some offset on. */
struct victim {
	char *bytes;
	FILE *file;
	struct ibv_mr *mr;
};

static struct victim make_victim(int flags)
{
	struct victim v;
	CHECK((v.file = tmpfile()) && !ftruncate(fileno(v.file), LEN));
	v.bytes = mmap(NULL, LEN, PROT_READ | PROT_WRITE, flags, fileno(v.file), 0);
	CHECK(v.bytes != MAP_FAILED);
	memset(v.bytes, 7, LEN);
	int all = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
	CHECK(v.mr = ibv_reg_mr(pd, v.bytes, LEN, all));
	return v;
}

static void lose(struct victim *v, enum loss loss, size_t from)
{
	char *at = v->bytes + from, *other;
	switch (loss) {
	case UNMAPPED:
		CHECK(!munmap(at, LEN - from));
		break;
	case REPLACED:
		CHECK(mmap(at, LEN - from, PROT_READ | PROT_WRITE, MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == at);
		break;
	case MOVED:
		CHECK((other = mmap(NULL, LEN, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) != MAP_FAILED);
		CHECK(mremap(at, LEN - from, LEN - from, MREMAP_MAYMOVE | MREMAP_FIXED, other) == other);
		CHECK(!munmap(other, LEN));
		break;
	case DISCARDED:
		CHECK(!madvise(at, LEN - from, MADV_DONTNEED));
		break;
	case NO_ACCESS:
	case READ_ONLY:
		CHECK(!mprotect(v->bytes + from, LEN - from, loss == READ_ONLY ? PROT_READ : PROT_NONE));
		break;
	default:
		CHECK(loss == TRUNCATED && !ftruncate(fileno(v->file), from));
	}
}

static void free_victim(struct victim *v)
{
	CHECK(!ibv_dereg_mr(v->mr));
	munmap(v->bytes, LEN);
	fclose(v->file);
}

enum use { SEND_FROM, RECV_TO, WRITE_FROM, WRITE_TO, READ_FROM, READ_TO, FETCH_ADD, COMPARE_SWAP, FETCHED_TO, USES };
static const char *const uses[] = { "SEND from", "RECV to",   "WRITE from",	 "WRITE to",	 "READ from",
				    "READ to",	 "FETCH_ADD on", "CMP_SWP on", "FETCH_ADD's result to" };

/* Uses `len` bytes at `at` of a region whose bytes from `from` on are inaccessible. */
static void use_lost(enum use use, enum loss loss, size_t len, size_t from, size_t at)
{
	static char other_bytes[LEN] __attribute__((aligned(4096)));
	int all = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
	struct ibv_mr *other = ibv_reg_mr(pd, other_bytes, LEN, all);
	struct victim v = make_victim(loss == DISCARDED ? MAP_PRIVATE : MAP_SHARED);
	struct ibv_qp *qp = create_qp((void *)1), *peer = create_qp((void *)2);
	connect_to(qp, peer->qp_num);
	connect_to(peer, qp->qp_num);
	lose(&v, loss, from);

	int is_local = use == SEND_FROM || use == WRITE_FROM || use == READ_TO || use == FETCHED_TO;
	int reads = use == SEND_FROM || use == WRITE_FROM || use == READ_FROM;
	struct ibv_sge victim = { .addr = (uintptr_t)v.bytes + at, .length = len, .lkey = v.mr->lkey };
	struct ibv_sge good = { .addr = (uintptr_t)other_bytes, .length = len, .lkey = other->lkey };
	static const enum ibv_wr_opcode opcodes[] = {
		IBV_WR_SEND,	  IBV_WR_SEND,	    IBV_WR_RDMA_WRITE,		IBV_WR_RDMA_WRITE,	    IBV_WR_RDMA_READ,
		IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD,
	};
	struct ibv_recv_wr recv = { .wr_id = 1, .sg_list = use == RECV_TO ? &victim : &good, .num_sge = 1 }, *bad_recv;
	struct ibv_send_wr send = { .wr_id = 2, .opcode = opcodes[use], .send_flags = IBV_SEND_SIGNALED,
				    .sg_list = is_local ? &victim : &good, .num_sge = 1 }, *bad;
	uint64_t remote = is_local ? (uintptr_t)other_bytes : (uintptr_t)v.bytes + at;
	uint32_t rkey = is_local ? other->rkey : v.mr->rkey;
	if (use >= FETCH_ADD) {
		send.wr.atomic.remote_addr = remote;
		send.wr.atomic.rkey = rkey;
	} else {
		send.wr.rdma.remote_addr = remote;
		send.wr.rdma.rkey = rkey;
	}
	CHECK(!ibv_post_recv(peer, &recv, &bad_recv));
	CHECK(!ibv_post_send(qp, &send, &bad));

	enum ibv_wc_status expected = is_local ? IBV_WC_LOC_PROT_ERR : IBV_WC_REM_OP_ERR;
	if (loss == READ_ONLY && reads)
		expected = IBV_WC_SUCCESS;
	if (!is_local && use != RECV_TO && loss >= UNMAPPED && is_reported)
		expected = IBV_WC_REM_ACCESS_ERR;
	int done = 0, received = use != RECV_TO;
	while (!done || !received) {
		struct ibv_wc wc;
		int n = ibv_poll_cq(cq, 1, &wc);
		CHECK(n >= 0);
		if (n && wc.wr_id == 2) {
			done = 1;
			if (wc.status != expected) {
				fprintf(stderr, "%s memory that is %s, %zu bytes: %s\n", uses[use], losses[loss], len,
					ibv_wc_status_str(wc.status));
				exit(1);
			}
		}
		if (n && wc.wr_id == 1 && use == RECV_TO) {
			received = 1;
			CHECK(wc.status == IBV_WC_LOC_PROT_ERR);
		}
	}
	CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_qp(peer));
	struct ibv_wc rest;
	while (ibv_poll_cq(cq, 1, &rest) > 0)
		;
	free_victim(&v);
	CHECK(!ibv_dereg_mr(other));
}

static void all_losses(void)
{
	for (enum loss loss = 0; loss < (is_reported ? LOSSES : REPLACED); loss++) {
		for (enum use use = 0; use < USES; use++) {
			/* One word, then messages of one packet and of many, whose last bytes are inaccessible. */
			use_lost(use, loss, 8, 8 * page, 8 * page);
			if (use >= FETCH_ADD)
				continue;
			use_lost(use, loss, 5, 8 * page, 8 * page + 1);
			use_lost(use, loss, 100, 8 * page, 8 * page - 50);
			use_lost(use, loss, 1000, 8 * page, 8 * page - 600);
			use_lost(use, loss, LEN / 2, 8 * page, 4 * page);
		}
		printf("%s\n", losses[loss]);
	}
}

static sigjmp_buf back;
static volatile int handled;
static void *volatile fault_at;

static void on_fault(int signal, siginfo_t *info, void *ucontext)
{
	(void)ucontext;
	handled = signal;
	fault_at = info->si_addr;
	siglongjmp(back, 1);
}

static void on_signal(int signal)
{
	handled = signal;
	siglongjmp(back, 1);
}

static void install(void)
{
	struct sigaction action = { .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO };
	CHECK(!sigaction(SIGSEGV, &action, NULL) && !sigaction(SIGBUS, &action, NULL));
}

/* Faults of the program itself reach its handler. */
static void fault_and_handle(void)
{
	char *none = mmap(NULL, page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	handled = 0;
	if (!sigsetjmp(back, 1))
		*(volatile char *)none = 1;
	CHECK(handled == SIGSEGV && fault_at == none);
	struct victim v = make_victim(MAP_SHARED);
	lose(&v, TRUNCATED, 0);
	handled = 0;
	if (!sigsetjmp(back, 1))
		*(volatile char *)v.bytes = 1;
	CHECK(handled == SIGBUS && fault_at == v.bytes);
	handled = 0;
	if (!sigsetjmp(back, 1))
		raise(SIGSEGV);
	CHECK(handled == SIGSEGV);
	free_victim(&v);
	munmap(none, page);
}

/* A handler installed before the registration. */
static void before(void)
{
	install();
	open_first();
	all_losses();
	fault_and_handle();
	all_losses();
}

static void block_all(void)
{
	sigset_t all, now;
	sigfillset(&all);
	CHECK(!pthread_sigmask(SIG_BLOCK, &all, NULL));
	CHECK(!pthread_sigmask(SIG_SETMASK, NULL, &now) && sigismember(&now, SIGTERM) == 1);
}

static void *losses_with_all_blocked(void *unused)
{
	(void)unused;
	block_all();
	all_losses();
	return NULL;
}

/* A new thread that blocks all signals, as the workers of servers do. */
static void blocked_in_thread(void)
{
	pthread_t thread;
	open_first();
	CHECK(!pthread_create(&thread, NULL, losses_with_all_blocked, NULL) && !pthread_join(thread, NULL));
}

/* A thread that blocks all signals after it has used the device. */
static void blocked_later(void)
{
	sigset_t all;
	open_first();
	use_lost(SEND_FROM, UNMAPPED, 8, 0, 0);
	block_all();
	use_lost(SEND_FROM, UNMAPPED, 8, 0, 0);
	sigfillset(&all);
	CHECK(!sigprocmask(SIG_SETMASK, &all, NULL));
	all_losses();
}

/* Handlers that the program installs later are called, and sigaction shows no others. */
static void after(void)
{
	struct sigaction old;
	open_first();
	struct victim v = make_victim(MAP_SHARED);
	CHECK(!sigaction(SIGSEGV, NULL, &old) && old.sa_handler == SIG_DFL);
	install();
	CHECK(!sigaction(SIGSEGV, NULL, &old) && old.sa_sigaction == on_fault && old.sa_flags & SA_SIGINFO);
	all_losses();
	fault_and_handle();
	CHECK(signal(SIGSEGV, on_signal) == (void (*)(int))(void *)on_fault);
	use_lost(SEND_FROM, UNMAPPED, 8, 0, 0);
	handled = 0;
	if (!sigsetjmp(back, 1))
		*(volatile char *)NULL = 1;
	CHECK(handled == SIGSEGV);
	CHECK(signal(SIGSEGV, SIG_DFL) == on_signal && signal(SIGUSR1, on_signal) == SIG_DFL);
	CHECK(signal(SIGUSR1, SIG_DFL) == on_signal);
	use_lost(SEND_FROM, UNMAPPED, 8, 0, 0);
	free_victim(&v);
}

/* Returns how a child that calls `what` ends. */
static int end_of(void (*what)(struct victim *), struct victim *v)
{
	int status;
	pid_t child = fork();
	CHECK(child >= 0);
	if (!child) {
		what(v);
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child);
	return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

static void touch_nothing(struct victim *v)
{
	(void)v;
	*(volatile char *)NULL = 1;
}

static void touch_lost(struct victim *v)
{
	*(volatile char *)v->bytes = 1;
}

static void raise_it(struct victim *v)
{
	(void)v;
	raise(SIGSEGV);
}

static void ignore_and_raise(struct victim *v)
{
	signal(SIGSEGV, SIG_IGN);
	raise_it(v);
}

static void reset_and_raise(struct victim *v)
{
	signal(SIGSEGV, SIG_DFL);
	raise_it(v);
}

/* Without a handler a fault ends the program, as it does without the library. */
static void unhandled(void)
{
	open_first();
	struct victim v = make_victim(MAP_SHARED);
	use_lost(RECV_TO, NO_ACCESS, 8, 0, 0);
	lose(&v, TRUNCATED, 0);
	CHECK(end_of(touch_nothing, &v) == SIGSEGV);
	CHECK(end_of(touch_lost, &v) == SIGBUS);
	CHECK(end_of(raise_it, &v) == SIGSEGV);
	CHECK(end_of(ignore_and_raise, &v) == 0);
}

static char other_stack[1 << 16] __attribute__((aligned(16)));
static volatile int on_other_stack;

static void note_stack(int signal)
{
	char *here = (char *)&signal;
	on_other_stack = here >= other_stack && here < other_stack + sizeof(other_stack);
	siglongjmp(back, 1);
}

static void fault_on_stack(int flags, int expected)
{
	struct sigaction action = { .sa_handler = note_stack, .sa_flags = flags };
	CHECK(!sigaction(SIGSEGV, &action, NULL));
	on_other_stack = -1;
	if (!sigsetjmp(back, 1))
		*(volatile char *)NULL = 1;
	CHECK(on_other_stack == expected);
}

/* A handler runs on the alternate stack only if it was installed with SA_ONSTACK. */
static void stacks(void)
{
	stack_t stack = { .ss_sp = other_stack, .ss_size = sizeof(other_stack) };
	CHECK(!sigaltstack(&stack, NULL));
	fault_on_stack(0, 0);
	open_first();
	struct victim v = make_victim(MAP_SHARED);
	on_other_stack = -1;
	if (!sigsetjmp(back, 1))
		*(volatile char *)NULL = 1;
	CHECK(on_other_stack == 0);
	fault_on_stack(SA_ONSTACK, 1);
	fault_on_stack(0, 0);
	use_lost(SEND_FROM, UNMAPPED, 8, 0, 0);
	free_victim(&v);
}

/* A child of vfork shares its parent's memory, but has its own signal actions. */
static void vforks(void)
{
	struct sigaction old;
	int status;
	open_first();
	struct victim v = make_victim(MAP_SHARED);
	install();
	pid_t child = vfork();
	if (!child) {
		int seen = signal(SIGSEGV, SIG_DFL) == (void (*)(int))(void *)on_fault && signal(SIGSEGV, SIG_DFL) == SIG_DFL;
		_exit(seen ? 0 : 1);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	CHECK(!sigaction(SIGSEGV, NULL, &old) && old.sa_sigaction == on_fault && old.sa_flags & SA_SIGINFO);
	fault_and_handle();
	child = vfork();
	if (!child) {
		signal(SIGSEGV, SIG_DFL);
		*(volatile char *)NULL = 1;
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
	/* A child of fork has a copy of everything, and changes its own. */
	CHECK(end_of(reset_and_raise, &v) == SIGSEGV);
	CHECK(!sigaction(SIGSEGV, NULL, &old) && old.sa_sigaction == on_fault);
	use_lost(SEND_FROM, UNMAPPED, 8, 0, 0);
	free_victim(&v);
}

/* A peer WRITEs to a region of `len` bytes that was unmapped or freed, after the library has allocated queues. */
static void write_to_lost_region(size_t len, int is_freed)
{
	enum { COUNT = 4, ENTRIES = 20000 };
	struct ibv_cq *cqs[COUNT], *shared = cq;
	struct ibv_qp *qps[COUNT];
	char *source = calloc(1, len);
	char *target = is_freed ? malloc(len) : mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct ibv_mr *from = ibv_reg_mr(pd, source, len, 0);
	struct ibv_mr *to = ibv_reg_mr(pd, target, len, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	CHECK(source && from && to);
	struct ibv_qp *qp = create_qp((void *)1), *peer = create_qp((void *)2);
	connect_to(qp, peer->qp_num);
	connect_to(peer, qp->qp_num);
	uint64_t address = (uintptr_t)target;
	if (is_freed)
		free(target);
	else
		CHECK(!munmap(target, len));
	for (int i = 0; i < COUNT; i++) {
		CHECK(cqs[i] = cq = ibv_create_cq(context, ENTRIES, NULL, NULL, 0));
		qps[i] = create_qp(NULL);
		connect_to(qps[i], qps[i]->qp_num);
	}
	cq = shared;
	for (size_t at = 0; at + page <= len; at += page) {
		struct ibv_sge sge = { .addr = (uintptr_t)source, .length = page, .lkey = from->lkey };
		struct ibv_send_wr write = { .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED,
					     .sg_list = &sge, .num_sge = 1 }, *bad;
		write.wr.rdma.remote_addr = address + at;
		write.wr.rdma.rkey = to->rkey;
		struct ibv_wc wc;
		CHECK(!ibv_post_send(qp, &write, &bad));
		while (!ibv_poll_cq(cq, 1, &wc))
			;
		if (wc.status == IBV_WC_SUCCESS)
			continue;
		CHECK(wc.status == IBV_WC_REM_ACCESS_ERR || wc.status == IBV_WC_REM_OP_ERR);
		struct ibv_qp_attr reset = { .qp_state = IBV_QPS_RESET };
		CHECK(!ibv_modify_qp(qp, &reset, IBV_QP_STATE) && !ibv_modify_qp(peer, &reset, IBV_QP_STATE));
		connect_to(qp, peer->qp_num);
		connect_to(peer, qp->qp_num);
	}
	for (int i = 0; i < COUNT; i++) {
		struct ibv_recv_wr recv = { .wr_id = 5 }, *bad_recv;
		struct ibv_send_wr send = { .wr_id = 6, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad;
		struct ibv_wc wc[2];
		CHECK(!ibv_post_recv(qps[i], &recv, &bad_recv) && !ibv_post_send(qps[i], &send, &bad));
		for (int n = 0; n < 2;)
			n += ibv_poll_cq(cqs[i], 2 - n, wc + n);
		CHECK(wc[0].status == IBV_WC_SUCCESS && wc[1].status == IBV_WC_SUCCESS && wc[0].wr_id + wc[1].wr_id == 11);
		CHECK(!ibv_destroy_qp(qps[i]) && !ibv_destroy_cq(cqs[i]));
	}
	CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_qp(peer) && !ibv_dereg_mr(from) && !ibv_dereg_mr(to));
	free(source);
}

static void own_memory(void)
{
	/* The C library unmaps blocks of this size when they are freed. */
	CHECK(mallopt(M_MMAP_THRESHOLD, 1 << 20));
	open_first();
	for (int is_freed = 0; is_freed < 2; is_freed++) {
		write_to_lost_region(1 << 20, is_freed);
		write_to_lost_region(9 << 20, is_freed);
	}
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	page = sysconf(_SC_PAGESIZE);
	is_reported = getenv("LD_PRELOAD") != NULL;
	if (!strcmp(argv[1], "before"))
		before();
	else if (!strcmp(argv[1], "after"))
		after();
	else if (!strcmp(argv[1], "unhandled"))
		unhandled();
	else if (!strcmp(argv[1], "blocked in thread"))
		blocked_in_thread();
	else if (!strcmp(argv[1], "blocked later"))
		blocked_later();
	else if (!strcmp(argv[1], "own memory"))
		own_memory();
	else if (!strcmp(argv[1], "stacks"))
		stacks();
	else if (!strcmp(argv[1], "vforks"))
		vforks();
	else
		return 2;
	return 0;
}
