/* SPDX-License-Identifier: Apache-2.0 */
/* An output's place is found while another job puts new files under the same name, and a link of
 * /proc to a file without a name is refused. labels: threads */
#include "common/check.h"
#include "common/scratch.h"

#include "io/file.h"
#include "io/file_place.h"
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { N_LOOKS = 20000 };

typedef struct replacer {
    char *next, *name;
    atomic_bool stop;
} replacer;

static void *replace(void *arg)
{
    replacer *r = arg;
    while (!atomic_load(&r->stop)) {
        const int fd = open(r->next, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
        if (fd < 0 || close(fd) != 0 || rename(r->next, r->name) != 0) {
            return r;
        }
    }
    return NULL;
}

static void a_file_is_replaced_meanwhile(void **state)
{
    char *dir = scratch_make();
    replacer r = {dsi_path_join(dir, "next"), dsi_path_join(dir, "latest"), false};
    char *link = dsi_path_join(dir, "link");
    const char *const paths[] = {r.name, link};
    pthread_t thread;
    void *failed = NULL;
    assert_int_equal(symlink("latest", link), 0);
    assert_int_equal(pthread_create(&thread, NULL, replace, &r), 0);
    ds_status status = DS_OK;
    int n_files = 0;
    for (int i = 0; i < 2 * N_LOOKS && status == DS_OK; ++i) {
        dsi_place place;
        status = dsi_place_look(*state, paths[i % 2], &place);
        if (status == DS_OK) {
            n_files += place.kind == DSI_PLACE_FILE && strcmp(place.path, r.name) == 0;
            dsi_place_free(&place);
        }
    }
    atomic_store(&r.stop, true);
    assert_int_equal(pthread_join(thread, &failed), 0);
    assert_null(failed);
    CHECK_OK(*state, status);
    assert_int_equal(n_files, 2 * N_LOOKS);
    free(link);
    free(r.next);
    free(r.name);
    scratch_remove(dir);
}

static void a_file_without_a_name(void **state)
{
    char *dir = scratch_make();
    char *name = dsi_path_join(dir, "gone");
    char link[64];
    char own[64];
    dsi_place place;
    const int fd = open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    assert_true(fd >= 0);
    assert_int_equal(unlink(name), 0);
    /* of this process the descriptor itself is the place */
    (void)snprintf(own, sizeof own, "/proc/self/fd/%d", fd);
    CHECK_OK(*state, dsi_place_look(*state, own, &place));
    assert_int_equal(place.descriptor, fd);
    dsi_place_free(&place);
    const pid_t parent = getpid();
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) { /* of another process's there is no name to put a new file under */
        (void)snprintf(link, sizeof link, "/proc/%ld/fd/%d", (long)parent, fd);
        const ds_status status = dsi_place_look(*state, link, &place);
        _exit(status == DS_ERR_IO && strstr(ds_ctx_error(*state), "does not say") != NULL ? 0 : 1);
    }
    int ended = -1;
    assert_int_equal(waitpid(child, &ended, 0), child);
    assert_int_equal(ended, 0);
    assert_int_equal(close(fd), 0);
    free(name);
    scratch_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_is_replaced_meanwhile),
        cmocka_unit_test(a_file_without_a_name),
    };
    return cmocka_run_group_tests(tests, check_set_up, check_tear_down);
}
