/* Read power, energy and caps, by call and by field, and set what can be set. */
#include "twin.h"

#include <time.h>

GIVE(nvmlDeviceGetPowerUsage, unsigned, 1, plain_mw(d->gpu, now))
#define COUNTS (gpu->flaws.counter != TWIN_COUNTER_NONE)
GIVE(nvmlDeviceGetTotalEnergyConsumption, unsigned long long, COUNTS, counter_mj(d->gpu, now))
GIVE(nvmlDeviceGetPowerManagementMode, unsigned, 1, !gpu->flaws.no_caps)
#define CAPS (!gpu->flaws.no_caps)
GIVE(nvmlDeviceGetPowerManagementLimit, unsigned, CAPS, requested_cap_mw(gpu, now))
GIVE(nvmlDeviceGetPowerManagementDefaultLimit, unsigned, CAPS, gpu->default_cap_mw)
GIVE(nvmlDeviceGetEnforcedPowerLimit, unsigned, CAPS, enforced_cap_mw(gpu, now))
GIVE(nvmlDeviceGetPersistenceMode, unsigned, 1, gpu->state.persistence)
GIVE(nvmlDeviceGetComputeMode, unsigned, 1, gpu->state.compute_mode)

API result nvmlDeviceGetPowerManagementLimitConstraints(device d, unsigned *lowest, unsigned *highest) {
    ENTER_WHOLE(d, lowest && highest);
    if (!CAPS) return NOT_SUPPORTED;
    *lowest = (unsigned)gpu->min_cap_mw;
    *highest = (unsigned)gpu->max_cap_mw;
    return SUCCESS;
}

/* Begin a call that changes something. */
#define ENTER_TO_SET(d)   \
    ENTER_WHOLE(d, (d));  \
    if (gpu->flaws.refuse_caps || !twin.writable) return NO_PERMISSION

API result nvmlDeviceSetPowerManagementLimit(device d, unsigned cap_mw) {
    ENTER_TO_SET(d);
    if (!CAPS) return NOT_SUPPORTED;
    if (cap_mw < gpu->min_cap_mw || cap_mw > gpu->max_cap_mw) return INVALID_ARGUMENT;
    return gpu->flaws.ignore_caps ? SUCCESS : request_cap(gpu, cap_mw);
}

struct power_value {
    unsigned version, scope, mw;
};

API result nvmlDeviceSetPowerManagementLimit_v2(device d, const struct power_value *value) {
    if (!value) return INVALID_ARGUMENT;
    if (value->version != (2u << 24 | (unsigned)sizeof *value)) return ARGUMENT_VERSION_MISMATCH;
    return value->scope == 0 ? nvmlDeviceSetPowerManagementLimit(d, value->mw) : NOT_SUPPORTED;
}

/* Set fields of the GPU's state, for all processes. */
#define STORE(field, value) __atomic_store_n(&gpu->state.field, (value), __ATOMIC_RELEASE)

API result nvmlDeviceSetPersistenceMode(device d, unsigned mode) {
    ENTER_TO_SET(d);
    if (mode > 1) return INVALID_ARGUMENT;
    STORE(persistence, mode);
    return SUCCESS;
}

API result nvmlDeviceSetComputeMode(device d, unsigned mode) {
    ENTER_TO_SET(d);
    if (mode > 3) return INVALID_ARGUMENT;
    STORE(compute_mode, mode);
    return SUCCESS;
}

API result nvmlDeviceSetGpuLockedClocks(device d, unsigned lowest, unsigned highest) {
    ENTER_TO_SET(d);
    if (lowest > highest || !highest) return INVALID_ARGUMENT;
    STORE(sm_lock_min_mhz, lowest);
    STORE(sm_lock_max_mhz, highest);
    return hold_clock(gpu);
}

API result nvmlDeviceResetGpuLockedClocks(device d) {
    ENTER_TO_SET(d);
    STORE(sm_lock_min_mhz, 0);
    STORE(sm_lock_max_mhz, 0);
    return hold_clock(gpu);
}

API result nvmlDeviceSetMemoryLockedClocks(device d, unsigned lowest, unsigned highest) {
    ENTER_TO_SET(d);
    if (lowest > highest || !highest) return INVALID_ARGUMENT;
    STORE(memory_lock_min_mhz, lowest);
    STORE(memory_lock_max_mhz, highest);
    return SUCCESS;
}

API result nvmlDeviceResetMemoryLockedClocks(device d) {
    ENTER_TO_SET(d);
    STORE(memory_lock_min_mhz, 0);
    STORE(memory_lock_max_mhz, 0);
    return SUCCESS;
}

API result nvmlDeviceSetApplicationsClocks(device d, unsigned memory, unsigned graphics) {
    ENTER_TO_SET(d);
    if (memory != gpu->memory_max_mhz || graphics > gpu->sm_max_mhz || graphics < 210) return INVALID_ARGUMENT;
    STORE(memory_application_mhz, memory);
    STORE(sm_application_mhz, graphics);
    return hold_clock(gpu);
}

API result nvmlDeviceResetApplicationsClocks(device d) {
    ENTER_TO_SET(d);
    STORE(memory_application_mhz, gpu->memory_max_mhz);
    STORE(sm_application_mhz, gpu->sm_max_mhz);
    return hold_clock(gpu);
}

/* Clocks are open to root only, as they are by default. */
API result nvmlDeviceGetAPIRestriction(device d, unsigned api, unsigned *out) {
    ENTER_WHOLE(d, out);
    if (api > 1) return INVALID_ARGUMENT;
    *out = 1;
    return SUCCESS;
}

/* NVML's numbers of the fields that are served; every other one is not supported. */
enum field {
    ENERGY_SINCE_LOAD = 83,
    POWER_AVERAGE = 185,
    POWER_INSTANT = 186,
    CAP_LOWEST = 187,
    CAP_HIGHEST = 188,
    CAP_DEFAULT = 189,
    CAP_ENFORCED = 190,
    CAP_REQUESTED = 192,
};

enum { AS_UINT = 1, AS_ULL = 3 };

struct field_value {
    uint32_t field, scope;
    int64_t utc_us, latency_us;
    uint32_t type;
    int32_t result;
    union {
        uint32_t number;
        uint64_t large;
    };
};

enum { OF_GPU, OF_MODULE, OF_MEMORY };

/* Power in the scope that is asked for: the GPU, its module, or its memory. */
static result scoped_mw(const struct gpu *gpu, int64_t mw, struct field_value *v) {
    const struct flaws *f = &gpu->flaws;
    if (v->scope > OF_MEMORY || (v->scope == OF_MODULE && f->module_w <= 0)) return NOT_SUPPORTED;
    if (v->scope == OF_MEMORY && (f->memory_share <= 0 || v->field != POWER_AVERAGE)) return NOT_SUPPORTED;
    double more = v->scope == OF_MODULE ? f->module_w * 1000 : 0, share = v->scope == OF_MEMORY ? f->memory_share : 1;
    v->number = (uint32_t)((double)mw * share + more);
    return SUCCESS;
}

struct coherent_link {
    unsigned enabled;
};

API result nvmlDeviceGetC2cModeInfoV(device d, struct coherent_link *out) {
    ENTER_WHOLE(d, out);
    if (gpu->flaws.module_w <= 0) return NOT_SUPPORTED;
    out->enabled = 1;
    return SUCCESS;
}

static result read_field(device d, const struct gpu *gpu, int64_t now, struct field_value *v) {
    v->type = AS_UINT;
    if (v->scope != OF_GPU && v->field != POWER_AVERAGE && v->field != POWER_INSTANT) return NOT_SUPPORTED;
    if (v->field >= CAP_LOWEST && v->field <= CAP_REQUESTED && !CAPS) return NOT_SUPPORTED;
    switch (v->field) {
    case ENERGY_SINCE_LOAD:
        if (!COUNTS) return NOT_SUPPORTED;
        v->type = AS_ULL;
        v->large = (uint64_t)counter_mj(d->gpu, now);
        return SUCCESS;
    case POWER_AVERAGE:
        if (gpu->flaws.average_window_ns <= 0) return NOT_SUPPORTED;
        return scoped_mw(gpu, average_mw(d->gpu, now), v);
    case POWER_INSTANT: return scoped_mw(gpu, instant_mw(d->gpu, now), v);
    case CAP_LOWEST: v->number = (uint32_t)gpu->min_cap_mw; return SUCCESS;
    case CAP_HIGHEST: v->number = (uint32_t)gpu->max_cap_mw; return SUCCESS;
    case CAP_DEFAULT: v->number = (uint32_t)gpu->default_cap_mw; return SUCCESS;
    case CAP_ENFORCED: v->number = (uint32_t)enforced_cap_mw(gpu, now); return SUCCESS;
    case CAP_REQUESTED: v->number = (uint32_t)requested_cap_mw(gpu, now); return SUCCESS;
    default: return NOT_SUPPORTED;
    }
}

API result nvmlDeviceGetFieldValues(device d, int count, struct field_value *values) {
    ENTER(d, values && count > 0);
    struct timespec utc;
    clock_gettime(CLOCK_REALTIME, &utc);
    for (int i = 0; i < count; i++) {
        struct field_value *v = &values[i];
        v->large = 0;
        v->utc_us = (int64_t)utc.tv_sec * 1000000 + utc.tv_nsec / 1000;
        v->latency_us = gpu->flaws.latency_ns / 1000;
        v->result = d->instance >= 0 ? NOT_SUPPORTED : read_field(d, gpu, now, v);
    }
    return SUCCESS;
}
