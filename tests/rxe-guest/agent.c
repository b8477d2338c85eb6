/* PID 1 of the guest after /init: runs commands for the host over one virtio-serial port, up to MAXS at a
 * time.
 *
 * Frames in both directions: u8 type, u32 session, u32 length (big endian), payload (at most MAXP bytes).
 *   guest -> host  'O' / 'E' stdout / stderr data, 'X' exit: i32 status (128 + N if signal N killed the command)
 *   host -> guest  'C' command for sh -c; opens the session, whose number the host chooses
 *                  'I' stdin data, 'Z' end of stdin, 'S' signal (u8) for the whole process group
 *                  'R' no payload: reseeds the kernel's random number generator from the emulated processor's
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/random.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#define HDR 9
#define MAXP 16000 /* a frame fits one virtio buffer */
#define MAXS 64

struct session {
	uint32_t sid;
	pid_t pid;		/* 0: free slot */
	int in, out, err;	/* the agent's ends of the pipes, -1 when closed */
	uint8_t *pend;		/* stdin data that the command has not read yet */
	size_t pend_len;
	int in_end, exited, status;
};

static struct session sessions[MAXS];
static int port;

static void put32(uint8_t *p, uint32_t v) { p[0] = v >> 24; p[1] = v >> 16; p[2] = v >> 8; p[3] = v; }
static uint32_t get32(const uint8_t *p) { return (uint32_t)p[0] << 24 | p[1] << 16 | p[2] << 8 | p[3]; }

static void shut(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

static void send_frame(uint8_t type, uint32_t sid, const void *data, size_t len)
{
	static uint8_t b[HDR + MAXP];
	b[0] = type;
	put32(b + 1, sid);
	put32(b + 5, len);
	if (len)
		memcpy(b + HDR, data, len);
	for (size_t off = 0; off < HDR + len;) {
		ssize_t n = write(port, b + off, HDR + len - off);	/* blocks until the host reads it */
		if (n > 0)
			off += n;
		else if (errno != EINTR)
			usleep(10000);
	}
}

static void send_exit(uint32_t sid, int status)
{
	uint8_t x[4];
	put32(x, status);
	send_frame('X', sid, x, 4);
}

static void start(uint32_t sid, const char *cmd)
{
	struct session *s = sessions;
	int i[2], o[2], e[2];
	while (s < sessions + MAXS && s->pid)
		s++;
	if (s == sessions + MAXS || pipe2(i, O_CLOEXEC) || pipe2(o, O_CLOEXEC) || pipe2(e, O_CLOEXEC)) {
		send_exit(sid, 126);
		return;
	}
	pid_t pid = fork();
	if (pid == 0) {
		sigset_t none;
		sigemptyset(&none);
		sigprocmask(SIG_SETMASK, &none, NULL);
		signal(SIGPIPE, SIG_DFL);
		setsid();
		dup2(i[0], 0);
		dup2(o[1], 1);
		dup2(e[1], 2);
		execl("/bin/sh", "sh", "-c", cmd, (char *)NULL);
		_exit(127);
	}
	close(i[0]);
	close(o[1]);
	close(e[1]);
	*s = (struct session){ .sid = sid, .pid = pid, .in = i[1], .out = o[0], .err = e[0] };
	if (pid < 0) {		/* reported as an exit with status 126 */
		s->pid = 1;
		s->exited = 1;
		s->status = 126;
	}
	fcntl(s->in, F_SETFL, O_NONBLOCK);
	fcntl(s->out, F_SETFL, O_NONBLOCK);
	fcntl(s->err, F_SETFL, O_NONBLOCK);
}

static void feed(struct session *s)
{
	if (s->in >= 0 && s->pend_len) {
		ssize_t n = write(s->in, s->pend, s->pend_len);
		if (n > 0) {
			s->pend_len -= n;
			memmove(s->pend, s->pend + n, s->pend_len);
		} else if (errno != EAGAIN && errno != EINTR) {
			shut(&s->in);
		}
	}
	if (s->in_end && !s->pend_len)
		shut(&s->in);
}

/* Forwards output of the command to the host, one piece per call, so a command with much output does not
 * starve the others. After the command has exited, forwards all that is left in the pipe (at most 64 KiB). */
static void drain(struct session *s, int *fd, uint8_t type)
{
	static uint8_t buf[MAXP];
	for (int left = s->exited ? 8 : 1; *fd >= 0 && left; left--) {
		ssize_t n = read(*fd, buf, sizeof buf);
		if (n > 0)
			send_frame(type, s->sid, buf, n);
		else if (n == 0)
			shut(fd);
		else
			break;
	}
}

static void reseed(void)
{
	int fd = open("/dev/urandom", O_WRONLY | O_CLOEXEC);
	if (fd < 0 || ioctl(fd, RNDRESEEDCRNG))
		perror("agent: RNDRESEEDCRNG");
	close(fd);
}

static void frame(uint8_t type, uint32_t sid, uint8_t *data, size_t len)
{
	if (type == 'C') {
		char *cmd = strndup((char *)data, len);
		start(sid, cmd);
		free(cmd);
		return;
	}
	if (type == 'R') {
		reseed();
		return;
	}
	for (struct session *s = sessions; s < sessions + MAXS; s++) {
		if (!s->pid || s->sid != sid)
			continue;
		if (type == 'I') {
			s->pend = realloc(s->pend, s->pend_len + len);
			memcpy(s->pend + s->pend_len, data, len);
			s->pend_len += len;
		} else if (type == 'Z') {
			s->in_end = 1;
		} else if (type == 'S' && len == 1 && s->pid > 1) {
			kill(-s->pid, data[0]);
		}
		feed(s);
	}
}

static void take_frames(void)
{
	static uint8_t in[HDR + 65536];
	static size_t len;
	ssize_t n = read(port, in + len, sizeof in - len);
	if (n <= 0) {
		usleep(10000);	/* no host is connected */
		return;
	}
	len += n;
	while (len >= HDR && len >= HDR + get32(in + 5)) {
		size_t all = HDR + get32(in + 5);
		frame(in[0], get32(in + 1), in + HDR, all - HDR);
		memmove(in, in + all, len - all);
		len -= all;
	}
}

static void reap(void)
{
	int st;
	pid_t pid;
	while ((pid = waitpid(-1, &st, WNOHANG)) > 0)	/* also reaps orphans, as PID 1 must */
		for (struct session *s = sessions; s < sessions + MAXS; s++)
			if (s->pid == pid) {
				s->exited = 1;
				s->status = WIFEXITED(st) ? WEXITSTATUS(st) : 128 + WTERMSIG(st);
			}
}

int main(int argc, char **argv)
{
	sigset_t chld;
	sigemptyset(&chld);
	sigaddset(&chld, SIGCHLD);
	sigprocmask(SIG_BLOCK, &chld, NULL);
	signal(SIGPIPE, SIG_IGN);
	int sfd = signalfd(-1, &chld, SFD_CLOEXEC | SFD_NONBLOCK);
	port = argc == 2 ? open(argv[1], O_RDWR | O_CLOEXEC) : -1;
	if (port < 0 || sfd < 0) {
		perror("agent");
		sleep(5);	/* the exit of PID 1 panics the kernel: let the message reach the console first */
		return 1;
	}
	for (;;) {
		struct pollfd p[2 + 3 * MAXS] = { { port, POLLIN, 0 }, { sfd, POLLIN, 0 } };
		for (int i = 0; i < MAXS; i++) {
			struct session *s = &sessions[i];
			int on = s->pid != 0;
			p[2 + 3 * i] = (struct pollfd){ on ? s->out : -1, POLLIN, 0 };
			p[3 + 3 * i] = (struct pollfd){ on ? s->err : -1, POLLIN, 0 };
			p[4 + 3 * i] = (struct pollfd){ on && s->pend_len ? s->in : -1, POLLOUT, 0 };
		}
		poll(p, 2 + 3 * MAXS, -1);
		if (p[0].revents)
			take_frames();
		if (p[1].revents) {
			struct signalfd_siginfo si;
			while (read(sfd, &si, sizeof si) > 0)
				;
			reap();
		}
		for (struct session *s = sessions; s < sessions + MAXS; s++) {
			if (!s->pid)
				continue;
			feed(s);
			drain(s, &s->out, 'O');
			drain(s, &s->err, 'E');
			if (s->exited) {	/* all output has been sent; background processes of the command lose their pipes */
				send_exit(s->sid, s->status);
				shut(&s->in);
				shut(&s->out);
				shut(&s->err);
				free(s->pend);
				*s = (struct session){ 0 };
			}
		}
	}
}
