/* Preloaded into udpong, whose client waits 1 ms for each echo and then sends the datagram again; and when it reads an old echo,
 * it sends that one again in place of the datagram that it waits for. Where a round trip takes longer than 1 ms, ever more
 * datagrams are in flight until some are lost, and a lost one is never sent again. With a wait longer than any round trip there
 * is one in flight. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <rdma/rsocket.h>
#include <string.h>

int rpoll(struct pollfd *fds, nfds_t nfds, int timeout)
{
	int (*real)(struct pollfd *, nfds_t, int) = dlsym(RTLD_NEXT, "rpoll");
	int longer = timeout > 0 && !strcmp(program_invocation_short_name, "udpong");
	return real(fds, nfds, longer ? 10000 : timeout);
}
