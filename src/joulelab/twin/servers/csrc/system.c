/* Tell what the library is: versions, counts, handles, and the text of each error. */
#include "twin.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

static const struct {
    int code;
    const char *text;
} texts[] = {
    {SUCCESS, "Success"},
    {UNINITIALIZED, "Uninitialized"},
    {INVALID_ARGUMENT, "Invalid Argument"},
    {NOT_SUPPORTED, "Not Supported"},
    {NO_PERMISSION, "Insufficient Permissions"},
    {NOT_FOUND, "Not Found"},
    {INSUFFICIENT_SIZE, "Insufficient Size"},
    {DRIVER_NOT_LOADED, "Driver Not Loaded"},
    {13, "Function Not Found"},
    {GPU_IS_LOST, "GPU is lost"},
    {VERSION_MISMATCH_OF_DRIVER, "Driver/library version mismatch"},
    {INSUFFICIENT_RESOURCES, "Insufficient Resources"},
    {ARGUMENT_VERSION_MISMATCH, "Argument version mismatch"},
};

API const char *nvmlErrorString(int code) {
    for (unsigned i = 0; i < sizeof texts / sizeof *texts; i++)
        if (texts[i].code == code) return texts[i].text;
    return "Unknown Error";
}

#define READY(out)                                \
    if (!is_initialized()) return UNINITIALIZED;  \
    if (!(out)) return INVALID_ARGUMENT

API result nvmlSystemGetDriverVersion(char *out, unsigned size) {
    READY(out);
    return copy_text(out, size, twin.head->driver);
}

API result nvmlSystemGetNVMLVersion(char *out, unsigned size) {
    READY(out);
    return copy_text(out, size, twin.head->nvml);
}

API result nvmlSystemGetCudaDriverVersion(int *out) {
    READY(out);
    *out = (int)twin.head->cuda;
    return SUCCESS;
}

API result nvmlSystemGetCudaDriverVersion_v2(int *out) { return nvmlSystemGetCudaDriverVersion(out); }

API result nvmlSystemGetProcessName(unsigned pid, char *out, unsigned size) {
    READY(out);
    char path[64];
    snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
    FILE *file = fopen(path, "r");
    if (!file) return NOT_FOUND;
    size_t count = size ? fread(out, 1, size - 1, file) : 0;
    fclose(file);
    if (size) out[count] = 0;
    return SUCCESS;
}

API result nvmlDeviceGetCount_v2(unsigned *out) {
    READY(out);
    *out = twin.head->gpus;
    return SUCCESS;
}

API result nvmlDeviceGetCount(unsigned *out) { return nvmlDeviceGetCount_v2(out); }

API result nvmlUnitGetCount(unsigned *out) {
    READY(out);
    *out = 0;
    return SUCCESS;
}

/* Give a handle, if its GPU is still there. */
static result give(int g, int instance, device *out) {
    struct gpu *gpu;
    int64_t now;
    result wrong = enter(handle_of(g, instance), &gpu, &now);
    if (wrong == SUCCESS) *out = handle_of(g, instance);
    return wrong;
}

API result nvmlDeviceGetHandleByIndex_v2(unsigned index, device *out) {
    READY(out);
    return index < twin.head->gpus ? give((int)index, -1, out) : INVALID_ARGUMENT;
}

API result nvmlDeviceGetHandleByIndex(unsigned index, device *out) { return nvmlDeviceGetHandleByIndex_v2(index, out); }

API result nvmlDeviceGetHandleByUUID(const char *uuid, device *out) {
    READY(out && uuid);
    for (int g = 0; g < (int)twin.head->gpus; g++) {
        struct gpu *gpu = &twin.gpus[g];
        if (!strcmp(gpu->uuid, uuid)) return give(g, -1, out);
        for (int i = 0; i < (int)used_instances(gpu); i++)
            if (!strcmp(gpu->state.instance[i].uuid, uuid)) return give(g, i, out);
    }
    return NOT_FOUND;
}

struct uuid_by_version {
    unsigned version, type;
    char value[41];
};

API result nvmlDeviceGetHandleByUUIDV(const struct uuid_by_version *uuid, device *out) {
    READY(out && uuid);
    if (uuid->version != (1u << 24 | (unsigned)sizeof *uuid)) return ARGUMENT_VERSION_MISMATCH;
    return uuid->type == 1 ? nvmlDeviceGetHandleByUUID(uuid->value, out) : NOT_SUPPORTED;
}

API result nvmlDeviceGetHandleBySerial(const char *serial, device *out) {
    READY(out && serial);
    for (int g = 0; g < (int)twin.head->gpus; g++)
        if (!strcmp(twin.gpus[g].serial, serial)) return give(g, -1, out);
    return NOT_FOUND;
}

API result nvmlDeviceGetHandleByPciBusId_v2(const char *text, device *out) {
    READY(out && text);
    unsigned domain = 0, bus, slot, function;
    if (sscanf(text, "%x:%x:%x.%x", &domain, &bus, &slot, &function) != 4) {
        domain = 0;
        if (sscanf(text, "%x:%x.%x", &bus, &slot, &function) != 3) return INVALID_ARGUMENT;
    }
    for (int g = 0; g < (int)twin.head->gpus; g++)
        if (domain == 0 && twin.gpus[g].bus == bus && slot == 0) return give(g, -1, out);
    return NOT_FOUND;
}

API result nvmlDeviceGetHandleByPciBusId(const char *text, device *out) {
    return nvmlDeviceGetHandleByPciBusId_v2(text, out);
}
