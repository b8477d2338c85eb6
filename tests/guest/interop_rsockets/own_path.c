/* Preloaded in the guest into programs that use datagram rsockets. librdmacm 44 creates an address handle from each queue pair to
 * itself, with a LID (0) and no GID. This is a valid path over InfiniBand; over Ethernet rxe rejects it, and creating the socket
 * fails. This library replaces it with a path to the address of the socket, the only one of its IP version in the GID table. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <string.h>
#include <unistd.h>
#include <fcntl.h>

/* Reports whether the GID is an IPv4-mapped address (::ffff:a.b.c.d). */
static int is_v4(const union ibv_gid *gid)
{
	static const unsigned char mapped[12] = { [10] = 0xff, [11] = 0xff };
	return !memcmp(gid, mapped, sizeof(mapped));
}

/* Reports whether the command line contains an address of the guest's IPv6 network. */
static int wants_v6(void)
{
	char words[1024];
	int fd = open("/proc/self/cmdline", O_RDONLY), len = read(fd, words, sizeof(words));
	close(fd);
	return len > 0 && memmem(words, len, "fd77::", 6);
}

struct ibv_ah *ibv_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr)
{
	struct ibv_ah *(*real)(struct ibv_pd *, struct ibv_ah_attr *) = dlvsym(RTLD_NEXT, "ibv_create_ah", "IBVERBS_1.1");
	struct ibv_ah_attr to = *attr;
	for (int i = 0; !to.is_global && i < 16; i++) {
		union ibv_gid gid;
		if (ibv_query_gid(pd->context, 1, i, &gid) || gid.raw[0] == 0xfe)
			continue;
		if (wants_v6() ? gid.raw[0] == 0xfd : is_v4(&gid)) {
			to.is_global = 1;
			to.grh.dgid = gid;
			to.grh.sgid_index = i;
			to.grh.hop_limit = 64;
		}
	}
	return real(pd, &to);
}
