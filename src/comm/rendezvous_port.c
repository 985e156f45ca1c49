/* SPDX-License-Identifier: Apache-2.0 */
/* A port that is still free when the rendezvous comes to listen on it. See rendezvous.h. */
#include "comm/rendezvous.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

enum { LOWEST = 20000, TRIES = 256, LINUX_FIRST = 32768 };

/* The first of the ports that the kernel gives away by itself. */
static uint32_t first_given_away(void)
{
    uint32_t first = LINUX_FIRST;
    FILE *file = fopen("/proc/sys/net/ipv4/ip_local_port_range", "re");
    if (file != NULL) {
        if (fscanf(file, "%u", &first) != 1) {
            first = LINUX_FIRST;
        }
        (void)fclose(file);
    }
    return first;
}

/* 0, or errno. */
static int try_port(uint16_t port, uint16_t *port_out)
{
    struct sockaddr_in at = {
        .sin_family = AF_INET, .sin_addr = {htonl(INADDR_ANY)}, .sin_port = htons(port)};
    socklen_t n = sizeof at;
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        return errno;
    }
    const bool found = bind(fd, (struct sockaddr *)&at, n) == 0 &&
                       getsockname(fd, (struct sockaddr *)&at, &n) == 0;
    const int reason = found ? 0 : errno;
    (void)close(fd);
    *port_out = ntohs(at.sin_port);
    return reason;
}

ds_status dsi_rdv_free_port(ds_ctx *ctx, uint16_t *port_out)
{
    const uint32_t end = first_given_away();
    for (int i = 0; i < TRIES && end > LOWEST; ++i) {
        uint32_t word = 0;
        if (getrandom(&word, sizeof word, 0) != (ssize_t)sizeof word) {
            break;
        }
        if (try_port((uint16_t)(LOWEST + word % (end - LOWEST)), port_out) == 0) {
            return DS_OK;
        }
    }
    const int reason = try_port(0, port_out); /* any: no room below them */
    if (reason != 0) {
        return ds_fail(ctx, DS_ERR_IO, "no free port for the ranks to meet: %s; give --master_port",
                       strerror(reason));
    }
    return DS_OK;
}
