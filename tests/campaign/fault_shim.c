/* Make calls of libc fail, wait or show another wall clock, for tests of joulelab; loaded by LD_PRELOAD.

   SHIM_FOLDER  paths below this folder are meant, no others
   SHIM_RULES   "call first count errno delay_ms;...": the calls number first to first + count - 1 of each process wait
                delay_ms and fail with errno (0: they work); call is write, sync, rename, open or truncate
   SHIM_WHILE   rules hold only while this file exists
   SHIM_CLOCK   a file of eight bytes: nanoseconds (int64) that are added to the wall clock; may change at any time */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#define MOST_RULES 8

struct rule {
    char call[16];
    long first, count, error, delay_ms;
    atomic_long seen;
};

static struct rule rules[MOST_RULES];
static int rule_count;
static const char *folder, *while_file;
static volatile int64_t *clock_offset;

static void *find_next(const char *name) { return dlsym(RTLD_NEXT, name); }

__attribute__((constructor)) static void read_settings(void) {
    const char *text = getenv("SHIM_RULES"), *clock_file = getenv("SHIM_CLOCK");
    folder = getenv("SHIM_FOLDER");
    while_file = getenv("SHIM_WHILE");
    while (text && *text && rule_count < MOST_RULES) {
        struct rule *r = &rules[rule_count];
        if (sscanf(text, "%15s %ld %ld %ld %ld", r->call, &r->first, &r->count, &r->error, &r->delay_ms) == 5)
            rule_count++;
        text = strchr(text, ';');
        text = text ? text + 1 : NULL;
    }
    if (clock_file) {
        int (*plain_open)(const char *, int, ...) = find_next("open");
        int fd = plain_open(clock_file, O_RDONLY | O_CLOEXEC);
        if (fd >= 0) {
            void *page = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, fd, 0);
            clock_offset = page == MAP_FAILED ? NULL : page;
            close(fd);
        }
    }
}

static int is_below(const char *path) { return folder && strncmp(path, folder, strlen(folder)) == 0; }

/* Return whether a call fails; errno is set then. */
static int strike(const char *call, const char *path) {
    if (!rule_count || !is_below(path) || (while_file && access(while_file, F_OK)))
        return 0;
    for (int i = 0; i < rule_count; i++) {
        struct rule *r = &rules[i];
        if (strcmp(r->call, call))
            continue;
        long number = atomic_fetch_add(&r->seen, 1) + 1;
        if (number < r->first || number >= r->first + r->count)
            continue;
        if (r->delay_ms) {
            struct timespec wait = {r->delay_ms / 1000, r->delay_ms % 1000 * 1000000};
            nanosleep(&wait, NULL);
        }
        if (r->error) {
            errno = (int)r->error;
            return 1;
        }
    }
    return 0;
}

static int strike_fd(const char *call, int fd) {
    char link[64], path[PATH_MAX];
    if (!rule_count)
        return 0;
    int saved = errno;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    errno = saved;
    if (length < 0)
        return 0;
    path[length] = 0;
    return strike(call, path);
}

static int strike_at(const char *call, int dir, const char *path) {
    char link[64], whole[2 * PATH_MAX];
    if (!rule_count)
        return 0;
    if (path[0] == '/')
        return strike(call, path);
    int saved = errno;
    ssize_t length;
    if (dir == AT_FDCWD)
        length = getcwd(whole, PATH_MAX) ? (ssize_t)strlen(whole) : -1;
    else {
        snprintf(link, sizeof link, "/proc/self/fd/%d", dir);
        length = readlink(link, whole, PATH_MAX - 1);
    }
    errno = saved;
    if (length < 0)
        return 0;
    snprintf(whole + length, sizeof whole - length, "/%s", path);
    return strike(call, whole);
}

#define NEXT(name, kind, ...)                                                                                          \
    static kind (*next)(__VA_ARGS__);                                                                                  \
    if (!next)                                                                                                         \
        next = find_next(name)

ssize_t write(int fd, const void *data, size_t size) {
    NEXT("write", ssize_t, int, const void *, size_t);
    return strike_fd("write", fd) ? -1 : next(fd, data, size);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    NEXT("pwrite", ssize_t, int, const void *, size_t, off_t);
    return strike_fd("write", fd) ? -1 : next(fd, data, size, at);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    NEXT("pwrite64", ssize_t, int, const void *, size_t, off64_t);
    return strike_fd("write", fd) ? -1 : next(fd, data, size, at);
}

int fsync(int fd) {
    NEXT("fsync", int, int);
    return strike_fd("sync", fd) ? -1 : next(fd);
}

int fdatasync(int fd) {
    NEXT("fdatasync", int, int);
    return strike_fd("sync", fd) ? -1 : next(fd);
}

int ftruncate(int fd, off_t size) {
    NEXT("ftruncate", int, int, off_t);
    return strike_fd("truncate", fd) ? -1 : next(fd, size);
}

int ftruncate64(int fd, off64_t size) {
    NEXT("ftruncate64", int, int, off64_t);
    return strike_fd("truncate", fd) ? -1 : next(fd, size);
}

int rename(const char *from, const char *to) {
    NEXT("rename", int, const char *, const char *);
    return strike_at("rename", AT_FDCWD, to) ? -1 : next(from, to);
}

int renameat(int from_dir, const char *from, int to_dir, const char *to) {
    NEXT("renameat", int, int, const char *, int, const char *);
    return strike_at("rename", to_dir, to) ? -1 : next(from_dir, from, to_dir, to);
}

/* Only files that are opened to be written count as opened. */
#define OPEN()                                                                                                         \
    mode_t mode = 0;                                                                                                   \
    if (flags & (O_CREAT | O_TMPFILE)) {                                                                               \
        va_list more;                                                                                                  \
        va_start(more, flags);                                                                                         \
        mode = va_arg(more, mode_t);                                                                                   \
        va_end(more);                                                                                                  \
    }                                                                                                                  \
    int fails = (flags & O_ACCMODE) != O_RDONLY

int open(const char *path, int flags, ...) {
    NEXT("open", int, const char *, int, ...);
    OPEN();
    return fails && strike_at("open", AT_FDCWD, path) ? -1 : next(path, flags, mode);
}

int open64(const char *path, int flags, ...) {
    NEXT("open64", int, const char *, int, ...);
    OPEN();
    return fails && strike_at("open", AT_FDCWD, path) ? -1 : next(path, flags, mode);
}

int openat(int dir, const char *path, int flags, ...) {
    NEXT("openat", int, int, const char *, int, ...);
    OPEN();
    return fails && strike_at("open", dir, path) ? -1 : next(dir, path, flags, mode);
}

int openat64(int dir, const char *path, int flags, ...) {
    NEXT("openat64", int, int, const char *, int, ...);
    OPEN();
    return fails && strike_at("open", dir, path) ? -1 : next(dir, path, flags, mode);
}

int clock_gettime(clockid_t which, struct timespec *now) {
    NEXT("clock_gettime", int, clockid_t, struct timespec *);
    int code = next(which, now);
    if (!code && clock_offset && (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE)) {
        int64_t ns = now->tv_sec * INT64_C(1000000000) + now->tv_nsec + *clock_offset;
        now->tv_sec = ns / INT64_C(1000000000);
        now->tv_nsec = ns % INT64_C(1000000000);
    }
    return code;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    NEXT("gettimeofday", int, struct timeval *restrict, void *restrict);
    int code = next(now, zone);
    if (!code && clock_offset) {
        int64_t us = now->tv_sec * INT64_C(1000000) + now->tv_usec + *clock_offset / 1000;
        now->tv_sec = us / INT64_C(1000000);
        now->tv_usec = us % INT64_C(1000000);
    }
    return code;
}

time_t time(time_t *where) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (where)
        *where = now.tv_sec;
    return now.tv_sec;
}
