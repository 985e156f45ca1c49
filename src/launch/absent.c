/* SPDX-License-Identifier: Apache-2.0 */
/* A process in the place of a rank that ended and never came. See absent.h. */
#include "launch/absent.h"

#include "comm/comm.h"
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <unistd.h>

static void stand_in(const dsi_task *task, const char *host)
{
    char text[256];
    ds_ctx *ctx = NULL;
    dsi_comm_world world;
    ds_ctx_params params = ds_ctx_params_default();
    params.n_threads = 1;
    environ = task->command.env->items;
    (void)snprintf(text, sizeof text, "%s on %s exited with code 0 before it joined", task->label,
                   host);
    const bool told = ds_ctx_create(&params, &ctx) == DS_OK &&
                      dsi_comm_world_read(ctx, &world) == DS_OK && world.size > 1 &&
                      dsi_comm_stand_in(ctx, &world, text) == DS_OK;
    _exit(told ? DSI_ABSENT_TAKEN : 0);
}

static void keep_nothing(void)
{
    sigset_t none;
    for (int i = 1; i < NSIG; ++i) {
        (void)signal(i, SIG_DFL);
    }
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    const int null = open("/dev/null", O_RDWR);
    for (int i = 0; i < 3; ++i) {
        (void)dup2(null, i);
    }
    (void)close_range(3, ~0u, 0);
}

pid_t dsi_absent_start(const dsi_task *task, const char *host)
{
    const pid_t parent = getpid();
    const pid_t pid = fork();
    if (pid != 0) {
        return pid > 0 ? pid : 0;
    }
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)setpgid(0, 0); /* a signal from the terminal is the launcher's to forward */
    if (getppid() != parent) {
        _exit(0);
    }
    (void)prctl(PR_SET_NAME, "ds_absent");
    keep_nothing();
    stand_in(task, host);
    return 0;
}
