/* Stands in for libnvidia-ml.so.1: the file that FAKE_NVML names says what there is, and is read anew for each call.
 *
 * Lines:  gpu UUID [PID...] | divided UUID | part UUID [PID...] (of the last divided GPU) | lost UUID | hang | broken
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MOST 16
struct device { char kind[12]; char uuid[96]; unsigned pids[64]; unsigned count; int parent; };
static struct device found[MOST];
static unsigned number;

static int load(void) {
    const char *place = getenv("FAKE_NVML");
    FILE *file = place ? fopen(place, "r") : NULL;
    char line[4096];
    int parent = -1;
    if (file == NULL) return 9; /* NVML_ERROR_DRIVER_NOT_LOADED */
    number = 0;
    while (fgets(line, sizeof line, file) && number < MOST) {
        struct device *each = &found[number];
        char *word = strtok(line, " \n");
        if (word == NULL) continue;
        if (!strcmp(word, "hang")) { fclose(file); pause(); }
        if (!strcmp(word, "broken")) { fclose(file); return 999; }
        memset(each, 0, sizeof *each);
        snprintf(each->kind, sizeof each->kind, "%s", word);
        word = strtok(NULL, " \n");
        snprintf(each->uuid, sizeof each->uuid, "%s", word ? word : "");
        while ((word = strtok(NULL, " \n")) != NULL && each->count < 64) each->pids[each->count++] = atoi(word);
        each->parent = strcmp(each->kind, "part") ? -1 : parent;
        if (!strcmp(each->kind, "divided")) parent = (int)number;
        number++;
    }
    fclose(file);
    return 0;
}

int nvmlInit_v2(void) { return load(); }
int nvmlShutdown(void) { return 0; }

int nvmlDeviceGetCount_v2(unsigned *count) {
    int status = load();
    *count = 0;
    for (unsigned i = 0; i < number; i++) *count += found[i].parent < 0;
    return status;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    int status = load();
    for (unsigned i = 0; !status && i < number; i++)
        if (found[i].parent < 0 && index-- == 0) { *device = &found[i]; return 0; }
    return status ? status : 2;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
    int status = load();
    for (unsigned i = 0; !status && i < number; i++)
        if (!strcmp(found[i].uuid, uuid)) {
            if (!strcmp(found[i].kind, "lost")) return 15;
            *device = &found[i];
            return 0;
        }
    return status ? status : 6;
}

int nvmlDeviceGetUUID(struct device *device, char *text, unsigned room) {
    snprintf(text, room, "%s", device->uuid);
    return 0;
}

/* The model: FAKE_NVML_NAME, of each. */
int nvmlDeviceGetName(struct device *device, char *text, unsigned room) {
    const char *name = getenv("FAKE_NVML_NAME");
    (void)device;
    snprintf(text, room, "%s", name ? name : "NVIDIA Stand-in");
    return 0;
}

int nvmlDeviceGetMigMode(struct device *device, unsigned *now, unsigned *later) {
    *now = *later = !strcmp(device->kind, "divided");
    return strcmp(device->kind, "gpu") && !*now ? 3 : 0;
}

int nvmlDeviceGetMaxMigDeviceCount(struct device *device, unsigned *count) {
    (void)device;
    *count = 7;
    return 0;
}

int nvmlDeviceGetMigDeviceHandleByIndex(struct device *device, unsigned index, void **part) {
    for (unsigned i = 0; i < number; i++)
        if (found[i].parent == device - found && index-- == 0) { *part = &found[i]; return 0; }
    return 6;
}

struct process { unsigned pid; unsigned long long used; unsigned gpu, compute; };

int nvmlDeviceGetComputeRunningProcesses_v3(struct device *device, unsigned *count, struct process *rows) {
    unsigned room = *count;
    *count = device->count;
    if (room < device->count) return 7;
    for (unsigned i = 0; i < device->count; i++) rows[i] = (struct process){device->pids[i], 1 << 20, ~0u, ~0u};
    return 0;
}
