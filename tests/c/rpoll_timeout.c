/* Preloaded into udpong to lengthen its timeout. The client waits 1 ms for each echo and then retransmits the datagram; when it
 * reads an old echo, it retransmits that one instead of the datagram it waits for. If a round trip takes longer than 1 ms, more and
 * more datagrams are in flight until some are lost, and a lost one is never retransmitted. With a timeout longer than any round
 * trip, only one datagram is in flight. */
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
