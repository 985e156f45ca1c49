/* SPDX-License-Identifier: Apache-2.0 */
/* `activation_checkpointing`: what is kept for the backward pass, and where. */
#include "config/option_rows.h"

#define KEPT(field) FIELD(activation_checkpointing.field)

static const dsi_option activation_rows[] = {
    E("recompute", "\"none\"", IN_FORCE,
      "What of each layer is computed again in the backward pass instead of being kept: nothing, "
      "what cheap operators make, all but the layer's input, or the least that fits into memory. "
      "Not a key of DeepSpeed, where the model's code asks for it.",
      .choices = "none|selective|full|auto", WITH(AUTO), KEPT(recompute)),
    I("interval", "1", IN_FORCE,
      "With recompute full: only the input of every n-th layer, n being this number, is kept. Not "
      "a key of "
      "DeepSpeed.",
      MIN(1), KEPT(interval)),
    T("operators", "null", IN_FORCE,
      "With recompute selective: names of the operators that run again, with commas between them; "
      "absent: norms, activations, gates, dropout, rotations and elementwise ones. Not a key of "
      "DeepSpeed.",
      WITH(NULLABLE), KEPT(operators)),
    T("nvme_path", "null", IN_FORCE,
      "Keep activations between the passes on disk, in this folder. Not a key of DeepSpeed.",
      WITH(NULLABLE), KEPT(nvme_path)),
    B("partition_activations", "false", IN_FORCE,
      "Shard kept activations over tensor-parallel ranks; with one rank they are whole.",
      KEPT(partition_activations), WITH(NULLABLE)),
    I("number_checkpoints", "null", IN_FORCE,
      "With recompute full: the number of layer inputs that are kept, instead of interval.", MIN(1),
      WITH(NULLABLE), KEPT(number_checkpoints)),
    B("contiguous_memory_optimization", "false", IN_FORCE,
      "Keep activations in one buffer. Planned memory always is one.",
      KEPT(contiguous_memory_optimization), WITH(NULLABLE)),
    B("cpu_checkpointing", "false", IN_FORCE,
      "Keep activations between the passes in host memory, which on the CPU is apart from device "
      "memory only when device_memory is given.",
      KEPT(cpu_checkpointing), WITH(NULLABLE)),
    B("synchronize_checkpoint_boundary", "false", NO_EFFECT, "Wait for the device at boundaries.",
      NOTE("the CPU has nothing to wait for"), KEPT(synchronize_checkpoint_boundary),
      WITH(NULLABLE)),
    B("profile", "false", NO_EFFECT, "Time each recomputation.",
      NOTE("wall_clock_breakdown times the passes"), KEPT(profile), WITH(NULLABLE)),
};
const dsi_section dsi_section_activation = {
    .path = "activation_checkpointing",
    .doc = "How activations are kept for the backward pass. In DeepSpeed the model asks for "
           "recomputation; here recompute does.",
    DSI_SECTION_ROWS(activation_rows),
};
