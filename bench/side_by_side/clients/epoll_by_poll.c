/* Calls that Redis uses and librspreload does not redirect to rsockets: epoll, accept4 and fcntl64. Preloaded before
 * librspreload, whose poll(), accept() and fcntl() these call. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#define DESCRIPTORS 1024

#define NEXT(type, name) ((type)dlsym(RTLD_NEXT, name))

/* Redis has one instance of epoll, from epoll_create(). Libraries have others, from epoll_create1(). */
static int instance = -1;
static struct pollfd polled[DESCRIPTORS];
static epoll_data_t data[DESCRIPTORS];
static int used;

int epoll_create(int size)
{
	(void)size;
	return instance = eventfd(0, EFD_CLOEXEC);
}

int epoll_ctl(int epoll, int operation, int fd, struct epoll_event *event)
{
	int i = 0;
	if (epoll != instance)
		return NEXT(int (*)(int, int, int, struct epoll_event *), "epoll_ctl")(epoll, operation, fd, event);
	while (i < used && polled[i].fd != fd)
		i++;
	if (operation == EPOLL_CTL_DEL) {
		if (i < used) {
			polled[i] = polled[--used];
			data[i] = data[used];
		}
		return 0;
	}
	if (i == used && used++ == DESCRIPTORS)
		abort();
	/* The bits of EPOLLIN, EPOLLOUT, EPOLLERR and EPOLLHUP are those of poll(). */
	polled[i] = (struct pollfd){ .fd = fd, .events = event->events & (POLLIN | POLLOUT) };
	data[i] = event->data;
	return 0;
}

int epoll_wait(int epoll, struct epoll_event *events, int max, int timeout)
{
	if (epoll != instance)
		return NEXT(int (*)(int, struct epoll_event *, int, int), "epoll_wait")(epoll, events, max, timeout);
	int ready = poll(polled, used, timeout), n = 0;
	if (ready < 0)
		return ready;
	for (int i = 0; i < used && n < max && n < ready; i++)
		if (polled[i].revents)
			events[n++] = (struct epoll_event){ .events = polled[i].revents, .data = data[i] };
	return n;
}

int accept4(int fd, struct sockaddr *address, socklen_t *length, int flags)
{
	int accepted = accept(fd, address, length);
	if (accepted >= 0 && flags & SOCK_NONBLOCK)
		fcntl(accepted, F_SETFL, O_NONBLOCK);
	if (accepted >= 0 && flags & SOCK_CLOEXEC)
		fcntl(accepted, F_SETFD, FD_CLOEXEC);
	return accepted;
}

int fcntl64(int fd, int command, ...)
{
	va_list arguments;
	va_start(arguments, command);
	intptr_t argument = va_arg(arguments, intptr_t);
	va_end(arguments);
	return fcntl(fd, command, argument);
}
