/* SPDX-License-Identifier: Apache-2.0 */
/* A model's state saved by N ranks as ZeRO cuts it, whose every value tells its step, tensor and
 * place; for tests that save and load on different numbers of ranks. */
#ifndef DS_TEST_RANK_SAVES_H
#define DS_TEST_RANK_SAVES_H

#include "ckpt/checkpoint_on.h"

typedef struct rank_save {
    const char *dir;
    const char *const *dirs; /* of each rank, instead of dir */
    const char *tag;         /* NULL: global_step{step} */
    uint64_t step;
    int64_t scale;      /* sizes of tensors are multiplied by it; 0: 1 */
    uint32_t fail_rank; /* with fail_at > 0: this rank's data ends after so many reads */
    uint32_t fail_at;   /* … counted from 1 */
    uint32_t keep_last;
    ds_checkpoint_saver *saver; /* NULL: written at once; else behind the caller */
    bool wait_at_fill;          /* sleep in every read, for killers */
} rank_save;

/* Saves on this rank; comm NULL: one rank. */
ds_status rank_save_run(ds_ctx *ctx, dsi_comm *comm, const rank_save *save);
/* Reads what `rank` of `size` would own (size 1: everything) and compares every bit. */
ds_status rank_save_check(ds_ctx *ctx, ds_checkpoint *ckpt, uint64_t step, int64_t scale,
                          uint32_t rank, uint32_t size);

#endif
