/* A program that loads the library as a plugin would, and unloads it with the device closed, and with the
 * device open and its threads running: neither these threads nor the end of the process may fail. */

#define _GNU_SOURCE /* dlvsym */
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define CHECK(what)                                                                                  \
	do {                                                                                             \
		if (!(what)) {                                                                               \
			fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #what, dlerror());                \
			exit(1);                                                                                 \
		}                                                                                            \
	} while (0)

static void *function(void *library, const char *name)
{
	void *found = dlvsym(library, name, "IBVERBS_1.1");
	CHECK(found);
	return found;
}

static void use(void *library, int leave_open)
{
	struct ibv_device **(*list_devices)(int *) = function(library, "ibv_get_device_list");
	void (*free_list)(struct ibv_device **) = function(library, "ibv_free_device_list");
	struct ibv_context *(*open_device)(struct ibv_device *) = function(library, "ibv_open_device");
	struct ibv_pd *(*alloc_pd)(struct ibv_context *) = function(library, "ibv_alloc_pd");
	int (*dealloc_pd)(struct ibv_pd *) = function(library, "ibv_dealloc_pd");
	int (*close_device)(struct ibv_context *) = function(library, "ibv_close_device");
	struct ibv_device **list = list_devices(NULL);
	struct ibv_context *context;
	struct ibv_pd *pd;
	CHECK(list && list[0] && (context = open_device(list[0])) && (pd = alloc_pd(context)));
	free_list(list);
	if (!leave_open)
		CHECK(!dealloc_pd(pd) && !close_device(context));
}

int main(void)
{
	for (int i = 0; i < 6; i++) {
		void *library = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
		CHECK(library);
		use(library, i >= 3);
		CHECK(!dlclose(library));
		usleep(20000);
	}
	return 0;
}
