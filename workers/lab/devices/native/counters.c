/*
 * Stand-in for libnvidia-ml.so.1, second part: what tells of a GPU's health - memory, heat, power,
 * PCIe, NVLink - and the same by field number.
 */
#include "nvml.h"

#include <string.h>

struct field_value {
    unsigned field, scope;
    long long timestamp, latency_us;
    unsigned type, answer;
    union {
        unsigned number;
        unsigned long long large;
    } value;
};

enum { TYPE_UNSIGNED = 1, TYPE_LARGE = 3 };

/* Memory that fails. */

int nvmlDeviceGetEccMode(device_t device, unsigned *now, unsigned *pending)
{
    ENTER(device, gpu);
    if (!gpu.has_ecc) {
        return NOT_SUPPORTED;
    }
    *now = *pending = 1;
    return SUCCESS;
}

int nvmlDeviceGetTotalEccErrors(device_t device, unsigned kind, unsigned counter,
                                unsigned long long *count)
{
    ENTER(device, gpu);
    if (!gpu.has_ecc) {
        return NOT_SUPPORTED;
    }
    if (kind > 1 || counter > 1) {
        return INVALID_ARGUMENT;
    }
    *count = gpu.ecc[2 * counter + kind];
    return SUCCESS;
}

int nvmlDeviceGetMemoryErrorCounter(device_t device, unsigned kind, unsigned counter,
                                    unsigned place, unsigned long long *count)
{
    enum { DRAM = 2, SRAM = 7 };
    int answer = nvmlDeviceGetTotalEccErrors(device, kind, counter, count);
    struct gpu gpu;
    if (answer != SUCCESS) {
        return answer;
    }
    if (place == DRAM) {
        return SUCCESS;
    }
    *count = 0;
    if (place == SRAM && kind == 1 && state_gpu(device, &gpu) == SUCCESS) {
        *count = gpu.sram_uncorrected;
    }
    return place == SRAM ? SUCCESS : NOT_SUPPORTED;
}

int nvmlDeviceGetRemappedRows(device_t device, unsigned *corrected, unsigned *uncorrected,
                              unsigned *pending, unsigned *failed)
{
    ENTER(device, gpu);
    if (!gpu.has_remap) {
        return NOT_SUPPORTED;
    }
    *corrected = gpu.remap[0];
    *uncorrected = gpu.remap[1];
    *pending = gpu.remap[2];
    *failed = gpu.remap[3];
    return SUCCESS;
}

int nvmlDeviceGetRowRemapperHistogram(device_t device, unsigned banks[5])
{
    ENTER(device, gpu);
    if (!gpu.has_histogram) {
        return NOT_SUPPORTED;
    }
    memcpy(banks, gpu.histogram, sizeof gpu.histogram);
    return SUCCESS;
}

/* Only Volta and older retire pages. */
int nvmlDeviceGetRetiredPagesPendingStatus(device_t device, unsigned *pending)
{
    ENTER(device, gpu);
    *pending = 0;
    return NOT_SUPPORTED;
}

/* Heat, power, clocks. */

ONE_NUMBER(nvmlDeviceGetPowerUsage, unsigned, gpu.power_mw)
ONE_NUMBER(nvmlDeviceGetEnforcedPowerLimit, unsigned, gpu.limit_mw)
ONE_NUMBER(nvmlDeviceGetPowerManagementLimit, unsigned, gpu.limit_mw)
ONE_NUMBER(nvmlDeviceGetPersistenceMode, unsigned, gpu.persistence)
ONE_NUMBER(nvmlDeviceGetCurrentClocksThrottleReasons, unsigned long long, gpu.clocks)
ONE_NUMBER(nvmlDeviceGetSupportedClocksThrottleReasons, unsigned long long, 0x1FF)

int nvmlDeviceGetTemperature(device_t device, unsigned sensor, unsigned *temperature)
{
    ENTER(device, gpu);
    *temperature = gpu.temperature;
    return sensor == 0 ? SUCCESS : INVALID_ARGUMENT;
}

int nvmlDeviceGetTemperatureThreshold(device_t device, unsigned kind, unsigned *temperature)
{
    /* Shutdown, slowdown, memory, GPU: degrees of an H100 SXM. */
    static const unsigned degrees[] = {92, 89, 95, 87};
    ENTER(device, gpu);
    if (kind >= sizeof degrees / sizeof degrees[0]) {
        return NOT_SUPPORTED;
    }
    *temperature = degrees[kind];
    return SUCCESS;
}

/* PCIe and NVLink. */

ONE_NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, unsigned, gpu.pcie[GEN_NOW])
ONE_NUMBER(nvmlDeviceGetCurrPcieLinkWidth, unsigned, gpu.pcie[WIDTH_NOW])
ONE_NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, unsigned, gpu.pcie[GEN_MAX])
ONE_NUMBER(nvmlDeviceGetMaxPcieLinkWidth, unsigned, gpu.pcie[WIDTH_MAX])
ONE_NUMBER(nvmlDeviceGetPcieReplayCounter, unsigned, gpu.pcie[REPLAYS])

static int check_link(const struct gpu *gpu, unsigned link)
{
    if (link >= MAX_LINKS) {
        return INVALID_ARGUMENT;
    }
    return gpu->links[link].exists ? SUCCESS : NOT_SUPPORTED;
}

int nvmlDeviceGetNvLinkState(device_t device, unsigned link, unsigned *is_active)
{
    int answer;
    ENTER(device, gpu);
    answer = check_link(&gpu, link);
    if (answer == SUCCESS) {
        *is_active = gpu.links[link].active;
    }
    return answer;
}

int nvmlDeviceGetNvLinkErrorCounter(device_t device, unsigned link, unsigned counter,
                                    unsigned long long *count)
{
    int answer;
    ENTER(device, gpu);
    answer = check_link(&gpu, link);
    if (answer == SUCCESS && counter >= 4) {
        return NOT_SUPPORTED;
    }
    if (answer == SUCCESS) {
        *count = gpu.links[link].errors[counter];
    }
    return answer;
}

/* Fields by number (NVML_FI_*). */

static void answer_number(struct field_value *field, unsigned number)
{
    field->type = TYPE_UNSIGNED;
    field->value.number = number;
}

static void answer_large(struct field_value *field, unsigned long long number)
{
    field->type = TYPE_LARGE;
    field->value.large = number;
}

static unsigned count_links(const struct gpu *gpu)
{
    unsigned count = 0;
    for (unsigned i = 0; i < MAX_LINKS; i++) {
        count += gpu->links[i].exists != 0;
    }
    return count;
}

static void answer_field(const struct gpu *gpu, struct field_value *field)
{
    /* 3-6 SBE volatile, DBE volatile, SBE aggregate, DBE aggregate: the order of gpu->ecc. */
    field->answer = SUCCESS;
    if (field->field >= 3 && field->field <= 6 && gpu->has_ecc) {
        answer_large(field, gpu->ecc[field->field - 3]);
    } else if (field->field >= 74 && field->field <= 81) {
        answer_large(field, 0);
    } else if (field->field == 91) {
        answer_number(field, count_links(gpu));
    } else if (field->field == 94) {
        answer_number(field, gpu->pcie[REPLAYS]);
    } else if (field->field >= 142 && field->field <= 145 && gpu->has_remap) {
        answer_number(field, gpu->remap[field->field - 142]);
#ifndef OLD_DRIVER
    } else if (field->field == 230 && gpu->has_recovery) {
        answer_number(field, gpu->recovery);
    } else if (field->field >= 206 && field->field <= 222 && field->scope < MAX_LINKS &&
               gpu->links[field->scope].exists) {
        answer_large(field, 0);
#endif
    } else {
        field->answer = NOT_SUPPORTED;
    }
}

int nvmlDeviceGetFieldValues(device_t device, int count, struct field_value *fields)
{
    ENTER(device, gpu);
    for (int i = 0; i < count; i++) {
        answer_field(&gpu, &fields[i]);
    }
    return SUCCESS;
}
