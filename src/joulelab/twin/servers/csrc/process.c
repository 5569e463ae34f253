/* List processes, memory and MIG instances. */
#include "twin.h"

#include <string.h>
#include <time.h>

#define NONE 0xFFFFFFFFu

/* Copy the lists of a GPU, whole: the writer keeps the sequence odd while it changes them. */
static void snapshot(struct gpu *gpu, struct state *out) {
    for (;;) {
        uint32_t before = __atomic_load_n(&gpu->state.sequence, __ATOMIC_ACQUIRE);
        *out = gpu->state;
        __atomic_thread_fence(__ATOMIC_ACQUIRE);
        if (!(before & 1) && before == __atomic_load_n(&gpu->state.sequence, __ATOMIC_RELAXED)) break;
        struct timespec pause = {.tv_nsec = 100000};
        nanosleep(&pause, NULL);
    }
    if (out->processes > TWIN_PROCESSES) out->processes = TWIN_PROCESSES;
}

unsigned used_instances(const struct gpu *gpu) {
    if (!gpu->state.mig_mode) return 0;
    return gpu->state.instances < TWIN_INSTANCES ? gpu->state.instances : TWIN_INSTANCES;
}

/* Is a process seen through this handle? A MIG instance shows its own only. */
static int shown(device d, const struct state *state, const struct process *p) {
    if (d->instance < 0) return 1;
    const struct instance *i = &state->instance[d->instance];
    return p->gpu_instance == i->gpu_instance && p->compute_instance == i->compute_instance;
}

static uint64_t memory_in_use(device d, struct gpu *gpu) {
    struct state state;
    snapshot(gpu, &state);
    uint64_t bytes = 0;
    for (unsigned i = 0; i < state.processes; i++)
        if (shown(d, &state, &state.process[i])) bytes += state.process[i].memory_bytes;
    return bytes;
}

struct memory {
    unsigned long long total, unused, used;
};

struct memory_v2 {
    unsigned version;
    unsigned long long total, reserved, unused, used;
};

static void measure(device d, struct gpu *gpu, struct memory_v2 *out) {
    out->total = d->instance >= 0 ? gpu->state.instance[d->instance].memory_bytes : gpu->memory_bytes;
    out->reserved = d->instance >= 0 ? 0 : gpu->memory_bytes / 160;
    uint64_t room = out->total - out->reserved, used = memory_in_use(d, gpu);
    out->used = used < room ? used : room;
    out->unused = room - out->used;
}

/* The older call counts what the driver keeps for itself as used. */
API result nvmlDeviceGetMemoryInfo(device d, struct memory *out) {
    ENTER(d, out);
    struct memory_v2 m;
    measure(d, gpu, &m);
    *out = (struct memory){.total = m.total, .unused = m.unused, .used = m.used + m.reserved};
    return SUCCESS;
}

API result nvmlDeviceGetMemoryInfo_v2(device d, struct memory_v2 *out) {
    ENTER(d, out);
    if (out->version != (2u << 24 | (unsigned)sizeof *out)) return ARGUMENT_VERSION_MISMATCH;
    measure(d, gpu, out);
    return SUCCESS;
}

API result nvmlDeviceGetBAR1MemoryInfo(device d, struct memory *out) {
    ENTER(d, out);
    unsigned long long total = 1ull << 37, used = 2ull << 20;
    while (total / 2 >= gpu->memory_bytes) total /= 2;
    *out = (struct memory){.total = total, .unused = total - used, .used = used};
    return SUCCESS;
}

struct process_info {
    unsigned pid;
    unsigned long long memory;
    unsigned gpu_instance, compute_instance;
};

static result list(device d, unsigned kind, unsigned *count, struct process_info *out) {
    ENTER(d, count);
    if (gpu->flaws.refuse_processes) return NO_PERMISSION;
    struct state state;
    snapshot(gpu, &state);
    unsigned found = 0, room = out ? *count : 0;
    for (unsigned i = 0; i < state.processes; i++) {
        const struct process *p = &state.process[i];
        if (p->kind != kind || !shown(d, &state, p)) continue;
        struct process_info info = {p->pid, p->memory_bytes, p->gpu_instance, p->compute_instance};
        if (found < room) out[found] = info;
        found++;
    }
    *count = found;
    return found > room ? INSUFFICIENT_SIZE : SUCCESS;
}

#define LIST(name, kind)                                                                                            \
    API result name##_v3(device d, unsigned *count, struct process_info *out) { return list(d, (kind), count, out); } \
    API result name##_v2(device d, unsigned *count, struct process_info *out) { return list(d, (kind), count, out); }

LIST(nvmlDeviceGetComputeRunningProcesses, TWIN_KIND_COMPUTE)
LIST(nvmlDeviceGetGraphicsRunningProcesses, TWIN_KIND_GRAPHICS)
LIST(nvmlDeviceGetMPSComputeRunningProcesses, TWIN_KIND_MPS)

struct process_detail {
    unsigned pid;
    unsigned long long memory;
    unsigned gpu_instance, compute_instance;
    unsigned long long protected_memory;
};

struct process_details {
    unsigned version, kind, count;
    struct process_detail *items;
};

API result nvmlDeviceGetRunningProcessDetailList(device d, struct process_details *out) {
    if (!out) return INVALID_ARGUMENT;
    if (out->version != (1u << 24 | (unsigned)sizeof *out)) return ARGUMENT_VERSION_MISMATCH;
    struct process_info found[TWIN_PROCESSES];
    unsigned count = TWIN_PROCESSES, room = out->items ? out->count : 0;
    result wrong = list(d, out->kind, &count, found);
    if (wrong != SUCCESS) return wrong;
    for (unsigned i = 0; i < count && i < room; i++) {
        const struct process_info *p = &found[i];
        out->items[i] = (struct process_detail){p->pid, p->memory, p->gpu_instance, p->compute_instance, 0};
    }
    out->count = count;
    return count > room ? INSUFFICIENT_SIZE : SUCCESS;
}

struct process_sample {
    unsigned pid;
    unsigned long long utc_us;
    unsigned sm, memory, encoder, decoder;
};

/* One sample per process, new with each update of the load. */
API result nvmlDeviceGetProcessUtilization(
    device d, struct process_sample *out, unsigned *count, unsigned long long since_us) {
    ENTER_WHOLE(d, count);
    if (gpu->flaws.refuse_processes) return NO_PERMISSION;
    struct state state;
    snapshot(gpu, &state);
    struct timespec utc;
    clock_gettime(CLOCK_REALTIME, &utc);
    unsigned long long stamp = (unsigned long long)utc.tv_sec * 1000000 + (unsigned long long)utc.tv_nsec / 1000;
    if (!state.processes || stamp <= since_us) return NOT_FOUND;
    unsigned room = out ? *count : 0;
    *count = state.processes;
    if (room < state.processes) return INSUFFICIENT_SIZE;
    unsigned share = load_percent(gpu, now) / state.processes;
    for (unsigned i = 0; i < state.processes; i++) {
        const struct process *p = &state.process[i];
        unsigned load = p->load == NONE ? share : p->load;
        out[i] = (struct process_sample){.pid = p->pid, .utc_us = stamp, .sm = load, .memory = load * 6 / 10};
    }
    return SUCCESS;
}

/* MIG. */
API result nvmlDeviceGetMigMode(device d, unsigned *current, unsigned *pending) {
    ENTER_WHOLE(d, current && pending);
    if (!gpu->mig) return NOT_SUPPORTED;
    *current = *pending = gpu->state.mig_mode;
    return SUCCESS;
}

GIVE(nvmlDeviceGetMaxMigDeviceCount, unsigned, 1, gpu->mig ? 7 : 0)

API result nvmlDeviceGetMigDeviceHandleByIndex(device d, unsigned index, device *out) {
    ENTER_WHOLE(d, out);
    if (!gpu->mig) return NOT_SUPPORTED;
    if (index >= 7) return INVALID_ARGUMENT;
    if (index >= used_instances(gpu)) return NOT_FOUND;
    *out = handle_of(d->gpu, (int)index);
    return SUCCESS;
}

API result nvmlDeviceIsMigDeviceHandle(device d, unsigned *out) {
    ENTER(d, out);
    *out = d->instance >= 0;
    return SUCCESS;
}

API result nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device d, device *out) {
    ENTER(d, out);
    if (d->instance < 0) return INVALID_ARGUMENT;
    *out = handle_of(d->gpu, -1);
    return SUCCESS;
}

/* Define a call that only a MIG instance answers. */
#define GIVE_PART(name, field)                            \
    API result name(device d, unsigned *out) {            \
        ENTER(d, out);                                    \
        if (d->instance < 0) return INVALID_ARGUMENT;     \
        *out = gpu->state.instance[d->instance].field;    \
        return SUCCESS;                                   \
    }

GIVE_PART(nvmlDeviceGetGpuInstanceId, gpu_instance)
GIVE_PART(nvmlDeviceGetComputeInstanceId, compute_instance)

struct attributes {
    unsigned multiprocessors, copy, decoders, encoders, jpegs, flows, gpu_slices, compute_slices;
    unsigned long long memory_mib;
};

API result nvmlDeviceGetAttributes_v2(device d, struct attributes *out) {
    ENTER(d, out);
    if (d->instance < 0) return NOT_SUPPORTED;
    const struct instance *i = &gpu->state.instance[d->instance];
    memset(out, 0, sizeof *out);
    out->multiprocessors = i->multiprocessors;
    out->copy = out->gpu_slices = out->compute_slices = i->slices;
    out->memory_mib = i->memory_bytes >> 20;
    return SUCCESS;
}
