/* SPDX-License-Identifier: Apache-2.0 */
/* See machine_memory.h. */
#include "base/machine_memory.h"

#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The number in a file; 0 where there is none ("max"). */
static size_t number_in(const char *path)
{
    char line[64] = "";
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        return 0;
    }
    const char *got = fgets(line, sizeof line, file);
    (void)fclose(file);
    return got != NULL ? (size_t)strtoull(line, NULL, 10) : 0;
}

static void lower(size_t *bytes, size_t limit)
{
    *bytes = limit > 0 && (*bytes == 0 || limit < *bytes) ? limit : *bytes;
}

/* Limits of a group and of those that hold it; without namespaces the first may not be there. */
static void look_up(const char *root, char *group, const char *file, size_t *bytes)
{
    char path[PATH_MAX];
    for (char *end = group + strlen(group); end != NULL; end = strrchr(group, '/')) {
        *end = '\0';
        const int n = snprintf(path, sizeof path, "%s%s/%s", root, group, file);
        if (n > 0 && (size_t)n < sizeof path) {
            lower(bytes, number_in(path));
        }
    }
}

/* A line "NUMBER:CONTROLLERS:GROUP". */
static void read_group(char *line, const char *root, size_t *bytes)
{
    char old[PATH_MAX];
    char *controllers = strchr(line, ':');
    char *group = controllers != NULL ? strchr(controllers + 1, ':') : NULL;
    if (group == NULL) {
        return;
    }
    *group++ = '\0';
    group[strcspn(group, "\n")] = '\0';
    if (controllers[1] == '\0') {
        look_up(root, group, "memory.max", bytes);
    } else if (strstr(controllers, "memory") != NULL &&
               (size_t)snprintf(old, sizeof old, "%s/memory", root) < sizeof old) {
        look_up(old, group, "memory.limit_in_bytes", bytes);
    }
}

size_t dsi_machine_memory_of(const char *meminfo, const char *groups, const char *root)
{
    char line[PATH_MAX + 64];
    size_t bytes = 0;
    FILE *file = fopen(meminfo, "re");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        if (strncmp(line, "MemTotal:", 9) == 0) {
            bytes = (size_t)strtoull(line + 9, NULL, 10) * 1024;
        }
    }
    if (file != NULL) {
        (void)fclose(file);
    }
    file = fopen(groups, "re");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        read_group(line, root, &bytes);
    }
    if (file != NULL) {
        (void)fclose(file);
    }
    return bytes;
}

size_t dsi_machine_memory(void)
{
    return dsi_machine_memory_of("/proc/meminfo", "/proc/self/cgroup", "/sys/fs/cgroup");
}
