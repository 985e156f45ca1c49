/* SPDX-License-Identifier: Apache-2.0 */
/* See peer.h. */
#include "common/peer.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void die(const char *what)
{
    (void)fprintf(stderr, "bench: %s\n", what);
    exit(1);
}

/* Reads lines until "ready" or one with "total": seconds; false at the end of the stream. */
static bool read_number(const bench_peer *p, double *seconds_out)
{
    static const char key[] = "\"total\":";
    char line[512];
    while (fgets(line, sizeof line, p->from) != NULL) {
        const char *at = strstr(line, key);
        if (at != NULL) {
            *seconds_out = strtod(at + strlen(key), NULL);
            return true;
        }
        if (strncmp(line, "ready", 5) == 0) {
            return true;
        }
        (void)printf("peer: %s", line);
    }
    return false;
}

void bench_peer_start(const char *command, bench_peer *p)
{
    int down[2];
    int up[2];
    if (pipe(down) != 0 || pipe(up) != 0) {
        die("cannot make pipes");
    }
    p->child = fork();
    if (p->child == 0) {
        (void)dup2(down[0], 0);
        (void)dup2(up[1], 1);
        (void)close(down[1]);
        (void)close(up[0]);
        (void)execl("/bin/sh", "sh", "-c", command, (char *)NULL);
        _exit(127);
    }
    (void)close(down[0]);
    (void)close(up[1]);
    p->to = fdopen(down[1], "w");
    p->from = fdopen(up[0], "r");
    double ignored;
    if (p->child < 0 || p->to == NULL || p->from == NULL || !read_number(p, &ignored)) {
        die("the peer did not start");
    }
}

double bench_peer_step(bench_peer *p, const char *what)
{
    double seconds = 0.0;
    (void)fprintf(p->to, "%s\n", what);
    (void)fflush(p->to);
    if (!read_number(p, &seconds)) {
        die("the peer ended early");
    }
    return seconds;
}

void bench_peer_stop(bench_peer *p)
{
    (void)fclose(p->to);
    (void)waitpid(p->child, NULL, 0);
    (void)fclose(p->from);
}
