/* ibv_reg_dmabuf_mr. "unsupported": with any descriptor. "refused": descriptors that are no DMA-bufs. "udmabuf": registers a udmabuf of a memfd, writes to
 * it and reads from it by RDMA, and compares with the memfd; needs /dev/udmabuf. */

#define _GNU_SOURCE

#include "common.h"
#include <fcntl.h>
#include <linux/udmabuf.h>
#include <sys/ioctl.h>

enum { PAGES = 4, RDWR = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ };

static long page;

static void refused(int expected, uint64_t offset, size_t length, uint64_t iova, int fd, int access)
{
	errno = 0;
	CHECK(!ibv_reg_dmabuf_mr(pd, offset, length, iova, fd, access));
	if (errno != expected) {
		fprintf(stderr, "errno %d, expected %d\n", errno, expected);
		exit(1);
	}
}

static void run(struct ibv_qp *qp, enum ibv_wr_opcode opcode, struct ibv_sge sge, uint64_t addr, uint32_t rkey)
{
	struct ibv_send_wr wr = {
		.opcode = opcode, .sg_list = &sge, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { addr, rkey },
	}, *bad;
	struct ibv_wc wc;
	int n;
	CHECK(!ibv_post_send(qp, &wr, &bad));
	while (!(n = ibv_poll_cq(cq, 1, &wc)))
		;
	CHECK(n == 1 && wc.status == IBV_WC_SUCCESS);
}

static void udmabuf(void)
{
	int memory = memfd_create("memory", MFD_ALLOW_SEALING), device = open("/dev/udmabuf", O_RDWR);
	CHECK(memory >= 0 && device >= 0);
	CHECK(!ftruncate(memory, PAGES * page) && !fcntl(memory, F_ADD_SEALS, F_SEAL_SHRINK));
	struct udmabuf_create create = { .memfd = memory, .size = PAGES * page };
	int fd = ioctl(device, UDMABUF_CREATE, &create);
	CHECK(fd >= 0);
	unsigned char *bytes = mmap(NULL, PAGES * page, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
	CHECK(bytes != MAP_FAILED);

	refused(EINVAL, 0, PAGES * page + 1, 0, fd, RDWR);
	refused(EINVAL, PAGES * page, 1, 0, fd, RDWR);
	refused(EINVAL, UINT64_MAX, page, UINT64_MAX, fd, RDWR);
	refused(EINVAL, 0, 0, 0, fd, RDWR);
	refused(EINVAL, 0, page, 1, fd, RDWR); /* the offsets in the page differ */
	refused(EINVAL, 0, page, 0, fd, RDWR | IBV_ACCESS_ON_DEMAND);

	/* From the middle of page 1 on, at addresses of its own; the descriptor is not needed afterwards. */
	uint64_t offset = page + 64, iova = 0x10000000 + 64;
	size_t length = 2 * page;
	struct ibv_mr *mr = ibv_reg_dmabuf_mr(pd, offset, length, iova, fd, RDWR);
	CHECK(mr && mr->length == length && (uintptr_t)mr->addr == offset);
	CHECK(!close(fd));
	unsigned char *local = malloc(length);
	CHECK(local);
	for (size_t i = 0; i < length; i++)
		local[i] = i * 31 + 7;
	struct ibv_mr *local_mr = ibv_reg_mr(pd, local, length, RDWR);
	CHECK(local_mr);
	struct ibv_qp *qp = create_qp(NULL);
	connect_to_itself(qp);
	struct ibv_sge sge = { (uintptr_t)local, length, local_mr->lkey };
	run(qp, IBV_WR_RDMA_WRITE, sge, iova, mr->rkey);
	CHECK(!memcmp(bytes + offset, local, length));
	CHECK(!bytes[offset - 1] && !bytes[offset + length]);

	/* The program's writes are visible to a READ, and the DMA-buf is the local side of one too. */
	bytes[offset + 5] = 0xa5;
	memset(local, 0, length);
	run(qp, IBV_WR_RDMA_READ, sge, iova, mr->rkey);
	CHECK(!memcmp(bytes + offset, local, length) && local[5] == 0xa5);
	memset(local, 0x5a, length);
	struct ibv_sge in_buffer = { iova + 100, 300, mr->lkey };
	run(qp, IBV_WR_RDMA_READ, in_buffer, (uintptr_t)local, local_mr->rkey);
	CHECK(bytes[offset + 99] != 0x5a && bytes[offset + 100] == 0x5a && bytes[offset + 399] == 0x5a);

	CHECK(!ibv_destroy_qp(qp) && !ibv_dereg_mr(mr) && !ibv_dereg_mr(local_mr));
	printf("ok\n");
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	page = sysconf(_SC_PAGESIZE);
	open_first();
	if (!strcmp(argv[1], "udmabuf")) {
		udmabuf();
		return 0;
	}
	int memory = memfd_create("memory", 0), pipes[2];
	CHECK(memory >= 0 && !ftruncate(memory, page) && !pipe(pipes));
	if (!strcmp(argv[1], "unsupported")) {
		refused(EOPNOTSUPP, 0, page, 0, -1, RDWR);
		refused(EOPNOTSUPP, 0, page, 0, memory, RDWR);
		return 0;
	}
	refused(EBADF, 0, page, 0, -1, RDWR);
	refused(EBADF, 0, page, 0, 1 << 20, RDWR);
	refused(EINVAL, 0, page, 0, memory, RDWR);
	refused(EINVAL, 0, page, 0, pipes[0], RDWR);
	printf("ok\n");
	return 0;
}
