/* SPDX-License-Identifier: Apache-2.0 */
/* Random damage to folders of DeepSpeed for Python: one is read with the values that it had, or
 * refused with a message that names it; never with others. FOLDER_DAMAGES: how many; FOLDER_SEED:
 * other ones. */
#include "common/check.h"
#include "common/deepspeed_forms.h"
#include "common/scratch.h"
#include "io/file.h"

#include <deepspeed/checkpoint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATH_BYTES = 512, MOST_FLOATS = 1024 };

static const char *const forms[] = {"zero1",
                                    "zero2",
                                    "zero3",
                                    "bf16",
                                    "universal2",
                                    "universal3",
                                    "tensor1",
                                    "tensor2",
                                    "pipe",
                                    "pipe_tied",
                                    "pipe_bf16",
                                    "pipe_universal",
                                    "experts1",
                                    "experts2",
                                    "experts_pipe",
                                    "universal_tensor1",
                                    "universal_autoep1",
                                    "universal_views",
                                    NULL};
enum { N_FORMS = sizeof forms / sizeof forms[0] - 1 };

static char *folder; /* of the unpacked forms */

static int unpack(void **state)
{
    folder = forms_unpack(forms);
    return check_set_up(state);
}

static int remove_all(void **state)
{
    scratch_remove(folder);
    return check_tear_down(state);
}

/* ---- a folder's files ---- */

typedef struct files {
    char *tag;    /* path of the tag */
    char **names; /* in it */
    size_t n;
} files;

static void list_files(ds_ctx *ctx, const char *dir, files *f)
{
    char **names = NULL;
    size_t n = 0;
    CHECK_OK(ctx, dsi_folder_list(ctx, dir, &names, &n));
    for (size_t i = 0; i < n; ++i) {
        if (strncmp(names[i], "global_step", 11) == 0) {
            free(f->tag);
            f->tag = dsi_path_join(dir, names[i]);
        }
    }
    dsi_names_free(names, n);
    assert_non_null(f->tag);
    CHECK_OK(ctx, dsi_folder_list(ctx, f->tag, &f->names, &f->n));
}

static void path_of(const files *f, size_t i, char path[2 * PATH_BYTES])
{
    (void)snprintf(path, 2 * PATH_BYTES, "%s/%s", f->tag, f->names[i]);
}

/* A file of the folder; in a universal one perhaps of a parameter. */
static size_t draw_file(ds_ctx *ctx, uint64_t *seed, const files *f, char path[2 * PATH_BYTES])
{
    char **names = NULL;
    size_t n = 0;
    const size_t i = forms_draw(seed, (uint32_t)f->n);
    path_of(f, i, path);
    while (dsi_folder_list(NULL, path, &names, &n) == DS_OK && n > 0) {
        const size_t at = strlen(path);
        (void)snprintf(path + at, 2 * PATH_BYTES - at, "/%s", names[forms_draw(seed, (uint32_t)n)]);
        dsi_names_free(names, n);
        names = NULL;
        n = 0;
    }
    (void)ctx;
    return i;
}

/* ---- damage ---- */

static void exchange(const char *a, const char *b)
{
    size_t n = 0;
    size_t m = 0;
    char *x = scratch_read(a, &n);
    char *y = scratch_read(b, &m);
    scratch_write(a, y, m);
    scratch_write(b, x, n);
    free(x);
    free(y);
}

/* Whether a file says of which rank it is: by param_slice_mappings. Those of stage 3 and of ranks
 * that share layers say nothing, as files of a universal folder do not say of what they are. */
static bool says_its_rank(const char *form, const char *path)
{
    return strcmp(form, "zero3") != 0 && strstr(path, "_mp_rank_00_optim_states.pt") != NULL;
}

/* What was done, for a message. */
static void damage(ds_ctx *ctx, uint64_t *seed, const char *form, const char *dir,
                   char said[4 * PATH_BYTES])
{
    static const char *const kinds[] = {"deleted",
                                        "cut short",
                                        "exchanged",
                                        "of another form",
                                        "with another byte in its pickle",
                                        "with another byte anywhere"};
    char path[2 * PATH_BYTES];
    char other[3 * PATH_BYTES];
    files f = {.n = 0};
    size_t n = 0;
    list_files(ctx, dir, &f);
    const size_t i = draw_file(ctx, seed, &f, path);
    const uint32_t kind = forms_draw(seed, sizeof kinds / sizeof kinds[0]);
    char *data = scratch_read(path, &n);
    other[0] = '\0';
    if (kind == 0) {
        assert_int_equal(unlink(path), 0);
    } else if (kind == 1) {
        scratch_write(path, data, forms_draw(seed, (uint32_t)n));
    } else if (kind == 2) {
        const size_t k = forms_draw(seed, (uint32_t)f.n);
        path_of(&f, k, other);
        if (k != i && strstr(path, "/zero/") == NULL && strstr(other, ".pt") != NULL &&
            says_its_rank(form, path) && says_its_rank(form, other)) {
            exchange(path, other);
        }
    } else if (kind == 3) {
        const char *base = path + strlen(f.tag);
        (void)snprintf(other, sizeof other, "%s/%s/global_step3%s", folder,
                       forms[forms_draw(seed, N_FORMS)], base);
        if (access(other, F_OK) == 0) {
            size_t m = 0;
            char *x = scratch_read(other, &m);
            scratch_write(path, x, m);
            free(x);
        }
    } else if (n > 0) {
        const size_t span = kind == 4 && n > 4096 ? 4096 : n;
        data[forms_draw(seed, (uint32_t)span)] ^= (char)(1 << forms_draw(seed, 8));
        scratch_write(path, data, n);
    }
    (void)snprintf(said, 4 * PATH_BYTES, "%s %s %s", path, kinds[kind], other);
    free(data);
    free(f.tag);
    dsi_names_free(f.names, f.n);
}

/* ---- what is read ---- */

static bool same_tensor(ds_ctx *ctx, ds_checkpoint *a, ds_checkpoint *b,
                        const ds_checkpoint_tensor *t)
{
    float x[MOST_FLOATS];
    float y[MOST_FLOATS];
    const ds_checkpoint_tensor *other = ds_checkpoint_find(b, t->kind, t->name);
    if (other == NULL || !ds_shape_equal(other->meta.shape, t->meta.shape)) {
        return false;
    }
    const size_t n = (size_t)ds_shape_count(t->meta.shape);
    assert_true(n <= MOST_FLOATS);
    CHECK_OK(ctx, ds_checkpoint_read(a, t, NULL, DS_DTYPE_F32, x));
    CHECK_OK(ctx, ds_checkpoint_read(b, other, NULL, DS_DTYPE_F32, y));
    return memcmp(x, y, n * sizeof x[0]) == 0;
}

/* The first tensor that differs, or that one has alone; NULL: none. */
static const char *difference(ds_ctx *ctx, ds_checkpoint *a, ds_checkpoint *b)
{
    if (ds_checkpoint_count(a) != ds_checkpoint_count(b)) {
        return "their number";
    }
    for (size_t i = 0; i < ds_checkpoint_count(a); ++i) {
        const ds_checkpoint_tensor *t = ds_checkpoint_at(a, i);
        if (!same_tensor(ctx, a, b, t)) {
            return t->name;
        }
    }
    const char *x = ds_checkpoint_state(a, "engine");
    const char *y = ds_checkpoint_state(b, "engine");
    return strcmp(x, y) == 0 ? NULL : "the counters";
}

static void is_right_or_refused(void **state)
{
    const char *wanted = getenv("FOLDER_DAMAGES");
    const long times = wanted != NULL ? atol(wanted) : 80;
    char dir[PATH_BYTES];
    char path[PATH_BYTES];
    char said[4 * PATH_BYTES];
    const char *begin = getenv("FOLDER_SEED");
    uint64_t seed = begin != NULL ? (uint64_t)atoll(begin) : 11;
    long n_refused = 0;
    long n_right = 0;
    (void)snprintf(dir, sizeof dir, "%s/damaged", folder);
    for (long i = 0; i < times; ++i) {
        const char *form = forms[forms_draw(&seed, N_FORMS)];
        ds_checkpoint *c = NULL;
        ds_checkpoint *whole = NULL;
        forms_copy(folder, form, dir);
        damage(*state, &seed, form, dir, said);
        ds_status status = ds_checkpoint_open(*state, dir, NULL, &c);
        status = status == DS_OK ? ds_checkpoint_verify(c) : status;
        if (status < 0) {
            ++n_refused;
            if (strstr(ds_ctx_error(*state), "global_step") == NULL &&
                strstr(ds_ctx_error(*state), ".pt") == NULL) {
                fail_msg("%s: %s\nsays '%s', which names no file", form, said,
                         ds_ctx_error(*state));
            }
        } else {
            ++n_right;
            (void)snprintf(path, sizeof path, "%s/%s", folder, form);
            CHECK_OK(*state, ds_checkpoint_open(*state, path, NULL, &whole));
            const char *differs = difference(*state, whole, c);
            if (differs != NULL) {
                fail_msg("%s: %s\nis read with another value of %s", form, said, differs);
            }
        }
        ds_checkpoint_close(&c);
        ds_checkpoint_close(&whole);
    }
    print_message("%ld folders: %ld refused, %ld read with their own values\n", times, n_refused,
                  n_right);
    assert_true(n_refused > times / 3 && n_right > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(is_right_or_refused)};
    return cmocka_run_group_tests(tests, unpack, remove_all);
}
