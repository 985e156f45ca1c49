/* SPDX-License-Identifier: Apache-2.0 */
/* See thread.h. */
#include "base/thread.h"

#include <signal.h>

int dsi_thread_create(pthread_t *thread, void *(*run)(void *), void *arg)
{
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS};
    sigset_t most;
    sigset_t old;
    (void)sigfillset(&most);
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; ++i) {
        (void)sigdelset(&most, faults[i]);
    }
    (void)sigdelset(&most, SIGPROF); /* profilers count every thread's time */
    (void)pthread_sigmask(SIG_SETMASK, &most, &old);
    const int reason = pthread_create(thread, NULL, run, arg);
    (void)pthread_sigmask(SIG_SETMASK, &old, NULL);
    return reason;
}
