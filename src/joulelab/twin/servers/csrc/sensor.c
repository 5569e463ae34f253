/* Show what the GPU's own meter would: updates at ticks, windows that miss most of the time, counters that step. */
#include "twin.h"

#include <math.h>
#include <string.h>

/* What is already worked out for a GPU: a call within one tick costs no more than reading the clock. */
struct known {
    pthread_mutex_t lock;
    const struct header *file;
    uint32_t generation, started;
    int64_t instant_tick, average_tick, seen_tick, counted_to;
    int64_t instant_mw, average_mw;
    double joules, seen_joules;
};

static struct known all_known[TWIN_GPUS] = {[0 ... TWIN_GPUS - 1] = {.lock = PTHREAD_MUTEX_INITIALIZER}};

static int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b < 0); }

/* Ticks are counted from the start of the file plus a phase; without a period every time is a tick of its own. */
static int64_t tick_of(int64_t t, int64_t phase, int64_t period) {
    return period > 0 ? floor_div(t - twin.head->start_ns - phase, period) : t;
}

static int64_t time_of(int64_t tick, int64_t phase, int64_t period) {
    return period > 0 ? twin.head->start_ns + phase + tick * period : tick;
}

static uint64_t mixed(uint64_t x) {
    x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
    return x ^ (x >> 31);
}

/* The same draw as noise.py: eight 16-bit uniforms from the seed, the stream and the index. */
static double normal(uint64_t stream, int64_t index) {
    const uint64_t golden = UINT64_C(0x9E3779B97F4A7C15);
    uint64_t key = twin.head->seed + stream * golden;
    uint64_t words[2];
    words[0] = mixed(mixed((uint64_t)index + golden) ^ key);
    words[1] = mixed(words[0] + golden);
    int64_t total = 0;
    for (int w = 0; w < 2; w++)
        for (int shift = 0; shift < 64; shift += 16) total += (words[w] >> shift) & 0xFFFF;
    return (double)(total - 262140) / sqrt(8 * (65536.0 * 65536.0 - 1) / 12);
}

static double window_mean(const struct gpu *gpu, int64_t end, int64_t window) {
    if (window <= 0) return true_watts(gpu, end, 1);
    return true_joules(gpu, end - window, end, 1) / ((double)window / 1e9);
}

/* What of the true power falls into the window of one update, in W. */
static double seen_watts(int g, int64_t tick) {
    const struct flaws *f = &twin.gpus[g].flaws;
    int64_t end = time_of(tick, f->power_phase_ns, f->power_period_ns);
    return window_mean(&twin.gpus[g], end, f->power_window_ns);
}

static int64_t shown_mw(const struct flaws *f, double watts, double noise) {
    double shown = fmax(0, watts * (1 + f->gain_error) + f->offset_w + f->noise_w * noise);
    int64_t step = f->power_step_mw > 1 ? f->power_step_mw : 1;
    return (int64_t)rint(shown * 1000 / (double)step) * step;
}

/* Lock what is known of a GPU, and forget it if the file or its flaws have changed. */
static struct known *begin(int g) {
    struct known *k = &all_known[g];
    const struct flaws *f = &twin.gpus[g].flaws;
    pthread_mutex_lock(&k->lock);
    uint32_t generation = __atomic_load_n(&f->generation, __ATOMIC_ACQUIRE);
    if (k->started && k->file == twin.head && k->generation == generation) return k;
    k->file = twin.head;
    k->generation = generation;
    k->started = 1;
    k->instant_tick = k->average_tick = -TWIN_NEVER;
    k->counted_to = twin.head->start_ns;
    k->seen_tick = 0;
    k->joules = k->seen_joules = 0;
    return k;
}

static int64_t finish(struct known *k, int64_t value) {
    pthread_mutex_unlock(&k->lock);
    return value;
}

int64_t instant_mw(int g, int64_t now) {
    struct known *k = begin(g);
    const struct flaws *f = &twin.gpus[g].flaws;
    int64_t tick = tick_of(now, f->power_phase_ns, f->power_period_ns);
    if (tick != k->instant_tick) {
        double noise = f->noise_w > 0 ? normal((uint64_t)g, tick) : 0;
        k->instant_mw = shown_mw(f, seen_watts(g, tick), noise);
        k->instant_tick = tick;
    }
    return finish(k, k->instant_mw);
}

int64_t average_mw(int g, int64_t now) {
    struct known *k = begin(g);
    const struct flaws *f = &twin.gpus[g].flaws;
    int64_t tick = tick_of(now, f->power_phase_ns, f->power_period_ns);
    if (tick != k->average_tick) {
        int64_t end = time_of(tick, f->power_phase_ns, f->power_period_ns);
        k->average_mw = shown_mw(f, window_mean(&twin.gpus[g], end, f->average_window_ns), 0);
        k->average_tick = tick;
    }
    return finish(k, k->average_mw);
}

int64_t plain_mw(int g, int64_t now) {
    const struct flaws *f = &twin.gpus[g].flaws;
    int average = f->plain == TWIN_PLAIN_AVERAGE && f->average_window_ns > 0;
    return average ? average_mw(g, now) : instant_mw(g, now);
}

/* Add up true power to the counter's last step; a reset starts it over. */
static double counted(struct known *k, int g, int64_t end) {
    const struct flaws *f = &twin.gpus[g].flaws;
    if ((k->counted_to >= f->reset_ns) != (end >= f->reset_ns)) {
        k->counted_to = end >= f->reset_ns ? f->reset_ns : twin.head->start_ns;
        k->joules = 0;
    }
    k->joules += true_joules(&twin.gpus[g], k->counted_to, end, 1);
    k->counted_to = end;
    return k->joules;
}

/* The same of what the sensor saw at each of its updates. */
static double counted_seen(struct known *k, int g, int64_t end) {
    const struct flaws *f = &twin.gpus[g].flaws;
    int64_t last = tick_of(end, f->power_phase_ns, f->power_period_ns);
    for (; k->seen_tick < last; k->seen_tick++) {
        int64_t t = time_of(k->seen_tick + 1, f->power_phase_ns, f->power_period_ns);
        if (f->reset_ns <= t && t - f->power_period_ns < f->reset_ns) k->seen_joules = 0;
        k->seen_joules += seen_watts(g, k->seen_tick + 1) * (double)f->power_period_ns / 1e9;
    }
    return k->seen_joules;
}

int64_t counter_mj(int g, int64_t now) {
    struct known *k = begin(g);
    const struct flaws *f = &twin.gpus[g].flaws;
    int64_t tick = tick_of(now, f->counter_phase_ns, f->counter_period_ns);
    int64_t end = time_of(tick, f->counter_phase_ns, f->counter_period_ns);
    int seen = f->counter == TWIN_COUNTER_SEEN && f->power_period_ns > 0;
    double joules = seen ? counted_seen(k, g, end) : counted(k, g, end);
    int64_t covered = seen ? time_of(k->seen_tick, f->power_phase_ns, f->power_period_ns) : end;
    int was_reset = f->reset_ns <= covered;
    int64_t since = end - (was_reset ? f->reset_ns : twin.head->start_ns);
    joules = joules * (1 + f->gain_error) + (f->offset_w + f->module_w) * (double)since / 1e9;
    int64_t step = f->counter_step_mj > 1 ? f->counter_step_mj : 1;
    double mj = (was_reset ? 0 : (double)f->counter_base_mj) + joules * 1000;
    int64_t value = (int64_t)floor(mj / (double)step) * step;
    return finish(k, value > 0 ? value : 0);
}
