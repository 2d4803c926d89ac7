/*
 * What the stand-in for NVML knows about the simulated GPUs, and how it is asked.
 * state.c keeps it in step with the drive file; nvml.c answers NVML's calls from it.
 */
#ifndef FLEETMEND_LAB_STATE_H
#define FLEETMEND_LAB_STATE_H

enum { MAX_GPUS = 16, MAX_LINKS = 36, MAX_PROCESSES = 16, UUID_BYTES = 96 };

/* Return codes, in the numbers of NVML's nvmlReturn_t. */
enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
    TIMED_OUT = 10,
    GPU_IS_LOST = 15,
    ARGUMENT_VERSION_MISMATCH = 25
};

enum behaviour { BEHAVES, IS_LOST, HANGS, CRASHES };

enum { VOLATILE_CORRECTED, VOLATILE_UNCORRECTED, AGGREGATE_CORRECTED, AGGREGATE_UNCORRECTED };
enum { GEN_NOW, WIDTH_NOW, GEN_MAX, WIDTH_MAX, REPLAYS };

struct link {
    int exists;
    unsigned active;
    unsigned long long errors[4]; /* replay, recovery, CRC of flits, CRC of data */
};

struct process {
    unsigned pid;
    unsigned long long memory;
};

struct gpu {
    char uuid[UUID_BYTES];
    char bus[32];
    char name[96];
    char serial[30];
    unsigned minor;
    enum behaviour behaviour;
    long slow_ms;
    int has_ecc, has_remap, has_histogram, has_fabric, has_mig, has_recovery;
    unsigned long long ecc[4];
    unsigned remap[4];     /* corrected, uncorrected, pending, failure */
    unsigned histogram[5]; /* max, high, partial, low, none */
    unsigned long long sram_uncorrected;
    unsigned sram_threshold;
    unsigned long long clocks;
    unsigned temperature, power_mw, limit_mw;
    unsigned pcie[5];
    unsigned recovery, persistence, mig[2];
    unsigned fabric_state, fabric_status, fabric_mask, fabric_summary, fabric_clique;
    unsigned char fabric_cluster[16];
    struct link links[MAX_LINKS];
    struct process processes[MAX_PROCESSES];
    unsigned process_count;
};

struct library {
    char driver[80];
    char version[80];
    int cuda;
    int init;
    enum behaviour behaviour;
    long slow_ms;
    unsigned gpu_count;
    struct gpu gpus[MAX_GPUS];
};

/* A handle outlives changes of the list: it names a GPU, not a place. */
struct handle {
    char uuid[UUID_BYTES];
};

/* nvmlInit and nvmlShutdown, counted. */
int state_start(void);
int state_stop(void);

/* A copy of all that is known now; UNINITIALIZED before state_start. */
int state_look(struct library *library);

/* What every call on a GPU begins with: its record, after it behaved as it is told to. */
int state_gpu(struct handle *handle, struct gpu *gpu);

/* The handle of a GPU of the list. */
struct handle *state_handle(const struct gpu *gpu);

#endif
