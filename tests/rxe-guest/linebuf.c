/* Line-buffered standard output, preloaded into every program of the guest. Standard output is a pipe there,
 * so a server's "I am ready" would otherwise stay in its buffer. */
#include <stdio.h>

__attribute__((constructor)) static void line_buffer(void)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
}
