/* Follow the true power of a GPU: linear segments, scaled by a locked clock and clipped by the cap of the time. */
#include "twin.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>

/* Where the last search ended, per thread: times asked for are close to each other. */
static __thread uint64_t segment_hint[TWIN_GPUS];

static const struct segment *segments(const struct gpu *gpu, uint64_t *count) {
    const struct leaf *leaf = &twin.leaves[gpu->leaf];
    *count = __atomic_load_n(&leaf->segments, __ATOMIC_ACQUIRE);
    return (const struct segment *)(twin.base + leaf->segments_at);
}

static const struct cap *caps(const struct gpu *gpu, uint64_t *count) {
    const struct leaf *leaf = &twin.leaves[gpu->leaf];
    *count = __atomic_load_n(&leaf->caps, __ATOMIC_ACQUIRE);
    return (const struct cap *)(twin.base + leaf->caps_at);
}

/* Find the last segment that begins at or before t, the first if there is none. */
static uint64_t segment_at(const struct gpu *gpu, const struct segment *s, uint64_t count, int64_t t) {
    uint64_t *hint = &segment_hint[gpu - twin.gpus], i = *hint < count ? *hint : 0;
    for (int step = 0; step < 8; step++) {
        if (i > 0 && s[i].t_ns > t) i--;
        else if (i + 1 < count && s[i + 1].t_ns <= t) i++;
        else return *hint = i;
    }
    uint64_t low = 0, high = count;
    while (high - low > 1) {
        uint64_t middle = low + (high - low) / 2;
        if (s[middle].t_ns <= t) low = middle;
        else high = middle;
    }
    return *hint = low;
}

static double watts_in(const struct segment *s, uint64_t count, uint64_t i, int64_t t) {
    if (t <= s[i].t_ns || i + 1 >= count || s[i].start_w == s[i].end_w) return s[i].start_w;
    double share = (double)(t - s[i].t_ns) / (double)(s[i + 1].t_ns - s[i].t_ns);
    return s[i].start_w + (s[i].end_w - s[i].start_w) * share;
}

/* Return the row of caps and clocks that holds at t, and when it will next change. */
static const struct cap *row_at(const struct gpu *gpu, int64_t t, int64_t *next) {
    uint64_t count;
    const struct cap *c = caps(gpu, &count);
    uint64_t i = count - 1;
    while (i > 0 && c[i].t_ns > t) i--;
    *next = i + 1 < count ? c[i + 1].t_ns : TWIN_NEVER;
    return &c[i];
}

/* Return the cap requested at t, and when it will next change. */
static int64_t requested(const struct gpu *gpu, int64_t t, int64_t *next) {
    const struct cap *row = row_at(gpu, t, next);
    int64_t forget = gpu->flaws.forget_cap_ns;
    if (t < forget && forget < *next) *next = forget;
    return row->t_ns < forget && forget <= t ? gpu->default_cap_mw : row->cap_mw;
}

static int64_t enforced(const struct gpu *gpu, int64_t t, int64_t *next) {
    int64_t cap = requested(gpu, t, next), outside = gpu->flaws.outside_cap_ns;
    if (t < outside && outside < *next) *next = outside;
    return outside <= t && gpu->flaws.outside_cap_mw < cap ? gpu->flaws.outside_cap_mw : cap;
}

/* Return the cap that power is held below, in W, and when it will next change. */
static double limit(const struct gpu *gpu, int64_t t, int64_t *next) {
    double cap = (double)enforced(gpu, t, next) / 1000;
    return gpu->flaws.unenforced_caps ? INFINITY : cap;
}

/* Return the power at a locked clock, if it is `watts` at full clock: dynamic power goes with the clock's square. */
static double clocked(const struct gpu *gpu, int64_t t, double watts) {
    int64_t mhz = row_at(gpu, t, &(int64_t){0})->sm_mhz;
    if (!mhz || mhz >= gpu->sm_max_mhz) return watts;
    double share = (double)mhz / gpu->sm_max_mhz;
    return gpu->idle_w + (watts - gpu->idle_w) * share * share;
}

int64_t requested_cap_mw(const struct gpu *gpu, int64_t t) { return requested(gpu, t, &(int64_t){0}); }
int64_t enforced_cap_mw(const struct gpu *gpu, int64_t t) { return enforced(gpu, t, &(int64_t){0}); }

double true_watts(const struct gpu *gpu, int64_t t, int clipped) {
    uint64_t count;
    const struct segment *s = segments(gpu, &count);
    double watts = watts_in(s, count, segment_at(gpu, s, count, t), t);
    return clipped ? fmin(clocked(gpu, t, watts), limit(gpu, t, &(int64_t){0})) : watts;
}

int is_capped(const struct gpu *gpu, int64_t t) {
    return clocked(gpu, t, true_watts(gpu, t, 0)) > limit(gpu, t, &(int64_t){0});
}

/* Area in J below both a line and a cap. */
static double area(double first, double last, double cap, int64_t ns) {
    double seconds = (double)ns / 1e9;
    if (first <= cap && last <= cap) return (first + last) / 2 * seconds;
    if (first >= cap && last >= cap) return cap * seconds;
    double low = fmin(first, last), below = (cap - low) / fabs(last - first);
    return ((low + cap) / 2 * below + cap * (1 - below)) * seconds;
}

double true_joules(const struct gpu *gpu, int64_t a, int64_t b, int clipped) {
    if (b < a) return -true_joules(gpu, b, a, clipped);
    uint64_t count;
    const struct segment *s = segments(gpu, &count);
    uint64_t i = segment_at(gpu, s, count, a);
    double total = 0, cap = INFINITY;
    int64_t cap_until = clipped ? a : TWIN_NEVER;
    while (a < b) {
        if (a >= cap_until) cap = limit(gpu, a, &cap_until);
        int64_t end = b < cap_until ? b : cap_until, from = a;
        double first = s[i].start_w, last = s[i].start_w;
        if (a < s[i].t_ns) {
            if (s[i].t_ns < end) end = s[i].t_ns;
        } else {
            if (i + 1 < count && s[i + 1].t_ns < end) end = s[i + 1].t_ns;
            first = watts_in(s, count, i, a);
            last = i + 1 < count && end == s[i + 1].t_ns ? s[i].end_w : watts_in(s, count, i, end);
        }
        if (clipped) first = clocked(gpu, from, first), last = clocked(gpu, from, last);
        total += area(first, last, cap, end - from);
        a = end;
        while (i + 1 < count && s[i + 1].t_ns <= a) i++;
    }
    return total;
}

/* Append a cap or a clock (that is not negative) to the history; what was written for later is dropped. */
static result append_row(struct gpu *gpu, int64_t cap_mw, int64_t sm_mhz) {
    struct leaf *leaf = &twin.leaves[gpu->leaf];
    lock_file();
    uint64_t count;
    struct cap *c = (struct cap *)caps(gpu, &count);
    int64_t t = now_ns();
    while (count > 1 && c[count - 1].t_ns > t) count--;
    result wrong = count < leaf->cap_capacity ? SUCCESS : INSUFFICIENT_RESOURCES;
    if (wrong == SUCCESS) {
        c[count] = c[count - 1];
        c[count].t_ns = t;
        if (cap_mw >= 0) c[count].cap_mw = cap_mw;
        if (sm_mhz >= 0) c[count].sm_mhz = sm_mhz;
        __atomic_store_n(&leaf->caps, count + 1, __ATOMIC_RELEASE);
        __atomic_add_fetch(&leaf->cap_edits, 1, __ATOMIC_RELEASE);
    }
    unlock_file();
    return wrong;
}

result request_cap(struct gpu *gpu, int64_t cap_mw) { return append_row(gpu, cap_mw, -1); }

/* Hold the clock to the lower of the locked and the application clock. */
result hold_clock(struct gpu *gpu) {
    int64_t locked = gpu->state.sm_lock_max_mhz, application = gpu->state.sm_application_mhz;
    int64_t mhz = locked && locked < application ? locked : application;
    return append_row(gpu, -1, mhz < gpu->sm_max_mhz ? mhz : 0);
}
