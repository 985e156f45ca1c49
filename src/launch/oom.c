/* SPDX-License-Identifier: Apache-2.0 */
/* Counts and log lines of the kernel's out-of-memory killer. See oom.h.
 *
 * Sources: the Linux kernel's Documentation/admin-guide/cgroup-v2.rst (memory.events),
 * cgroup-v1/memory.rst (memory.oom_control), Documentation/ABI/testing/dev-kmsg.
 */
#include "launch/oom.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The number after "name " at the start of a line of a file, -1 when there is none. */
static int64_t count_in(const char *path, const char *name)
{
    FILE *file = fopen(path, "re");
    char line[256];
    const size_t n = strlen(name);
    int64_t count = -1;
    while (file != NULL && count < 0 && fgets(line, sizeof line, file) != NULL) {
        if (strncmp(line, name, n) == 0 && line[n] == ' ') {
            count = strtoll(line + n, NULL, 10);
        }
    }
    if (file != NULL) {
        (void)fclose(file);
    }
    return count;
}

static int64_t machine_count(const char *root)
{
    char path[DSI_OOM_PATH];
    (void)snprintf(path, sizeof path, "%s/proc/vmstat", root);
    return count_in(path, "oom_kill");
}

/* Tries one control group's file; keeps it when it has the count. */
static bool try_cgroup(dsi_oom *oom, const char *root, const char *mount, const char *group,
                       const char *file)
{
    const int n = snprintf(oom->cgroup, sizeof oom->cgroup, "%s%s%s/%s", root, mount, group, file);
    oom->cgroup_kills =
        n > 0 && (size_t)n < sizeof oom->cgroup ? count_in(oom->cgroup, "oom_kill") : -1;
    if (oom->cgroup_kills < 0) {
        oom->cgroup[0] = '\0';
    }
    return oom->cgroup_kills >= 0;
}

/* Lines of /proc/self/cgroup: "0::/path" of version 2, "4:memory:/path" of version 1. In a
 * container the path may be one of the host's, and the mount then is the group itself. */
static void find_cgroup(dsi_oom *oom, const char *root)
{
    char line[DSI_OOM_PATH];
    (void)snprintf(line, sizeof line, "%s/proc/self/cgroup", root);
    FILE *file = fopen(line, "re");
    bool found = false;
    while (file != NULL && !found && fgets(line, sizeof line / 2, file) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        char *kinds = strchr(line, ':');
        char *group = kinds != NULL ? strchr(kinds + 1, ':') : NULL;
        if (group == NULL) {
            continue;
        }
        *group++ = '\0';
        if (strcmp(kinds, ":") == 0) {
            found = try_cgroup(oom, root, "/sys/fs/cgroup", group, "memory.events") ||
                    try_cgroup(oom, root, "/sys/fs/cgroup", "", "memory.events");
        } else if (strstr(kinds, "memory") != NULL) {
            found = try_cgroup(oom, root, "/sys/fs/cgroup/memory", group, "memory.oom_control") ||
                    try_cgroup(oom, root, "/sys/fs/cgroup/memory", "", "memory.oom_control");
        }
    }
    if (file != NULL) {
        (void)fclose(file);
    }
}

void dsi_oom_start(dsi_oom *oom, const char *root)
{
    *oom = (dsi_oom){.kernel_log = -1, .cgroup_kills = -1};
    find_cgroup(oom, root);
    oom->machine_kills = machine_count(root);
    char path[DSI_OOM_PATH];
    (void)snprintf(path, sizeof path, "%s/dev/kmsg", root);
    oom->kernel_log = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (oom->kernel_log >= 0 && lseek(oom->kernel_log, 0, SEEK_END) < 0) {
        dsi_oom_stop(oom);
    }
}

void dsi_oom_stop(dsi_oom *oom)
{
    if (oom->kernel_log >= 0) {
        (void)close(oom->kernel_log);
    }
    oom->kernel_log = -1;
}

/* Whether one record is a kill of this process; appends its text then. */
static bool is_kill_of(const char *record, pid_t pid, dsi_buf *how)
{
    const char *text = strchr(record, ';');
    char words[48];
    (void)snprintf(words, sizeof words, "Killed process %ld ", (long)pid);
    if (text == NULL || strstr(text, words) == NULL) {
        return false;
    }
    ++text;
    dsi_buf_puts(how, "the kernel log says: ");
    dsi_buf_append(how, text, strcspn(text, "\n"));
    return true;
}

static bool in_kernel_log(dsi_oom *oom, pid_t pid, dsi_buf *how)
{
    char record[8192];
    bool found = false;
    while (oom->kernel_log >= 0 && !found) {
        const ssize_t n = read(oom->kernel_log, record, sizeof record - 1); /* one a call */
        if (n > 0) {
            record[n] = '\0';
            found = is_kill_of(record, pid, how);
        } else if (n == 0 || errno != EPIPE) { /* EPIPE: records were overwritten, go on */
            break;
        }
    }
    return found;
}

bool dsi_oom_killed(dsi_oom *oom, const char *root, pid_t pid, dsi_buf *how)
{
    if (in_kernel_log(oom, pid, how)) {
        return true;
    }
    const int64_t in_group = oom->cgroup[0] != '\0' ? count_in(oom->cgroup, "oom_kill") : -1;
    if (in_group > oom->cgroup_kills) {
        dsi_buf_printf(how, "%s counts %" PRId64 " kill%s since the start", oom->cgroup,
                       in_group - oom->cgroup_kills, in_group - oom->cgroup_kills == 1 ? "" : "s");
        oom->cgroup_kills = in_group;
        return true;
    }
    const int64_t in_machine = machine_count(root);
    if (oom->machine_kills >= 0 && in_machine > oom->machine_kills && oom->cgroup[0] == '\0') {
        dsi_buf_puts(how, "likely: the machine's count of such kills rose (/proc/vmstat oom_kill)");
        oom->machine_kills = in_machine;
        return true;
    }
    return false;
}
