/*
 * Stand-in for libnvidia-ml.so.1, third part: what came after driver branch 470. 515 brought the
 * fabric, 535 the new name for clocks and throttling, 550 the state of SRAM.
 */
#include "nvml.h"

#include <string.h>

#define VERSION_OF(version, type) ((version) << 24 | (unsigned)sizeof(type))

struct fabric_info {
    unsigned char cluster[16];
    unsigned status, clique;
    unsigned char state;
};

struct fabric_info_v2 {
    unsigned version;
    unsigned char cluster[16];
    unsigned status, clique;
    unsigned char state;
    unsigned mask;
};

struct fabric_info_v3 {
    unsigned version;
    unsigned char cluster[16];
    unsigned status, clique;
    unsigned char state;
    unsigned mask;
    unsigned char summary;
};

struct sram_status {
    unsigned version;
    unsigned long long aggregate_parity, aggregate_secded, aggregate_corrected;
    unsigned long long volatile_parity, volatile_secded, volatile_corrected;
    unsigned long long buckets[5];
    unsigned threshold_exceeded;
};

struct temperature {
    unsigned version, sensor;
    int degrees;
};

ONE_NUMBER(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long, gpu.clocks)
ONE_NUMBER(nvmlDeviceGetSupportedClocksEventReasons, unsigned long long, 0x1FF)

int nvmlDeviceGetTemperatureV(device_t device, struct temperature *temperature)
{
    ENTER(device, gpu);
    if (temperature->version != VERSION_OF(1u, struct temperature)) {
        return ARGUMENT_VERSION_MISMATCH;
    }
    temperature->degrees = (int)gpu.temperature;
    return SUCCESS;
}

int nvmlDeviceGetGpuFabricInfo(device_t device, struct fabric_info *info)
{
    ENTER(device, gpu);
    if (!gpu.has_fabric) {
        return NOT_SUPPORTED;
    }
    memcpy(info->cluster, gpu.fabric_cluster, sizeof info->cluster);
    info->status = gpu.fabric_status;
    info->clique = gpu.fabric_clique;
    info->state = (unsigned char)gpu.fabric_state;
    return SUCCESS;
}

int nvmlDeviceGetGpuFabricInfoV(device_t device, struct fabric_info_v3 *info)
{
    ENTER(device, gpu);
    if (!gpu.has_fabric) {
        return NOT_SUPPORTED;
    }
    if (info->version == VERSION_OF(3u, struct fabric_info_v3)) {
        info->summary = (unsigned char)gpu.fabric_summary;
    } else if (info->version != VERSION_OF(2u, struct fabric_info_v2)) {
        return ARGUMENT_VERSION_MISMATCH;
    }
    memcpy(info->cluster, gpu.fabric_cluster, sizeof info->cluster);
    info->status = gpu.fabric_status;
    info->clique = gpu.fabric_clique;
    info->state = (unsigned char)gpu.fabric_state;
    info->mask = gpu.fabric_mask;
    return SUCCESS;
}

int nvmlDeviceGetSramEccErrorStatus(device_t device, struct sram_status *status)
{
    ENTER(device, gpu);
    if (!gpu.has_ecc) {
        return NOT_SUPPORTED;
    }
    if (status->version != VERSION_OF(1u, struct sram_status)) {
        return ARGUMENT_VERSION_MISMATCH;
    }
    memset(status, 0, sizeof *status);
    status->version = VERSION_OF(1u, struct sram_status);
    status->aggregate_parity = status->volatile_parity = gpu.sram_uncorrected;
    status->buckets[1] = gpu.sram_uncorrected;
    status->threshold_exceeded = gpu.sram_threshold;
    return SUCCESS;
}
