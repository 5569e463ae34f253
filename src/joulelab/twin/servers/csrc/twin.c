/* Map the truth file, hand out device handles, and let calls be late, hang or fail as the flaws say. */
#define _GNU_SOURCE
#include "twin.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

struct twin twin;

static struct handle handles[TWIN_GPUS][TWIN_INSTANCES + 1];
static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t writing = PTHREAD_MUTEX_INITIALIZER;
static int users;
static struct stat opened;

int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void sleep_until(int64_t t) {
    struct timespec when = {.tv_sec = t / 1000000000, .tv_nsec = t % 1000000000};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &when, NULL) == EINTR) {
    }
}

static result map_file(int fd, int writable, const struct stat *status) {
    static const char magic[8] = TWIN_MAGIC;
    if ((size_t)status->st_size < sizeof(struct header)) return DRIVER_NOT_LOADED;
    char *base = mmap(NULL, status->st_size, PROT_READ | (writable ? PROT_WRITE : 0), MAP_SHARED, fd, 0);
    if (base == MAP_FAILED) return DRIVER_NOT_LOADED;
    const struct header *head = (const struct header *)base;
    result wrong = SUCCESS;
    if (memcmp(head->magic, magic, sizeof magic)) wrong = DRIVER_NOT_LOADED;
    else if (head->layout != TWIN_LAYOUT || head->gpus > TWIN_GPUS) wrong = VERSION_MISMATCH_OF_DRIVER;
    else if (head->bytes > (uint64_t)status->st_size) wrong = DRIVER_NOT_LOADED;
    if (wrong != SUCCESS) {
        munmap(base, status->st_size);
        return wrong;
    }
    twin = (struct twin){.base = base, .head = head, .fd = fd, .writable = writable};
    twin.gpus = (struct gpu *)(base + head->gpus_at);
    twin.leaves = (struct leaf *)(base + head->leaves_at);
    for (int g = 0; g < TWIN_GPUS; g++)
        for (int i = 0; i <= TWIN_INSTANCES; i++) handles[g][i] = (struct handle){.gpu = g, .instance = i - 1};
    return SUCCESS;
}

static result open_file(void) {
    const char *path = getenv("JOULELAB_TWIN");
    if (!path || !*path) return DRIVER_NOT_LOADED;
    int writable = 1, fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) writable = 0, fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return DRIVER_NOT_LOADED;
    struct stat status;
    fstat(fd, &status);
    /* The same file again: the mapping and what is known of it are still good. */
    int same = twin.base && status.st_dev == opened.st_dev && status.st_ino == opened.st_ino;
    /* An older mapping is left in place: a thread may still be in a call on it. */
    result wrong = same ? SUCCESS : map_file(fd, writable, &status);
    if (same || wrong != SUCCESS) close(fd);
    if (wrong == SUCCESS) opened = status;
    return wrong;
}

API result nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    pthread_mutex_lock(&opening);
    result wrong = users ? SUCCESS : open_file();
    if (wrong == SUCCESS) __atomic_add_fetch(&users, 1, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&opening);
    return wrong;
}

API result nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
API result nvmlInit(void) { return nvmlInitWithFlags(0); }

API result nvmlShutdown(void) {
    pthread_mutex_lock(&opening);
    result wrong = users ? SUCCESS : UNINITIALIZED;
    if (users) __atomic_sub_fetch(&users, 1, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&opening);
    return wrong;
}

int is_initialized(void) { return __atomic_load_n(&users, __ATOMIC_ACQUIRE) > 0; }

struct handle *handle_of(int gpu, int instance) { return &handles[gpu][instance + 1]; }

int is_handle(device d) {
    if (!is_initialized()) return 0;
    const char *first = (const char *)handles, *given = (const char *)d;
    if (given < first || given >= first + sizeof handles || (given - first) % sizeof **handles) return 0;
    return d->gpu < (int)twin.head->gpus;
}

result enter(device d, struct gpu **gpu, int64_t *now) {
    if (!is_initialized()) return UNINITIALIZED;
    if (!is_handle(d)) return INVALID_ARGUMENT;
    *gpu = &twin.gpus[d->gpu];
    const struct flaws *flaws = &(*gpu)->flaws;
    int64_t t = now_ns();
    if (flaws->latency_ns > 0) sleep_until(t += flaws->latency_ns);
    if (flaws->hang_ns <= t && t < flaws->hang_until_ns) sleep_until(flaws->hang_until_ns);
    if (flaws->latency_ns > 0 || flaws->hang_ns <= t) t = now_ns();
    *now = t;
    if (flaws->lost_ns <= t) return GPU_IS_LOST;
    if (flaws->fail_ns <= t && t < flaws->fail_until_ns) return UNKNOWN;
    if (d->instance >= (int)used_instances(*gpu)) return INVALID_ARGUMENT;
    return SUCCESS;
}

/* One writer at a time: threads by the mutex, processes by the file's lock, which goes with a dead one. */
void lock_file(void) {
    pthread_mutex_lock(&writing);
    while (flock(twin.fd, LOCK_EX) < 0 && errno == EINTR) {
    }
}

void unlock_file(void) {
    flock(twin.fd, LOCK_UN);
    pthread_mutex_unlock(&writing);
}

result copy_text(char *out, unsigned size, const char *text) {
    if (!out) return INVALID_ARGUMENT;
    if (strlen(text) + 1 > size) return INSUFFICIENT_SIZE;
    memcpy(out, text, strlen(text) + 1);
    return SUCCESS;
}
