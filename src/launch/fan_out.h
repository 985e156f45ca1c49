/* SPDX-License-Identifier: Apache-2.0 */
/* One command on many hosts at once, over ssh. Called by tools/ds_ssh.c. */
#ifndef DSI_LAUNCH_FAN_OUT_H
#define DSI_LAUNCH_FAN_OUT_H

#include <deepspeed/status.h>
#include <stdint.h>

typedef struct dsi_fan_out {
    const char *hostfile;
    const char *include, *exclude; /* NULL: not given */
    int64_t ssh_port;              /* 0: ssh's own choice */
    const char *command;           /* text for the hosts' shells, meant to be read by them */
} dsi_fan_out;

/* Runs it, each line of output after "HOST: ". *exit_code_out: the largest exit code, 128 + N for a
 * signal. Errors: of the hostfile and the choice; ERR_NOT_FOUND without ssh; as dsi_supervise. */
ds_status dsi_fan_out_run(ds_ctx *ctx, const dsi_fan_out *fan_out, int *exit_code_out);

#endif
