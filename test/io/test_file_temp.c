/* SPDX-License-Identifier: Apache-2.0 */
/* What a writer has staged is its own from the moment that it can be seen, whoever cleans beside
 * it. labels: threads */
#include "common/check.h"
#include "common/scratch.h"

#include "io/file.h"
#include <pthread.h>
#include <stdatomic.h>
#include <sys/stat.h>

enum { N_STAGES = 20000 };

typedef struct cleaner {
    const char *dir;
    atomic_bool stop;
} cleaner;

static void *clean(void *arg)
{
    cleaner *c = arg;
    while (!atomic_load(&c->stop)) {
        dsi_folder_clean(c->dir, NULL);
    }
    return NULL;
}

static void cleaning_leaves_what_is_being_staged(void **state)
{
    char *dir = scratch_make();
    cleaner c = {.dir = dir};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, clean, &c), 0);
    int lost = 0;
    for (int i = 0; i < N_STAGES && lost == 0; ++i) {
        dsi_stage stage = {.lock = -1};
        struct stat st;
        CHECK_OK(*state, dsi_folder_stage(*state, dir, "tag", &stage));
        for (int look = 0; look < 8; ++look) {
            lost += stat(stage.path, &st) != 0;
        }
        dsi_folder_unstage(&stage);
    }
    atomic_store(&c.stop, true);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(lost, 0);
    scratch_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cleaning_leaves_what_is_being_staged),
    };
    return cmocka_run_group_tests(tests, check_set_up, check_tear_down);
}
