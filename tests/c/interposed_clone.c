/* Preloaded into a program, in place of ThreadSanitizer's `clone`: it aborts in a child that shares the memory of its parent. */
#include <stdlib.h>

int clone(void)
{
	abort();
}
