/* SPDX-License-Identifier: Apache-2.0 */
/* The environment of a rank, and what it needs: a secret, a share of the cores. */
#include "comm/launcher_note.h"
#include "launch/launch.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

const char *const dsi_rank_env_names[] = {"RANK",
                                          "LOCAL_RANK",
                                          "WORLD_SIZE",
                                          "LOCAL_WORLD_SIZE",
                                          "LOCAL_SIZE",
                                          "CROSS_RANK",
                                          "CROSS_SIZE",
                                          "MASTER_ADDR",
                                          "MASTER_PORT",
                                          "OMP_NUM_THREADS",
                                          "DS_THREADS",
                                          "DS_RESTART_COUNT",
                                          "DS_SLOT",
                                          "DS_JOB_SECRET",
                                          DSI_LAUNCHER_VARIABLE,
                                          "DS_RANK_MEMORY",
                                          "CUDA_VISIBLE_DEVICES",
                                          NULL};

static void set_number(dsi_words *env, const char *name, uint32_t value)
{
    dsi_env_setf(env, name, "%" PRIu32, value);
}

/* A value that the user's environment has already is the user's wish. */
static void set_default(dsi_words *env, const char *name, uint32_t value)
{
    if (dsi_env_get(env, name) == NULL) {
        set_number(env, name, value);
    }
}

static void set_devices(const dsi_host *host, dsi_words *env)
{
    dsi_buf list = dsi_buf_make(1 << 14);
    for (uint32_t i = 0; i < host->n_slots; ++i) {
        dsi_buf_printf(&list, "%s%" PRIu32, i > 0 ? "," : "", host->slots[i]);
    }
    dsi_env_set(env, "CUDA_VISIBLE_DEVICES", dsi_buf_text(&list));
    env->failed = env->failed || list.failed;
    dsi_buf_free(&list);
}

void dsi_rank_env(const dsi_launch *launch, uint32_t local, uint32_t threads, dsi_words *env_out)
{
    const dsi_host *host = &launch->hosts->items[launch->node];
    dsi_words env = {0};
    dsi_words_add_all(&env, launch->env);
    set_number(&env, "RANK", dsi_hosts_first_rank(launch->hosts, launch->node) + local);
    set_number(&env, "LOCAL_RANK", local);
    set_number(&env, "WORLD_SIZE", dsi_hosts_n_ranks(launch->hosts));
    set_number(&env, "LOCAL_WORLD_SIZE", host->n_slots);
    set_number(&env, "LOCAL_SIZE", host->n_slots);
    set_number(&env, "CROSS_RANK", (uint32_t)launch->node);
    set_number(&env, "CROSS_SIZE", (uint32_t)launch->hosts->n);
    dsi_env_set(&env, "MASTER_ADDR", launch->master_addr);
    set_number(&env, "MASTER_PORT", launch->master_port);
    set_default(&env, "OMP_NUM_THREADS", threads);
    set_default(&env, "DS_THREADS", threads);
    set_number(&env, "DS_RESTART_COUNT", launch->restart);
    set_number(&env, "DS_SLOT", host->slots[local]);
    dsi_env_set(&env, "DS_JOB_SECRET", launch->secret);
    if (launch->listens != NULL) {
        dsi_env_set(&env, DSI_LAUNCHER_VARIABLE, launch->listens);
    } else {
        dsi_env_unset(&env, DSI_LAUNCHER_VARIABLE); /* of a launcher that started this one */
    }
    if (launch->limits.rank_bytes > 0) {
        dsi_env_setf(&env, "DS_RANK_MEMORY", "%zu", launch->limits.rank_bytes);
    } else {
        dsi_env_unset(&env, "DS_RANK_MEMORY");
    }
    if (launch->devices) {
        set_devices(host, &env);
    }
    *env_out = env;
}

ds_status dsi_make_secret(ds_ctx *ctx, char text[DSI_SECRET_TEXT])
{
    unsigned char bytes[DSI_SECRET_BYTES];
    if (getrandom(bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes) {
        return ds_fail(ctx, DS_ERR_IO, "no random numbers for the job's secret: %s",
                       strerror(errno));
    }
    for (size_t i = 0; i < sizeof bytes; ++i) {
        (void)snprintf(text + 2 * i, 3, "%02x", bytes[i]);
    }
    return DS_OK;
}
