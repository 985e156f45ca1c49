/* SPDX-License-Identifier: Apache-2.0 */
/* What a run without a configuration gets. See default_config.h. */
#include "common/default_config.h"

#include "accel/cpu/cpu_features.h"

#include <stdio.h>

enum { ROW_TOKENS = 4096 /* of a rank's micro-step */, MOST_ROWS = 8 /* the Trainer's default */ };

static const char form[] =
    "{\n"
    "  # What ds_train takes without --deepspeed_config, for %u rank%s and rows of %lld tokens on "
    "this\n"
    "  # processor. \"auto\" is filled by ds_train's flags, without them by the defaults of "
    "Hugging\n"
    "  # Face's Trainer. So are optimizer and schedule (--optim, --learning_rate, --weight_decay,\n"
    "  # --lr_scheduler_type, --warmup_steps, ...), which sections of their own would fix here.\n"
    "\n"
    "  # Rows that a rank takes in one forward and backward pass: about %d tokens.\n"
    "  \"train_micro_batch_size_per_gpu\": %s,\n"
    "  # Such passes of an optimizer step: --gradient_accumulation_steps, else 1.\n"
    "  \"gradient_accumulation_steps\": \"auto\",\n"
    "  # Largest norm of the gradients: --max_grad_norm, else 1.\n"
    "  \"gradient_clipping\": \"auto\",\n"
    "  # %s\n"
    "  \"bf16\": {\"enabled\": %s},\n"
    "  # 2: several ranks split the gradients and the optimizer's states; 0: one rank has them "
    "all.\n"
    "  \"zero_optimization\": {\"stage\": %d}\n"
    "}\n";

static int64_t rows_of(int64_t seq_length)
{
    const int64_t rows = seq_length > 0 ? ROW_TOKENS / seq_length : MOST_ROWS;
    return rows < 1 ? 1 : rows > MOST_ROWS ? MOST_ROWS : rows;
}

void default_config_make(default_config *c)
{
    const ds_trainer_values *t = c->trainer;
    const bool fast = (dsi_cpu_isa() & DS_ISA_AVX512_BF16) != 0;
    const bool precision = t->bf16.known || t->fp16.known;
    const int stage = c->n_ranks > 1 ? 2 : 0;
    char rows[32];
    (void)snprintf(rows, sizeof rows, "%lld",
                   t->micro_batch.known ? (long long)t->micro_batch.value
                                        : (long long)rows_of(c->seq_length));
    (void)snprintf(c->text, sizeof c->text, form, c->n_ranks, c->n_ranks == 1 ? "" : "s",
                   (long long)c->seq_length, ROW_TOKENS, t->micro_batch.known ? "\"auto\"" : rows,
                   fast ? "This processor multiplies bf16 fast. false: fp32."
                        : "This processor is no faster in bf16 than in fp32, which false is.",
                   precision ? "\"auto\""
                   : fast    ? "true"
                             : "false",
                   stage);
    (void)snprintf(c->said, sizeof c->said,
                   "no --deepspeed_config: %s, micro-batches of %s row%s, ZeRO stage %d for %u "
                   "rank%s; \"ds_config init\" writes it as a file",
                   precision ? "the precision of the flags"
                   : fast    ? "bf16, fast here"
                             : "fp32",
                   rows, rows[0] == '1' && rows[1] == '\0' ? "" : "s", stage, c->n_ranks,
                   c->n_ranks == 1 ? "" : "s");
}
