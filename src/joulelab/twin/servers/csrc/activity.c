/* Show load, memory, clocks, temperature and fans that go with the power. */
#include "twin.h"

#include <math.h>

#define MILLISECOND INT64_C(1000000)

/* The load that the uncapped power stands for, from 0 to 1. */
static double load_over(const struct gpu *gpu, int64_t now, int64_t window) {
    double watts = true_joules(gpu, now - window, now, 0) / ((double)window / 1e9);
    return fmin(1, fmax(0, (watts - gpu->idle_w) / (gpu->max_w - gpu->idle_w)));
}

unsigned load_percent(const struct gpu *gpu, int64_t now) {
    return (unsigned)lround(100 * load_over(gpu, now, 200 * MILLISECOND));
}

struct utilization {
    unsigned gpu, memory;
};

API result nvmlDeviceGetUtilizationRates(device d, struct utilization *out) {
    ENTER_WHOLE(d, out);
    if (gpu->state.mig_mode) return NOT_SUPPORTED;
    unsigned load = load_percent(gpu, now);
    *out = (struct utilization){.gpu = load, .memory = load * 6 / 10};
    return SUCCESS;
}

static result no_engine(device d, unsigned *load, unsigned *period_us) {
    ENTER_WHOLE(d, load && period_us);
    *load = 0;
    *period_us = 167000;
    return SUCCESS;
}

#define NO_ENGINE(name) \
    API result name(device d, unsigned *load, unsigned *period_us) { return no_engine(d, load, period_us); }

NO_ENGINE(nvmlDeviceGetEncoderUtilization)
NO_ENGINE(nvmlDeviceGetDecoderUtilization)
NO_ENGINE(nvmlDeviceGetJpgUtilization)
NO_ENGINE(nvmlDeviceGetOfaUtilization)

/* Clock and temperature are those of Gpu.sm_mhz and Gpu.celsius in twin/model.py, and change with them.
   Under a cap or a lock the SM clock is that at which the dynamic power, which goes with its square, is what is left. */
static unsigned sm_mhz(const struct gpu *gpu, int64_t now) {
    double wanted = true_watts(gpu, now, 0), given = true_watts(gpu, now, 1);
    double mhz = load_percent(gpu, now) ? gpu->sm_max_mhz : gpu->sm_idle_mhz;
    if (given < wanted) {
        double left = fmax(0, given - gpu->idle_w) / fmax(wanted - gpu->idle_w, 1e-9);
        mhz = fmax(gpu->sm_idle_mhz, mhz * sqrt(fmin(1, left)));
    }
    const struct state *state = &gpu->state;
    if (state->sm_lock_max_mhz) mhz = fmax(state->sm_lock_min_mhz, fmin(state->sm_lock_max_mhz, mhz));
    return (unsigned)lround(fmin(mhz, state->sm_application_mhz));
}

static unsigned memory_mhz(const struct gpu *gpu, int64_t now) {
    unsigned mhz = load_percent(gpu, now) ? gpu->memory_max_mhz : gpu->memory_idle_mhz;
    const struct state *state = &gpu->state;
    if (state->memory_lock_max_mhz && mhz > state->memory_lock_max_mhz) mhz = state->memory_lock_max_mhz;
    return mhz < state->memory_application_mhz ? mhz : state->memory_application_mhz;
}

enum clock { GRAPHICS, SM, MEMORY, VIDEO, CLOCKS };

API result nvmlDeviceGetClockInfo(device d, unsigned type, unsigned *out) {
    ENTER_WHOLE(d, out);
    if (type >= CLOCKS) return INVALID_ARGUMENT;
    *out = type == MEMORY ? memory_mhz(gpu, now) : sm_mhz(gpu, now) * (type == VIDEO ? 9u : 10u) / 10;
    return SUCCESS;
}

API result nvmlDeviceGetMaxClockInfo(device d, unsigned type, unsigned *out) {
    ENTER_WHOLE(d, out);
    if (type >= CLOCKS) return INVALID_ARGUMENT;
    *out = type == MEMORY ? gpu->memory_max_mhz : gpu->sm_max_mhz * (type == VIDEO ? 9u : 10u) / 10;
    return SUCCESS;
}

API result nvmlDeviceGetMaxCustomerBoostClock(device d, unsigned type, unsigned *out) {
    return nvmlDeviceGetMaxClockInfo(d, type, out);
}

API result nvmlDeviceGetDefaultApplicationsClock(device d, unsigned type, unsigned *out) {
    return nvmlDeviceGetMaxClockInfo(d, type, out);
}

API result nvmlDeviceGetApplicationsClock(device d, unsigned type, unsigned *out) {
    ENTER_WHOLE(d, out);
    if (type > MEMORY) return INVALID_ARGUMENT;
    *out = type == MEMORY ? gpu->state.memory_application_mhz : gpu->state.sm_application_mhz;
    return SUCCESS;
}

API result nvmlDeviceGetClock(device d, unsigned type, unsigned which, unsigned *out) {
    if (which == 0) return nvmlDeviceGetClockInfo(d, type, out);
    if (which == 1) return nvmlDeviceGetApplicationsClock(d, type, out);
    return nvmlDeviceGetMaxClockInfo(d, type, out);
}

API result nvmlDeviceGetSupportedMemoryClocks(device d, unsigned *count, unsigned *out) {
    ENTER_WHOLE(d, count);
    unsigned room = *count;
    *count = 1;
    if (room < 1 || !out) return INSUFFICIENT_SIZE;
    out[0] = gpu->memory_max_mhz;
    return SUCCESS;
}

API result nvmlDeviceGetSupportedGraphicsClocks(device d, unsigned memory, unsigned *count, unsigned *out) {
    ENTER_WHOLE(d, count);
    if (memory != gpu->memory_max_mhz) return NOT_FOUND;
    unsigned room = *count;
    *count = (gpu->sm_max_mhz - 210) / 15 + 1;
    if (room < *count || !out) return INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < *count; i++) out[i] = gpu->sm_max_mhz - 15 * i;
    return SUCCESS;
}

/* Why the clocks are not higher: idle, or the power cap. */
static unsigned long long reasons(const struct gpu *gpu, int64_t now) {
    unsigned long long bits = load_percent(gpu, now) ? 0 : 1;
    if (gpu->state.sm_lock_max_mhz) bits |= 2;
    if (is_capped(gpu, now)) bits |= 4;
    return bits;
}

GIVE(nvmlDeviceGetCurrentClocksThrottleReasons, unsigned long long, 1, reasons(gpu, now))
GIVE(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long, 1, reasons(gpu, now))
GIVE(nvmlDeviceGetSupportedClocksThrottleReasons, unsigned long long, 1, 0x1ff)
GIVE(nvmlDeviceGetSupportedClocksEventReasons, unsigned long long, 1, 0x1ff)

/* Data-centre GPUs stay in P0 when idle, those with fans drop to P8. */
GIVE(nvmlDeviceGetPerformanceState, unsigned, 1, gpu->fans && !load_percent(gpu, now) ? 8 : 0)
GIVE(nvmlDeviceGetPowerState, unsigned, 1, gpu->fans && !load_percent(gpu, now) ? 8 : 0)

/* Heat follows the power of the last seconds. */
static double celsius(const struct gpu *gpu, int64_t now) {
    const int64_t window = 5000 * MILLISECOND;
    double watts = true_joules(gpu, now - window, now, 1) / ((double)window / 1e9);
    double share = fmin(1, fmax(0, (watts - gpu->idle_w) / (gpu->max_w - gpu->idle_w)));
    return gpu->idle_c + (gpu->max_c - gpu->idle_c) * share;
}

API result nvmlDeviceGetTemperature(device d, unsigned sensor, unsigned *out) {
    ENTER_WHOLE(d, out);
    if (sensor > 0) return INVALID_ARGUMENT;
    *out = (unsigned)lround(celsius(gpu, now));
    return SUCCESS;
}

struct temperature {
    unsigned version, sensor;
    int celsius;
};

API result nvmlDeviceGetTemperatureV(device d, struct temperature *out) {
    ENTER_WHOLE(d, out);
    if (out->version != (1u << 24 | (unsigned)sizeof *out)) return ARGUMENT_VERSION_MISMATCH;
    if (out->sensor > 0) return INVALID_ARGUMENT;
    out->celsius = (int)lround(celsius(gpu, now));
    return SUCCESS;
}

API result nvmlDeviceGetTemperatureThreshold(device d, unsigned which, unsigned *out) {
    ENTER_WHOLE(d, out);
    if (which > 7) return INVALID_ARGUMENT;
    if (which > 3) return NOT_SUPPORTED;
    const double above[] = {14, 11, 17, 9}; /* shutdown, slowdown, memory, GPU */
    *out = (unsigned)lround(gpu->max_c + above[which]);
    return SUCCESS;
}

static unsigned fan_percent(const struct gpu *gpu, int64_t now) {
    return (unsigned)lround(30 + 70 * load_over(gpu, now, 5000 * MILLISECOND));
}

GIVE(nvmlDeviceGetNumFans, unsigned, 1, gpu->fans)
GIVE(nvmlDeviceGetFanSpeed, unsigned, gpu->fans, fan_percent(gpu, now))

API result nvmlDeviceGetFanSpeed_v2(device d, unsigned fan, unsigned *out) {
    ENTER_WHOLE(d, out);
    if (!gpu->fans) return NOT_SUPPORTED;
    if (fan >= gpu->fans) return INVALID_ARGUMENT;
    *out = fan_percent(gpu, now);
    return SUCCESS;
}

API result nvmlDeviceGetPcieThroughput(device d, unsigned counter, unsigned *out) {
    ENTER_WHOLE(d, out);
    if (counter > 1) return INVALID_ARGUMENT;
    *out = load_percent(gpu, now) * (counter ? 20000u : 5000u); /* kB/s */
    return SUCCESS;
}
