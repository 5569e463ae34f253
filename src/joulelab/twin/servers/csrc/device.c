/* Tell what a GPU is. */
#include "twin.h"

#include <stdio.h>
#include <string.h>

API result nvmlDeviceGetName(device d, char *out, unsigned size) {
    ENTER(d, out);
    char name[160];
    snprintf(name, sizeof name, "%s", gpu->name);
    if (d->instance >= 0) snprintf(name, sizeof name, "%s MIG %s", gpu->name, gpu->state.instance[d->instance].profile);
    return copy_text(out, size, name);
}

API result nvmlDeviceGetUUID(device d, char *out, unsigned size) {
    ENTER(d, out);
    return copy_text(out, size, d->instance >= 0 ? gpu->state.instance[d->instance].uuid : gpu->uuid);
}

API result nvmlDeviceGetSerial(device d, char *out, unsigned size) {
    ENTER_WHOLE(d, out);
    return copy_text(out, size, gpu->serial);
}

API result nvmlDeviceGetVbiosVersion(device d, char *out, unsigned size) {
    ENTER_WHOLE(d, out);
    return copy_text(out, size, "00.00.00.00.01");
}

API result nvmlDeviceGetBoardPartNumber(device d, char *out, unsigned size) {
    ENTER_WHOLE(d, out);
    return copy_text(out, size, "joulelab-twin");
}

GIVE(nvmlDeviceGetMinorNumber, unsigned, 1, gpu->minor)
GIVE(nvmlDeviceGetBoardId, unsigned, 1, gpu->bus << 8)
GIVE(nvmlDeviceGetMultiGpuBoard, unsigned, 1, 0)
GIVE(nvmlDeviceGetBrand, unsigned, 1, gpu->brand)
GIVE(nvmlDeviceGetArchitecture, unsigned, 1, gpu->architecture)
GIVE(nvmlDeviceGetNumGpuCores, unsigned, 1, gpu->cores)
GIVE(nvmlDeviceGetMemoryBusWidth, unsigned, 1, gpu->bus_bits)
GIVE(nvmlDeviceGetDisplayMode, unsigned, 1, 0)
GIVE(nvmlDeviceGetDisplayActive, unsigned, 1, 0)
GIVE(nvmlDeviceGetBusType, unsigned, 1, 2)
GIVE(nvmlDeviceGetPowerSource, unsigned, 1, 0)
GIVE(nvmlDeviceGetIrqNum, unsigned, 1, 100 + gpu->minor)
GIVE(nvmlDeviceGetCurrPcieLinkGeneration, unsigned, 1, gpu->pcie_generation)
GIVE(nvmlDeviceGetMaxPcieLinkGeneration, unsigned, 1, gpu->pcie_generation)
GIVE(nvmlDeviceGetGpuMaxPcieLinkGeneration, unsigned, 1, gpu->pcie_generation)
GIVE(nvmlDeviceGetCurrPcieLinkWidth, unsigned, 1, 16)
GIVE(nvmlDeviceGetMaxPcieLinkWidth, unsigned, 1, 16)
GIVE(nvmlDeviceGetPcieReplayCounter, unsigned, 1, 0)
GIVE(nvmlDeviceGetRetiredPagesPendingStatus, unsigned, gpu->ecc, 0)
GIVE(nvmlDeviceGetAccountingMode, unsigned, 1, 0)

/* Only Windows has driver models. */
API result nvmlDeviceGetDriverModel(device d, unsigned *current, unsigned *pending) {
    ENTER_WHOLE(d, current && pending);
    return NOT_SUPPORTED;
}

API result nvmlDeviceGetDriverModel_v2(device d, unsigned *current, unsigned *pending) {
    return nvmlDeviceGetDriverModel(d, current, pending);
}

API result nvmlDeviceGetIndex(device d, unsigned *out) {
    ENTER(d, out);
    *out = (unsigned)(d->instance >= 0 ? d->instance : d->gpu);
    return SUCCESS;
}

API result nvmlDeviceGetCudaComputeCapability(device d, int *major, int *minor) {
    ENTER(d, major && minor);
    *major = gpu->compute_major;
    *minor = gpu->compute_minor;
    return SUCCESS;
}

struct pci {
    char short_bus_id[16];
    unsigned domain, bus, slot, id, subsystem;
    char bus_id[32];
};

API result nvmlDeviceGetPciInfo_v3(device d, struct pci *out) {
    ENTER_WHOLE(d, out);
    memset(out, 0, sizeof *out);
    out->bus = gpu->bus;
    out->id = out->subsystem = gpu->pci_id;
    snprintf(out->short_bus_id, sizeof out->short_bus_id, "0000:%02X:00.0", gpu->bus);
    snprintf(out->bus_id, sizeof out->bus_id, "%s", gpu->bus_id);
    return SUCCESS;
}

API result nvmlDeviceGetPciInfo_v2(device d, struct pci *out) { return nvmlDeviceGetPciInfo_v3(d, out); }

API result nvmlDeviceOnSameBoard(device a, device b, int *out) {
    ENTER_WHOLE(a, out && is_handle(b));
    *out = a->gpu == b->gpu;
    return SUCCESS;
}

/* All GPUs of the node hang on one host bridge. */
API result nvmlDeviceGetTopologyCommonAncestor(device a, device b, unsigned *out) {
    ENTER_WHOLE(a, out && is_handle(b));
    *out = a->gpu == b->gpu ? 0 : 30;
    return SUCCESS;
}

/* Errors in memory: none. */
API result nvmlDeviceGetEccMode(device d, unsigned *current, unsigned *pending) {
    ENTER_WHOLE(d, current && pending);
    if (!gpu->ecc) return NOT_SUPPORTED;
    *current = *pending = 1;
    return SUCCESS;
}

API result nvmlDeviceGetTotalEccErrors(device d, unsigned type, unsigned counter, unsigned long long *out) {
    ENTER_WHOLE(d, out);
    if (type > 1 || counter > 1) return INVALID_ARGUMENT;
    if (!gpu->ecc) return NOT_SUPPORTED;
    *out = 0;
    return SUCCESS;
}

API result nvmlDeviceGetMemoryErrorCounter(
    device d, unsigned type, unsigned counter, unsigned place, unsigned long long *out) {
    (void)place;
    return nvmlDeviceGetTotalEccErrors(d, type, counter, out);
}

API result nvmlDeviceGetRemappedRows(
    device d, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed) {
    ENTER_WHOLE(d, corrected && uncorrected && pending && failed);
    if (!gpu->ecc || gpu->architecture < 7) return NOT_SUPPORTED;
    *corrected = *uncorrected = *pending = *failed = 0;
    return SUCCESS;
}
