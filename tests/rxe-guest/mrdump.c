/* Writes the content of each memory region to the file $MR_DUMP when the program deregisters the region, one
 * region after another. Preloaded by tests that verify received data, because perftest does not. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void dump(const struct ibv_mr *mr)
{
	static int fd = -1;
	const char *file = getenv("MR_DUMP");

	if (fd < 0 && file)
		fd = open(file, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	for (size_t done = 0; done < mr->length;) {
		ssize_t n = write(fd, (const char *)mr->addr + done, mr->length - done);

		if (n <= 0) {
			perror("mrdump: $MR_DUMP");
			_exit(125);
		}
		done += (size_t)n;
	}
}

int ibv_dereg_mr(struct ibv_mr *mr)
{
	/* dlsym() might return the older version of the symbol. */
	int (*real)(struct ibv_mr *) = dlvsym(RTLD_NEXT, "ibv_dereg_mr", "IBVERBS_1.1");

	dump(mr);
	return real(mr);
}
