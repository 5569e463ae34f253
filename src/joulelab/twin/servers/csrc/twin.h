/* What the files of the library share: the mapped truth file, its sensors, and the shape of a call. */
#pragma once

#include <pthread.h>
#include <stdint.h>

#include "layout.h"

#define API __attribute__((visibility("default")))
#define TWIN_GPUS 64

typedef enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NO_PERMISSION = 4,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
    GPU_IS_LOST = 15,
    VERSION_MISMATCH_OF_DRIVER = 18,
    INSUFFICIENT_RESOURCES = 23,
    ARGUMENT_VERSION_MISMATCH = 25,
    UNKNOWN = 999,
} result;

/* A device handle points at one of these: a GPU, or one of its MIG instances (instance >= 0). */
struct handle {
    int gpu, instance;
};
typedef const struct handle *device;

/* One open truth file. */
struct twin {
    char *base;
    const struct header *head;
    struct gpu *gpus;
    struct leaf *leaves;
    int fd, writable;
};

extern struct twin twin;

/* twin.c: mapping, handles, time. */
int64_t now_ns(void);
struct handle *handle_of(int gpu, int instance);
result enter(device d, struct gpu **gpu, int64_t *now);
int is_initialized(void);
int is_handle(device d);
void lock_file(void);
void unlock_file(void);
result copy_text(char *out, unsigned size, const char *text);

/* power.c: true power. `watts` and `joules` follow locked clocks and the cap when `clipped`. */
double true_watts(const struct gpu *gpu, int64_t t, int clipped);
double true_joules(const struct gpu *gpu, int64_t a, int64_t b, int clipped);
int64_t requested_cap_mw(const struct gpu *gpu, int64_t t);
int64_t enforced_cap_mw(const struct gpu *gpu, int64_t t);
int is_capped(const struct gpu *gpu, int64_t t);
result request_cap(struct gpu *gpu, int64_t cap_mw);
result hold_clock(struct gpu *gpu);

/* sensor.c: what the GPU's own meter shows of it. */
int64_t instant_mw(int gpu, int64_t now);
int64_t average_mw(int gpu, int64_t now);
int64_t plain_mw(int gpu, int64_t now);
int64_t counter_mj(int gpu, int64_t now);

/* activity.c: load in percent and clocks in MHz that go with the power. */
unsigned load_percent(const struct gpu *gpu, int64_t now);
unsigned used_instances(const struct gpu *gpu);

/* Begin a call on a physical GPU: `gpu` and `now` are set, or the call ends with what is wrong. */
#define ENTER(d, out)                                  \
    struct gpu *gpu;                                   \
    int64_t now;                                       \
    if (!(out)) return INVALID_ARGUMENT;               \
    result entered = enter((d), &gpu, &now);           \
    (void)now;                                         \
    if (entered != SUCCESS) return entered

/* The same where a MIG instance has no answer. */
#define ENTER_WHOLE(d, out) \
    ENTER(d, out);          \
    if ((d)->instance >= 0) return NOT_SUPPORTED

/* Define a call that gives one value, where `condition` holds. */
#define GIVE(name, type, condition, value)  \
    API result name(device d, type *out) {  \
        ENTER_WHOLE(d, out);                \
        if (!(condition)) return NOT_SUPPORTED; \
        *out = (type)(value);               \
        return SUCCESS;                     \
    }
