/* Keeps the simulated GPUs in step with the drive file named by FLEETMEND_LAB_NVML. */
#include "state.h"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

#include "drive.h"

static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
static struct library current;
static struct drive_stamp seen;
static struct handle handles[4 * MAX_GPUS];
static unsigned handle_count;
static int users;

static const char *drive_path(void)
{
    static char beside[4096];
    const char *named = getenv("FLEETMEND_LAB_NVML");
    Dl_info self;
    if (named != NULL && *named != '\0') {
        return named;
    }
    if (beside[0] == '\0' && dladdr((void *)&state_start, &self) != 0) {
        const char *end = strrchr(self.dli_fname, '/');
        int length = end == NULL ? 1 : (int)(end - self.dli_fname);
        snprintf(beside, sizeof beside, "%.*s/../nvml.state", length,
                 end == NULL ? "." : self.dli_fname);
    }
    return beside;
}

static enum behaviour read_behaviour(const char *word)
{
    if (strcmp(word, "lost") == 0) {
        return IS_LOST;
    }
    if (strcmp(word, "hang") == 0) {
        return HANGS;
    }
    return strcmp(word, "crash") == 0 ? CRASHES : BEHAVES;
}

static void copy_text(char *target, size_t size, const char *value)
{
    snprintf(target, size, "%s", value);
}

static void read_link(struct gpu *gpu, const char *value)
{
    unsigned index, active;
    unsigned long long errors[4];
    if (sscanf(value, "%u %u %llu %llu %llu %llu", &index, &active, &errors[0], &errors[1],
               &errors[2], &errors[3]) == 6 &&
        index < MAX_LINKS) {
        gpu->links[index].exists = 1;
        gpu->links[index].active = active;
        memcpy(gpu->links[index].errors, errors, sizeof errors);
    }
}

static void read_fabric(struct gpu *gpu, const char *value)
{
    char cluster[33] = "";
    gpu->has_fabric = sscanf(value, "%u %u %u %u %u %32s", &gpu->fabric_state, &gpu->fabric_status,
                             &gpu->fabric_mask, &gpu->fabric_summary, &gpu->fabric_clique,
                             cluster) >= 5;
    for (unsigned i = 0; i < 16 && cluster[2 * i] != '\0'; i++) {
        unsigned byte = 0;
        sscanf(cluster + 2 * i, "%2x", &byte);
        gpu->fabric_cluster[i] = (unsigned char)byte;
    }
}

static void read_process(struct gpu *gpu, const char *value)
{
    struct process *process = &gpu->processes[gpu->process_count];
    if (gpu->process_count < MAX_PROCESSES &&
        sscanf(value, "%u %llu", &process->pid, &process->memory) == 2) {
        gpu->process_count++;
    }
}

static void read_counters(struct gpu *gpu, const char *key, const char *value)
{
    if (strcmp(key, "ecc") == 0) {
        gpu->has_ecc = sscanf(value, "%llu %llu %llu %llu", &gpu->ecc[0], &gpu->ecc[1],
                              &gpu->ecc[2], &gpu->ecc[3]) == 4;
    } else if (strcmp(key, "remap") == 0) {
        gpu->has_remap = sscanf(value, "%u %u %u %u", &gpu->remap[0], &gpu->remap[1],
                                &gpu->remap[2], &gpu->remap[3]) == 4;
    } else if (strcmp(key, "histogram") == 0) {
        unsigned *bank = gpu->histogram;
        gpu->has_histogram = sscanf(value, "%u %u %u %u %u", &bank[0], &bank[1], &bank[2], &bank[3],
                                    &bank[4]) == 5;
    } else if (strcmp(key, "sram") == 0) {
        sscanf(value, "%llu %u", &gpu->sram_uncorrected, &gpu->sram_threshold);
    } else if (strcmp(key, "pcie") == 0) {
        unsigned *pcie = gpu->pcie;
        sscanf(value, "%u %u %u %u %u", &pcie[0], &pcie[1], &pcie[2], &pcie[3], &pcie[4]);
    } else if (strcmp(key, "mig") == 0) {
        gpu->has_mig = sscanf(value, "%u %u", &gpu->mig[0], &gpu->mig[1]) == 2;
    } else if (strcmp(key, "recovery") == 0) {
        gpu->has_recovery = sscanf(value, "%u", &gpu->recovery) == 1;
    } else if (strcmp(key, "link") == 0) {
        read_link(gpu, value);
    } else if (strcmp(key, "fabric") == 0) {
        read_fabric(gpu, value);
    } else if (strcmp(key, "process") == 0) {
        read_process(gpu, value);
    }
}

static void read_gpu(struct gpu *gpu, const char *key, const char *value)
{
    if (strcmp(key, "uuid") == 0) {
        copy_text(gpu->uuid, sizeof gpu->uuid, value);
    } else if (strcmp(key, "bus") == 0) {
        copy_text(gpu->bus, sizeof gpu->bus, value);
    } else if (strcmp(key, "name") == 0) {
        copy_text(gpu->name, sizeof gpu->name, value);
    } else if (strcmp(key, "serial") == 0) {
        copy_text(gpu->serial, sizeof gpu->serial, value);
    } else if (strcmp(key, "minor") == 0) {
        sscanf(value, "%u", &gpu->minor);
    } else if (strcmp(key, "behaviour") == 0) {
        gpu->behaviour = read_behaviour(value);
    } else if (strcmp(key, "slow_ms") == 0) {
        sscanf(value, "%ld", &gpu->slow_ms);
    } else if (strcmp(key, "clocks") == 0) {
        sscanf(value, "%llu", &gpu->clocks);
    } else if (strcmp(key, "temperature") == 0) {
        sscanf(value, "%u", &gpu->temperature);
    } else if (strcmp(key, "power") == 0) {
        sscanf(value, "%u %u", &gpu->power_mw, &gpu->limit_mw);
    } else if (strcmp(key, "persistence") == 0) {
        sscanf(value, "%u", &gpu->persistence);
    } else {
        read_counters(gpu, key, value);
    }
}

static void read_library(struct library *library, const char *key, const char *value)
{
    if (strcmp(key, "driver") == 0) {
        copy_text(library->driver, sizeof library->driver, value);
    } else if (strcmp(key, "nvml") == 0) {
        copy_text(library->version, sizeof library->version, value);
    } else if (strcmp(key, "cuda") == 0) {
        sscanf(value, "%d", &library->cuda);
    } else if (strcmp(key, "init") == 0) {
        sscanf(value, "%d", &library->init);
    } else if (strcmp(key, "library") == 0) {
        library->behaviour = read_behaviour(value);
    } else if (strcmp(key, "library_slow_ms") == 0) {
        sscanf(value, "%ld", &library->slow_ms);
    }
}

/* With `turn` held. */
static void follow_drive(void)
{
    static char text[DRIVE_BYTES];
    static struct library next;
    struct gpu *gpu = NULL;
    char key[KEY_BYTES], *rest = text, *value;
    const char *path = drive_path();
    if (!drive_changed(path, &seen) || !drive_read(path, text, sizeof text)) {
        return;
    }
    memset(&next, 0, sizeof next);
    while (drive_line(&rest, key, &value)) {
        if (strcmp(key, "gpu") == 0) {
            gpu = next.gpu_count < MAX_GPUS ? &next.gpus[next.gpu_count++] : NULL;
        } else if (gpu == NULL) {
            read_library(&next, key, value);
        } else {
            read_gpu(gpu, key, value);
        }
    }
    current = next;
}

static void look_at_all(struct library *library)
{
    pthread_mutex_lock(&turn);
    follow_drive();
    *library = current;
    pthread_mutex_unlock(&turn);
}

static void crash(void)
{
    signal(SIGSEGV, SIG_DFL);
    raise(SIGSEGV);
}

int state_start(void)
{
    struct library library;
    look_at_all(&library);
    if (seen.inode == 0) {
        return DRIVER_NOT_LOADED;
    }
    pause_ms(library.slow_ms);
    while (library.behaviour == HANGS) {
        pause_ms(HANG_TICK_MS);
        look_at_all(&library);
    }
    if (library.behaviour == CRASHES) {
        crash();
    }
    if (library.init == SUCCESS) {
        pthread_mutex_lock(&turn);
        users++;
        pthread_mutex_unlock(&turn);
    }
    return library.init;
}

int state_stop(void)
{
    int answer = UNINITIALIZED;
    pthread_mutex_lock(&turn);
    if (users > 0) {
        users--;
        answer = SUCCESS;
    }
    pthread_mutex_unlock(&turn);
    return answer;
}

int state_look(struct library *library)
{
    if (users == 0) {
        return UNINITIALIZED;
    }
    look_at_all(library);
    return SUCCESS;
}

/* 0 = the driver's list doesn't hold it any more. */
static int find_gpu(const struct handle *handle, struct gpu *gpu)
{
    int found = 0;
    pthread_mutex_lock(&turn);
    follow_drive();
    for (unsigned i = 0; i < current.gpu_count && !found; i++) {
        if (strcmp(current.gpus[i].uuid, handle->uuid) == 0) {
            *gpu = current.gpus[i];
            found = 1;
        }
    }
    pthread_mutex_unlock(&turn);
    return found;
}

int state_gpu(struct handle *handle, struct gpu *gpu)
{
    if (users == 0) {
        return UNINITIALIZED;
    }
    if (handle == NULL) {
        return INVALID_ARGUMENT;
    }
    if (!find_gpu(handle, gpu)) {
        return GPU_IS_LOST;
    }
    pause_ms(gpu->slow_ms);
    while (gpu->behaviour == HANGS) {
        pause_ms(HANG_TICK_MS);
        if (!find_gpu(handle, gpu)) {
            return GPU_IS_LOST;
        }
    }
    if (gpu->behaviour == CRASHES) {
        crash();
    }
    return gpu->behaviour == IS_LOST ? GPU_IS_LOST : SUCCESS;
}

struct handle *state_handle(const struct gpu *gpu)
{
    struct handle *handle = NULL;
    pthread_mutex_lock(&turn);
    for (unsigned i = 0; i < handle_count && handle == NULL; i++) {
        if (strcmp(handles[i].uuid, gpu->uuid) == 0) {
            handle = &handles[i];
        }
    }
    if (handle == NULL && handle_count < sizeof handles / sizeof handles[0]) {
        handle = &handles[handle_count++];
        copy_text(handle->uuid, sizeof handle->uuid, gpu->uuid);
    }
    pthread_mutex_unlock(&turn);
    return handle;
}
