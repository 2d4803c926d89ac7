/*
 * The drive file of a simulated node's devices: one "key value" a line, written by
 * workers/lab/devices, read by the stand-ins for libnvidia-ml.so.1 and dcgmi.
 * A key that is absent means that the device doesn't support what it is about.
 */
#ifndef FLEETMEND_LAB_DRIVE_H
#define FLEETMEND_LAB_DRIVE_H

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { DRIVE_BYTES = 256 * 1024, KEY_BYTES = 32, HANG_TICK_MS = 100 };

struct drive_stamp {
    dev_t device;
    ino_t inode;
    off_t size;
    struct timespec changed;
};

/* Each writer replaces the file in one step, so inode or time tells a new one. */
static inline int drive_changed(const char *path, struct drive_stamp *seen)
{
    struct stat now;
    if (stat(path, &now) != 0) {
        return 0;
    }
    if (now.st_dev == seen->device && now.st_ino == seen->inode && now.st_size == seen->size &&
        now.st_mtim.tv_sec == seen->changed.tv_sec &&
        now.st_mtim.tv_nsec == seen->changed.tv_nsec) {
        return 0;
    }
    seen->device = now.st_dev;
    seen->inode = now.st_ino;
    seen->size = now.st_size;
    seen->changed = now.st_mtim;
    return 1;
}

/* The file's text with its end marked; 0 = it can't be read. */
static inline int drive_read(const char *path, char *text, size_t size)
{
    int file = open(path, O_RDONLY | O_CLOEXEC);
    size_t length = 0;
    if (file < 0) {
        return 0;
    }
    while (length + 1 < size) {
        ssize_t got = read(file, text + length, size - 1 - length);
        if (got <= 0) {
            break;
        }
        length += (size_t)got;
    }
    close(file);
    text[length] = '\0';
    return 1;
}

/* Takes the next line off the text: its key, and the rest as its value. 0 = no more lines. */
static inline int drive_line(char **text, char key[KEY_BYTES], char **value)
{
    char *line = *text;
    char *end;
    size_t length;
    if (*line == '\0') {
        return 0;
    }
    end = strchr(line, '\n');
    if (end == NULL) {
        *text = line + strlen(line);
    } else {
        *end = '\0';
        *text = end + 1;
    }
    length = strcspn(line, " ");
    *value = line[length] == ' ' ? line + length + 1 : line + length;
    if (length >= KEY_BYTES) {
        length = KEY_BYTES - 1;
    }
    memcpy(key, line, length);
    key[length] = '\0';
    return 1;
}

static inline void pause_ms(long milliseconds)
{
    struct timespec left = {milliseconds / 1000, (milliseconds % 1000) * 1000000L};
    while (nanosleep(&left, &left) != 0) {
    }
}

#endif
