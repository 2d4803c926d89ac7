/*
 * Stand-in for libnvidia-ml.so.1, first part: the library, how GPUs are found, their names, what
 * runs on them. Every call is answered from the drive file (state.c). Built a second time with
 * OLD_DRIVER and without newer.c, it exports only what a driver of branch 470 has.
 */
#include "nvml.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

struct pci_info {
    char bus_id_legacy[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
};

struct process_info {
    unsigned pid;
    unsigned long long memory;
    unsigned gpu_instance, compute_instance;
};

enum { H100_PCI_ID = 0x233010de, H100_SUBSYSTEM = 0x16c110de, NO_INSTANCE = 0xFFFFFFFFu };
enum { MEMORY_MIB = 81559 };

static int give_text(char *target, unsigned size, const char *text)
{
    if (strlen(text) >= size) {
        return INSUFFICIENT_SIZE;
    }
    strcpy(target, text);
    return SUCCESS;
}

/* The library as a whole. */

int nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    return state_start();
}

int nvmlInit_v2(void)
{
    return state_start();
}

int nvmlShutdown(void)
{
    return state_stop();
}

const char *nvmlErrorString(int code)
{
    switch (code) {
    case SUCCESS:
        return "Success";
    case UNINITIALIZED:
        return "Uninitialized";
    case INVALID_ARGUMENT:
        return "Invalid Argument";
    case NOT_SUPPORTED:
        return "Not Supported";
    case DRIVER_NOT_LOADED:
        return "Driver Not Loaded";
    case GPU_IS_LOST:
        return "GPU is lost";
    case 18:
        return "Driver/library version mismatch";
    default:
        return "Unknown Error";
    }
}

int nvmlSystemGetDriverVersion(char *version, unsigned size)
{
    struct library library;
    int answer = state_look(&library);
    return answer != SUCCESS ? answer : give_text(version, size, library.driver);
}

int nvmlSystemGetNVMLVersion(char *version, unsigned size)
{
    struct library library;
    int answer = state_look(&library);
    return answer != SUCCESS ? answer : give_text(version, size, library.version);
}

int nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    struct library library;
    int answer = state_look(&library);
    if (answer == SUCCESS) {
        *version = library.cuda;
    }
    return answer;
}

/* Finding GPUs. */

int nvmlDeviceGetCount_v2(unsigned *count)
{
    struct library library;
    int answer = state_look(&library);
    if (answer == SUCCESS) {
        *count = library.gpu_count;
    }
    return answer;
}

static int give_handle(const struct gpu *gpu, device_t *device)
{
    if (gpu->behaviour == IS_LOST) {
        return GPU_IS_LOST;
    }
    *device = state_handle(gpu);
    return *device == NULL ? NOT_FOUND : SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, device_t *device)
{
    struct library library;
    int answer = state_look(&library);
    if (answer != SUCCESS) {
        return answer;
    }
    return index < library.gpu_count ? give_handle(&library.gpus[index], device) : INVALID_ARGUMENT;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, device_t *device)
{
    struct library library;
    int answer = state_look(&library);
    if (answer != SUCCESS) {
        return answer;
    }
    for (unsigned i = 0; i < library.gpu_count; i++) {
        if (strcmp(library.gpus[i].uuid, uuid) == 0) {
            return give_handle(&library.gpus[i], device);
        }
    }
    return NOT_FOUND;
}

/* The domain has four digits in the kernel's words and eight in NVML's. */
static const char *past_zeros(const char *bus)
{
    return bus + strspn(bus, "0");
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, device_t *device)
{
    struct library library;
    int answer = state_look(&library);
    if (answer != SUCCESS) {
        return answer;
    }
    for (unsigned i = 0; i < library.gpu_count; i++) {
        if (strcasecmp(past_zeros(library.gpus[i].bus), past_zeros(bus)) == 0) {
            return give_handle(&library.gpus[i], device);
        }
    }
    return NOT_FOUND;
}

/* Names of one GPU. */

int nvmlDeviceGetUUID(device_t device, char *uuid, unsigned size)
{
    ENTER(device, gpu);
    return give_text(uuid, size, gpu.uuid);
}

int nvmlDeviceGetName(device_t device, char *name, unsigned size)
{
    ENTER(device, gpu);
    return give_text(name, size, gpu.name);
}

int nvmlDeviceGetSerial(device_t device, char *serial, unsigned size)
{
    ENTER(device, gpu);
    return give_text(serial, size, gpu.serial);
}

ONE_NUMBER(nvmlDeviceGetMinorNumber, unsigned, gpu.minor)

int nvmlDeviceGetIndex(device_t device, unsigned *index)
{
    struct library library;
    ENTER(device, gpu);
    state_look(&library);
    for (*index = 0; *index < library.gpu_count; (*index)++) {
        if (strcmp(library.gpus[*index].uuid, gpu.uuid) == 0) {
            return SUCCESS;
        }
    }
    return GPU_IS_LOST;
}

int nvmlDeviceGetPciInfo_v3(device_t device, struct pci_info *info)
{
    ENTER(device, gpu);
    memset(info, 0, sizeof *info);
    sscanf(gpu.bus, "%x:%x:%x", &info->domain, &info->bus, &info->device);
    snprintf(info->bus_id_legacy, sizeof info->bus_id_legacy, "%04X:%02X:%02X.0",
             info->domain & 0xFFFF, info->bus & 0xFF, info->device & 0xFF);
    snprintf(info->bus_id, sizeof info->bus_id, "%08X:%02X:%02X.0", info->domain, info->bus,
             info->device);
    info->device_id = H100_PCI_ID;
    info->subsystem_id = H100_SUBSYSTEM;
    return SUCCESS;
}

/* Partitions and processes. */

int nvmlDeviceGetMigMode(device_t device, unsigned *now, unsigned *pending)
{
    ENTER(device, gpu);
    if (!gpu.has_mig) {
        return NOT_SUPPORTED;
    }
    *now = gpu.mig[0];
    *pending = gpu.mig[1];
    return SUCCESS;
}

int nvmlDeviceGetMaxMigDeviceCount(device_t device, unsigned *count)
{
    ENTER(device, gpu);
    *count = gpu.has_mig ? 7 : 0;
    return SUCCESS;
}

int nvmlDeviceGetMigDeviceHandleByIndex(device_t device, unsigned index, device_t *partition)
{
    (void)index;
    ENTER(device, gpu);
    *partition = NULL;
    return NOT_FOUND;
}

int nvmlDeviceGetComputeRunningProcesses_v3(device_t device, unsigned *count,
                                            struct process_info *processes)
{
    unsigned room = *count;
    ENTER(device, gpu);
    *count = gpu.process_count;
    if (room < gpu.process_count) {
        return INSUFFICIENT_SIZE;
    }
    for (unsigned i = 0; i < gpu.process_count; i++) {
        processes[i].pid = gpu.processes[i].pid;
        processes[i].memory = gpu.processes[i].memory;
        processes[i].gpu_instance = processes[i].compute_instance = NO_INSTANCE;
    }
    return SUCCESS;
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(device_t device, unsigned *count,
                                             struct process_info *processes)
{
    (void)processes;
    ENTER(device, gpu);
    *count = 0;
    return SUCCESS;
}

int nvmlDeviceGetUtilizationRates(device_t device, unsigned rates[2])
{
    ENTER(device, gpu);
    rates[0] = gpu.process_count > 0 ? 100 : 0;
    rates[1] = 0;
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo(device_t device, unsigned long long memory[3])
{
    ENTER(device, gpu);
    memory[0] = (unsigned long long)MEMORY_MIB << 20;
    memory[2] = 0;
    for (unsigned i = 0; i < gpu.process_count; i++) {
        memory[2] += gpu.processes[i].memory;
    }
    memory[1] = memory[0] - memory[2];
    return SUCCESS;
}
