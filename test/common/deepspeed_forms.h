/* SPDX-License-Identifier: Apache-2.0 */
/* Save folders of DeepSpeed for Python (test/golden/deepspeed): unpacked, copied and changed, and
 * resumed. Used by test_deepspeed_resume, _names, _damage and _universal. */
#ifndef DS_TEST_COMMON_DEEPSPEED_FORMS_H
#define DS_TEST_COMMON_DEEPSPEED_FORMS_H

#include <deepspeed/status.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Unpacks NAME.tar.gz of each of a list that ends with NULL into a folder, whose path it gives;
 * scratch_remove takes it. */
char *forms_unpack(const char *const *forms);
/* DIR becomes a copy of a form. */
void forms_copy(const char *folder, const char *form, const char *dir);
/* The text at its first place in a file, with as many other bytes. */
void forms_replace(const char *path, const char *from, const char *to, size_t length);
void forms_fail_to_open(ds_ctx *ctx, const char *dir, ds_status status, const char *text);

/* A form resumed on so many ranks at a stage: the largest relative difference of its next five
 * losses from those of DeepSpeed's own continuation (losses.json). The model is by the form's
 * name. */
double forms_resume(const char *folder, const char *form, uint32_t n_ranks, int stage);

/* Two folders hold the same tensors, bit for bit, and the same counters; groups: and the same
 * parameter_groups. */
void forms_compare(ds_ctx *ctx, const char *folder, const char *a, const char *b, bool groups);

/* A number below n of a sequence. */
uint32_t forms_draw(uint64_t *seed, uint32_t n);

#endif
