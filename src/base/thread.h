/* SPDX-License-Identifier: Apache-2.0 */
/* Threads of the library's own. */
#ifndef DSI_BASE_THREAD_H
#define DSI_BASE_THREAD_H

#include <pthread.h>

/* pthread_create() of a thread that takes no signals but those of its own faults: signals are for
 * the program's threads, which may block them to wait for them, and a file beyond `ulimit -f` is an
 * error of the call, not SIGXFSZ's end of the process. 0 or an errno. */
int dsi_thread_create(pthread_t *thread, void *(*run)(void *), void *arg);

#endif
