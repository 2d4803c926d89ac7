/*
 * What the functions of the stand-in for NVML share. Layouts and numbers are those of NVIDIA's
 * nvidia-ml-py 13.615.71.
 */
#ifndef FLEETMEND_LAB_NVML_H
#define FLEETMEND_LAB_NVML_H

#include "state.h"

typedef struct handle *device_t;

/* Begins a function on a GPU: leaves it unless the GPU answers, else `gpu` is its record. */
#define ENTER(device, gpu)                  \
    struct gpu gpu;                         \
    do {                                    \
        int refusal = state_gpu(device, &gpu); \
        if (refusal != SUCCESS) {           \
            return refusal;                 \
        }                                   \
    } while (0)

/* A function that gives one number of a GPU. */
#define ONE_NUMBER(function, type, expression) \
    int function(device_t device, type *number) \
    {                                          \
        ENTER(device, gpu);                    \
        *number = (expression);                \
        return SUCCESS;                        \
    }

#endif
