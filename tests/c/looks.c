// Calls each function that the library interposes, with names of RDMA devices and with other names. Requires a tree with
// class/infiniband/urxe0/node_guid ("guid"), beside it "counter", which the user may write to, and device -> ../other,
// dev/infiniband/uverbs0, and the PCI function 0000:fe:1f.0, which the machine does not have.
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <malloc.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

// Functions called by programs that were built with _FORTIFY_SOURCE or against old versions of glibc.
int __open_2(const char *, int), __open64_2(const char *, int);
int __openat_2(int, const char *, int), __openat64_2(int, const char *, int);
int __xstat(int, const char *, struct stat *), __lxstat(int, const char *, struct stat *);
int __xstat64(int, const char *, struct stat64 *), __lxstat64(int, const char *, struct stat64 *);
int __fxstatat(int, int, const char *, struct stat *, int), __fxstatat64(int, int, const char *, struct stat64 *, int);
ssize_t __readlink_chk(const char *, char *, size_t, size_t), __readlinkat_chk(int, const char *, char *, size_t, size_t);
char *__realpath_chk(const char *, char *, size_t);
typedef void (*handler_t)(int);
handler_t bsd_signal(int, handler_t), __sysv_signal(int, handler_t);
// Defined only if the library is preloaded.
void urxe_route_fault_signals(int (*)(int, const struct sigaction *, struct sigaction *)) __attribute__((weak));

void urxe_report_unmapping(void (*)(size_t, size_t, bool)) __attribute__((weak));

#define CLASS "/sys/class/infiniband"
#define GUID CLASS "/urxe0/node_guid"
#define DEVICE CLASS "/urxe0/device"
#define OTHER "/etc/passwd"
#define VERSION 1

static int failures;

static void check(int right, const char *what, int line)
{
	if (!right) {
		printf("line %d: %s: errno %d\n", line, what, errno);
		failures++;
	}
}
#define CHECK(what) check(!!(what), #what, __LINE__)

static int holds_guid(int fd)
{
	char text[8] = "";
	int right = fd >= 0 && read(fd, text, sizeof text) == 5 && !strcmp(text, "guid\n");
	close(fd);
	return right;
}

static int begins_with_guid(FILE *file)
{
	int right = file && fgetc(file) == 'g';
	if (file)
		fclose(file);
	return right;
}

static int closes(int fd)
{
	return fd >= 0 && close(fd) == 0;
}

static int holds(DIR *dir, const char *name)
{
	int found = 0;
	for (struct dirent *entry; dir && (entry = readdir(dir));)
		found |= !strcmp(entry->d_name, name);
	if (dir)
		closedir(dir);
	return found;
}

static int freed(int count, void *list)
{
	for (int i = 0; i < count; i++)
		free((*(void ***)list)[i]);
	if (count >= 0)
		free(*(void **)list);
	return count;
}

static int in_tree(char *path)
{
	const char *tree = getenv("URXE_SYSFS");
	return path && !strncmp(path, tree, strlen(tree));
}

static void devices(void)
{
	struct stat st;
	struct stat64 st64;
	struct statx stx;
	struct statfs fs;
	struct statfs64 fs64;
	char text[PATH_MAX], *path;
	struct dirent **list;
	struct dirent64 **list64;
	int root = open("/", O_RDONLY | O_DIRECTORY);

	CHECK(holds_guid(open(GUID, O_RDONLY)));
	CHECK(holds_guid(open64(GUID, O_RDONLY)));
	CHECK(holds_guid(__open_2(GUID, O_RDONLY)));
	CHECK(holds_guid(__open64_2(GUID, O_RDONLY)));
	CHECK(holds_guid(openat(AT_FDCWD, GUID, O_RDONLY)));
	CHECK(holds_guid(openat64(root, GUID, O_RDONLY)));
	CHECK(holds_guid(__openat_2(root, GUID, O_RDONLY)));
	CHECK(holds_guid(__openat64_2(root, GUID, O_RDONLY)));
	CHECK(begins_with_guid(fopen(GUID, "r")));
	CHECK(begins_with_guid(fopen64(GUID, "r")));
	CHECK(begins_with_guid(freopen(GUID, "r", fopen(OTHER, "r"))));
	CHECK(begins_with_guid(freopen64(GUID, "r", fopen(OTHER, "r"))));

	CHECK(holds(opendir(CLASS), "urxe0"));
	CHECK(freed(scandir(CLASS, &list, NULL, alphasort), &list) == 3);
	CHECK(freed(scandir64(CLASS, &list64, NULL, alphasort64), &list64) == 3);
	CHECK(freed(scandirat(root, CLASS, &list, NULL, alphasort), &list) == 3);
	CHECK(freed(scandirat64(root, CLASS, &list64, NULL, alphasort64), &list64) == 3);

	CHECK(access("/dev/infiniband/uverbs0", R_OK | W_OK) == 0);
	CHECK(eaccess("/dev/infiniband/uverbs0", R_OK | W_OK) == 0);
	CHECK(euidaccess("/dev/infiniband/uverbs0", R_OK | W_OK) == 0);
	CHECK(faccessat(AT_FDCWD, "/dev/infiniband/uverbs0", R_OK, 0) == 0);
	CHECK(stat("/dev/infiniband/uverbs0", &st) == 0 && S_ISCHR(st.st_mode));
	CHECK(stat64("/dev/infiniband/uverbs0", &st64) == 0 && S_ISCHR(st64.st_mode));
	CHECK(lstat(DEVICE, &st) == 0 && S_ISLNK(st.st_mode));
	CHECK(lstat64(DEVICE, &st64) == 0 && S_ISLNK(st64.st_mode));
	CHECK(fstatat(root, GUID, &st, 0) == 0 && S_ISREG(st.st_mode));
	CHECK(fstatat64(root, GUID, &st64, 0) == 0 && S_ISREG(st64.st_mode));
	CHECK(statx(AT_FDCWD, GUID, 0, STATX_SIZE, &stx) == 0 && stx.stx_size == 5);
	CHECK(__xstat(VERSION, GUID, &st) == 0 && st.st_size == 5);
	CHECK(__xstat64(VERSION, GUID, &st64) == 0 && st64.st_size == 5);
	CHECK(__lxstat(VERSION, DEVICE, &st) == 0 && S_ISLNK(st.st_mode));
	CHECK(__lxstat64(VERSION, DEVICE, &st64) == 0 && S_ISLNK(st64.st_mode));
	CHECK(__fxstatat(VERSION, AT_FDCWD, GUID, &st, 0) == 0 && st.st_size == 5);
	CHECK(__fxstatat64(VERSION, AT_FDCWD, GUID, &st64, 0) == 0 && st64.st_size == 5);
	CHECK(statfs(GUID, &fs) == 0);
	CHECK(statfs64(GUID, &fs64) == 0);
	CHECK(getxattr(GUID, "user.none", NULL, 0) == -1 && errno != ENOENT);
	CHECK(lgetxattr(GUID, "user.none", NULL, 0) == -1 && errno != ENOENT);

	CHECK(readlink(DEVICE, text, sizeof text) == 8 && !memcmp(text, "../other", 8));
	CHECK(__readlink_chk(DEVICE, text, 8, sizeof text) == 8);
	CHECK(readlinkat(root, DEVICE, text, sizeof text) == 8);
	CHECK(__readlinkat_chk(root, DEVICE, text, 8, sizeof text) == 8);
	CHECK(in_tree(realpath(GUID, text)));
	CHECK(in_tree(__realpath_chk(GUID, text, sizeof text)));
	CHECK(in_tree(path = canonicalize_file_name(GUID)));
	free(path);

	// Relative names, from directories in which they exist and from one in which they do not.
	int etc = open("/etc", O_RDONLY | O_DIRECTORY);
	CHECK(holds_guid(openat(root, "sys/class/infiniband/urxe0/node_guid", O_RDONLY)));
	CHECK(faccessat(root, "dev/infiniband/uverbs0", R_OK, 0) == 0);
	CHECK(openat(etc, "sys/class/infiniband/urxe0/node_guid", O_RDONLY) == -1 && errno == ENOENT);
	CHECK(chdir("/") == 0 && holds_guid(open("sys/class/infiniband/urxe0/node_guid", O_RDONLY)));
	CHECK(chdir(CLASS "/urxe0") == 0 && holds_guid(open("node_guid", O_RDONLY)));
	CHECK(chdir("/") == 0);

	// PCI functions of the tree, beside those of the machine.
	const char *function = "/sys/devices/pci0000:fe/0000:fe:1f.0", *other = "/sys/devices/pci0000:fe/0000:fe:1e.0";
	CHECK(access(function, F_OK) == 0 && access(other, F_OK) == -1 && errno == ENOENT);
	CHECK(begins_with_guid(fopen("/sys/bus/pci/devices/0000:fe:1f.0/vendor", "r")));
	CHECK(chdir("/") == 0 && stat("sys/bus/pci/devices/0000:fe:1f.0", &st) == 0);
	CHECK(in_tree(realpath("/sys/class/pci_bus/0000:fe/../../0000:fe:1f.0", text)));
	for (const char *const *name = (const char *const[]){"/sys/devices", "/sys/bus/pci/devices", "/sys/class/pci_bus", NULL}; *name; name++) {
		int missing = syscall(SYS_faccessat, AT_FDCWD, *name, F_OK) != 0;
		CHECK(missing || (realpath(*name, text) && !in_tree(text)));
	}

	// As in sysfs, no file can be created, and one that nobody may write to cannot be opened for writing, by root neither.
	FILE *none;
	CHECK(open(CLASS "/urxe0/new", O_CREAT | O_WRONLY, 0644) == -1 && errno == EACCES);
	CHECK(openat(root, "dev/infiniband/new", O_CREAT | O_RDWR | O_EXCL, 0644) == -1 && errno == EACCES);
	CHECK(open(CLASS "/none/new", O_CREAT | O_WRONLY, 0644) == -1 && errno == ENOENT);
	CHECK(open(CLASS "/urxe0", O_TMPFILE | O_RDWR, 0600) == -1 && errno == EOPNOTSUPP);
	CHECK((none = fopen(CLASS "/urxe0/new", "w")) == NULL && errno == EACCES);
	CHECK((none = fopen(CLASS "/urxe0/new", "ae")) == NULL && errno == EACCES);
	CHECK((none = fopen(CLASS "/urxe0/new", "r+")) == NULL && errno == ENOENT);
	CHECK(access(CLASS "/urxe0/new", F_OK) == -1 && errno == ENOENT);
	CHECK(holds_guid(open(GUID, O_RDONLY | O_CREAT, 0644)));
	CHECK(open(GUID, O_WRONLY) == -1 && errno == EACCES);
	CHECK(open(GUID, O_WRONLY | O_CREAT | O_EXCL, 0644) == -1 && errno == EEXIST);
	CHECK((none = fopen(GUID, "r+")) == NULL && errno == EACCES);
	CHECK(open(GUID, O_WRONLY | O_CREAT | O_TRUNC, 0644) == -1 && errno == EACCES);
	CHECK(closes(open(CLASS "/urxe0/counter", O_WRONLY | O_CREAT, 0644)));
	CHECK(closes(open("/dev/infiniband/uverbs0", O_RDWR)));
	CHECK(creat(CLASS "/urxe0/new", 0644) == -1 && errno == EACCES);

	// The same with names relative to directories of the tree, also in programs that are executed there.
	int class = open(CLASS, O_RDONLY | O_DIRECTORY);
	CHECK(openat(class, "new", O_CREAT | O_WRONLY, 0644) == -1 && errno == EACCES);
	CHECK(openat64(class, "urxe0/new", O_CREAT | O_RDWR | O_EXCL, 0644) == -1 && errno == EACCES);
	CHECK(openat(class, "urxe0/./node_guid", O_WRONLY) == -1 && errno == EACCES);
	CHECK(openat(class, "urxe0/node_guid", O_WRONLY | O_CREAT | O_EXCL, 0644) == -1 && errno == EEXIST);
	CHECK(openat(class, "none/new", O_CREAT | O_WRONLY, 0644) == -1 && errno == ENOENT);
	CHECK(openat(class, "urxe0", O_TMPFILE | O_RDWR, 0600) == -1 && errno == EOPNOTSUPP);
	CHECK(holds_guid(openat(class, "urxe0/node_guid", O_RDONLY)));
	CHECK(closes(openat(class, "urxe0/counter", O_WRONLY | O_CREAT, 0644)));
	CHECK(closes(openat(class, "../../../beside", O_WRONLY | O_CREAT, 0644)));
	CHECK(chdir(CLASS "/urxe0") == 0 && creat("new", 0644) == -1 && errno == EACCES);
	CHECK(open(".", O_TMPFILE | O_RDWR, 0600) == -1 && errno == EOPNOTSUPP);
	CHECK(creat64("new", 0644) == -1 && errno == EACCES && (none = fopen("new", "w")) == NULL && errno == EACCES);
	CHECK(system("touch new 2>/dev/null") != 0 && access("new", F_OK) == -1 && chdir("/") == 0);
	close(class);

	// Names outside the directories, missing in them, in infiniband_verbs, and too long.
	CHECK(open(CLASS "_none", O_RDONLY) == -1 && errno == ENOENT);
	CHECK(open(CLASS "/none", O_RDONLY) == -1 && errno == ENOENT);
	CHECK(holds(opendir("/sys/class/infiniband_verbs"), "abi_version"));
	static char longest[PATH_MAX + 1];
	memset(longest, '/', PATH_MAX);
	memcpy(longest, GUID, strlen(GUID));
	CHECK(open(longest, O_RDONLY) == -1 && errno == ENAMETOOLONG);
	longest[PATH_MAX - 1] = 0;
	CHECK(open(longest, O_RDONLY) == -1 && errno == ENAMETOOLONG);
	CHECK(fopen(longest, "r") == NULL && errno == ENAMETOOLONG);
	close(root);
	close(etc);
}

static volatile int handled;

static void handler(int number)
{
	handled = number == SIGUSR1 && holds_guid(open(GUID, O_RDONLY));
}

static void others(const char *directory)
{
	struct stat st;
	char name[PATH_MAX], text[PATH_MAX];
	const char *volatile none = NULL;

	errno = 77;
	size_t before = mallinfo2().uordblks;
	CHECK(closes(open(OTHER, O_RDONLY)) && closes(openat(AT_FDCWD, OTHER, O_RDONLY)));
	CHECK(access(OTHER, R_OK) == 0 && stat(OTHER, &st) == 0 && lstat(OTHER, &st) == 0);
	CHECK(readlink("/proc/self/exe", text, sizeof text) > 0);
	CHECK(mallinfo2().uordblks == before);
	CHECK(errno == 77);
	CHECK(open("/none", O_RDONLY) == -1 && errno == ENOENT);
	CHECK(open("", O_RDONLY) == -1 && errno == ENOENT);
	CHECK(open(none, O_RDONLY) == -1 && errno == EFAULT);
	CHECK(realpath(none, NULL) == NULL && errno == EINVAL);

	// The mode of a new file is passed on.
	umask(0);
	snprintf(name, sizeof name, "%s/new", directory);
	CHECK(closes(open(name, O_CREAT | O_WRONLY | O_EXCL, 0642)) && stat(name, &st) == 0);
	CHECK((st.st_mode & 07777) == 0642);
	CHECK(unlink(name) == 0 && closes(openat(AT_FDCWD, name, O_CREAT | O_WRONLY | O_EXCL, 0604)));
	CHECK(stat(name, &st) == 0 && (st.st_mode & 07777) == 0604);
	CHECK(unlink(name) == 0);
	CHECK(closes(open(directory, O_TMPFILE | O_RDWR, 0600)));
	FILE *file = freopen(NULL, "r", fopen(OTHER, "r"));
	CHECK(file && fclose(file) == 0);
}

// Calls from a signal handler, and from a child that shares its parent's memory (vfork).
static void interrupted(void)
{
	int status;
	signal(SIGUSR1, handler);
	raise(SIGUSR1);
	CHECK(handled);
	pid_t child = vfork();
	if (child == 0)
		_exit(access(GUID, R_OK) == 0 && access("/none", R_OK) == -1 ? 7 : 1);
	CHECK(child > 0 && waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 7);
}

static void caught(int number)
{
	(void)number;
}

// Each function returns the action that the previous one has set.
static void sets(int number)
{
	struct sigaction action;
	CHECK(signal(number, SIG_IGN) != SIG_ERR);
	CHECK(bsd_signal(number, caught) == SIG_IGN);
	CHECK(ssignal(number, SIG_IGN) == caught);
	CHECK(sysv_signal(number, caught) == SIG_IGN);
	CHECK(__sysv_signal(number, SIG_DFL) == caught);
	CHECK(sigaction(number, NULL, &action) == 0 && action.sa_handler == SIG_DFL && action.sa_flags & SA_RESETHAND);
}

static struct sigaction routed;

static int route(int number, const struct sigaction *new, struct sigaction *old)
{
	(void)number;
	if (old)
		*old = routed;
	if (new)
		routed = *new;
	return 0;
}

// Actions for SIGBUS, before and after the verbs library has registered its routing, and for a signal that it does not route.
static void signals(void)
{
	sets(SIGUSR2);
	sets(SIGBUS);
	if (!urxe_route_fault_signals)
		return;
	urxe_route_fault_signals(route);
	sets(SIGBUS);
	CHECK(routed.sa_handler == SIG_DFL && routed.sa_flags & SA_RESETHAND);
	sets(SIGUSR2);
}

// A thread that blocks all signals blocks neither SIGSEGV nor SIGBUS, with the library.
// Opens the file at which the library searches the program for a libibverbs, whose sign is this name.
static void abi_version(void)
{
	char name[64];
	snprintf(name, sizeof(name), "%s_verbs/abi_%s", CLASS, "version");
	int fd = open(name, O_RDONLY);
	CHECK(fd >= 0 ? !close(fd) : errno == ENOENT);
}

static size_t reported[4], report_count;

static void record(size_t at, size_t len, bool private_only)
{
	if (report_count < 2) {
		reported[2 * report_count] = at;
		reported[2 * report_count + 1] = private_only ? 0 : len;
	}
	report_count++;
	errno = 1;
}

// Checks that a call has reported two ranges, or one and no other.
static void check_reports(void *first, size_t first_len, void *second, size_t second_len)
{
	// In a sanitised program, the functions are those of the sanitizer.
#ifndef __SANITIZE_ADDRESS__
	if (urxe_report_unmapping) {
		CHECK(report_count == (second ? 2 : 1) && reported[0] == (size_t)first && reported[1] == first_len);
		CHECK(!second || (reported[2] == (size_t)second && reported[3] == second_len));
	}
#endif
	report_count = 0;
	CHECK(errno == 0);
}

static void unmapping(void)
{
	const int rw = PROT_READ | PROT_WRITE, flags = MAP_PRIVATE | MAP_ANONYMOUS;
	static const char *const names[] = { "munmap", "mmap", "mmap64", "mremap", "madvise" };
	const size_t page = sysconf(_SC_PAGESIZE);
	char *at = mmap(NULL, 16 * page, PROT_NONE, flags, -1, 0), *to = at + 8 * page;
	errno = 0;
	if (urxe_report_unmapping)
		urxe_report_unmapping(record);
	CHECK(mmap(at, 4 * page, rw, flags | MAP_FIXED, -1, 0) == at);
	check_reports(at, 4 * page, NULL, 0);
	CHECK(mmap64(at + page, page, rw, flags | MAP_FIXED, -1, 0) == at + page);
	check_reports(at + page, page, NULL, 0);
	CHECK(mremap(at, 4 * page, 3 * page, 0) == at);
	check_reports(at + 3 * page, page, NULL, 0);
	CHECK(mremap(at, 3 * page, 3 * page, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to);
	check_reports(at, 3 * page, to, 3 * page);
	CHECK(madvise(to, page, MADV_DONTNEED) == 0);
	check_reports(to, 0, NULL, 0);
	CHECK(madvise(to, page, MADV_WILLNEED) == 0 && report_count == 0);
	CHECK(munmap(to, page) == 0);
	check_reports(to, page, NULL, 0);
	CHECK(mmap(NULL, 0, rw, flags, -1, 0) == MAP_FAILED && errno == EINVAL && report_count == 0);
	CHECK(mremap(at, page, 2 * page, 99) == MAP_FAILED && errno == EINVAL && report_count == 0);
	CHECK(munmap(at, 16 * page) == 0);
	// Libraries that overwrite the code of these functions ask dlsym for its address.
	for (int i = 0; i < 5; i++) {
		Dl_info info;
		CHECK(dladdr(dlsym(RTLD_DEFAULT, names[i]), &info) && !strstr(info.dli_fname, "preload"));
	}
}

static void masks(void)
{
	sigset_t all, before, now;
	int blocks = !urxe_route_fault_signals;
	sigfillset(&all);
	CHECK(!pthread_sigmask(SIG_BLOCK, &all, &before) && !pthread_sigmask(SIG_BLOCK, NULL, &now));
	CHECK(sigismember(&now, SIGTERM) == 1 && sigismember(&now, SIGSEGV) == blocks && sigismember(&now, SIGBUS) == blocks);
	CHECK(!pthread_sigmask(SIG_SETMASK, &before, NULL) && !sigprocmask(SIG_SETMASK, &all, NULL));
	CHECK(!sigprocmask(SIG_UNBLOCK, NULL, &now));
	CHECK(sigismember(&now, SIGTERM) == 1 && sigismember(&now, SIGSEGV) == blocks && sigismember(&now, SIGBUS) == blocks);
	CHECK(!sigprocmask(SIG_UNBLOCK, &all, NULL) && !sigprocmask(SIG_SETMASK, &before, &now) && !sigismember(&now, SIGTERM));
	errno = 0;
	CHECK(pthread_sigmask(99, &all, NULL) == EINVAL && sigprocmask(99, &all, NULL) == -1 && errno == EINVAL);
}

static void invalid_pointers(void)
{
	char *volatile bad = (char *)8, *arguments[] = { "x", NULL };
	struct stat status;
	errno = 0;
	CHECK(open(bad, O_RDONLY) == -1 && errno == EFAULT);
	errno = 0;
	CHECK(stat(bad, &status) == -1 && errno == EFAULT);
	errno = 0;
	CHECK(execve(bad, arguments, arguments + 1) == -1 && errno == EFAULT);
	errno = 0;
	CHECK(execve("/bin/true", (char **)bad, arguments + 1) == -1 && errno == EFAULT);
}

// The limit on locked memory is reported as unlimited, others as they are.
static void limits(void)
{
	struct rlimit low = { 1 << 16, 1 << 16 }, files, found;
	struct rlimit64 found64;
	rlim_t expected = urxe_route_fault_signals ? RLIM_INFINITY : low.rlim_max;
	CHECK(!setrlimit(RLIMIT_MEMLOCK, &low) && !getrlimit(RLIMIT_MEMLOCK, &found) && found.rlim_cur == expected);
	CHECK(found.rlim_max == expected && !getrlimit64(RLIMIT_MEMLOCK, &found64) && found64.rlim_cur == expected);
	CHECK(!prlimit(0, RLIMIT_MEMLOCK, NULL, &found) && found.rlim_cur == expected);
	CHECK(!prlimit64(0, RLIMIT_MEMLOCK, NULL, &found64) && found64.rlim_max == expected);
	CHECK(!prlimit(0, RLIMIT_MEMLOCK, NULL, NULL) && !syscall(SYS_prlimit64, 0, RLIMIT_NOFILE, NULL, &files));
	CHECK(!getrlimit(RLIMIT_NOFILE, &found) && !memcmp(&found, &files, sizeof files));
	errno = 0;
	CHECK(getrlimit(99, &found) == -1 && errno == EINVAL);
}

extern char **environ;

// Executes a shell script with one of the interposed functions, and returns its status.
static int status_of(int function, char *script, char **environment)
{
	char *arguments[] = { "sh", "-c", script, NULL };
	int status;
	pid_t child = -1;
	if (function == 0)
		posix_spawn(&child, "/bin/sh", NULL, NULL, arguments, environment);
	else if (function == 1)
		posix_spawnp(&child, "sh", NULL, NULL, arguments, environment);
	else if ((child = fork()) == 0) {
		environ = environment;
		if (function == 2)
			execve("/bin/sh", arguments, environment);
		else if (function == 3)
			execvpe("sh", arguments, environment);
		else if (function == 4)
			execv("/bin/sh", arguments);
		else
			execvp("sh", arguments);
		_exit(9);
	}
	return waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// Programs that are executed with a cleaned environment, and with one that has been changed on purpose.
static void executes(int is_served)
{
	char *empty[] = { NULL }, *own[] = { "LD_LIBRARY_PATH=/own", NULL };
	char *off[] = { "LD_PRELOAD=", NULL }, *other[] = { "URXE_SYSFS=/other", NULL };
	char *has_tree = "test -n \"$URXE_SYSFS\" && test -n \"$LD_PRELOAD\"";
	for (int function = 0; function < 6; function++) {
		CHECK(status_of(function, has_tree, empty) == !is_served);
		CHECK(status_of(function, "test \"$LD_LIBRARY_PATH\" = /own", own) == 0);
		CHECK(status_of(function, has_tree, own) == !is_served);
		CHECK(status_of(function, has_tree, off) == 1);
		CHECK(status_of(function, has_tree, other) == 1);
	}
	CHECK(status_of(2, has_tree, NULL) == !is_served);
	CHECK(execve("/none", empty, empty) == -1 && errno == ENOENT);
}

// Only a libibverbs or librdmacm is replaced, by the one without a path.
static void opens(void)
{
	static char *copies[] = { "/none/libibverbs.so.1", "/none/libibverbs-1de1263b.so.1.14", "/none/librdmacm.so" };
	static char *others[] = { "/none/libibverbs", "/none/libibverbs-1", "/none/libibverbs2.so", "/none/libibnetdisc.so" };
#ifdef __x86_64__
	for (int i = 0; i < 3 && urxe_route_fault_signals; i++)
		CHECK(dlopen(copies[i], RTLD_LAZY) || !strstr(dlerror(), "/none"));
#else
	(void)copies;
#endif
	for (int i = 0; i < 4; i++)
		CHECK(!dlopen(others[i], RTLD_LAZY) && strstr(dlerror(), "/none"));
	CHECK(dlopen(NULL, RTLD_LAZY) && dlopen("libm.so.6", RTLD_LAZY | RTLD_DEEPBIND));
	CHECK(dlmopen(LM_ID_BASE, "libm.so.6", RTLD_LAZY) && dlmopen(LM_ID_BASE, NULL, RTLD_LAZY));
}

int main(int argc, char **argv)
{
	int is_served = getenv("URXE_SYSFS") && urxe_route_fault_signals;
	if (argc < 2)
		return 2;
	others(argv[1]);
	if (!getenv("URXE_SYSFS"))
		CHECK(access(CLASS, F_OK) == syscall(SYS_faccessat, AT_FDCWD, CLASS, F_OK));
	else {
		devices();
		interrupted();
		// The library has read the variable at program start.
		unsetenv("URXE_SYSFS");
		CHECK(holds_guid(open(GUID, O_RDONLY)));
	}
	signals();
	masks();
	unmapping();
	abi_version();
	invalid_pointers();
	limits();
	executes(is_served);
	opens();
	return failures != 0;
}
