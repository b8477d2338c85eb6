/* Preloaded into every program of the guest: standard output is a pipe there, and without this
 * a server's "I am ready" would stay in its buffer. */
#include <stdio.h>

__attribute__((constructor)) static void line_buffer(void)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
}
