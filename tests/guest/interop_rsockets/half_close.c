/* half_close server|client ADDRESS PORT: half-closed connections. The client sends a request and shuts down its send direction;
 * the server responds after it has received both. A second connection swaps the roles. Prints "ok" on success. */
#include <arpa/inet.h>
#include <rdma/rsocket.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(what)                                                   \
	do {                                                              \
		if (!(what)) {                                                \
			perror(#what);                                            \
			exit(1);                                                  \
		}                                                             \
	} while (0)

static void ask(int fd)
{
	char got[16];
	CHECK(rsend(fd, "question", 8, 0) == 8);
	CHECK(!rshutdown(fd, SHUT_WR));
	CHECK(rrecv(fd, got, 6, MSG_WAITALL) == 6 && !memcmp(got, "answer", 6));
	CHECK(rrecv(fd, got, 1, 0) == 0);
}

static void answer(int fd)
{
	char got[16];
	CHECK(rrecv(fd, got, 8, MSG_WAITALL) == 8 && !memcmp(got, "question", 8));
	CHECK(rrecv(fd, got, 1, 0) == 0);
	CHECK(rsend(fd, "answer", 6, 0) == 6);
}

int main(int argc, char **argv)
{
	struct sockaddr_in6 address = { .sin6_family = AF_INET6 };
	CHECK(argc == 4 && inet_pton(AF_INET6, argv[2], &address.sin6_addr) == 1);
	address.sin6_port = htons(atoi(argv[3]));
	int is_server = !strcmp(argv[1], "server"), listening = -1;
	if (is_server) {
		CHECK((listening = rsocket(AF_INET6, SOCK_STREAM, 0)) >= 0);
		CHECK(!rbind(listening, (struct sockaddr *)&address, sizeof(address)));
		CHECK(!rlisten(listening, 2));
	}
	for (int server_asks = 0; server_asks < 2; server_asks++) {
		int fd;
		if (is_server) {
			CHECK((fd = raccept(listening, NULL, NULL)) >= 0);
		} else {
			CHECK((fd = rsocket(AF_INET6, SOCK_STREAM, 0)) >= 0);
			CHECK(!rconnect(fd, (struct sockaddr *)&address, sizeof(address)));
		}
		if (is_server == server_asks)
			ask(fd);
		else
			answer(fd);
		CHECK(!rclose(fd));
	}
	puts("ok");
	return 0;
}
