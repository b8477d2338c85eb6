/* The sequence of calls that NCCL's InfiniBand transport makes, between two processes that verify all data.
 *
 * `nccl_calls PORT [NAME=VALUE]...` receives, `nccl_calls PORT to ADDRESS [NAME=VALUE]...` sends; both need the same values:
 *
 *   requests=100   number of requests
 *   group=1        largest number of buffers of a request; request R has 1 + R % group
 *   qps=1          number of queue pairs, at most 4
 *   split=1        1: each request takes all queue pairs; 0: one after the other
 *   sizes=4096     sizes of buffers in bytes, separated by commas
 *   adaptive=8192  a single buffer above this size is written without immediate data, which an empty WRITE brings
 *   timeout=14     local ACK timeout
 *   retries=7      retry count
 *
 * For each request, the receiver posts receives and permits the sender to write: it writes an entry for each buffer into a FIFO, which
 * the sender polls in memory. The sender writes the buffers, and WRITE with immediate ends the request on each queue pair. The
 * receiver then reads from itself, so that the data is visible, and verifies it.
 *
 * A queue pair that fails is moved from ERR to RESET, INIT, RTR and RTS at both ends, with other PSNs. The sender reads the number
 * of requests that have ended there from the receiver, over another queue pair if there is one, and posts the others again. The PSNs of queue
 * pair Q begin at 0x100000 * Q, plus 0x10000 for each recovery, plus 0x800000 at the receiver, so that fault rules can select packets.
 *
 * Prints `recovered queue pair Q` for each recovery and `verified N requests` at the end. */

#include "common.h"
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <sys/socket.h>

enum { QPS = 4, GROUP = 8, DEPTH = 8, SIZES = 16, QUEUE = 128, UNTOUCHED = 0xa5 };

/* Entry of the FIFO: a buffer that the sender may write. The number of its request, which the sender polls, is the last field. */
struct entry {
	uint64_t address;
	uint32_t rkey, size, tag, group;
	uint64_t check, number;
};

/* Memory that the peer reads and writes. */
struct shared {
	struct entry fifo[DEPTH][GROUP];     /* at the sender */
	uint32_t sizes[DEPTH][GROUP];        /* at the receiver: bytes that the sender has written */
	uint64_t ended[QPS];                 /* at the receiver: requests that have ended on each queue pair */
	struct entry entries[DEPTH][GROUP];  /* source of entries */
	uint32_t written[DEPTH][GROUP];      /* source of sizes */
	uint64_t probed[QPS];                /* destination of READs of `ended` */
	uint32_t flushed;                    /* destination of the receiver's READ from itself */
};

/* Addresses and messages that the processes exchange over TCP. */
struct hello {
	union ibv_gid gid;
	uint32_t qpns[QPS], rkey;
	uint64_t shared;
};
enum told { RESTART, READY, DONE };
struct message {
	uint32_t told, qp, psn;
};

/* Kinds of work requests, in the upper bits of their numbers. */
enum kind { DATA, PERMISSION, ENDED, PROBE, FLUSH, DRAIN_SENDS, DRAIN_RECEIVES };

enum state { UP, RESTARTING, WAITING, TO_PROBE, PROBING };

/* A queue pair. The K-th request on it is `request_of(qp, K)`. */
struct connection {
	struct ibv_qp *qp;
	enum state state;
	int has_failed, peer_restarts, peer_is_ready;
	uint32_t peer_psn, restarts;
	uint64_t sent, acknowledged;                   /* sender: requests */
	uint64_t receives, permissions, permitted;     /* receiver: receives, entries posted, entries that may be in the queue */
	unsigned drained;
};

static struct options {
	unsigned requests, group, qps, split, adaptive, timeout, retries, sizes[SIZES], count;
} options = { 100, 1, 1, 1, 8192, 14, 7, { 4096 }, 1 };

static struct connection connections[QPS];
static struct ibv_qp *flush_qp;
static struct shared *shared;
static struct ibv_mr *shared_mr, *buffers_mr;
static uint8_t *buffers;
static size_t largest = 1;
static struct hello peer;
static int is_sender, tcp, peer_is_done, is_flushing;
static uint64_t matched, issued, verified;

static unsigned parse_option(const char *text, const char *name, unsigned current)
{
	size_t length = strlen(name);
	return !strncmp(text, name, length) && text[length] == '=' ? (unsigned)atoi(text + length + 1) : current;
}

static void parse(char *text)
{
	options.requests = parse_option(text, "requests", options.requests);
	options.group = parse_option(text, "group", options.group);
	options.qps = parse_option(text, "qps", options.qps);
	options.split = parse_option(text, "split", options.split);
	options.adaptive = parse_option(text, "adaptive", options.adaptive);
	options.timeout = parse_option(text, "timeout", options.timeout);
	options.retries = parse_option(text, "retries", options.retries);
	if (!strncmp(text, "sizes=", 6)) {
		options.count = 0;
		for (char *size = strtok(text + 6, ","); size; size = strtok(NULL, ",")) {
			CHECK(options.count < SIZES);
			options.sizes[options.count++] = atoi(size);
		}
	}
	CHECK(options.qps >= 1 && options.qps <= QPS && options.group >= 1 && options.group <= GROUP && options.count);
}

static unsigned group_of(uint64_t request)
{
	return 1 + request % options.group;
}

static uint32_t offered(uint64_t request, unsigned buffer)
{
	return options.sizes[(request + buffer) % options.count];
}

/* Bytes that the sender writes: in every third request less than the receiver offers. */
static uint32_t used(uint64_t request, unsigned buffer)
{
	uint32_t size = offered(request, buffer);
	return request % 3 == 2 ? size - size / 4 : size;
}

static uint8_t *buffer_of(uint64_t request, unsigned buffer)
{
	return buffers + ((request % DEPTH) * options.group + buffer) * largest;
}

static uint64_t request_of(unsigned qp, uint64_t k)
{
	return options.split ? k : k * options.qps + qp;
}

/* Whether so many ends of requests on each queue pair include this request. */
static int has_ended(uint64_t request, const uint64_t ends[QPS])
{
	for (unsigned qp = 0; qp < options.qps; qp++)
		if (options.split ? ends[qp] <= request : request % options.qps == qp && ends[qp] <= request / options.qps)
			return 0;
	return 1;
}

static uint8_t pattern(uint64_t request, unsigned buffer, uint32_t at)
{
	return (request * 31 + buffer * 7 + at + (at >> 8) * 3) % 251;
}

static uint64_t check_of(const struct entry *entry)
{
	return (entry->address * 3 + entry->rkey) * 5 + entry->size * 7ull + entry->tag * 11ull + entry->group * 13ull;
}

static uint64_t id(enum kind kind, unsigned qp, uint64_t number)
{
	return (uint64_t)kind << 56 | (uint64_t)qp << 48 | number;
}

static uint32_t first_psn(unsigned qp)
{
	return (is_sender ? 0 : 0x800000) + 0x100000 * qp + 0x10000 * (connections[qp].restarts % 16);
}

static struct ibv_sge sge_of(const void *data, uint32_t length, struct ibv_mr *mr)
{
	return (struct ibv_sge){ .addr = (uintptr_t)data, .length = length, .lkey = mr->lkey };
}

static void post(struct ibv_qp *qp, struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad;
	CHECK(!ibv_post_send(qp, wr, &bad));
}

static void post_receive(struct ibv_qp *qp, uint64_t wr_id)
{
	struct ibv_recv_wr wr = { .wr_id = wr_id }, *bad;
	CHECK(!ibv_post_recv(qp, &wr, &bad));
}

/* Connection */

static struct ibv_qp *create(void)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = { .max_send_wr = QUEUE, .max_recv_wr = DEPTH + 1, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 64 },
		.qp_type = IBV_QPT_RC,
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	CHECK(qp);
	return qp;
}

static void set_up(struct ibv_qp *qp, uint32_t dest, const union ibv_gid *gid, uint32_t sq_psn, uint32_t rq_psn, unsigned timeout)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.port_num = 1,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ,
	};
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	attr.qp_state = IBV_QPS_RTR;
	attr.path_mtu = IBV_MTU_1024;
	attr.dest_qp_num = dest;
	attr.rq_psn = rq_psn;
	attr.max_dest_rd_atomic = 1;
	attr.min_rnr_timer = 12;
	attr.ah_attr.is_global = 1;
	attr.ah_attr.port_num = 1;
	attr.ah_attr.grh.dgid = *gid;
	attr.ah_attr.grh.hop_limit = 255;
	CHECK(!ibv_modify_qp(qp, &attr,
			     IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	attr.qp_state = IBV_QPS_RTS;
	attr.sq_psn = sq_psn;
	attr.timeout = timeout;
	attr.retry_cnt = options.retries;
	attr.rnr_retry = 7;
	attr.max_rd_atomic = 1;
	CHECK(!ibv_modify_qp(qp, &attr,
			     IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
				     IBV_QP_MAX_QP_RD_ATOMIC));
}

static void set_up_connection(unsigned qp)
{
	set_up(connections[qp].qp, peer.qpns[qp], &peer.gid, first_psn(qp), connections[qp].peer_psn, options.timeout);
}

static void connect_tcp(int port, const char *address)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(port) };
	int one = 1;
	tcp = socket(AF_INET, SOCK_STREAM, 0);
	if (address) {
		CHECK(inet_pton(AF_INET, address, &to.sin_addr) == 1);
		CHECK(!connect(tcp, (struct sockaddr *)&to, sizeof(to)));
	} else {
		int listener = tcp;
		setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
		CHECK(!bind(listener, (struct sockaddr *)&to, sizeof(to)) && !listen(listener, 1));
		CHECK((tcp = accept(listener, NULL, NULL)) >= 0);
		close(listener);
	}
	setsockopt(tcp, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
}

static void set_up_all(void)
{
	struct hello own = { .shared = (uintptr_t)shared, .rkey = shared_mr->rkey };
	char byte;
	CHECK(!ibv_query_gid(context, 1, 0, &own.gid));
	for (unsigned qp = 0; qp < options.qps; qp++) {
		connections[qp].qp = create();
		own.qpns[qp] = connections[qp].qp->qp_num;
		connections[qp].peer_psn = first_psn(qp) ^ 0x800000;
	}
	CHECK(write(tcp, &own, sizeof(own)) == sizeof(own));
	CHECK(recv(tcp, &peer, sizeof(peer), MSG_WAITALL) == sizeof(peer));
	for (unsigned qp = 0; qp < options.qps; qp++)
		set_up_connection(qp);
	if (!is_sender) {
		/* It does not fail over, so its timeout is long. */
		flush_qp = create();
		set_up(flush_qp, flush_qp->qp_num, &own.gid, 0xf00000, 0xf00000, 20);
	}
	/* Both ends are in RTS before either posts. */
	CHECK(write(tcp, "", 1) == 1);
	CHECK(recv(tcp, &byte, 1, MSG_WAITALL) == 1);
}

static void tell(enum told told, unsigned qp)
{
	struct message message = { told, qp, first_psn(qp) };
	CHECK(write(tcp, &message, sizeof(message)) == sizeof(message));
}

static void listen_to_peer(void)
{
	struct message message;
	ssize_t got = recv(tcp, &message, sizeof(message), MSG_DONTWAIT | MSG_PEEK);
	if (got < (ssize_t)sizeof(message)) {
		CHECK(got > 0 || (got < 0 && errno == EAGAIN));
		return;
	}
	CHECK(recv(tcp, &message, sizeof(message), 0) == sizeof(message));
	struct connection *connection = &connections[message.qp];
	if (message.told == RESTART) {
		connection->peer_restarts = 1;
		connection->peer_psn = message.psn;
	} else if (message.told == READY) {
		connection->peer_is_ready = 1;
	} else {
		peer_is_done = 1;
	}
}

/* Completions */

/* Counts the end of a request, whose immediate data is the number of bytes written if the request has one buffer. */
static void end_request(unsigned qp, const struct ibv_wc *wc)
{
	uint64_t request = request_of(qp, shared->ended[qp]++);
	CHECK(wc->opcode == IBV_WC_RECV_RDMA_WITH_IMM && wc->wc_flags & IBV_WC_WITH_IMM && request < issued);
	CHECK(ntohl(wc->imm_data) == (group_of(request) == 1 ? used(request, 0) : 0));
}

static void verify(uint64_t request)
{
	unsigned group = group_of(request), last = group - 1;
	if (used(request, last) >= sizeof(shared->flushed))
		CHECK(!memcmp(&shared->flushed, buffer_of(request, last), sizeof(shared->flushed)));
	for (unsigned buffer = 0; buffer < group; buffer++) {
		uint8_t *data = buffer_of(request, buffer);
		uint32_t size = used(request, buffer);
		CHECK(group == 1 || shared->sizes[request % DEPTH][buffer] == size);
		for (uint32_t i = 0; i < size; i++)
			CHECK(data[i] == pattern(request, buffer, i));
		for (uint32_t i = size; i < offered(request, buffer); i++)
			CHECK(data[i] == UNTOUCHED);
	}
}

static void succeed(const struct ibv_wc *wc, enum kind kind, unsigned qp, uint64_t number)
{
	struct connection *connection = &connections[qp];
	if (kind == DATA)
		connection->acknowledged = number + 1;
	else if (kind == PERMISSION)
		connection->permitted = number + 1;
	else if (kind == ENDED)
		end_request(qp, wc);
	else if (kind == FLUSH) {
		verify(verified++);
		is_flushing = 0;
	} else if (kind == PROBE && connection->state == PROBING && number == connection->restarts) {
		CHECK(shared->probed[qp] >= connection->acknowledged && shared->probed[qp] <= connection->sent);
		connection->sent = connection->acknowledged = shared->probed[qp];
		connection->state = UP;
		printf("recovered queue pair %u\n", qp);
	}
}

/* The number of a PROBE names the queue pair that it is about, which is not the one that it was posted to. */
static void fail(const struct ibv_wc *wc, enum kind kind, unsigned qp, uint64_t number)
{
	CHECK(wc->status == IBV_WC_RETRY_EXC_ERR || wc->status == IBV_WC_WR_FLUSH_ERR);
	CHECK(kind != FLUSH);
	if (kind == DRAIN_SENDS || kind == DRAIN_RECEIVES)
		connections[qp].drained++;
	else if (kind == PROBE && connections[qp].state == PROBING && number == connections[qp].restarts)
		connections[qp].state = TO_PROBE;
	for (unsigned other = 0; other < options.qps; other++)
		if (connections[other].qp->qp_num == wc->qp_num)
			connections[other].has_failed = 1;
}

static int poll_completions(void)
{
	struct ibv_wc wc[16];
	int count = ibv_poll_cq(cq, 16, wc);
	CHECK(count >= 0);
	for (int i = 0; i < count; i++)
		(wc[i].status == IBV_WC_SUCCESS ? succeed : fail)(&wc[i], wc[i].wr_id >> 56, wc[i].wr_id >> 48 & 0xff,
								  wc[i].wr_id & 0xffffffffffff);
	return count;
}

/* Recovery */

/* Moves a queue pair to ERR, and polls until all its work requests have completed: the last ones are those posted here. */
static void drain(unsigned qp)
{
	struct connection *connection = &connections[qp];
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	struct ibv_send_wr wr = { .wr_id = id(DRAIN_SENDS, qp, 0), .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED };
	CHECK(!ibv_modify_qp(connection->qp, &attr, IBV_QP_STATE));
	connection->drained = 0;
	post(connection->qp, &wr);
	post_receive(connection->qp, id(DRAIN_RECEIVES, qp, 0));
	while (connection->drained < 2)
		poll_completions();
}

/* Posts a READ of the number of requests that have ended on a queue pair. */
static void probe(unsigned qp)
{
	unsigned over = qp;
	for (unsigned other = 0; other < options.qps; other++)
		if (connections[other].state == UP && !connections[other].has_failed)
			over = other;
	struct ibv_sge sge = sge_of(&shared->probed[qp], sizeof(uint64_t), shared_mr);
	struct ibv_send_wr wr = {
		.wr_id = id(PROBE, qp, connections[qp].restarts),
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = IBV_WR_RDMA_READ,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { peer.shared + offsetof(struct shared, ended[qp]), peer.rkey },
	};
	connections[qp].state = PROBING;
	post(connections[over].qp, &wr);
}

static void restart(unsigned qp)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RESET };
	drain(qp);
	CHECK(!ibv_modify_qp(connections[qp].qp, &attr, IBV_QP_STATE));
	connections[qp].restarts++;
	connections[qp].has_failed = 0;
	connections[qp].state = RESTARTING;
	tell(RESTART, qp);
}

/* Both ends move a queue pair to RESET before either moves it further, and to RTS before either posts a request. */
static void recover(unsigned qp)
{
	struct connection *connection = &connections[qp];
	int is_in_use = connection->state == UP || connection->state == TO_PROBE || connection->state == PROBING;
	if (is_in_use && (connection->has_failed || connection->peer_restarts)) {
		restart(qp);
	} else if (connection->state == RESTARTING && connection->peer_restarts) {
		connection->peer_restarts = 0;
		set_up_connection(qp);
		connection->receives = shared->ended[qp];
		connection->state = WAITING;
		tell(READY, qp);
	} else if (connection->state == WAITING && connection->peer_is_ready) {
		connection->peer_is_ready = 0;
		/* Entries of requests that have not ended are written again. */
		connection->permissions = connection->permitted = (verified + options.qps - 1 - qp) / options.qps;
		connection->state = is_sender ? TO_PROBE : UP;
		if (!is_sender)
			printf("recovered queue pair %u\n", qp);
	} else if (connection->state == TO_PROBE) {
		probe(qp);
	}
}

/* Sender */

/* Returns the entry of the FIFO with a buffer's tag, once the receiver has written all entries of the request. */
static volatile struct entry *entry_of(uint64_t request, unsigned buffer)
{
	volatile struct entry *entries = shared->fifo[request % DEPTH], *found = NULL;
	unsigned group = group_of(request);
	for (unsigned i = 0; i < group; i++)
		if (entries[i].number != request + 1)
			return NULL;
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	for (unsigned i = 0; i < group; i++) {
		struct entry entry = entries[i];
		CHECK(entry.check == check_of(&entry) && entry.group == group);
		if (entry.tag == 1000 + buffer)
			found = &entries[i];
	}
	CHECK(found && found->size == offered(request, buffer));
	return found;
}

/* Fills the buffers of the next request once the receiver permits to write it and their last request has ended. */
static void match(void)
{
	if (matched == options.requests || (matched >= DEPTH && matched - DEPTH >= verified) || !entry_of(matched, 0))
		return;
	for (unsigned buffer = 0; buffer < group_of(matched); buffer++) {
		uint32_t size = used(matched, buffer);
		uint8_t *data = buffer_of(matched, buffer);
		for (uint32_t i = 0; i < size; i++)
			data[i] = pattern(matched, buffer, i);
		shared->written[matched % DEPTH][buffer] = size;
	}
	matched++;
}

/* Posts the part of a request that a queue pair carries, as a list that ends with WRITE with immediate. */
static void send_request(unsigned qp, uint64_t k)
{
	uint64_t request = request_of(qp, k);
	unsigned group = group_of(request), parts = options.split ? options.qps : 1, part = options.split ? qp : 0, count = 0;
	struct ibv_sge sges[GROUP + 1];
	struct ibv_send_wr wrs[GROUP + 1] = { 0 };
	for (unsigned buffer = 0; buffer < group; buffer++) {
		volatile struct entry *entry = entry_of(request, buffer);
		/* Parts are multiples of 128 bytes, except for the last, and may be empty. */
		uint32_t size = used(request, buffer), each = (size + parts * 128 - 1) / (parts * 128) * 128;
		uint32_t begin = each * part < size ? each * part : size;
		uint32_t length = size - begin < each ? size - begin : each;
		sges[count] = sge_of(buffer_of(request, buffer) + begin, length, buffers_mr);
		wrs[count] = (struct ibv_send_wr){
			.sg_list = &sges[count],
			.num_sge = length > 0,
			.opcode = IBV_WR_RDMA_WRITE,
			.wr.rdma = { entry->address + begin, entry->rkey },
		};
		count++;
	}
	if (group > 1) {
		sges[count] = sge_of(shared->written[request % DEPTH], group * sizeof(uint32_t), shared_mr);
		wrs[count] = (struct ibv_send_wr){
			.sg_list = &sges[count],
			.num_sge = 1,
			.wr.rdma = { peer.shared + offsetof(struct shared, sizes[request % DEPTH]), peer.rkey },
		};
		count++;
	} else if (used(request, 0) > options.adaptive) {
		count++;
	}
	wrs[count - 1].wr_id = id(DATA, qp, k);
	wrs[count - 1].opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
	wrs[count - 1].imm_data = htonl(group == 1 ? used(request, 0) : 0);
	wrs[count - 1].send_flags = IBV_SEND_SIGNALED;
	for (unsigned i = 1; i < count; i++)
		wrs[i - 1].next = &wrs[i];
	post(connections[qp].qp, wrs);
}

static void send_requests(void)
{
	uint64_t acknowledged[QPS] = { 0 };
	match();
	for (unsigned qp = 0; qp < options.qps; qp++) {
		struct connection *connection = &connections[qp];
		while (connection->state == UP && !connection->has_failed && request_of(qp, connection->sent) < matched)
			send_request(qp, connection->sent++);
		acknowledged[qp] = connection->acknowledged;
	}
	while (verified < matched && has_ended(verified, acknowledged))
		verified++;
}

/* Receiver */

/* Writes the entries of a request to the sender. */
static void permit(unsigned qp, uint64_t k)
{
	uint64_t request = k * options.qps + qp;
	struct entry *entries = shared->entries[request % DEPTH];
	unsigned group = group_of(request);
	for (unsigned i = 0; i < group; i++) {
		/* The order of the entries is not that in which the sender looks for them. */
		unsigned buffer = group - 1 - i;
		entries[i] = (struct entry){
			.address = (uintptr_t)buffer_of(request, buffer),
			.rkey = buffers_mr->rkey,
			.size = offered(request, buffer),
			.tag = 1000 + buffer,
			.group = group,
			.number = request + 1,
		};
		entries[i].check = check_of(&entries[i]);
	}
	uint32_t length = group * sizeof(struct entry);
	struct ibv_sge sge = sge_of(entries, length, shared_mr);
	struct ibv_send_wr wr = {
		.wr_id = id(PERMISSION, qp, k),
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = IBV_WR_RDMA_WRITE,
		.send_flags = (k % 4 == 3 ? IBV_SEND_SIGNALED : 0) | (length <= 64 ? IBV_SEND_INLINE : 0),
		.wr.rdma = { peer.shared + offsetof(struct shared, fifo[request % DEPTH]), peer.rkey },
	};
	post(connections[qp].qp, &wr);
}

static void flush(uint64_t request)
{
	unsigned last = group_of(request) - 1;
	uint32_t size = used(request, last);
	struct ibv_sge sge = sge_of(&shared->flushed, sizeof(shared->flushed), shared_mr);
	struct ibv_send_wr wr = {
		.wr_id = id(FLUSH, 0, 0),
		.sg_list = &sge,
		.num_sge = size >= sizeof(shared->flushed),
		.opcode = IBV_WR_RDMA_READ,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { (uintptr_t)buffer_of(request, last), buffers_mr->rkey },
	};
	is_flushing = 1;
	post(flush_qp, &wr);
}

static void receive_requests(void)
{
	while (issued < options.requests && issued < verified + DEPTH) {
		for (unsigned buffer = 0; buffer < group_of(issued); buffer++)
			memset(buffer_of(issued, buffer), UNTOUCHED, offered(issued, buffer));
		issued++;
	}
	for (unsigned qp = 0; qp < options.qps; qp++) {
		struct connection *connection = &connections[qp];
		if (connection->has_failed || (connection->state != UP && connection->state != WAITING))
			continue;
		while (request_of(qp, connection->receives) < issued) {
			post_receive(connection->qp, id(ENDED, qp, 0));
			connection->receives++;
		}
		while (connection->state == UP && connection->permissions * options.qps + qp < issued &&
		       connection->permissions - connection->permitted < QUEUE / 2)
			permit(qp, connection->permissions++);
	}
	if (!is_flushing && verified < issued && has_ended(verified, shared->ended))
		flush(verified);
}

static int are_up(void)
{
	for (unsigned qp = 0; qp < options.qps; qp++)
		if (connections[qp].state != UP || connections[qp].has_failed)
			return 0;
	return 1;
}

/* The sender waits for the receiver, whose queue pairs may have failed after all requests have ended. */
static int is_finished(void)
{
	return peer_is_done && (is_sender || (verified == options.requests && are_up()));
}

int main(int count, char **arguments)
{
	CHECK(count >= 2);
	is_sender = count >= 4 && !strcmp(arguments[2], "to");
	for (int i = is_sender ? 4 : 2; i < count; i++)
		parse(arguments[i]);
	setvbuf(stdout, NULL, _IOLBF, 0);
	open_first();
	CHECK(!ibv_destroy_cq(cq));
	CHECK(cq = ibv_create_cq(context, (QPS + 1) * (QUEUE + DEPTH + 1), NULL, NULL, 0));

	for (unsigned i = 0; i < options.count; i++)
		largest = options.sizes[i] > largest ? options.sizes[i] : largest;
	size_t length = DEPTH * options.group * largest;
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
	buffers = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(buffers != MAP_FAILED);
	CHECK(shared = calloc(1, sizeof(*shared)));
	CHECK(buffers_mr = ibv_reg_mr(pd, buffers, length, access));
	CHECK(shared_mr = ibv_reg_mr(pd, shared, sizeof(*shared), access));
	connect_tcp(atoi(arguments[1]), is_sender ? arguments[3] : NULL);
	set_up_all();

	int has_told = 0;
	while (!is_finished()) {
		(is_sender ? send_requests : receive_requests)();
		if (is_sender && verified == options.requests && !has_told++)
			tell(DONE, 0);
		listen_to_peer();
		for (unsigned qp = 0; qp < options.qps; qp++)
			recover(qp);
		if (!poll_completions())
			sched_yield();
	}
	if (!is_sender)
		tell(DONE, 0);
	printf("%s %" PRIu64 " requests\n", is_sender ? "sent" : "verified", verified);
	return 0;
}
