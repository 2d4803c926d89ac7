/*
 * Stand-in for NVIDIA's dcgmi: the commands diag, health, discovery and --version. What it prints
 * is written beside it by workers/lab/devices; this program finds the answer, takes its time,
 * hangs, crashes, and ends with the exit code of the real one (DCGM return code & 0xFF).
 */
#include <errno.h>
#include <libgen.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>

#include "drive.h"

enum {
    EXIT_BAD_PARAMETER = 255,  /* DCGM_ST_BADPARAM -1 */
    EXIT_GENERIC_ERROR = 253,  /* DCGM_ST_GENERIC_ERROR -3 */
    EXIT_TIMEOUT = 245,        /* DCGM_ST_TIMEOUT -11 */
    EXIT_NO_CONNECTION = 235,  /* DCGM_ST_CONNECTION_NOT_VALID -21 */
};

struct request {
    const char *command;
    const char *level;
    long timeout_s;
    int json, sets, checks, lists;
};

struct manner {
    char behaviour[16];
    long milliseconds;
    int exit_code, is_deaf, is_down;
    char banner[512];
};

static char folder[PATH_MAX];

static void path_of(char *path, size_t size, const char *name)
{
    int written = snprintf(path, size, "%s/%s", folder, name);
    if (written < 0 || (size_t)written >= size) {
        fprintf(stderr, "dcgmi (lab): the path of %s is too long\n", name);
        exit(EXIT_GENERIC_ERROR);
    }
}

static void find_folder(void)
{
    char self[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    if (length < 0) {
        perror("dcgmi (lab): /proc/self/exe");
        exit(EXIT_GENERIC_ERROR);
    }
    self[length] = '\0';
    if (snprintf(folder, sizeof folder, "%.*s/../dcgm", PATH_MAX - 16, dirname(self)) < 0) {
        exit(EXIT_GENERIC_ERROR);
    }
}

/* Keys of the drive are "<command>_<what>"; those without a command hold for all. */
static void learn_manner(const char *command, struct manner *manner)
{
    static char text[DRIVE_BYTES];
    char path[PATH_MAX], key[KEY_BYTES], *rest = text, *value;
    size_t length = strlen(command);
    memset(manner, 0, sizeof *manner);
    path_of(path, sizeof path, "drive");
    if (!drive_read(path, text, sizeof text)) {
        fprintf(stderr, "dcgmi (lab): %s: %s\n", path, strerror(errno));
        exit(EXIT_GENERIC_ERROR);
    }
    while (drive_line(&rest, key, &value)) {
        const char *what = key;
        if (strncmp(key, command, length) == 0 && key[length] == '_') {
            what = key + length + 1;
        }
        if (strcmp(what, "behaviour") == 0) {
            snprintf(manner->behaviour, sizeof manner->behaviour, "%s", value);
        } else if (strcmp(what, "ms") == 0) {
            manner->milliseconds = atol(value);
        } else if (strcmp(what, "exit") == 0) {
            manner->exit_code = atoi(value);
        } else if (strcmp(what, "deaf") == 0) {
            manner->is_deaf = atoi(value);
        } else if (strcmp(what, "down") == 0) {
            manner->is_down = atoi(value);
        } else if (strcmp(what, "banner") == 0) {
            snprintf(manner->banner, sizeof manner->banner, "%s", value);
        }
    }
}

/* Hangs as long as the drive says so; a client whose host engine is back goes on. */
static void behave(const char *command, struct manner *manner, long timeout_s)
{
    learn_manner(command, manner);
    if (manner->is_deaf) {
        signal(SIGTERM, SIG_IGN);
        signal(SIGINT, SIG_IGN);
    }
    if (timeout_s > 0 && manner->milliseconds > timeout_s * 1000) {
        pause_ms(timeout_s * 1000);
        printf("Error: the request timed out.\n");
        exit(EXIT_TIMEOUT);
    }
    pause_ms(manner->milliseconds);
    while (strcmp(manner->behaviour, "hang") == 0) {
        pause_ms(HANG_TICK_MS);
        learn_manner(command, manner);
    }
    if (strcmp(manner->behaviour, "crash") == 0) {
        signal(SIGSEGV, SIG_DFL);
        raise(SIGSEGV);
    }
    if (manner->is_down) {
        printf("Error: unable to establish a connection to the specified host: localhost\n"
               "Error: Unable to connect to host engine. Host engine connection "
               "invalid/disconnected.\n");
        exit(EXIT_NO_CONNECTION);
    }
}

static int print_answer(const struct manner *manner, const char *name)
{
    char path[PATH_MAX], piece[65536];
    size_t got;
    FILE *answer;
    path_of(path, sizeof path, name);
    answer = fopen(path, "r");
    if (answer == NULL) {
        fprintf(stderr, "dcgmi (lab): %s: %s\n", path, strerror(errno));
        return EXIT_GENERIC_ERROR;
    }
    if (manner->banner[0] != '\0') {
        printf("%s\n", manner->banner);
    }
    while ((got = fread(piece, 1, sizeof piece, answer)) > 0) {
        fwrite(piece, 1, got, stdout);
    }
    fclose(answer);
    return manner->exit_code;
}

static int level_of(const char *word)
{
    static const char *const names[][3] = {
        {"1", "short", "quick"}, {"2", "medium", "med"}, {"3", "long", ""}, {"4", "xlong", ""}};
    for (int level = 0; level < 4; level++) {
        for (int i = 0; i < 3; i++) {
            if (strcmp(word, names[level][i]) == 0 && word[0] != '\0') {
                return level + 1;
            }
        }
    }
    return 0;
}

static int diagnose(const struct request *request)
{
    struct manner manner, of_level;
    char name[32];
    int level = request->level == NULL ? 0 : level_of(request->level);
    if (level == 0) {
        printf("Error: the lab's dcgmi runs the levels 1 to 4 (-r LEVEL), no single tests.\n");
        return EXIT_BAD_PARAMETER;
    }
    behave("diag", &manner, request->timeout_s);
    snprintf(name, sizeof name, "diag-%d", level);
    learn_manner(name, &of_level);
    manner.exit_code = of_level.exit_code;
    snprintf(name, sizeof name, "diag-%d.%s", level, request->json ? "json" : "txt");
    return print_answer(&manner, name);
}

/* "new": no check since the watches were set; the first one only takes a baseline. */
static void set_watches(const char *word)
{
    char path[PATH_MAX];
    FILE *mark;
    path_of(path, sizeof path, "watched");
    mark = fopen(path, "w");
    if (mark != NULL) {
        fputs(word, mark);
        fclose(mark);
    }
}

static int check_health(const struct request *request)
{
    struct manner manner;
    char path[PATH_MAX], text[16] = "";
    int is_watched, is_first;
    behave("health", &manner, 0);
    path_of(path, sizeof path, "watched");
    is_watched = drive_read(path, text, sizeof text);
    if (request->sets) {
        if (!is_watched) {
            set_watches("new");
        }
        printf("Health monitor systems set successfully.\n");
        return 0;
    }
    if (!request->checks) {
        printf("Error: the lab's dcgmi health knows -s and -c.\n");
        return EXIT_BAD_PARAMETER;
    }
    if (!is_watched) {
        printf("Error: Health watches not enabled. Please enable watches. \n");
        return EXIT_GENERIC_ERROR;
    }
    is_first = strncmp(text, "new", 3) == 0;
    set_watches("old");
    if (request->json) {
        return print_answer(&manner, is_first ? "health-first.json" : "health.json");
    }
    return print_answer(&manner, is_first ? "health-first.txt" : "health.txt");
}

static int discover(const struct request *request)
{
    struct manner manner;
    if (!request->lists) {
        printf("Error: the lab's dcgmi discovery knows -l.\n");
        return EXIT_BAD_PARAMETER;
    }
    behave("discovery", &manner, 0);
    return print_answer(&manner, "discovery.txt");
}

static int is_one_of(const char *word, const char *const *words)
{
    for (; *words != NULL; words++) {
        if (strcmp(word, *words) == 0) {
            return 1;
        }
    }
    return 0;
}

/* 0 = an option that the lab doesn't know; the real one refuses too. */
static int read_options(int count, char **words, struct request *request)
{
    static const char *const with_value[] = {
        "-p", "--parameters", "-i", "--gpu-id", "-g", "--group", "--host", "-u", "-m",
        "--expectedNumEntities", "--ignoreErrorCodes", "--iterations", NULL};
    static const char *const json[] = {"-j", "--json", NULL};
    for (int i = 0; i < count; i++) {
        const char *value = i + 1 < count ? words[i + 1] : "";
        if (is_one_of(words[i], json)) {
            request->json = 1;
        } else if (strcmp(words[i], "-c") == 0 || strcmp(words[i], "--check") == 0) {
            request->checks = 1;
        } else if (strcmp(words[i], "-l") == 0 || strcmp(words[i], "--list") == 0) {
            request->lists = 1;
        } else if (strcmp(words[i], "--fail-early") == 0) {
            continue;
        } else if (strcmp(words[i], "-s") == 0 || strcmp(words[i], "--set") == 0) {
            request->sets = 1;
            i++;
        } else if (strcmp(words[i], "-r") == 0 || strcmp(words[i], "--run") == 0) {
            request->level = value;
            i++;
        } else if (strcmp(words[i], "--timeout") == 0) {
            request->timeout_s = atol(value);
            i++;
        } else if (is_one_of(words[i], with_value)) {
            i++;
        } else {
            printf("Error: the lab's dcgmi doesn't know the option %s.\n", words[i]);
            return 0;
        }
    }
    return 1;
}

int main(int count, char **words)
{
    struct request request = {.command = count > 1 ? words[1] : ""};
    struct manner manner;
    find_folder();
    if (strcmp(request.command, "--version") == 0 || strcmp(request.command, "-v") == 0) {
        memset(&manner, 0, sizeof manner);
        return print_answer(&manner, "version.txt");
    }
    if (!read_options(count - 2, words + 2, &request)) {
        return EXIT_BAD_PARAMETER;
    }
    if (strcmp(request.command, "diag") == 0) {
        return diagnose(&request);
    }
    if (strcmp(request.command, "health") == 0) {
        return check_health(&request);
    }
    if (strcmp(request.command, "discovery") == 0) {
        return discover(&request);
    }
    printf("Error: the lab's dcgmi knows diag, health, discovery and --version.\n");
    return EXIT_BAD_PARAMETER;
}
