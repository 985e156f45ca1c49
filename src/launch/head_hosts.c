/* SPDX-License-Identifier: Apache-2.0 */
/* Which hosts and slots a job gets. See head.h. */
#include "launch/head.h"
#include "launch/runners.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Entries of a folder that are a prefix and a number. */
static uint32_t count_numbered(const char *folder, const char *prefix)
{
    DIR *dir = opendir(folder);
    const size_t n = strlen(prefix);
    uint32_t count = 0;
    struct dirent *entry;
    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        const char *rest = entry->d_name + n;
        count += strncmp(entry->d_name, prefix, n) == 0 && *rest != '\0' &&
                         rest[strspn(rest, "0123456789")] == '\0'
                     ? 1
                     : 0;
    }
    if (dir != NULL) {
        (void)closedir(dir);
    }
    return count;
}

uint32_t dsi_devices_here(void)
{
    const char *wish = getenv("DS_ACCELERATOR");
    return wish != NULL && strcmp(wish, "cpu") == 0 ? 0 : count_numbered("/dev", "nvidia");
}

/* This machine alone: a slot a device, or a NUMA node where there is none. */
static ds_status only_here(ds_ctx *ctx, dsi_hosts *hosts)
{
    uint32_t n = dsi_devices_here();
    n = n > 0 ? n : count_numbered("/sys/devices/system/node", "node");
    return dsi_hosts_add(ctx, hosts, "localhost", n > 0 ? n : 1);
}

/* CUDA_VISIBLE_DEVICES, where there are devices and no other choice, is an include. */
static const char *visible_include(const dsi_launch_options *o, char *text, size_t size)
{
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    const bool chosen = o->include != NULL || o->exclude != NULL || o->num_gpus > 0;
    if (visible == NULL || visible[0] == '\0' || chosen || dsi_devices_here() == 0) {
        return NULL;
    }
    (void)snprintf(text, size, "localhost:%s", visible);
    return text;
}

static ds_status check_choice(ds_ctx *ctx, const dsi_launch_options *o, bool local)
{
    const bool counted = o->num_nodes >= 0 || o->num_gpus >= 0;
    if (counted && (o->include != NULL || o->exclude != NULL)) {
        return ds_fail(ctx, DS_ERR_ARG, "%s and %s are two ways to choose slots: give one of them",
                       o->num_nodes >= 0 ? "--num_nodes" : "--num_gpus",
                       o->include != NULL ? "--include" : "--exclude");
    }
    const dsi_runner *runner = dsi_runner_find(o->launcher);
    if (local && o->num_nodes > 1 && (runner == NULL || !runner->allocates)) {
        return ds_fail(ctx, DS_ERR_ARG,
                       "--num_nodes %" PRId64 ": expected a hostfile with that many hosts, found "
                       "none at %s; write one with lines 'name slots=N' and give --hostfile",
                       o->num_nodes, o->hostfile);
    }
    return DS_OK;
}

static ds_status choose(ds_ctx *ctx, const dsi_launch_options *o, bool local, dsi_hosts *hosts)
{
    char visible[1024];
    const char *include = o->include;
    if (local && include == NULL) {
        include = visible_include(o, visible, sizeof visible);
    }
    DS_TRY(dsi_hosts_select(ctx, hosts, include, o->exclude));
    if (o->num_nodes > 0 && !local) { /* without a hostfile: of Slurm's allocation */
        DS_TRY(dsi_hosts_first(ctx, hosts, (uint32_t)o->num_nodes));
    }
    if (o->num_gpus > 0) {
        const bool may_grow = local && dsi_devices_here() == 0; /* processor ranks */
        DS_TRY(dsi_hosts_set_slots(ctx, hosts, (uint32_t)o->num_gpus, may_grow));
    }
    return DS_OK;
}

ds_status dsi_head_hosts(ds_ctx *ctx, const dsi_launch_options *o, dsi_hosts *hosts_out,
                         bool *local_out)
{
    dsi_hosts hosts = {0};
    const bool local = !o->hostfile_given && access(o->hostfile, F_OK) < 0;
    DS_TRY(check_choice(ctx, o, local));
    if (local) {
        DS_TRY(only_here(ctx, &hosts));
    } else {
        DS_TRY(dsi_hosts_read(ctx, o->hostfile, &hosts));
    }
    const ds_status status = choose(ctx, o, local, &hosts);
    if (status < 0) {
        dsi_hosts_free(&hosts);
        return status;
    }
    *hosts_out = hosts;
    *local_out = local;
    return DS_OK;
}
